//! From a text to the words within which BPE joins characters: added tokens, normaliser and pre-tokeniser, each the
//! `tokenizers` crate's and in its order.
//!
//! Deliberately absent: control tokens, which no text becomes here; what goes around a text.

use std::collections::HashSet;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{
    AddedToken, AddedVocabulary, Model as _, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper,
};

use super::error::{Result, TextError};
use super::spec::{Kind, Token, TokenizerSpec};

/// What stands before the model.
#[derive(Debug)]
pub(crate) struct Splitter {
    added: AddedVocabulary,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
}

/// The words of a text, some of which are added tokens.
#[derive(Debug)]
pub(crate) struct Words(PreTokenizedString);

impl Splitter {
    /// # Errors
    /// If a component is refused by the crate.
    pub(crate) fn new(spec: &TokenizerSpec) -> Result<Self> {
        let refused = |what: &str, err: serde_json::Error| {
            TextError::malformed("tokenizer", format!("{what} is refused: {err}"))
        };
        let normalizer = spec.normalizer.as_deref().map(serde_json::from_str).transpose();
        let normalizer = normalizer.map_err(|err| refused("the normalizer", err))?;
        let pre_tokenizer = spec.pre_tokenizer.as_deref().map(serde_json::from_str).transpose();
        let pre_tokenizer = pre_tokenizer.map_err(|err| refused("the pre-tokenizer", err))?;
        Ok(Self { added: added_vocabulary(spec, normalizer.as_ref())?, normalizer, pre_tokenizer })
    }

    /// # Errors
    /// If the crate fails on the text.
    pub(crate) fn split(&self, text: &str) -> Result<Words> {
        let mut words = self.added.extract_and_normalize(self.normalizer.as_ref(), text);
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut words).map_err(failed)?;
        }
        Ok(Words(words))
    }
}

impl Words {
    /// The words that are left to the model.
    pub(crate) fn to_encode(&self) -> impl Iterator<Item = &str> {
        let splits = self.0.get_splits(OffsetReferential::Normalized, OffsetType::None);
        splits.into_iter().filter(|it| it.2.is_none()).map(|it| it.0)
    }

    /// Appends the ids that `model` gives.
    ///
    /// # Errors
    /// If the crate fails on a word.
    pub(crate) fn encode(mut self, model: &BPE, ids: &mut Vec<u32>) -> Result<()> {
        self.0.tokenize(|word| model.tokenize(word.get())).map_err(failed)?;
        let encoding = self.0.into_encoding(None, 0, OffsetType::None).map_err(failed)?;
        ids.extend(encoding.get_ids());
        Ok(())
    }
}

fn failed(err: tokenizers::Error) -> TextError {
    TextError::Encode(err.to_string())
}

/// The added tokens, under the ids that a model of the whole vocabulary has for their texts.
fn added_vocabulary(spec: &TokenizerSpec, normalizer: Option<&NormalizerWrapper>) -> Result<AddedVocabulary> {
    let mut added = AddedVocabulary::new();
    let tokens: Vec<AddedToken> = spec.tokens.iter().filter_map(added_token).collect();
    if tokens.is_empty() {
        return Ok(added);
    }
    let texts: HashSet<&str> = tokens.iter().map(|it| it.content.as_str()).collect();
    let is_named = |it: &&Token| spec.is_known(it) && texts.contains(it.text.as_str());
    let vocab: Vocab = spec.tokens.iter().filter(is_named).map(|it| (it.text.clone(), it.id)).collect();
    let model = BPE::builder().vocab_and_merges(vocab, Vec::new()).build();
    let model = model.map_err(|err| TextError::malformed("tokenizer", err.to_string()))?;
    added.add_tokens(&tokens, &model, normalizer);
    Ok(added)
}

fn added_token(token: &Token) -> Option<AddedToken> {
    let Kind::Added(by) = token.kind else { return None };
    let added = AddedToken::from(token.text.clone(), false);
    let added = added.lstrip(by.lstrip).rstrip(by.rstrip);
    Some(added.single_word(by.single_word).normalized(by.normalized))
}
