//! Where a model's files keep their chat template, and the special tokens that it names.
//!
//! Order: `chat_template.jinja`, then `chat_template` of tokenizer_config.json (a text, or a list of named ones of which
//! `default` is taken); of a GGUF its key `tokenizer.chat_template`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::template::ChatTemplate;
use crate::formats::{Format, Meta, ModelFiles, shown};
use crate::text::error::{Result, TextError};
use crate::text::spec::TokenizerSpec;

/// Special tokens that templates call by name.
const WORDS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The part of tokenizer_config.json that matters here.
#[derive(Deserialize)]
struct Config {
    chat_template: Option<Written>,
    #[serde(flatten)]
    rest: BTreeMap<String, serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

impl ChatTemplate {
    /// The template of `files`, whose tokenizer is `spec`; `None` if they have none.
    ///
    /// # Errors
    /// If there is one that cannot be read.
    pub(crate) fn from_model(files: &ModelFiles, spec: &TokenizerSpec) -> Result<Option<Self>> {
        match files.format() {
            Format::Gguf => from_gguf(files.meta(), spec),
            Format::Safetensors | Format::Container => from_folder(files, spec),
        }
    }

    /// The template `source` for the model whose tokenizer is `spec`, with the special tokens that the tokenizer itself knows.
    ///
    /// # Errors
    /// As [`ChatTemplate::new`].
    pub fn for_tokenizer(file: &str, source: String, spec: &TokenizerSpec) -> Result<Self> {
        let words = match &spec.chat {
            Some(own) => own.words.clone(),
            None => known_words(None, spec),
        };
        Self::new(file, source, words)
    }
}

fn from_gguf(meta: &Meta, spec: &TokenizerSpec) -> Result<Option<ChatTemplate>> {
    const KEY: &str = "tokenizer.chat_template";
    let Some(source) = meta.get_str(KEY)? else { return Ok(None) };
    let words = known_words(Some(meta), spec);
    let file = format!("{}: key '{KEY}'", meta.file());
    ChatTemplate::new(&file, source.to_owned(), words).map(Some)
}

/// What GGUF calls its special tokens, else the BOS and first end of `spec`.
fn known_words(meta: Option<&Meta>, spec: &TokenizerSpec) -> Vec<(String, String)> {
    let text = |id: u32| spec.token(id).map(|it| it.text.clone());
    let named = |key: &str| meta?.get_u32(&format!("tokenizer.ggml.{key}_token_id")).ok().flatten();
    let eos = named("eos").or(spec.stop_ids.first().copied());
    let words = [
        ("bos_token", named("bos").or(spec.bos)),
        ("eos_token", eos),
        ("pad_token", named("padding")),
        ("unk_token", named("unknown")),
    ];
    words.into_iter().filter_map(|(name, id)| Some((name.to_owned(), text(id?)?))).collect()
}

fn from_folder(files: &ModelFiles, spec: &TokenizerSpec) -> Result<Option<ChatTemplate>> {
    let path = |name: &str| shown(&files.folder().join(name).to_string_lossy());
    let mut words = known_words(None, spec);
    let mut written = None;
    if let Some(text) = files.side_file("tokenizer_config.json")? {
        let file = path("tokenizer_config.json");
        let config: Config = serde_json::from_slice(&text)
            .map_err(|err| TextError::malformed(&file, format!("chat_template: {err}")))?;
        for name in WORDS {
            if let Some(text) = config.rest.get(name).and_then(word_text) {
                words.retain(|it| it.0 != name);
                words.push((name.to_owned(), text));
            }
        }
        written = config.chat_template.and_then(default_of).map(|it| (file, it));
    }
    if let Some(bytes) = files.side_file("chat_template.jinja")? {
        let file = path("chat_template.jinja");
        let text = String::from_utf8(bytes)
            .map_err(|err| TextError::malformed(&file, format!("not UTF-8: {}", err.utf8_error())))?;
        written = Some((file, text));
    }
    let Some((file, source)) = written else { return Ok(None) };
    ChatTemplate::new(&file, source, words).map(Some)
}

/// A token is written as its text, or as an object that has it as `content`.
fn word_text(value: &serde_json::Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

fn default_of(written: Written) -> Option<String> {
    match written {
        Written::One(text) => Some(text),
        Written::Named(all) => all.into_iter().find(|it| it.name == "default").map(|it| it.template),
    }
}
