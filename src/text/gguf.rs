//! Tokenizers inside GGUF files: `tokenizer.ggml.model` = `gpt2` (byte-level BPE with merges and a named
//! pre-tokeniser) and `llama` (SentencePiece BPE by scores).
//!
//! Source: llama.cpp's `llama_vocab::impl::load` for keys, defaults and token types.
//!
//! Invariants
//! - control and unknown tokens are never reached by merging;
//! - merges of a score vocabulary are those SentencePiece would make: best score first.
//!
//! Deliberately absent: WordPiece, Unigram (`t5`), `rwkv`, `plamo2`.

use std::collections::HashMap;

use serde_json::json;

use super::error::{Result, TextError};
use super::pre::{self, PreTokenizer};
use super::spec::{Flags, Kind, Match, Spelling, Token, TokenizerSpec};
use crate::formats::{Meta, shown};

/// Bytes of a token that score merges are made for at most: the work is quadratic in it.
const MAX_SCORED: usize = 512;

impl TokenizerSpec {
    /// Reads the tokenizer of a GGUF.
    ///
    /// # Errors
    /// If keys are missing, contradict each other, or name a kind that is not understood.
    pub fn from_gguf(meta: &Meta) -> Result<Self> {
        match meta.str("tokenizer.ggml.model")? {
            "gpt2" => byte_level(meta),
            "llama" => sentence(meta),
            other => Err(TextError::Unsupported {
                file: meta.file().to_owned(),
                what: "key 'tokenizer.ggml.model'",
                found: shown(other),
                supported: "gpt2 and llama are",
            }),
        }
    }
}

fn byte_level(meta: &Meta) -> Result<TokenizerSpec> {
    let pre = pre_tokenizer(meta)?;
    let tokens = tokens(meta)?;
    let by_text = text_ids(meta, &tokens)?;
    let lines = meta
        .get_strs("tokenizer.ggml.merges")?
        .ok_or_else(|| TextError::Format(meta.missing("tokenizer.ggml.merges")))?;
    let mut merges = Vec::with_capacity(lines.len());
    for (rank, line) in lines.into_iter().enumerate() {
        // Tokens of GPT-2's alphabet have no space of their own.
        let (left, right) = line.split_once(' ').ok_or_else(|| bad_merge(meta, rank, line))?;
        let id = |text: &str| by_text.get(text).copied();
        match (id(left), id(right), id(&format!("{left}{right}"))) {
            (Some(left), Some(right), Some(_)) => merges.push((left, right)),
            _ => return Err(bad_merge(meta, rank, line)),
        }
    }
    let spec = TokenizerSpec {
        merges,
        unk: None,
        flags: Flags { ignore_merges: pre.ignore_merges, ..Flags::default() },
        normalizer: pre.normalizer(),
        pre_tokenizer: Some(pre.json()),
        spelling: Spelling::ByteLevel,
        tokens,
        ..TokenizerSpec::empty()
    };
    with_special_ids(meta, spec, pre.add_bos)
}

fn bad_merge(meta: &Meta, rank: usize, line: &str) -> TextError {
    let reason = format!("merge {rank} '{}' is not two tokens that make a third", shown(line));
    TextError::Format(meta.refuse("tokenizer.ggml.merges", reason))
}

fn pre_tokenizer(meta: &Meta) -> Result<PreTokenizer> {
    // Files older than the key get what llama.cpp gives them.
    let name = meta.get_str("tokenizer.ggml.pre")?.unwrap_or("default");
    pre::by_name(name).ok_or_else(|| TextError::Unsupported {
        file: meta.file().to_owned(),
        what: "key 'tokenizer.ggml.pre': pre-tokenizer",
        found: shown(name),
        supported: pre::NAMES,
    })
}

fn sentence(meta: &Meta) -> Result<TokenizerSpec> {
    if meta.get_bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false) {
        let key = "tokenizer.ggml.remove_extra_whitespaces";
        return Err(meta.refuse(key, "removing whitespace is not supported").into());
    }
    let dummy_prefix = meta.get_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let tokens = tokens(meta)?;
    let key = "tokenizer.ggml.scores";
    let scores = meta.get_floats(key)?.ok_or_else(|| TextError::Format(meta.missing(key)))?;
    if scores.len() != tokens.len() {
        let reason = format!("{} scores for {} tokens", scores.len(), tokens.len());
        return Err(meta.refuse(key, reason).into());
    }
    let merges = merges_by_score(meta, &tokens, &scores)?;
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let mut parts = vec![replace];
    if dummy_prefix {
        parts.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
    }
    let unk = special_id(meta, "unknown")?.or(Some(0)).filter(|id| (*id as usize) < tokens.len());
    let byte_fallback = tokens.iter().any(|it| it.kind == Kind::Byte);
    let spec = TokenizerSpec {
        merges,
        unk,
        flags: Flags { byte_fallback, fuse_unk: true, ignore_merges: false },
        normalizer: Some(json!({"type": "Sequence", "normalizers": parts}).to_string()),
        pre_tokenizer: None,
        spelling: Spelling::Sentence { dummy_prefix },
        tokens,
        ..TokenizerSpec::empty()
    };
    with_special_ids(meta, spec, true)
}

