//! Tokenizers inside GGUFs.

use super::gguf::Gguf;
use super::scratch::Scratch;
use super::text_vocab::{assert_agree, gguf_of};
use super::{SMOLLM2, oracle, smollm2_spec};
use waste::formats::ModelFiles;
use waste::text::{TextStart, Tokenizer, TokenizerSpec};

fn spec(name: &str, gguf: &Gguf) -> Result<TokenizerSpec, String> {
    let dir = Scratch::new(name);
    let files = ModelFiles::open(&dir.write("m.gguf", gguf.bytes()), None).unwrap();
    TokenizerSpec::from_model(&files).map(|it| it.unwrap()).map_err(|err| err.to_string())
}

fn build(name: &str, gguf: &Gguf) -> Tokenizer {
    spec(name, gguf).unwrap().build().unwrap()
}

/// SmolLM2's vocabulary as its GGUF carries it.
fn smollm2() -> Gguf {
    gguf_of(&serde_json::from_str(SMOLLM2).unwrap(), "smollm")
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
}

#[test]
fn gguf_and_tokenizer_json_agree_on_a_mixed_corpus() {
    let gguf = build("gguf-corpus", &smollm2());
    assert_agree(&smollm2_spec().build().unwrap(), &gguf);
}

#[test]
fn smollm2_from_its_gguf_gives_the_same_ids() {
    let tokenizer = build("gguf-smollm2", &smollm2());
    for (text, want) in oracle() {
        assert_eq!(tokenizer.encode_with_specials(&text).unwrap(), want, "{text:?}");
    }
    assert_eq!((tokenizer.bos(), tokenizer.stop_ids()), (Some(1), &[2][..]));
    assert_eq!(tokenizer.encode("Hello world").unwrap(), [19556, 905], "no BOS, as the file says");
}

