//! A tokenizer as data: what every source is read into, what a plan carries, what [`Tokenizer`] is built from.
//!
//! Invariants (held by [`TokenizerSpec::checked`], for plan sections too)
//! - token ids ascend strictly and are below 4 Mi;
//! - merges make tokens of tokens that text can become, so that they never touch a control token;
//! - components (normaliser, pre-tokeniser) are of the kinds listed here, and do not nest.
//!
//! Deliberately absent: models other than BPE, dropout, truncation and padding.

use serde_json::Value as Json;

use super::bpe;
use super::chat::ChatTemplate;
use super::error::{Result, TextError};
use super::tokenizer::Tokenizer;
use crate::formats::shown;

/// Ids are below this.
pub(crate) const MAX_ID: u32 = 1 << 22;

const NORMALIZERS: &str = "NFC NFD NFKC NFKD Prepend Replace Lowercase";
const PRE_TOKENIZERS: &str = "ByteLevel Split Digits Metaspace Punctuation";

/// A tokenizer as data.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizerSpec {
    /// By ascending id.
    pub(crate) tokens: Vec<Token>,
    /// Pairs of ids, best first.
    pub(crate) merges: Vec<(u32, u32)>,
    /// What a character outside the vocabulary becomes; without one it is dropped.
    pub(crate) unk: Option<u32>,
    pub(crate) flags: Flags,
    /// JSON of the `tokenizers` crate.
    pub(crate) normalizer: Option<String>,
    /// JSON of the `tokenizers` crate.
    pub(crate) pre_tokenizer: Option<String>,
    pub(crate) spelling: Spelling,
    /// Put before and after every encoded text.
    pub(crate) prefix: Vec<u32>,
    pub(crate) suffix: Vec<u32>,
    /// What an empty prompt starts from.
    pub(crate) bos: Option<u32>,
    /// Generation ends at any of these; ascending.
    pub(crate) stop_ids: Vec<u32>,
    /// How conversations are written.
    pub(crate) chat: Option<ChatTemplate>,
}

/// Switches of the BPE model, named as in tokenizer.json.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) byte_fallback: bool,
    pub(crate) fuse_unk: bool,
    pub(crate) ignore_merges: bool,
}

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) id: u32,
    pub(crate) text: String,
    pub(crate) kind: Kind,
}

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reached by merging.
    Normal,
    /// `<0x41>`: a byte that no other token covers.
    Byte,
    /// Never made from text, yet printed if a model makes it.
    Unused,
    /// Matched as a whole in any text before the rest is split.
    Added(Match),
    /// Structure, not text: a user's text never becomes one, and none is printed.
    Control(Match),
}

/// How a whole token is matched, named as in tokenizer.json.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Match {
    pub(crate) lstrip: bool,
    pub(crate) rstrip: bool,
    pub(crate) single_word: bool,
    pub(crate) normalized: bool,
}

impl Kind {
    /// Whether the BPE model may know it.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Self::Normal | Self::Byte | Self::Added(_))
    }
}

/// How the text of a token stands for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// GPT-2's alphabet: one character a byte.
    ByteLevel,
    /// SentencePiece: `▁` is a space, `<0x41>` a byte; `dummy_prefix` says that encoding put a space in
    /// front, which decoding takes away again.
    Sentence { dummy_prefix: bool },
}

impl TokenizerSpec {
    /// No tokens, and bytes spelled as GPT-2 spells them.
    pub(super) fn empty() -> Self {
        Self {
            tokens: Vec::new(),
            merges: Vec::new(),
            unk: None,
            flags: Flags::default(),
            normalizer: None,
            pre_tokenizer: None,
            spelling: Spelling::ByteLevel,
            prefix: Vec::new(),
            suffix: Vec::new(),
            bos: None,
            stop_ids: Vec::new(),
            chat: None,
        }
    }

    /// One more than the largest id.
    #[must_use]
    pub fn n_ids(&self) -> u32 {
        self.tokens.last().map_or(0, |it| it.id + 1)
    }

