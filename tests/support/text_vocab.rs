//! The vocabulary of a tokenizer.json as a GGUF carries it.

#![allow(dead_code, reason = "each test crate uses a part")]

use serde_json::Value;

use super::gguf::Gguf;
use super::scratch::Scratch;
use super::text_corpus;
use waste::formats::ModelFiles;
use waste::text::{Tokenizer, TokenizerSpec};

/// The GGUF of the tokenizer.json `json`, whose pre-tokeniser GGUFs call `pre`.
pub(crate) fn gguf_of(json: &Value, pre: &str) -> Gguf {
    let id_of = |it: &Value| usize::try_from(it.as_u64().unwrap()).unwrap();
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let added = json["added_tokens"].as_array().unwrap();
    let last = vocab.values().chain(added.iter().map(|it| &it["id"])).map(id_of).max().unwrap();
    // What no token has is a reserved place, of type 5.
    let mut tokens = vec![String::new(); last + 1];
    let mut types = vec![5; last + 1];
    for (text, id) in vocab {
        tokens[id_of(id)].clone_from(text);
        types[id_of(id)] = 1;
    }
    for token in added {
        let text = token["content"].as_str().unwrap();
        let is_control = token["special"] == true || ["<|", "<｜"].iter().any(|it| text.starts_with(it));
        tokens[id_of(&token["id"])] = text.to_owned();
        types[id_of(&token["id"])] = if is_control { 3 } else { 4 };
    }
    let line = |it: &Value| match it {
        Value::String(line) => line.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    };
    let merges: Vec<String> = json["model"]["merges"].as_array().unwrap().iter().map(line).collect();
    Gguf::new()
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", pre)
        .strs("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &types)
        .strs("tokenizer.ggml.merges", &merges)
        .bool("tokenizer.ggml.add_bos_token", false)
}

/// The tokenizer in `gguf`.
pub(crate) fn tokenizer_of(name: &str, gguf: &Gguf) -> Tokenizer {
    let dir = Scratch::new(name);
    let files = ModelFiles::open(&dir.write("m.gguf", gguf.bytes()), None).unwrap();
    TokenizerSpec::from_model(&files).unwrap().unwrap().build().unwrap()
}

/// Both give the same ids for every line of the corpus, with control tokens recognised and without.
pub(crate) fn assert_agree(a: &Tokenizer, b: &Tokenizer) {
    let mut ids = 0;
    for line in text_corpus::lines() {
        let (left, right) = (a.encode_with_specials(&line).unwrap(), b.encode_with_specials(&line).unwrap());
        assert_eq!(left, right, "{line:?}");
        assert_eq!(a.encode_bare(&line).unwrap(), b.encode_bare(&line).unwrap(), "{line:?}");
        ids += left.len();
    }
    assert!(ids > 10 * text_corpus::LINES, "{ids} ids: the corpus is not what it was");
}