/// A byte-level vocabulary of all bytes, a few merges, and the pre-tokeniser `pre`.
fn byte_level(pre: &str) -> Gguf {
    let alphabet: Vec<char> = (0..0x144)
        .filter_map(char::from_u32)
        .filter(|c| matches!(u32::from(*c), 0x21..=0x7e | 0xa1..=0xac | 0xae..))
        .collect();
    let mut tokens: Vec<String> = alphabet.iter().map(char::to_string).collect();
    let merges = ["1 2", "12 3", "1 1", "a b", "Ġ a", "ĠĠ Ġ", "Ġ Ġ", "' S", "! Ċ"];
    tokens.extend(merges.map(|it| it.replace(' ', "")));
    tokens.push("<|bos|>".to_owned());
    let n = tokens.len();
    let types: Vec<i32> = (0..n).map(|id| if id + 1 == n { 3 } else { 1 }).collect();
    Gguf::new()
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", pre)
        .strs("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &types)
        .strs("tokenizer.ggml.merges", &merges)
        .u32("tokenizer.ggml.bos_token_id", u32::try_from(n - 1).unwrap())
}

#[test]
fn each_named_pre_tokeniser_splits_in_its_own_way() {
    let texts = ["1123", "ab'S", "   ab", "!\n", "½²12"];
    let pieces = |pre: &str| -> Vec<String> {
        let tokenizer = build(&format!("gguf-pre-{pre}"), &byte_level(pre));
        let show = |text: &str| {
            let ids = tokenizer.encode_bare(text).unwrap();
            assert_eq!(tokenizer.decode(&ids, TextStart::Document), text);
            let parts = ids.iter().map(|id| String::from_utf8_lossy(tokenizer.bytes_of(*id)).into_owned());
            parts.collect::<Vec<_>>().join("|")
        };
        texts.map(show).to_vec()
    };
    // ½ and ² are two bytes each, of which this vocabulary has no merges.
    let half = "\u{fffd}|\u{fffd}|\u{fffd}|\u{fffd}|";
    let with = |pre: &str, [number, quote, mark, last]: [&str; 4]| {
        assert_eq!(pieces(pre), [number, quote, "  | |ab", mark, &format!("{half}{last}")], "{pre}");
    };
    with("gpt-2", ["1|123", "ab|'|S", "!|\n", "12"]);
    with("smollm", ["1|1|2|3", "ab|'|S", "!|\n", "1|2"]);
    with("llama-bpe", ["1|12|3", "ab|'S", "!\n", "1|2"]);
    with("qwen2", ["1|1|2|3", "ab|'S", "!\n", "1|2"]);
    with("default", ["1|12|3", "ab|'|S", "!|\n", "12"]);
}

#[test]
fn bos_is_added_where_the_file_or_the_family_says() {
    let bos = |gguf: &Gguf| {
        let tokenizer = build("gguf-bos", gguf);
        let ids = tokenizer.encode("ab").unwrap();
        ids.first().copied() == tokenizer.bos()
    };
    assert!(!bos(&byte_level("gpt-2")));
    assert!(bos(&byte_level("llama-bpe")));
    assert!(bos(&byte_level("gpt-2").bool("tokenizer.ggml.add_bos_token", true)));
    assert!(!bos(&byte_level("llama-bpe").bool("tokenizer.ggml.add_bos_token", false)));
}

/// A SentencePiece-style vocabulary: specials, all bytes, pieces with falling scores.
fn sentence() -> Gguf {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    let mut types = vec![2, 3, 3];
    let mut scores = vec![0.0; 3];
    for byte in 0..=255u8 {
        tokens.push(format!("<0x{byte:02X}>"));
        types.push(6);
        scores.push(0.0);
    }
    // "bc" scores best, so that "abc" is a + bc; "ab" + "c" is reached only without a "c" after "b".
    let pieces = ["bc", "▁a", "ab", "▁abc", "▁ab", "▁", "a", "b", "c", "<", "s", ">", "▁▁"];
    for (idx, piece) in (0u8..).zip(pieces) {
        tokens.push(piece.to_owned());
        types.push(1);
        scores.push(-f32::from(idx));
    }
    Gguf::new()
        .str("tokenizer.ggml.model", "llama")
        .strs("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &types)
        .f32s("tokenizer.ggml.scores", &scores)
        .u32("tokenizer.ggml.eos_token_id", 2)
}

#[test]
fn score_vocabularies_merge_best_first_with_byte_fallback() {
    let tokenizer = build("gguf-spm", &sentence());
    let show = |ids: &[u32]| {
        let part = |id: &u32| match tokenizer.control_text(*id) {
            Some(text) => text.to_owned(),
            None => String::from_utf8_lossy(tokenizer.bytes_of(*id)).into_owned(),
        };
        ids.iter().map(part).collect::<Vec<_>>().join("|")
    };
    for (text, want) in [
        ("abc", "<s>| abc"),
        ("abcabc", "<s>| abc|a|bc"),
        ("ab", "<s>| ab"),
        ("b a", "<s>| |b| a"),
        ("<s>", "<s>| |<|s|>"),
        ("", "<s>"),
    ] {
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(show(&ids), want);
        assert_eq!(tokenizer.decode(&ids, TextStart::Document), text, "the dummy prefix is taken away");
    }
    let ids = tokenizer.encode_bare("aé").unwrap();
    assert_eq!(ids[1..], [3 + 0xc3, 3 + 0xa9], "é is written in bytes");
    assert_eq!(tokenizer.decode(&ids, TextStart::Document), "aé");
    assert_eq!(tokenizer.decode(&ids, TextStart::Continuation), " aé");
    let literal = tokenizer.encode_bare("<0x41>").unwrap();
    assert_eq!(tokenizer.decode(&literal, TextStart::Document), "<0x41>", "text is not read as a byte");
    assert_eq!(tokenizer.stop_ids(), [2]);
}

#[test]
fn the_space_prefix_can_be_switched_off() {
    let tokenizer = build("gguf-spm-bare", &sentence().bool("tokenizer.ggml.add_space_prefix", false));
    let ids = tokenizer.encode("ab ab").unwrap();
    assert_eq!(tokenizer.decode(&ids, TextStart::Document), "ab ab");
    assert_eq!(tokenizer.decode(&tokenizer.encode(" ab").unwrap(), TextStart::Document), " ab");
}

#[test]
fn a_stream_of_bytes_makes_whole_characters() {
    let tokenizer = build("gguf-spm-stream", &sentence());
    let ids = tokenizer.encode("a😀b").unwrap();
    for start in [TextStart::Document, TextStart::Continuation] {
        let mut stream = tokenizer.stream(start);
        let pieces: Vec<String> = ids.iter().filter_map(|id| stream.push(*id)).collect();
        assert!(pieces.iter().any(|it| it == "😀"), "{pieces:?}");
        assert_eq!(pieces.concat(), tokenizer.decode(&ids, start));
    }
}

#[test]
fn unknown_kinds_and_contradictions_are_refused_by_key() {
    let base = |model: &str, pre: &str| {
        Gguf::new()
            .str("tokenizer.ggml.model", model)
            .str("tokenizer.ggml.pre", pre)
            .strs("tokenizer.ggml.tokens", &["a", "b", "ab"])
    };
    let merges = |gguf: Gguf, line: &str| gguf.strs("tokenizer.ggml.merges", &[line]);
    for (gguf, want) in [
        (base("t5", "x"), "key 'tokenizer.ggml.model' 't5' is not supported (gpt2 and llama are)"),
        (
            merges(base("gpt2", "deepseek-v9"), "a b"),
            "pre-tokenizer 'deepseek-v9' is not supported (gpt-2, gpt-4o, smollm",
        ),
        (base("gpt2", "gpt-2"), "key 'tokenizer.ggml.merges' is missing"),
        (merges(base("gpt2", "gpt-2"), "a x"), "merge 0 'a x' is not two tokens that make a third"),
        (merges(base("gpt2", "gpt-2"), "ab"), "merge 0 'ab'"),
        (
            merges(base("gpt2", "gpt-2"), "a b").i32s("tokenizer.ggml.token_type", &[1]),
            "1 types for 3 tokens",
        ),
        (
            merges(base("gpt2", "gpt-2"), "a b").i32s("tokenizer.ggml.token_type", &[1, 1, 9]),
            "token 2 has type 9",
        ),
        (merges(base("gpt2", "gpt-2"), "a b").i32s("tokenizer.ggml.token_type", &[1, 1, 3]), "make a third"),
        (base("llama", "x"), "key 'tokenizer.ggml.scores' is missing"),
        (base("llama", "x").f32s("tokenizer.ggml.scores", &[0.0]), "1 scores for 3 tokens"),
        (base("llama", "x").f32s("tokenizer.ggml.scores", &[0.0, f32::NAN, 0.0]), "finite numbers"),
        (Gguf::new().str("tokenizer.ggml.model", "gpt2"), "key 'tokenizer.ggml.tokens' is missing"),
    ] {
        let err = spec("gguf-text-bad", &gguf).unwrap_err();
        assert!(err.contains("m.gguf: ") || err.contains("m.gguf"), "{err}");
        assert!(err.contains(want) && !err.contains('\n'), "wanted '{want}', got '{err}'");
    }
}
