//! Encoding and decoding, built from a [`TokenizerSpec`].
//!
//! Invariants
//! - the BPE model does not know the control tokens, so text cannot become one: only
//!   [`Tokenizer::encode_with_specials`], meant for templates, makes them;
//! - decoding is the concatenation of each token's bytes, so that a stream equals the whole;
//! - BOS and EOS around a text have one owner, the spec: the `tokenizers` crate adds none.
//!
//! Deliberately absent: chat templates (`super::chat`).

use super::bpe::Models;
use super::bytelevel;
use super::error::Result;
use super::spec::{Kind, Match, Spelling, Token, TokenizerSpec};
use super::stream::TextStream;
use super::words::{Splitter, Words};

/// Turns text into token ids and back.
#[derive(Debug)]
pub struct Tokenizer {
    splitter: Splitter,
    models: Models,
    table: ByteTable,
    controls: Vec<Control>,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    bos: Option<u32>,
    stop_ids: Vec<u32>,
    dummy_prefix: bool,
    heap_bytes: u64,
}

/// Where a text that is decoded begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextStart {
    /// At the start of a document: the space that encoding put in front is taken away.
    Document,
    /// After other text, such as a prompt.
    Continuation,
}

/// A part of a template's text: a control token, or what stands between two.
enum Part {
    Id(u32),
    Words(Words),
}

impl Part {
    fn words(&self) -> Option<&Words> {
        match self {
            Self::Words(words) => Some(words),
            Self::Id(_) => None,
        }
    }
}

/// A control token and how it is matched.
#[derive(Debug)]
struct Control {
    id: u32,
    text: String,
    by: Match,
}

impl Tokenizer {
    pub(crate) fn new(spec: TokenizerSpec) -> Result<Self> {
        let (splitter, models, table) = (Splitter::new(&spec)?, Models::new(&spec), ByteTable::new(&spec));
        let heap_bytes = models.heap_bytes() + table.heap_bytes();
        let dummy_prefix = matches!(spec.spelling, Spelling::Sentence { dummy_prefix: true });
        let TokenizerSpec { tokens, prefix, suffix, bos, stop_ids, .. } = spec;
        let mut controls: Vec<Control> = tokens
            .into_iter()
            .filter_map(|Token { id, text, kind }| match kind {
                Kind::Control(by) if !text.is_empty() => Some(Control { id, text, by }),
                _ => None,
            })
            .collect();
        controls.sort_by_key(|it| std::cmp::Reverse(it.text.len()));
        Ok(Self {
            splitter,
            models,
            table,
            controls,
            prefix,
            suffix,
            bos,
            stop_ids,
            dummy_prefix,
            heap_bytes,
        })
    }

