//! Tests on files that are fetched, not shipped: only with `--features slow-tests`, which promises that
//! they are there. An absent file is a failure.

#![cfg(feature = "slow-tests")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;

use waste::text::{TextStart, TokenizerSpec};

/// The folder that the variable `name` points to.
fn folder(name: &str) -> PathBuf {
    let value = std::env::var_os(name);
    let path =
        PathBuf::from(value.unwrap_or_else(|| panic!("{name} must name the folder of the fetched files")));
    assert!(path.is_dir(), "{name}={} is no folder", path.display());
    path
}

/// GPT-2's own encoder.json and vocab.bpe give the ids of the oracle.
#[test]
fn gpt2s_vocabulary_gives_the_oracles_ids() {
    let folder = folder("WASTE_TEST_GPT2_VOCAB");
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap_or_else(|err| panic!("{name}: {err}"));
    let (vocab, merges) = (read("encoder.json"), read("vocab.bpe"));
    let spec =
        TokenizerSpec::from_vocab_and_merges("encoder.json", &vocab, &merges, &["<|endoftext|>"]).unwrap();
    assert_eq!(spec.n_ids(), 50257);
    let tokenizer = spec.build().unwrap();
    let oracle: serde_json::Value = serde_json::from_str(include_str!("data/gpt2_oracle.json")).unwrap();
    let cases = oracle["cases"].as_array().unwrap();
    assert!(cases.len() >= 39);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let want: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode_with_specials(text).unwrap(), want, "{text:?}");
        let ids = tokenizer.encode_bare(text).unwrap();
        assert_eq!(tokenizer.decode(&ids, TextStart::Document), text);
    }
}
