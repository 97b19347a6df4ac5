//! tokenizer.json (the `tokenizers` crate's own format, version 1.0), and the older pair of vocab.json and
//! merges.txt (GPT-2's encoder.json and vocab.bpe).
//!
//! Invariants
//! - added tokens that are special, or look like `<|…|>`, are control tokens;
//! - the post-processor is read for the ids it puts around a text and then dropped, so that BOS has one owner;
//! - a decoder that is not understood is refused, since decoding is ours.
//!
//! Deliberately absent: models other than BPE, pair templates, truncation, padding.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value as Json;

use super::error::{Result, TextError};
use super::pre;
use super::spec::{Flags, Kind, Match, Spelling, Token, TokenizerSpec, kind_of};
use super::tokenizer::byte_named;
use crate::formats::shown;

#[derive(Deserialize)]
struct Root {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Json>,
    pre_tokenizer: Option<Json>,
    post_processor: Option<Json>,
    decoder: Option<Json>,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    dropout: Option<f64>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: BTreeMap<String, u32>,
    merges: Vec<Merge>,
}

/// Just enough of the file to refuse other kinds of model by name.
#[derive(Deserialize)]
struct Outline {
    model: ModelKind,
}

#[derive(Deserialize)]
struct ModelKind {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(rename = "vocab")]
    _vocab: IgnoredAny,
}

impl TokenizerSpec {
    /// Reads a tokenizer.json, called `file` in errors.
    ///
    /// # Errors
    /// If it is not valid, not BPE, or uses a part that is not understood.
    pub fn from_tokenizer_json(file: &str, text: &[u8]) -> Result<Self> {
        let invalid = |err: serde_json::Error| TextError::malformed(file, format!("not a tokenizer: {err}"));
        let outline: Outline = serde_json::from_slice(text).map_err(invalid)?;
        match outline.model.kind.as_deref() {
            None | Some("BPE") => {}
            Some(kind) => return Err(unsupported(file, "tokenizer model", kind, "BPE is")),
        }
        let root: Root = serde_json::from_slice(text).map_err(invalid)?;
        check_model(file, &root.model)?;
        let spelling = spelling_of(file, root.decoder.as_ref())?;
        let mut around = Around::default();
        read_post_processor(file, root.post_processor.as_ref(), &mut around)?;
        let Model { vocab, merges, unk_token, fuse_unk, byte_fallback, ignore_merges, .. } = root.model;
        let unk = match unk_token {
            None => None,
            Some(text) => {
                let missing =
                    || TextError::malformed(file, format!("unk_token '{}' is no token", shown(&text)));
                Some(*vocab.get(&text).ok_or_else(missing)?)
            }
        };
        let merges = resolve_merges(file, &vocab, &root.added_tokens, merges)?;
        let spec = Self {
            tokens: tokens_of(file, vocab, root.added_tokens, byte_fallback)?,
            merges,
            unk,
            flags: Flags { byte_fallback, fuse_unk, ignore_merges },
            normalizer: root.normalizer.map(|it| it.to_string()),
            pre_tokenizer: root.pre_tokenizer.map(|it| it.to_string()),
            spelling,
            bos: around.prefix.first().copied(),
            prefix: around.prefix,
            suffix: around.suffix,
            stop_ids: Vec::new(),
            chat: None,
        };
        spec.checked(file)
    }

    /// Reads GPT-2's pair of files: `vocab` is a JSON object from token to id, `merges` has one pair a line.
    /// Tokens named in `control` are structure. Called `file` in errors.
    ///
    /// # Errors
    /// If either is not valid, or a merge is of unknown tokens.
    pub fn from_vocab_and_merges(file: &str, vocab: &[u8], merges: &[u8], control: &[&str]) -> Result<Self> {
        let vocab: BTreeMap<String, u32> = serde_json::from_slice(vocab)
            .map_err(|err| TextError::malformed(file, format!("the vocabulary is not valid: {err}")))?;
        let text = std::str::from_utf8(merges)
            .map_err(|err| TextError::malformed(file, format!("the merges are not UTF-8: {err}")))?;
        let lines = text.lines().filter(|it| !it.is_empty() && !it.starts_with("#version"));
        let merges = lines.map(|line| Merge::from_line(line).map_err(|err| TextError::malformed(file, err)));
        let merges = merges.collect::<Result<Vec<_>>>()?;
        let added: Vec<Added> = control
            .iter()
            .filter_map(|text| {
                let id = *vocab.get(*text)?;
                let content = (*text).to_owned();
                let flags = (false, false, false, false);
                let (single_word, lstrip, rstrip, normalized) = flags;
                Some(Added { id, content, single_word, lstrip, rstrip, normalized, special: true })
            })
            .collect();
        let merges = resolve_merges(file, &vocab, &added, merges)?;
        let gpt2 = pre::by_name("gpt-2").expect("in the table");
        let spec = Self {
            tokens: tokens_of(file, vocab, added, false)?,
            merges,
            pre_tokenizer: Some(gpt2.json()),
            ..Self::empty()
        };
        spec.checked(file)
    }
}