    /// The ids of a user's `text`, with the BOS (and EOS) that the model wants around it. Text that looks
    /// like a control token is encoded as the characters it is written with.
    ///
    /// # Errors
    /// If the `tokenizers` crate fails on the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.prefix.clone();
        self.encode_parts(self.words(text)?.into_iter().collect(), &mut ids)?;
        ids.extend(&self.suffix);
        Ok(ids)
    }

    /// The ids of a user's `text` alone, as [`Tokenizer::encode`] without BOS and EOS.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_bare(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.encode_parts(self.words(text)?.into_iter().collect(), &mut ids)?;
        Ok(ids)
    }

    /// The ids of a text whose author owns the control tokens (a chat template): they are recognised, and
    /// nothing is added around. Never for a user's text.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_with_specials(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_template(text, None)
    }

    /// As [`Tokenizer::encode_with_specials`], of a text in which `mark` means nothing, but parts what would else be a
    /// control token.
    pub(crate) fn encode_marked(&self, text: &str, mark: char) -> Result<Vec<u32>> {
        self.encode_template(text, Some(mark))
    }

    fn encode_template(&self, text: &str, mark: Option<char>) -> Result<Vec<u32>> {
        let words = |piece: &str| match mark {
            Some(mark) if piece.contains(mark) => self.words(&piece.replace(mark, "")),
            _ => self.words(piece),
        };
        let mut parts = Vec::new();
        let mut start = 0;
        let mut at = 0;
        while at < text.len() {
            let Some(control) = self.control_at(text, at) else {
                at += text[at..].chars().next().map_or(1, char::len_utf8);
                continue;
            };
            let before = &text[start..at];
            parts.extend(words(if control.by.lstrip { before.trim_end() } else { before })?);
            parts.push(Part::Id(control.id));
            at += control.text.len();
            if control.by.rstrip {
                at = text.len() - text[at..].trim_start().len();
            }
            start = at;
        }
        parts.extend(words(&text[start..])?);
        let mut ids = Vec::new();
        self.encode_parts(parts, &mut ids)?;
        Ok(ids)
    }

    /// The text of `ids`: bytes put together, control tokens left out, each invalid UTF-8 sequence as U+FFFD.
    /// Unknown ids have no text.
    #[must_use]
    pub fn decode(&self, ids: &[u32], start: TextStart) -> String {
        let mut bytes: Vec<u8> = ids.iter().flat_map(|id| self.bytes_of(*id)).copied().collect();
        if self.strips_space(start) && bytes.first() == Some(&b' ') {
            bytes.remove(0);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Decodes ids as they come; the pieces together equal [`Tokenizer::decode`] of all of them.
    #[must_use]
    pub fn stream(&self, start: TextStart) -> TextStream<'_> {
        TextStream::new(self, self.strips_space(start))
    }

    /// The bytes that `id` adds to a text; none for control tokens and unknown ids.
    #[must_use]
    pub fn bytes_of(&self, id: u32) -> &[u8] {
        self.table.get(id)
    }

    /// The text of a control token, or `None` if `id` is none.
    #[must_use]
    pub fn control_text(&self, id: u32) -> Option<&str> {
        self.controls.iter().find(|it| it.id == id).map(|it| it.text.as_str())
    }

    /// The id of the control token written `text`.
    #[must_use]
    pub fn control_id(&self, text: &str) -> Option<u32> {
        self.controls.iter().find(|it| it.text == text).map(|it| it.id)
    }

    /// The texts of all control tokens, longest first.
    #[must_use]
    pub fn control_texts(&self) -> Vec<&str> {
        self.controls.iter().map(|it| it.text.as_str()).collect()
    }

    /// What an empty prompt starts from.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The ids at which generation ends, ascending.
    #[must_use]
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// One more than the largest id.
    #[must_use]
    pub fn n_ids(&self) -> u32 {
        self.table.len()
    }

    /// An estimate of the heap this tokenizer holds, in bytes, with its cache of words full.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        self.heap_bytes
    }

    fn strips_space(&self, start: TextStart) -> bool {
        self.dummy_prefix && start == TextStart::Document
    }

    /// The words of `text`, if it has any.
    fn words(&self, text: &str) -> Result<Option<Part>> {
        if text.is_empty() { Ok(None) } else { self.splitter.split(text).map(|it| Some(Part::Words(it))) }
    }

    /// Appends the ids of `parts`, all from one model.
    fn encode_parts(&self, parts: Vec<Part>, ids: &mut Vec<u32>) -> Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        let words = parts.iter().filter_map(Part::words).flat_map(Words::to_encode);
        let model = self.models.of_words(words)?;
        for part in parts {
            match part {
                Part::Id(id) => ids.push(id),
                Part::Words(words) => words.encode(&model, ids)?,
            }
        }
        Ok(())
    }

    /// The longest control token that `text` has at byte `at`.
    fn control_at(&self, text: &str, at: usize) -> Option<&Control> {
        let rest = &text.as_bytes()[at..];
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        self.controls.iter().find(|it| {
            rest.starts_with(it.text.as_bytes())
                && !(it.by.single_word
                    && (is_word(text[..at].chars().next_back())
                        || is_word(text[at + it.text.len()..].chars().next())))
        })
    }
}

/// The bytes of every token, back to back.
#[derive(Debug)]
struct ByteTable {
    bytes: Vec<u8>,
    /// Where the bytes of each id end; they start where those of the id before end.
    ends: Vec<u32>,
}

impl ByteTable {
    fn new(spec: &TokenizerSpec) -> Self {
        let mut bytes = Vec::with_capacity(spec.tokens.iter().map(|it| it.text.len()).sum());
        let mut ends = Vec::with_capacity(spec.n_ids() as usize);
        for token in &spec.tokens {
            let before = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            ends.resize(token.id as usize, before);
            push_bytes(token, spec.spelling, &mut bytes);
            ends.push(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        }
        Self { bytes, ends }
    }

    fn get(&self, id: u32) -> &[u8] {
        let idx = id as usize;
        let Some(&end) = self.ends.get(idx) else { return &[] };
        let start = idx.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..end as usize]
    }

    fn len(&self) -> u32 {
        u32::try_from(self.ends.len()).expect("ids are below 4 Mi")
    }

    fn heap_bytes(&self) -> u64 {
        (self.bytes.capacity() + 4 * self.ends.capacity()) as u64
    }
}

fn push_bytes(token: &Token, spelling: Spelling, out: &mut Vec<u8>) {
    let text = &token.text;
    match (token.kind, spelling) {
        (Kind::Control(_), _) => {}
        (Kind::Byte, _) => out.extend(byte_named(text)),
        (Kind::Added(_), Spelling::ByteLevel) => out.extend(text.as_bytes()),
        (Kind::Normal | Kind::Unused, Spelling::ByteLevel) => match bytelevel::bytes_of(text) {
            Some(bytes) => out.extend(bytes),
            None => out.extend(text.as_bytes()),
        },
        (Kind::Normal | Kind::Unused | Kind::Added(_), Spelling::Sentence { .. }) => {
            out.extend(text.replace('▁', " ").as_bytes());
        }
    }
}

/// The byte that `<0x41>` names.
pub(crate) fn byte_named(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_two = hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    is_two.then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}
