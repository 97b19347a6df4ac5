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

mod support;
#[path = "support/text_corpus.rs"]
mod text_corpus;
#[path = "support/text_vocab.rs"]
mod text_vocab;
#[path = "support/vocabularies.rs"]
mod vocabularies;

use support::{gguf, scratch};

/// SmolLM2-135M (Q4_1, as its package ships it) against the float64 references: logits, greedy text, ids of the oracle's strings;
/// one hash over threads, chunks and tiers.
mod smollm2 {
    use std::path::PathBuf;

    use waste::compile::CompileOptions;
    use waste::formats::ModelFiles;
    use waste::text::TokenizerSpec;

    use super::support::{Fixture, Prompt, Run, f32s, greedy, hash, rel_l2, run, tiers};

    #[derive(serde::Deserialize)]
    struct Rows {
        prompts: Vec<RowsOf>,
    }

    #[derive(serde::Deserialize)]
    struct RowsOf {
        rows: Vec<usize>,
    }

    fn fixture() -> (Fixture, Vec<Vec<usize>>) {
        let model =
            PathBuf::from(std::env::var_os("WASTE_TEST_SMOLLM2").expect("WASTE_TEST_SMOLLM2 names the GGUF"));
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/smollm2");
        let oracle = std::fs::read(folder.join("oracle.json")).unwrap();
        let rows: Rows = serde_json::from_slice(&oracle).unwrap();
        let bytes = std::fs::read(folder.join("oracle_rows.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let logits = (0..2).map(|i| f32s(tensors.tensor(&format!("logits.{i}")).unwrap().data())).collect();
        let oracle: serde_json::Value = serde_json::from_slice(&oracle).unwrap();
        let prompts: Vec<Prompt> = serde_json::from_value(oracle["prompts"].clone()).unwrap();
        let files = ModelFiles::open(&model, None).unwrap();
        (
            Fixture { folder, files, prompts, logits, scratch: None },
            rows.prompts.into_iter().map(|it| it.rows).collect(),
        )
    }

    #[test]
    fn logits_and_greedy_text_equal_the_references() {
        let (fixture, rows) = fixture();
        let loaded = fixture.compile(&CompileOptions {
            ctx: Some(64),
            chunk: Some(32),
            want: Some(32),
            ..CompileOptions::usual()
        });
        for (i, prompt) in fixture.prompts.iter().enumerate() {
            let all = run(&loaded, &Run { threads: 2, ..Run::default() }, &[&prompt.ids]).remove(0);
            let vocab = all.len() / prompt.ids.len();
            let found: Vec<f32> =
                rows[i].iter().flat_map(|row| &all[row * vocab..(row + 1) * vocab]).copied().collect();
            let error = rel_l2(&found, &fixture.logits[i]);
            assert!(error <= 1e-5, "prompt {i}: relative L2 {error:.2e}");
            let sure = prompt.gaps.iter().take_while(|gap| **gap > 1e-3).count().min(prompt.greedy.len());
            assert_eq!(greedy(&loaded, &prompt.ids, sure), prompt.greedy[..sure], "prompt {i}");
        }
    }

    #[test]
    fn one_hash_over_threads_chunks_and_tiers() {
        let (fixture, _) = fixture();
        let ids = &fixture.prompts[0].ids;
        let mut hashes = std::collections::BTreeSet::new();
        for chunk in [1, 7, 64] {
            let options = CompileOptions {
                ctx: Some(64),
                chunk: Some(chunk),
                want: Some(chunk),
                ..CompileOptions::usual()
            };
            let loaded = fixture.compile(&options);
            for threads in [1, 2, 3] {
                for (_, cpu) in tiers() {
                    hashes.insert(hash(&run(&loaded, &Run { threads, cpu, ..Run::default() }, &[ids])[0]));
                }
            }
        }
        assert_eq!(hashes.len(), 1);
    }

    #[test]
    fn gguf_and_tokenizer_json_agree_on_a_mixed_corpus() {
        let gguf = TokenizerSpec::from_model(&fixture().0.files).unwrap().unwrap();
        let json = include_bytes!("data/smollm2/tokenizer.json");
        let json = TokenizerSpec::from_tokenizer_json("tokenizer.json", json).unwrap();
        super::text_vocab::assert_agree(&gguf.build().unwrap(), &json.build().unwrap());
    }

    /// Its own template, and what it answers: a question, then another that only the first explains.
    #[test]
    fn it_holds_a_conversation_in_its_own_template() {
        use waste::chat::{Chat, TurnOptions};
        use waste::generate::{Rules, StopReason};
        use waste::text::SamplerOptions;

        let options = CompileOptions { ctx: Some(256), ..CompileOptions::usual() };
        let loaded = fixture().0.compile(&options);
        let spec = TokenizerSpec::from_section(loaded.text()).unwrap();
        let template = spec.chat_template().unwrap().clone();
        assert_eq!(template.source(), include_str!("data/chat/chatml.jinja"));
        let session = super::support::session(&loaded, &Run { threads: 2, ..Run::default() });
        let mut chat =
            Chat::new(session, spec.build().unwrap(), template, None, waste::text::Zoned::default(), 0);
        let options = TurnOptions {
            budget: Some(60),
            sampling: SamplerOptions::GREEDY,
            rules: Rules { stop_ids: vec![2], ..Rules::default() },
            stops: Vec::new(),
        };
        let mut ask =
            |text: &str| chat.turn(text, &options, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        let first = ask("What is the capital of France?");
        assert!(first.text.contains("Paris"), "{}", first.text);
        assert_eq!(first.stop, StopReason::StopId(2));
        let read = first.prompt_tokens + first.generation.rows[0].ids.len();
        let second = ask("And of Italy?");
        assert!(second.text.contains("Rome"), "{}", second.text);
        assert_eq!(second.kept_tokens, read);
    }

    #[test]
    fn the_ggufs_tokenizer_gives_the_oracles_ids() {
        let (fixture, _) = fixture();
        let tokenizer = TokenizerSpec::from_model(&fixture.files).unwrap().unwrap().build().unwrap();
        let oracle: serde_json::Value =
            serde_json::from_str(include_str!("data/smollm2/tokenizer_oracle.json")).unwrap();
        let cases = oracle.as_array().or_else(|| oracle["cases"].as_array()).unwrap();
        assert!(cases.len() >= 29);
        for case in cases {
            let want: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            let text = case["text"].as_str().unwrap();
            assert_eq!(tokenizer.encode_with_specials(text).unwrap(), want, "{text:?}");
        }
    }
}