fn unsupported(file: &str, what: &'static str, found: &str, supported: &'static str) -> TextError {
    TextError::Unsupported { file: file.to_owned(), what, found: shown(found), supported }
}

fn check_model(file: &str, model: &Model) -> Result<()> {
    if model.dropout.is_some_and(|it| it != 0.0) {
        return Err(unsupported(file, "model option", "dropout", "only 0 is"));
    }
    for (name, value) in [
        ("continuing_subword_prefix", &model.continuing_subword_prefix),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if value.as_deref().is_some_and(|it| !it.is_empty()) {
            return Err(unsupported(file, "model option", name, "only an empty one is"));
        }
    }
    Ok(())
}

/// Vocabulary and added tokens in one list; added ones win.
fn tokens_of(
    file: &str,
    vocab: BTreeMap<String, u32>,
    added: Vec<Added>,
    byte_fallback: bool,
) -> Result<Vec<Token>> {
    let mut by_text: BTreeMap<String, (u32, Kind)> = BTreeMap::new();
    for (text, id) in vocab {
        let is_byte = byte_fallback && byte_named(&text).is_some();
        by_text.insert(text, (id, if is_byte { Kind::Byte } else { Kind::Normal }));
    }
    for Added { id, content, single_word, lstrip, rstrip, normalized, special } in added {
        let by = Match { lstrip, rstrip, single_word, normalized };
        let kind = if special || has_bars(&content) { Kind::Control(by) } else { Kind::Added(by) };
        match by_text.insert(content.clone(), (id, kind)) {
            Some((other, _)) if other != id => {
                let reason = format!("token '{}' has the ids {other} and {id}", shown(&content));
                return Err(TextError::malformed(file, reason));
            }
            _ => {}
        }
    }
    Ok(by_text.into_iter().map(|(text, (id, kind))| Token { id, text, kind }).collect())
}

/// Whether a token is written `<|…|>`, with bars of any width: structure, though some files do not mark it as special.
fn has_bars(text: &str) -> bool {
    let inner = |bar: char| text.strip_prefix('<')?.strip_prefix(bar)?.strip_suffix('>')?.strip_suffix(bar);
    inner('|').or_else(|| inner('｜')).is_some()
}

/// Merges as pairs of ids. Those that touch a control token are dropped: text must not become one.
fn resolve_merges(
    file: &str,
    vocab: &BTreeMap<String, u32>,
    added: &[Added],
    merges: Vec<Merge>,
) -> Result<Vec<(u32, u32)>> {
    let controls: HashSet<u32> =
        added.iter().filter(|it| it.special || has_bars(&it.content)).map(|it| it.id).collect();
    let mut out = Vec::with_capacity(merges.len());
    for (rank, Merge(left, right)) in merges.into_iter().enumerate() {
        let whole = format!("{left}{right}");
        let id = |text: &str| {
            let missing = || format!("merge {rank} needs '{}', which is no token", shown(text));
            vocab.get(text).copied().ok_or_else(|| TextError::malformed(file, missing()))
        };
        let (left, right, whole) = (id(&left)?, id(&right)?, id(&whole)?);
        if ![left, right, whole].iter().any(|id| controls.contains(id)) {
            out.push((left, right));
        }
    }
    Ok(out)
}

