//! tokenizer.json: what is read, and what is refused by name.

use super::scratch::Scratch;
use waste::formats::ModelFiles;
use waste::text::{TextStart, TokenizerSpec, stop_ids};

/// A tiny byte-level tokenizer.json with `post` as its post-processor.
pub(crate) fn small(post: &str) -> String {
    format!(
        r#"{{"version":"1.0","truncation":{{"max_length":2,"strategy":"LongestFirst","stride":0,"direction":"Right"}},"padding":null,
        "added_tokens":[{{"id":7,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}},
                        {{"id":8,"content":"</s>","special":true}},
                        {{"id":9,"content":"<think>","special":false}}],
        "normalizer":null,
        "pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}},
        "post_processor":{post},
        "decoder":{{"type":"ByteLevel"}},
        "model":{{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":"","end_of_word_suffix":"","fuse_unk":false,
                 "vocab":{{"a":0,"b":1,"c":2,"Ġ":3,"ab":4,"abc":5,"<":6}},"merges":["a b",["ab","c"]]}}}}"#
    )
}

const TEMPLATE: &str = r#"{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"</s>","type_id":0}}],"pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[7],"tokens":["<s>"]},"</s>":{"id":"</s>","ids":[8],"tokens":["</s>"]}}}"#;

fn read(json: &str) -> Result<TokenizerSpec, String> {
    TokenizerSpec::from_tokenizer_json("tokenizer.json", json.as_bytes()).map_err(|err| err.to_string())
}

#[test]
fn bos_has_one_owner() {
    let plain = read(&small("null")).unwrap().build().unwrap();
    assert_eq!(plain.encode("abcab").unwrap(), [5, 4]);
    for post in [
        TEMPLATE.to_owned(),
        format!(
            r#"{{"type":"Sequence","processors":[{{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true}},{TEMPLATE}]}}"#
        ),
    ] {
        let spec = read(&small(&post)).unwrap();
        assert_eq!(spec.bos(), Some(7));
        let tokenizer = spec.build().unwrap();
        assert_eq!(tokenizer.encode("abcab").unwrap(), [7, 5, 4, 8]);
        assert_eq!(tokenizer.encode("").unwrap(), [7, 8]);
        assert_eq!(tokenizer.encode_bare("abcab").unwrap(), [5, 4]);
        assert_eq!(tokenizer.encode_with_specials("<s>abc</s>").unwrap(), [7, 5, 8]);
    }
}

