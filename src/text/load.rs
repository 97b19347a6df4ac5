//! Which tokenizer a model has, and at which ids its generation ends.
//!
//! Invariants
//! - stop ids are the union of config.json, generation_config.json, the tokenizer and the control token that ends a turn in the chat
//!   template, below the vocabulary.

use super::chat::ChatTemplate;
use super::error::Result;
use super::spec::TokenizerSpec;
use super::tiktoken;
use crate::formats::{Format, Meta, ModelFiles};

/// GPT-2's only control token; its pair of files does not mark it.
const END_OF_TEXT: &str = "<|endoftext|>";

impl TokenizerSpec {
    /// The tokenizer of `files`, or `None` if they have none (then only token ids can be given): of a GGUF
    /// its own; of a folder tokenizer.json, else vocab.json with merges.txt, else encoder.json with vocab.bpe, else
    /// tiktoken's ranks (tiktoken.model; of a container also tokenizer.model, which elsewhere is SentencePiece's).
    ///
    /// # Errors
    /// If there is one that is damaged or not understood.
    pub fn from_model(files: &ModelFiles) -> Result<Option<Self>> {
        let meta = files.meta();
        let mut spec = match files.format() {
            Format::Gguf if !meta.contains("tokenizer.ggml.model") => return Ok(None),
            Format::Gguf => Self::from_gguf(meta)?,
            Format::Safetensors | Format::Container => match from_folder(files)? {
                Some(spec) => spec,
                None => return Ok(None),
            },
        };
        let n_ids = spec.n_ids();
        if spec.bos.is_none() {
            spec.bos = configured(Some(meta), "bos_token_id")?.into_iter().find(|id| *id < n_ids);
        }
        let own = std::mem::take(&mut spec.stop_ids);
        spec.stop_ids = union(files, own, n_ids)?;
        spec.chat = ChatTemplate::from_model(files, &spec)?;
        spec.stop_ids.extend(spec.turn_end()?);
        spec.stop_ids.sort_unstable();
        spec.stop_ids.dedup();
        Ok(Some(spec))
    }
}

/// The ids below `n_vocab` at which a model without a tokenizer ends, ascending.
///
/// # Errors
/// If a configuration names something that is no id.
pub fn stop_ids(files: &ModelFiles, n_vocab: u32) -> Result<Vec<u32>> {
    union(files, Vec::new(), n_vocab)
}

fn from_folder(files: &ModelFiles) -> Result<Option<TokenizerSpec>> {
    let shown = |name: &str| crate::formats::shown(&files.folder().join(name).to_string_lossy());
    if let Some(text) = files.side_file("tokenizer.json")? {
        return TokenizerSpec::from_tokenizer_json(&shown("tokenizer.json"), &text).map(Some);
    }
    for (vocab_name, merges_name) in [("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")] {
        if let (Some(vocab), Some(merges)) = (files.side_file(vocab_name)?, files.side_file(merges_name)?) {
            let spec =
                TokenizerSpec::from_vocab_and_merges(&shown(vocab_name), &vocab, &merges, &[END_OF_TEXT]);
            return spec.map(Some);
        }
    }
    let ranks: &[&str] = match files.format() {
        Format::Container => &["tokenizer.model", "tiktoken.model"],
        Format::Safetensors | Format::Gguf => &["tiktoken.model"],
    };
    for name in ranks {
        let Some(text) = files.side_file(name)? else { continue };
        let mut specials = Vec::new();
        if let Some(json) = files.side_file("specials.json")? {
            specials = tiktoken::specials(&shown("specials.json"), &json)?;
        } else if let Some(json) = files.side_file("tokenizer_config.json")? {
            specials = tiktoken::added_tokens(&shown("tokenizer_config.json"), &json)?;
        }
        return TokenizerSpec::from_ranks(&shown(name), &text, specials).map(Some);
    }
    Ok(None)
}

fn union(files: &ModelFiles, mut ids: Vec<u32>, n_vocab: u32) -> Result<Vec<u32>> {
    ids.extend(configured(Some(files.meta()), "eos_token_id")?);
    ids.extend(configured(files.generation(), "eos_token_id")?);
    ids.retain(|id| *id < n_vocab);
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

fn configured(meta: Option<&Meta>, key: &str) -> Result<Vec<u32>> {
    let Some(meta) = meta else { return Ok(Vec::new()) };
    Ok(meta.get_ints::<u32>(key)?.unwrap_or_default())
}