/// Every way to put a token together from two others, best score first; of one token's ways, the longest
/// left part first. (As transformers' converter makes them; SentencePiece itself takes, of pairs that make
/// the same token, the leftmost in the text.)
fn merges_by_score(meta: &Meta, tokens: &[Token], scores: &[f64]) -> Result<Vec<(u32, u32)>> {
    let by_text = text_ids(meta, tokens)?;
    let mut ways: Vec<(f64, usize, u32, u32)> = Vec::new();
    for (token, &score) in tokens.iter().zip(scores) {
        if token.kind != Kind::Normal || token.text.len() > MAX_SCORED {
            continue;
        }
        for (at, _) in token.text.char_indices().skip(1) {
            let (left, right) = token.text.split_at(at);
            if let (Some(left), Some(right)) = (by_text.get(left), by_text.get(right)) {
                ways.push((score, at, *left, *right));
            }
        }
    }
    ways.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    Ok(ways.into_iter().map(|(_, _, left, right)| (left, right)).collect())
}

fn tokens(meta: &Meta) -> Result<Vec<Token>> {
    let key = "tokenizer.ggml.tokens";
    let texts = meta.get_strs(key)?.ok_or_else(|| TextError::Format(meta.missing(key)))?;
    let kinds = meta.get_ints::<i32>("tokenizer.ggml.token_type")?;
    if let Some(kinds) = kinds.as_ref().filter(|it| it.len() != texts.len()) {
        let reason = format!("{} types for {} tokens", kinds.len(), texts.len());
        return Err(meta.refuse("tokenizer.ggml.token_type", reason).into());
    }
    let mut out = Vec::with_capacity(texts.len());
    for (idx, text) in texts.into_iter().enumerate() {
        let id = u32::try_from(idx).expect("arrays have at most 16 Mi elements");
        let code = kinds.as_ref().map_or(1, |it| it[idx]);
        let kind = match code {
            1 if text.is_empty() => Kind::Unused,
            1 => Kind::Normal,
            2 | 3 => Kind::Control(Match::default()),
            4 if text.is_empty() => Kind::Unused,
            4 => Kind::Added(Match::default()),
            5 => Kind::Unused,
            6 => Kind::Byte,
            other => {
                let reason = format!("token {id} has type {other}, expected 1 to 6");
                return Err(meta.refuse("tokenizer.ggml.token_type", reason).into());
            }
        };
        out.push(Token { id, text: text.to_owned(), kind });
    }
    Ok(out)
}

/// The tokens that text can become, by their text.
fn text_ids<'a>(meta: &Meta, tokens: &'a [Token]) -> Result<HashMap<&'a str, u32>> {
    let mut by_text = HashMap::with_capacity(tokens.len());
    for token in tokens.iter().filter(|it| it.kind.is_text()) {
        if let Some(other) = by_text.insert(token.text.as_str(), token.id) {
            let reason = format!("tokens {other} and {} are both '{}'", token.id, shown(&token.text));
            return Err(meta.refuse("tokenizer.ggml.tokens", reason).into());
        }
    }
    Ok(by_text)
}

fn special_id(meta: &Meta, name: &str) -> Result<Option<u32>> {
    Ok(meta.get_u32(&format!("tokenizer.ggml.{name}_token_id"))?)
}

/// Adds what the file says about BOS, EOS and the ends of turns.
fn with_special_ids(meta: &Meta, mut spec: TokenizerSpec, adds_bos: bool) -> Result<TokenizerSpec> {
    // llama.cpp's defaults for vocabularies of the llama kind.
    let is_sentence = matches!(spec.spelling, Spelling::Sentence { .. });
    let known = |id: &u32| spec.token(*id).is_some();
    spec.bos = special_id(meta, "bos")?.or(is_sentence.then_some(1)).filter(known);
    let eos = special_id(meta, "eos")?.or(is_sentence.then_some(2)).filter(|id| spec.token(*id).is_some());
    if meta.get_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(adds_bos) {
        spec.prefix.extend(spec.bos);
    }
    if meta.get_bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false) {
        spec.suffix.extend(eos);
    }
    spec.stop_ids.extend(eos);
    for name in ["eot", "eom"] {
        spec.stop_ids.extend(special_id(meta, name)?);
    }
    spec.checked(meta.file())
}