/// How the decoder spells bytes.
fn spelling_of(file: &str, decoder: Option<&Json>) -> Result<Spelling> {
    let none = Json::Null;
    let decoder = decoder.unwrap_or(&none);
    let parts = match (kind_of(decoder), decoder.get("decoders")) {
        ("Sequence", Some(Json::Array(parts))) => parts.as_slice(),
        _ => std::slice::from_ref(decoder),
    };
    let kinds: Vec<&str> = parts.iter().map(kind_of).collect();
    if kinds == ["ByteLevel"] {
        return Ok(Spelling::ByteLevel);
    }
    let mut dummy_prefix = false;
    let mut has_space = false;
    for part in parts {
        let text = |key: &str| part.get(key).and_then(Json::as_str);
        let is_fit = match kind_of(part) {
            "ByteFallback" | "Fuse" => true,
            "Replace" => {
                has_space = true;
                let pattern = part.get("pattern").and_then(|it| it.get("String")).and_then(Json::as_str);
                pattern == Some("▁") && text("content") == Some(" ")
            }
            "Strip" => {
                dummy_prefix = part.get("start").and_then(Json::as_u64) == Some(1);
                let keeps_end = part.get("stop").and_then(Json::as_u64) == Some(0);
                dummy_prefix && keeps_end && text("content") == Some(" ")
            }
            "Metaspace" => {
                has_space = true;
                let scheme = text("prepend_scheme");
                let is_old = part.get("add_prefix_space").and_then(Json::as_bool);
                dummy_prefix = scheme.map_or(is_old.unwrap_or(true), |it| it != "never");
                text("replacement") == Some("▁")
            }
            _ => false,
        };
        if !is_fit {
            return Err(unsupported(file, "decoder", &kinds.join(" "), "ByteLevel and SentencePiece's are"));
        }
    }
    if !has_space {
        return Err(unsupported(file, "decoder", &kinds.join(" "), "ByteLevel and SentencePiece's are"));
    }
    Ok(Spelling::Sentence { dummy_prefix })
}

/// The ids a post-processor puts around a single text.
#[derive(Default)]
struct Around {
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

fn read_post_processor(file: &str, json: Option<&Json>, around: &mut Around) -> Result<()> {
    let Some(json) = json.filter(|it| !it.is_null()) else { return Ok(()) };
    let parts = match (kind_of(json), json.get("processors")) {
        ("Sequence", Some(Json::Array(parts))) => parts.as_slice(),
        _ => std::slice::from_ref(json),
    };
    for part in parts {
        match kind_of(part) {
            "ByteLevel" => {}
            "TemplateProcessing" => read_template(file, part, around)?,
            other => {
                return Err(unsupported(
                    file,
                    "post-processor",
                    other,
                    "ByteLevel and TemplateProcessing are",
                ));
            }
        }
    }
    Ok(())
}

fn read_template(file: &str, json: &Json, around: &mut Around) -> Result<()> {
    let bad = |reason: &str| TextError::malformed(file, format!("post_processor: {reason}"));
    let pieces = json.get("single").and_then(Json::as_array).ok_or_else(|| bad("no 'single' template"))?;
    let mut is_after = false;
    for piece in pieces {
        if piece.get("Sequence").is_some() {
            if is_after {
                return Err(bad("the template repeats the text"));
            }
            is_after = true;
            continue;
        }
        let name = piece.get("SpecialToken").and_then(|it| it.get("id")).and_then(Json::as_str);
        let ids = name.and_then(|it| json.get("special_tokens")?.get(it)?.get("ids")?.as_array());
        let ids = ids.ok_or_else(|| bad("a piece of the template has no ids"))?;
        for id in ids {
            let id =
                id.as_u64().and_then(|it| u32::try_from(it).ok()).ok_or_else(|| bad("an id is no id"))?;
            if is_after { around.suffix.push(id) } else { around.prefix.push(id) }
        }
    }
    if is_after { Ok(()) } else { Err(bad("the template lacks the text")) }
}

/// One merge, written `"a b"` or `["a", "b"]`.
struct Merge(String, String);

impl Merge {
    fn from_line(line: &str) -> std::result::Result<Self, String> {
        match line.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
                Ok(Self(left.to_owned(), right.to_owned()))
            }
            _ => Err(format!("merge '{}' is not two tokens", shown(line))),
        }
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: \"a b\" or [\"a\", \"b\"]")
            }

            fn visit_str<E: serde::de::Error>(self, line: &str) -> std::result::Result<Merge, E> {
                Merge::from_line(line).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Merge, A::Error> {
                let short = |n| serde::de::Error::invalid_length(n, &"two tokens");
                let left = seq.next_element()?.ok_or_else(|| short(0))?;
                let right = seq.next_element()?.ok_or_else(|| short(1))?;
                match seq.next_element::<IgnoredAny>()? {
                    None => Ok(Merge(left, right)),
                    Some(_) => Err(short(3)),
                }
            }
        }
        deserializer.deserialize_any(Reader)
    }
}
