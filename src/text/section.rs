//! A [`TokenizerSpec`] as bytes, for the plan file.
//!
//! Layout, little-endian, numbers as LEB128 unless said otherwise: format byte; flags byte (1 byte_fallback,
//! 2 fuse_unk, 4 ignore_merges, 8 SentencePiece spelling, 16 dummy prefix); tokens: count, then per token the
//! id minus the id before (minus one), a kind byte (low 3 bits the kind, high bits how it is matched), text;
//! merges: count, pairs; normaliser, pre-tokeniser: text (empty = none); prefix, suffix, stop ids: lists;
//! unk, bos: id plus one, or 0; chat template: text (empty = none), then, if there is one, the words it may name: count,
//! pairs of texts. A text is its length in bytes and its UTF-8. Format 1 ended before the template.
//!
//! Invariants
//! - the same spec gives the same bytes, and reading gives the same spec back;
//! - reading allocates no more than a few times the section, and checks all a spec must hold.

use super::chat::ChatTemplate;
use super::error::{Result, TextError};
use super::spec::{Flags, Kind, Match, Spelling, Token, TokenizerSpec};

const FORMAT: u8 = 2;

impl TokenizerSpec {
    /// The bytes of the plan section.
    #[must_use]
    pub fn to_section(&self) -> Vec<u8> {
        let mut out = vec![FORMAT, self.flag_bits()];
        put(&mut out, self.tokens.len() as u64);
        let mut next = 0;
        for token in &self.tokens {
            put(&mut out, u64::from(token.id - next));
            next = token.id + 1;
            out.push(kind_bits(token.kind));
            put_text(&mut out, &token.text);
        }
        put(&mut out, self.merges.len() as u64);
        for &(left, right) in &self.merges {
            put(&mut out, left.into());
            put(&mut out, right.into());
        }
        put_text(&mut out, self.normalizer.as_deref().unwrap_or_default());
        put_text(&mut out, self.pre_tokenizer.as_deref().unwrap_or_default());
        for list in [&self.prefix, &self.suffix, &self.stop_ids] {
            put(&mut out, list.len() as u64);
            list.iter().for_each(|id| put(&mut out, u64::from(*id)));
        }
        for id in [self.unk, self.bos] {
            put(&mut out, id.map_or(0, |id| u64::from(id) + 1));
        }
        put_text(&mut out, self.chat.as_ref().map_or("", |it| it.source.as_str()));
        if let Some(chat) = &self.chat {
            put(&mut out, chat.words.len() as u64);
            for (name, text) in &chat.words {
                put_text(&mut out, name);
                put_text(&mut out, text);
            }
        }
        out
    }

    /// Reads what [`TokenizerSpec::to_section`] wrote.
    ///
    /// # Errors
    /// [`TextError::Section`] if the bytes are damaged, or what [`TokenizerSpec`] requires is not so.
    pub fn from_section(section: &[u8]) -> Result<Self> {
        let mut src = Reader { bytes: section, at: 0 };
        let format = src.byte()?;
        if !(1..=FORMAT).contains(&format) {
            return Err(src.bad(format!("format {format}, expected 1 or {FORMAT}")));
        }
        let bits = src.byte()?;
        let tokens = src.tokens()?;
        let n_merges = src.count(2)?;
        let merges = (0..n_merges).map(|_| Ok((src.id()?, src.id()?))).collect::<Result<_>>()?;
        let normalizer = Some(src.text()?).filter(|it| !it.is_empty());
        let pre_tokenizer = Some(src.text()?).filter(|it| !it.is_empty());
        let (prefix, suffix, stop_ids) = (src.ids()?, src.ids()?, src.ids()?);
        let (unk, bos) = (src.optional_id()?, src.optional_id()?);
        let chat = if format > 1 { src.chat()? } else { None };
        if src.at != section.len() {
            return Err(src.bad(format!("{} bytes are left over", section.len() - src.at)));
        }
        let has = |bit: u8| bits & bit != 0;
        let spelling =
            if has(8) { Spelling::Sentence { dummy_prefix: has(16) } } else { Spelling::ByteLevel };
        let flags = Flags { byte_fallback: has(1), fuse_unk: has(2), ignore_merges: has(4) };
        let spec = Self {
            tokens,
            merges,
            unk,
            flags,
            normalizer,
            pre_tokenizer,
            spelling,
            prefix,
            suffix,
            bos,
            stop_ids,
            chat,
        };
        spec.checked("tokenizer section")
    }

