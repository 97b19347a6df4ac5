//! Tokenizers from every source, streams, and the section a plan carries.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/gguf.rs"]
mod gguf;
#[path = "support/scratch.rs"]
mod scratch;
#[path = "support/text_corpus.rs"]
mod text_corpus;
#[path = "support/text_gguf.rs"]
mod text_gguf;
#[path = "support/text_json.rs"]
mod text_json;
#[path = "support/text_vocab.rs"]
mod text_vocab;

use std::sync::LazyLock;

use scratch::Noise;
use waste::text::{TextStart, Tokenizer, TokenizerSpec};

pub(crate) const SMOLLM2: &str = include_str!("data/smollm2/tokenizer.json");

pub(crate) fn smollm2_spec() -> TokenizerSpec {
    TokenizerSpec::from_tokenizer_json("tokenizer.json", SMOLLM2.as_bytes()).unwrap()
}

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| smollm2_spec().build().unwrap());

/// The texts and ids of the oracle.
pub(crate) fn oracle() -> Vec<(String, Vec<u32>)> {
    let json: serde_json::Value =
        serde_json::from_str(include_str!("data/smollm2/tokenizer_oracle.json")).unwrap();
    let cases = json["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 29);
    let case = |it: &serde_json::Value| {
        (it["text"].as_str().unwrap().to_owned(), serde_json::from_value(it["ids"].clone()).unwrap())
    };
    cases.iter().map(case).collect()
}

#[test]
fn smollm2s_oracle_is_met() {
    for (text, want) in oracle() {
        assert_eq!(TOKENIZER.encode_with_specials(&text).unwrap(), want, "{text:?}");
    }
}

#[test]
fn ids_do_not_depend_on_the_texts_before() {
    // The first texts of a tokenizer get tables of their own, later ones share those of the whole vocabulary.
    let spec = smollm2_spec();
    for (text, want) in oracle() {
        let fresh = spec.clone().build().unwrap();
        assert_eq!(fresh.encode_with_specials(&text).unwrap(), want, "{text:?}");
        assert_eq!(fresh.encode(&text).unwrap(), TOKENIZER.encode(&text).unwrap(), "{text:?}");
    }
}

#[test]
fn a_users_text_never_becomes_a_control_token() {
    for text in ["<|im_start|>user\nhi<|im_end|>", "<|endoftext|>", "<repo_name>", "a<|im_end|>b"] {
        let with = TOKENIZER.encode_with_specials(text).unwrap();
        assert!(with.iter().any(|id| TOKENIZER.control_text(*id).is_some()), "{text}");
        let ids = TOKENIZER.encode(text).unwrap();
        assert!(ids.iter().all(|id| TOKENIZER.control_text(*id).is_none()), "{text}: {ids:?}");
        assert_eq!(TOKENIZER.decode(&ids, TextStart::Document), text);
    }
    assert_eq!(TOKENIZER.control_id("<|im_end|>"), Some(2));
}

#[test]
fn decoding_undoes_encoding() {
    for (text, _) in oracle() {
        // U+0000 … are bytes that this vocabulary lacks: they are dropped, as its makers' code does.
        let text: String = text.chars().filter(|c| !c.is_control() || c.is_whitespace()).collect();
        let ids = TOKENIZER.encode(&text).unwrap();
        assert_eq!(TOKENIZER.decode(&ids, TextStart::Document), text);
    }
}

/// Ids of which many are fragments of characters, and some unknown or control.
fn noisy_ids(noise: &mut Noise) -> Vec<u32> {
    let emoji = TOKENIZER.encode("😀é漢 x👩‍👩‍👧‍👦").unwrap();
    let n = 1 + noise.below(40);
    let id = |noise: &mut Noise| match noise.below(4) {
        0 => u32::try_from(noise.below(50_000)).unwrap(),
        1 => u32::try_from(17 + noise.below(236)).unwrap(),
        _ => emoji[noise.below(emoji.len())],
    };
    (0..n).map(|_| id(noise)).collect()
}

#[test]
fn a_stream_equals_the_text_decoded_at_once() {
    let mut noise = Noise(5);
    let mut replaced = 0;
    for _ in 0..2000 {
        let ids = noisy_ids(&mut noise);
        for start in [TextStart::Document, TextStart::Continuation] {
            let whole = TOKENIZER.decode(&ids, start);
            let mut stream = TOKENIZER.stream(start);
            let mut text: String = ids.iter().filter_map(|id| stream.push(*id)).collect();
            text.extend(stream.finish());
            assert_eq!(text, whole, "{ids:?}");
            replaced += u32::from(whole.contains(char::REPLACEMENT_CHARACTER));
        }
    }
    assert!(replaced > 100, "broken characters were among them: {replaced}");
}

#[test]
fn a_stream_never_shows_half_a_character() {
    let text = "naïve 😀 漢字 👩‍👩‍👧‍👦 Ångström ﷺ 𝕳";
    let ids = TOKENIZER.encode(text).unwrap();
    let mut stream = TOKENIZER.stream(TextStart::Document);
    let pieces: Vec<Option<String>> = ids.iter().map(|id| stream.push(*id)).collect();
    assert!(pieces.contains(&None), "some ids are but a part of a character");
    let mut shown = String::new();
    for piece in pieces.into_iter().flatten() {
        shown.push_str(&piece);
        assert!(text.starts_with(&shown), "{shown:?}");
    }
    assert_eq!((shown.as_str(), stream.finish()), (text, None));
}

#[test]
fn a_section_brings_the_tokenizer_back() {
    let spec = smollm2_spec();
    let section = spec.to_section();
    assert_eq!(section, smollm2_spec().to_section(), "the same bytes each time");
    assert!(section.len() < 1_000_000, "{}", section.len());
    let back = TokenizerSpec::from_section(&section).unwrap();
    assert_eq!(back, spec);
    let tokenizer = back.build().unwrap();
    for (text, want) in oracle() {
        assert_eq!(tokenizer.encode_with_specials(&text).unwrap(), want);
    }
}

#[test]
fn damaged_sections_are_refused_and_never_panic() {
    let json = text_json::small("null");
    let spec = TokenizerSpec::from_tokenizer_json("tokenizer.json", json.as_bytes()).unwrap();
    let section = spec.to_section();
    for len in 0..section.len() {
        let err = TokenizerSpec::from_section(&section[..len]).unwrap_err().to_string();
        assert!(err.starts_with("tokenizer section at 0x"), "{err}");
    }
    let mut refused = 0;
    for at in 0..section.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, section[at] ^ 4] {
            let mut mutant = section.clone();
            mutant[at] = value;
            match TokenizerSpec::from_section(&mutant).and_then(TokenizerSpec::build) {
                Err(err) => {
                    refused += 1;
                    assert!(!err.to_string().contains('\n'), "{err}");
                }
                Ok(tokenizer) => {
                    let ids = tokenizer.encode("ab <s> abc é").unwrap();
                    let _ = tokenizer.decode(&ids, TextStart::Document);
                }
            }
        }
    }
    assert!(refused > section.len(), "{refused} of {} bytes", section.len());
}

#[test]
fn a_model_with_fewer_rows_than_tokens_is_refused() {
    let spec = smollm2_spec();
    assert!(spec.check_vocab(49152).is_ok());
    let err = spec.check_vocab(49151).unwrap_err().to_string();
    assert!(err.contains("has id 49151, the model has 49151 rows"), "{err}");
}
