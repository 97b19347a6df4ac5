//! A step is all or nothing: what fails or is cancelled leaves the accepted history, and a retry succeeds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::atomic::Ordering;

use support::{Fixture, Run, hash, run, session};
use waste::compile::CompileOptions;
use waste_runtime::{RuntimeError, Token};

fn tokens(ids: &[u32]) -> Vec<Token> {
    ids.iter().map(|id| Token { row: 0, id: *id }).collect()
}

#[test]
fn a_cancelled_step_leaves_the_history_and_a_retry_has_the_same_bits() {
    let fixture = Fixture::open("llama-rand-gqa-untied-f32");
    let options =
        CompileOptions { ctx: Some(96), chunk: Some(16), want: Some(16), ..CompileOptions::usual() };
    let loaded = fixture.compile(&options);
    let ids = &fixture.prompts.last().unwrap().ids[..12];
    let whole = run(&loaded, &Run::default(), &[ids]).remove(0);
    let vocab = whole.len() / ids.len();
    for threads in [1, 2, 3] {
        let mut session = session(&loaded, &Run { threads, ..Run::default() });
        session.step(&tokens(&ids[..5]), &[]).unwrap();
        session.cancel_flag().store(true, Ordering::Relaxed);
        let res = session.step(&tokens(&ids[5..]), &[6]);
        assert!(matches!(res, Err(RuntimeError::Cancelled)), "{res:?}");
        assert_eq!(session.len(0), 5);
        session.step(&tokens(&ids[5..]), &[6]).unwrap();
        assert_eq!(session.len(0), 12);
        assert_eq!(hash(session.logits(0)), hash(&whole[11 * vocab..]));
        let counters = session.counters();
        assert_eq!((counters.forwards_scheduled, counters.forwards_useful), (3, 2));
    }
}

#[test]
fn a_batch_that_does_not_fit_is_refused_before_it_runs() {
    let fixture = Fixture::open("llama-rand-gqa-untied-f32");
    let options = CompileOptions { ctx: Some(40), chunk: Some(16), batch: 2, ..CompileOptions::usual() };
    let loaded = fixture.compile(&options);
    let mut session = session(&loaded, &Run::default());
    let token = |row, id| Token { row, id };
    let cases: [(Vec<Token>, &str); 6] = [
        (vec![], "empty"),
        (vec![token(2, 0)], "row 2"),
        (vec![token(0, 272)], "token 272"),
        (vec![token(0, 1), token(1, 1), token(0, 1)], "contiguous"),
        ((0..17).map(|it| token(0, it)).collect(), "17 tokens"),
        (vec![token(1, 9), token(1, u32::MAX)], "token 4294967295"),
    ];
    for (batch, expected) in cases {
        let error = session.step(&batch, &[]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} should contain {expected:?}");
    }
    assert!(session.step(&[token(0, 1)], &[1]).is_err(), "a wanted row past the batch");
    for _ in 0..2 {
        session.step(&(0..16).map(|it| token(0, it)).collect::<Vec<_>>(), &[]).unwrap();
    }
    let error =
        session.step(&(0..9).map(|it| token(0, it)).collect::<Vec<_>>(), &[]).unwrap_err().to_string();
    assert!(error.contains("32 tokens of 40"), "{error}");
    assert_eq!((session.len(0), session.len(1)), (32, 0));
}
