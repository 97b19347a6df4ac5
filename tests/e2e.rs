//! Whole road: files → plan → session, against float64 references, and the same bits however it runs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::{Fixture, Run, greedy, hash, rel_l2, run, tiers};
use waste::compile::CompileOptions;
use waste_plan::Math;

/// Random models with float64 references.
const FIXTURES: [&str; 5] = [
    "gpt2-rand-f32",
    "llama-rand-gqa-untied-f32",
    "llama-rand-gqa-tied-bf16",
    "llama-rand-llama3rope-f16",
    "kimi-rand-bf16",
];

fn options(chunk: u32, batch: u32) -> CompileOptions {
    CompileOptions { batch, chunk: Some(chunk), want: Some(chunk), ..CompileOptions::usual() }
}

#[test]
fn logits_agree_with_the_float64_references() {
    for name in FIXTURES {
        let fixture = Fixture::open(name);
        let loaded = fixture.compile(&options(64, 1));
        for (index, prompt) in fixture.prompts.iter().enumerate() {
            let logits = run(&loaded, &Run::default(), &[&prompt.ids]).remove(0);
            let error = rel_l2(&logits, &fixture.logits[index]);
            assert!(error <= 1e-5, "{name} prompt {index}: relative L2 {error:.2e}");
        }
    }
}

#[test]
fn greedy_continuations_equal_the_references() {
    for name in FIXTURES {
        let fixture = Fixture::open(name);
        let loaded = fixture.compile(&options(16, 1));
        for (index, prompt) in fixture.prompts.iter().enumerate() {
            let sure = prompt.gaps.iter().take_while(|gap| **gap > 1e-4).count();
            let found = greedy(&loaded, &prompt.ids, sure);
            assert_eq!(found, prompt.greedy[..sure], "{name} prompt {index}");
            assert!(sure > 8, "{name} prompt {index}: only {sure} sure tokens");
        }
    }
}

/// One hash over threads × chunk × alone or in a ragged batch × tiers.
#[test]
fn the_same_bits_however_it_runs() {
    let models = FIXTURES.map(|name| (name, Fixture::open(name)));
    // Only matrices of integers have kernels for AMX.
    let integers = ("integer weights", Fixture::quantised("llama-rand-gqa-untied-f32"));
    for (name, fixture) in models.into_iter().chain([integers]) {
        let prompts: Vec<&[u32]> = fixture.prompts.iter().map(|it| &it.ids[..]).collect();
        let alone: Vec<String> = {
            let loaded = fixture.compile(&options(64, 1));
            let logits = |ids: &&[u32]| run(&loaded, &Run::default(), &[ids]).remove(0);
            prompts.iter().map(|ids| hash(&logits(ids))).collect()
        };
        for (chunk, batch) in [(1, 1), (7, 3), (64, 3), (256, 3)] {
            let loaded = fixture.compile(&options(chunk, batch));
            for (tier, cpu) in tiers() {
                for threads in [1, 2, 3] {
                    let how = Run { threads, cpu, ..Run::default() };
                    let found: Vec<String> = if batch == 1 {
                        prompts.iter().map(|ids| hash(&run(&loaded, &how, &[ids])[0])).collect()
                    } else {
                        run(&loaded, &how, &prompts).iter().map(|it| hash(it)).collect()
                    };
                    assert_eq!(
                        found, alone,
                        "{name}: chunk {chunk}, batch {batch}, {threads} threads, {tier}"
                    );
                }
            }
        }
    }
}

/// Decode has the bits of prefill: the program for single tokens gives what a chunk gives.
#[test]
fn decode_has_the_bits_of_prefill() {
    for name in FIXTURES {
        let fixture = Fixture::open(name);
        let loaded = fixture.compile(&options(64, 1));
        let ids = &fixture.prompts.last().unwrap().ids;
        let whole = run(&loaded, &Run::default(), &[ids]).remove(0);
        let one_by_one = run(&loaded, &Run { step: 1, ..Run::default() }, &[ids]).remove(0);
        assert_eq!(hash(&whole), hash(&one_by_one), "{name}");
    }
}

/// Every subset of the optional passes gives the same tokens, on integer weights too.
#[test]
fn every_subset_of_passes_gives_the_same_tokens() {
    let optional = ["canonicalize", "cse", "dce", "fuse-glu", "merge-linears", "fuse-epilogue", "fuse-quant"];
    for (name, quantised) in [("gpt2-rand-f32", false), ("llama-rand-gqa-untied-f32", true)] {
        let fixture = if quantised { Fixture::quantised(name) } else { Fixture::open(name) };
        let ids = &fixture.prompts.last().unwrap().ids;
        let mut expected: Option<Vec<u32>> = None;
        for subset in 0u32..1 << optional.len() {
            let only = optional.iter().enumerate().filter(|(i, _)| subset & 1 << i != 0);
            let only: Vec<String> = only.map(|(_, it)| (*it).to_owned()).collect();
            let loaded = fixture.compile(&CompileOptions { only: Some(only.clone()), ..options(16, 1) });
            let found = greedy(&loaded, ids, 6);
            assert_eq!(&found, expected.get_or_insert_with(|| found.clone()), "{name} with passes {only:?}");
        }
    }
}

/// Fixed-point modes keep their stated distance from the reference on integer weights.
#[test]
fn modes_keep_their_stated_error() {
    let fixture = Fixture::quantised("llama-rand-gqa-untied-f32");
    let ids = &fixture.prompts.last().unwrap().ids;
    let reference = fixture.evaluate(ids);
    for (math, bound) in
        [(Math::Fixed24, 1e-5), (Math::F32, 1e-5), (Math::Fixed16, 5e-4), (Math::Fixed8, 5e-2)]
    {
        let loaded = fixture.compile(&CompileOptions { math, ..options(64, 1) });
        let logits = run(&loaded, &Run::default(), &[ids]).remove(0);
        let error = rel_l2(&logits, &reference);
        assert!(error <= bound, "{}: relative L2 {error:.2e}", math.name());
    }
}