    fn flag_bits(&self) -> u8 {
        let Flags { byte_fallback, fuse_unk, ignore_merges } = self.flags;
        let spelling = match self.spelling {
            Spelling::ByteLevel => 0,
            Spelling::Sentence { dummy_prefix } => 8 | u8::from(dummy_prefix) << 4,
        };
        u8::from(byte_fallback) | u8::from(fuse_unk) << 1 | u8::from(ignore_merges) << 2 | spelling
    }
}

fn kind_bits(kind: Kind) -> u8 {
    let (code, by) = match kind {
        Kind::Normal => (0, Match::default()),
        Kind::Byte => (1, Match::default()),
        Kind::Unused => (2, Match::default()),
        Kind::Added(by) => (3, by),
        Kind::Control(by) => (4, by),
    };
    let Match { lstrip, rstrip, single_word, normalized } = by;
    code | u8::from(lstrip) << 3
        | u8::from(rstrip) << 4
        | u8::from(single_word) << 5
        | u8::from(normalized) << 6
}

fn kind_of_bits(bits: u8) -> Option<Kind> {
    let has = |bit: u8| bits & bit != 0;
    let by = Match { lstrip: has(8), rstrip: has(16), single_word: has(32), normalized: has(64) };
    let kind = match bits & 7 {
        0 => Kind::Normal,
        1 => Kind::Byte,
        2 => Kind::Unused,
        3 => Kind::Added(by),
        4 => Kind::Control(by),
        _ => return None,
    };
    (kind_bits(kind) == bits).then_some(kind)
}

fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend(text.as_bytes());
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn bad(&self, reason: impl Into<String>) -> TextError {
        TextError::Section { offset: self.at, reason: reason.into() }
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = *self.bytes.get(self.at).ok_or_else(|| self.bad("it ends here"))?;
        self.at += 1;
        Ok(byte)
    }

    /// A number of at most 35 bits, which is more than any count or id needs.
    fn number(&mut self) -> Result<u64> {
        let mut n = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(self.bad("a number of more than 35 bits"))
    }

    /// A count of things of at least `min_bytes` each that still fit.
    fn count(&mut self, min_bytes: usize) -> Result<usize> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        let room = (self.bytes.len() - self.at) / min_bytes;
        if count > room {
            return Err(self.bad(format!("claims {count} entries, there is room for {room}")));
        }
        Ok(count)
    }

    fn id(&mut self) -> Result<u32> {
        u32::try_from(self.number()?).map_err(|_| self.bad("an id of more than 32 bits"))
    }

    fn ids(&mut self) -> Result<Vec<u32>> {
        (0..self.count(1)?).map(|_| self.id()).collect()
    }

    fn optional_id(&mut self) -> Result<Option<u32>> {
        Ok(self.id()?.checked_sub(1))
    }

    fn text(&mut self) -> Result<String> {
        let len = self.count(1)?;
        let text = std::str::from_utf8(&self.bytes[self.at..self.at + len]);
        let text = text.map_err(|_| self.bad("a text is not UTF-8"))?.to_owned();
        self.at += len;
        Ok(text)
    }

    fn chat(&mut self) -> Result<Option<ChatTemplate>> {
        let source = self.text()?;
        if source.is_empty() {
            return Ok(None);
        }
        let words = (0..self.count(2)?).map(|_| Ok((self.text()?, self.text()?))).collect::<Result<_>>()?;
        ChatTemplate::new("tokenizer section", source, words).map(Some)
    }

    fn tokens(&mut self) -> Result<Vec<Token>> {
        let count = self.count(3)?;
        let mut tokens = Vec::with_capacity(count);
        let mut next = 0u32;
        for _ in 0..count {
            let id = next.checked_add(self.id()?).filter(|id| *id < super::spec::MAX_ID);
            let id = id.ok_or_else(|| self.bad("a token id is too large"))?;
            next = id + 1;
            let bits = self.byte()?;
            let kind = kind_of_bits(bits).ok_or_else(|| self.bad(format!("token kind {bits:#x}")))?;
            tokens.push(Token { id, text: self.text()?, kind });
        }
        Ok(tokens)
    }
}