    /// The ids at which generation ends, ascending.
    #[must_use]
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// How conversations are written, if the model says so.
    #[must_use]
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref()
    }

    /// What an empty prompt starts from.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Checks that a model with `n_vocab` embedding rows has a row for every token.
    ///
    /// # Errors
    /// Naming the first token without one.
    pub fn check_vocab(&self, n_vocab: u32) -> Result<()> {
        match self.tokens.iter().find(|it| it.id >= n_vocab) {
            None => Ok(()),
            Some(token) => Err(TextError::malformed(
                "tokenizer",
                format!("token '{}' has id {}, the model has {n_vocab} rows", shown(&token.text), token.id),
            )),
        }
    }

    /// Builds what encodes and decodes.
    ///
    /// # Errors
    /// If a component is refused by the `tokenizers` crate.
    pub fn build(self) -> Result<Tokenizer> {
        Tokenizer::new(self)
    }

    /// The control token that ends a turn in the chat template.
    ///
    /// # Errors
    /// As [`ChatTemplate::turn_end`].
    pub(crate) fn turn_end(&self) -> Result<Option<u32>> {
        let Some(template) = &self.chat else { return Ok(None) };
        let is_control = |it: &&Token| matches!(it.kind, Kind::Control(_)) && !it.text.is_empty();
        let controls: Vec<&Token> = self.tokens.iter().filter(is_control).collect();
        let texts: Vec<&str> = controls.iter().map(|it| it.text.as_str()).collect();
        let end = template.turn_end(&texts)?;
        Ok(end.and_then(|end| controls.iter().find(|it| it.text == end)).map(|it| it.id))
    }

    /// The token with `id`.
    pub(crate) fn token(&self, id: u32) -> Option<&Token> {
        // Most vocabularies have no gaps.
        match self.tokens.get(id as usize) {
            Some(token) if token.id == id => Some(token),
            _ => self.tokens.binary_search_by_key(&id, |it| it.id).ok().map(|idx| &self.tokens[idx]),
        }
    }

    /// The text of token `id`; empty if there is none.
    pub(crate) fn text_of(&self, id: u32) -> &str {
        self.token(id).map_or("", |it| it.text.as_str())
    }

    /// Whether the BPE model knows `token`: text can become it, or it stands for what text cannot.
    pub(crate) fn is_known(&self, token: &Token) -> bool {
        token.kind.is_text() || self.unk == Some(token.id)
    }

    /// Sorts tokens by id and enforces the invariants; `file` is named in errors.
    pub(crate) fn checked(mut self, file: &str) -> Result<Self> {
        self.tokens.sort_by_key(|it| it.id);
        for pair in self.tokens.windows(2) {
            if pair[0].id == pair[1].id {
                let (a, b) = (shown(&pair[0].text), shown(&pair[1].text));
                let reason = format!("tokens '{a}' and '{b}' have the same id {}", pair[0].id);
                return Err(TextError::malformed(file, reason));
            }
        }
        if let Some(last) = self.tokens.last().filter(|it| it.id >= MAX_ID) {
            let reason = format!("token id {} is not below {MAX_ID}", last.id);
            return Err(TextError::malformed(file, reason));
        }
        if let Some(empty) = self.tokens.iter().find(|it| it.text.is_empty() && it.kind.is_text()) {
            return Err(TextError::malformed(file, format!("token {} is empty", empty.id)));
        }
        for &(left, right) in &self.merges {
            for id in [left, right] {
                if !self.token(id).is_some_and(|it| it.kind.is_text()) {
                    let reason = format!("merge {left} {right}: {id} is no token that text can become");
                    return Err(TextError::malformed(file, reason));
                }
            }
        }
        if let Some((left, right)) = bpe::first_that_makes_nothing(&self) {
            let made = shown(&[self.text_of(left), self.text_of(right)].concat());
            return Err(TextError::malformed(file, format!("merge {left} {right}: '{made}' is no token")));
        }
        let ids = self.prefix.iter().chain(&self.suffix).chain(&self.bos).chain(&self.unk);
        if let Some(id) = ids.into_iter().find(|id| self.token(**id).is_none()) {
            return Err(TextError::malformed(file, format!("special id {id} is no token")));
        }
        let n_ids = self.n_ids();
        self.stop_ids.sort_unstable();
        self.stop_ids.dedup();
        self.stop_ids.retain(|id| *id < n_ids);
        check_component(file, "normalizer", self.normalizer.as_deref(), "normalizers", NORMALIZERS)?;
        check_component(
            file,
            "pre-tokenizer",
            self.pre_tokenizer.as_deref(),
            "pretokenizers",
            PRE_TOKENIZERS,
        )?;
        Ok(self)
    }
}

/// Allows a component of a kind in `known`, or one `Sequence` of such, listed under `list`.
fn check_component(
    file: &str,
    what: &'static str,
    json: Option<&str>,
    list: &str,
    known: &'static str,
) -> Result<()> {
    let Some(json) = json else { return Ok(()) };
    let json: Json = serde_json::from_str(json)
        .map_err(|err| TextError::malformed(file, format!("{what} is not valid JSON: {err}")))?;
    let parts = match (kind_of(&json), json.get(list)) {
        ("Sequence", Some(Json::Array(parts))) => parts.as_slice(),
        _ => std::slice::from_ref(&json),
    };
    match parts.iter().map(kind_of).find(|kind| !known.split(' ').any(|it| it == *kind)) {
        None => Ok(()),
        Some(kind) => {
            Err(TextError::Unsupported { file: file.to_owned(), what, found: shown(kind), supported: known })
        }
    }
}

/// The `type` of a component.
pub(crate) fn kind_of(json: &Json) -> &str {
    json.get("type").and_then(Json::as_str).unwrap_or("(none)")
}