#[test]
fn added_text_tokens_are_text_and_control_tokens_are_not() {
    let tokenizer = read(&small("null")).unwrap().build().unwrap();
    let ids = tokenizer.encode("ab<think>c").unwrap();
    assert_eq!(ids, [4, 9, 2]);
    assert_eq!(tokenizer.decode(&ids, TextStart::Document), "ab<think>c");
    assert_eq!(tokenizer.encode("<s>").unwrap(), [6], "as characters, of which this vocabulary has one");
    assert_eq!(tokenizer.decode(&[7, 4, 8], TextStart::Document), "ab", "control tokens are not printed");
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let with = |from: &str, to: &str| {
        let json = small("null");
        assert!(json.contains(from), "{from}");
        read(&json.replacen(from, to, 1)).unwrap_err()
    };
    for (from, to, want) in [
        (r#""type":"BPE""#, r#""type":"Unigram""#, "tokenizer model 'Unigram' is not supported"),
        (r#""dropout":null"#, r#""dropout":0.1"#, "'dropout'"),
        (r#"prefix":"""#, r###"prefix":"##""###, "'continuing_subword_prefix'"),
        (r#""decoder":{"type":"ByteLevel"}"#, r#""decoder":{"type":"WordPiece"}"#, "decoder 'WordPiece'"),
        (r#""decoder":{"type":"ByteLevel"}"#, r#""decoder":null"#, "decoder '(none)'"),
        (r#""normalizer":null"#, r#""normalizer":{"type":"Precompiled"}"#, "normalizer 'Precompiled'"),
        (
            r#"{"type":"ByteLevel","add"#,
            r#"{"type":"BertPreTokenizer","add"#,
            "pre-tokenizer 'BertPreTokenizer'",
        ),
        (
            r#""post_processor":null"#,
            r#""post_processor":{"type":"BertProcessing"}"#,
            "post-processor 'BertProcessing'",
        ),
        (r#""a b""#, r#""a x""#, "merge 0 needs 'x'"),
        (r#""a b""#, r#""a""#, "is not two tokens"),
        (r#""ab":4"#, r#""ab":3"#, "the same id 3"),
        (r#""id":9"#, r#""id":4194304"#, "token id 4194304 is not below"),
        (r#""id":9"#, r#""id":4294967295"#, "token id 4294967295 is not below"),
        (r#""a":0"#, r#""a":-1"#, "not a tokenizer"),
        (r#""vocab""#, r#""words""#, "missing field"),
    ] {
        let err = with(from, to);
        assert!(
            err.contains("tokenizer.json: ") && err.contains(want) && !err.contains('\n'),
            "{want}: {err}"
        );
    }
    assert!(read(&"[".repeat(100_000)).unwrap_err().contains("tokenizer.json"));
}

/// Writes a folder that counts as a model, as far as text is concerned.
fn folder(dir: &Scratch, config: &str, generation: Option<&str>) -> ModelFiles {
    let table = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let len = (table.len() as u64).to_le_bytes();
    dir.write("model.safetensors", [&len, table.as_bytes(), &[0; 4]].concat());
    dir.write("config.json", config);
    if let Some(text) = generation {
        dir.write("generation_config.json", text);
    }
    ModelFiles::open(dir.path(), None).unwrap()
}

#[test]
fn stop_ids_are_the_union_below_the_vocabulary() {
    let dir = Scratch::new("text-stops");
    let files =
        folder(&dir, r#"{"eos_token_id": 8, "bos_token_id": 7}"#, Some(r#"{"eos_token_id": [4, 8, 99]}"#));
    assert!(TokenizerSpec::from_model(&files).unwrap().is_none(), "no tokenizer here yet");
    assert_eq!(stop_ids(&files, 100).unwrap(), [4, 8, 99]);
    assert_eq!(stop_ids(&files, 8).unwrap(), [4]);
    dir.write("tokenizer.json", small("null"));
    let spec = TokenizerSpec::from_model(&files).unwrap().unwrap();
    assert_eq!(spec.stop_ids(), [4, 8]);
    assert_eq!(spec.bos(), Some(7));
    assert_eq!(
        spec.build().unwrap().encode("abc").unwrap(),
        [5],
        "config.json's bos_token_id is not put in front"
    );
    dir.write("config.json", r#"{"eos_token_id": "x"}"#);
    let err =
        TokenizerSpec::from_model(&ModelFiles::open(dir.path(), None).unwrap()).unwrap_err().to_string();
    assert!(err.contains("key 'eos_token_id'"), "{err}");
}

#[test]
fn gpt2s_pair_of_files_is_read() {
    let dir = Scratch::new("text-pair");
    let files = folder(&dir, "{}", None);
    dir.write("vocab.json", r#"{"a":0,"b":1,"ab":2,"Ġ":3,"<|endoftext|>":4}"#);
    dir.write("merges.txt", "#version: 0.2\na b\n");
    let tokenizer = TokenizerSpec::from_model(&files).unwrap().unwrap().build().unwrap();
    assert_eq!(tokenizer.encode("ab ab").unwrap(), [2, 3, 2]);
    assert_eq!(tokenizer.encode_with_specials("<|endoftext|>ab").unwrap(), [4, 2]);
    dir.write("merges.txt", "a b c\n");
    let err = TokenizerSpec::from_model(&files).unwrap_err().to_string();
    assert!(err.contains("vocab.json: merge 'a b c' is not two tokens"), "{err}");
}
