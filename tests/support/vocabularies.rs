//! Fetched vocabularies against their references, and the chat templates that came with them.

use std::path::PathBuf;

use serde_json::Value;
use waste::text::{ChatInput, ChatTemplate, TextStart, Tokenizer, TokenizerSpec, Zoned};

use super::text_vocab::{assert_agree, gguf_of, tokenizer_of};

/// The file `name` of the fetched package in folder `package`.
fn read(package: &str, name: &str) -> Vec<u8> {
    let root =
        std::env::var_os("WASTE_TEST_VOCABULARIES").expect("WASTE_TEST_VOCABULARIES names their folder");
    let path = PathBuf::from(root).join(package).join("package").join(name);
    std::fs::read(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

fn spec(package: &str) -> TokenizerSpec {
    TokenizerSpec::from_tokenizer_json(package, &read(package, "models/tokenizer.json")).unwrap()
}

/// Every text of `oracle` has its ids, special tokens recognised.
fn assert_oracle(tokenizer: &Tokenizer, oracle: &str) {
    let oracle: Value = serde_json::from_str(oracle).unwrap();
    let cases = oracle["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 39);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let want: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode_with_specials(text).unwrap(), want, "{text:?}");
        let ids = tokenizer.encode_bare(text).unwrap();
        assert!(ids.iter().all(|it| tokenizer.control_text(*it).is_none()), "{text:?}");
    }
}

macro_rules! oracle {
    ($name:literal) => {
        include_str!(concat!("../data/tokenizers/", $name, ".json"))
    };
}

#[test]
fn llama2s_vocabulary_gives_the_oracles_ids() {
    assert_oracle(&spec("llama2").build().unwrap(), oracle!("hf-llama2"));
}

#[test]
fn llama3s_vocabulary_gives_the_oracles_ids() {
    assert_oracle(&spec("llama3").build().unwrap(), oracle!("hf-llama3"));
}

#[test]
fn qwen3s_vocabulary_gives_the_oracles_ids() {
    assert_oracle(&spec("qwen3").build().unwrap(), oracle!("hf-qwen3"));
}

#[test]
fn deepseeks_vocabulary_gives_the_oracles_ids() {
    assert_oracle(&spec("deepseek_v3").build().unwrap(), oracle!("hf-deepseek_v3"));
}

/// tiktoken's own encodings; the control tokens are those of its openai_public.py.
#[test]
fn rank_files_give_tiktokens_ids() {
    let cl100k: &[(u32, &str)] = &[
        (100_257, "<|endoftext|>"),
        (100_258, "<|fim_prefix|>"),
        (100_259, "<|fim_middle|>"),
        (100_260, "<|fim_suffix|>"),
        (100_276, "<|endofprompt|>"),
    ];
    for (name, pre, controls, oracle) in [
        ("r50k_base", "gpt-2", &[(50_256, "<|endoftext|>")][..], oracle!("tiktoken-r50k_base")),
        ("cl100k_base", "llama-bpe", cl100k, oracle!("tiktoken-cl100k_base")),
        (
            "o200k_base",
            "gpt-4o",
            &[(199_999, "<|endoftext|>"), (200_018, "<|endofprompt|>")],
            oracle!("tiktoken-o200k_base"),
        ),
    ] {
        let ranks = read("gpt-tokenizer", &format!("data/{name}.tiktoken"));
        let spec = TokenizerSpec::from_rank_file(name, &ranks, pre, controls).unwrap();
        let tokenizer = spec.build().unwrap();
        assert_oracle(&tokenizer, oracle);
        let text = "naïve 😀\n\n  漢字 x";
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&ids, TextStart::Document), text);
    }
}

/// What a GGUF would carry of each, under the pre-tokeniser's name alone.
#[test]
fn gguf_and_tokenizer_json_agree_on_a_mixed_corpus() {
    for (package, pre) in [("llama3", "llama-bpe"), ("qwen3", "qwen2"), ("deepseek_v3", "deepseek-v3")] {
        let json: Value = serde_json::from_slice(&read(package, "models/tokenizer.json")).unwrap();
        let gguf = tokenizer_of(&format!("vocab-{package}"), &gguf_of(&json, pre));
        assert_agree(&spec(package).build().unwrap(), &gguf);
    }
}

/// The references are what Jinja2 3.1.6 makes of them, in the environment of transformers.
#[test]
fn the_templates_of_real_models_render_as_jinja2_does() {
    #[derive(serde::Deserialize)]
    struct Case {
        name: String,
        input: Box<serde_json::value::RawValue>,
        text: String,
    }
    let all: std::collections::BTreeMap<String, Vec<Case>> =
        serde_json::from_str(include_str!("../data/chat/downloaded.json")).unwrap();
    let mut count = 0;
    for (package, cases) in all {
        let config: Value = serde_json::from_slice(&read(&package, "models/tokenizer_config.json")).unwrap();
        let word = |name: &str| {
            let text = config[name].as_str().or_else(|| config[name]["content"].as_str())?;
            Some((name.to_owned(), text.to_owned()))
        };
        let words = ["bos_token", "eos_token"].into_iter().filter_map(word).collect();
        let source = config["chat_template"].as_str().unwrap().to_owned();
        let template = ChatTemplate::new(&package, source, words).unwrap();
        let tokenizer = spec(&package).build().unwrap();
        for case in cases {
            let input = ChatInput::from_json("case", case.input.get().as_bytes(), &Zoned::default()).unwrap();
            let rendered = template.render(&input, &tokenizer).unwrap();
            assert_eq!(rendered.text(), case.text, "{package}: {}", case.name);
            count += 1;
        }
        let ends = ["<|eot_id|>", "<|im_end|>", "<｜end▁of▁sentence｜>"];
        let end = template.turn_end(&tokenizer.control_texts()).unwrap();
        assert!(ends.contains(&end.unwrap()), "{package}");
    }
    assert_eq!(count, 15);
}
