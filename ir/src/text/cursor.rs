//! Reading tokens one by one, with errors that say what was expected and what was found.

use std::borrow::Cow;

use super::ParseError;
use super::lexer::{Kind, Token, error_at, tokens};

/// A position in the tokens of a text.
pub(super) struct Cursor<'t> {
    text: &'t str,
    tokens: Vec<Token<'t>>,
    at: usize,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str) -> Result<Self, ParseError> {
        if u32::try_from(text.len()).is_err() {
            return Err(error_at(text, 0, "a text of 4 GiB or more is no module".to_owned()));
        }
        Ok(Self { text, tokens: tokens(text)?, at: 0 })
    }

    /// The next token; the last one, [`Kind::End`], stays.
    pub(super) fn peek(&self) -> &Kind<'t> {
        self.peek_nth(0)
    }

    pub(super) fn peek_nth(&self, n: usize) -> &Kind<'t> {
        &self.tokens[(self.at + n).min(self.tokens.len() - 1)].kind
    }

    pub(super) fn skip(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    /// An error at the next token.
    pub(super) fn expected(&self, what: &str) -> ParseError {
        let token = &self.tokens[self.at];
        let found = match token.kind {
            Kind::End => "the end of the text".to_owned(),
            _ => format!("'{}'", &self.text[token.start..token.end]),
        };
        error_at(self.text, token.start, format!("expected {what}, found {found}"))
    }

    /// An error at the token that begins at byte `at`.
    pub(super) fn error(&self, at: usize, message: String) -> ParseError {
        error_at(self.text, at, message)
    }

    /// The first byte of the next token.
    pub(super) fn offset(&self) -> usize {
        self.tokens[self.at].start
    }

    /// Takes `c` if it is next.
    pub(super) fn eat(&mut self, c: char) -> bool {
        let found = *self.peek() == Kind::Punct(c);
        if found {
            self.skip();
        }
        found
    }

    pub(super) fn punct(&mut self, c: char) -> Result<(), ParseError> {
        if self.eat(c) { Ok(()) } else { Err(self.expected(&format!("'{c}'"))) }
    }

    /// Takes the word `word` if it is next.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = *self.peek() == Kind::Word(word);
        if found {
            self.skip();
        }
        found
    }

    pub(super) fn keyword(&mut self, word: &str) -> Result<(), ParseError> {
        if self.eat_word(word) { Ok(()) } else { Err(self.expected(&format!("'{word}'"))) }
    }

    /// `key=`.
    pub(super) fn key(&mut self, key: &str) -> Result<(), ParseError> {
        self.keyword(key)?;
        self.punct('=')
    }

    pub(super) fn word(&mut self, what: &str) -> Result<&'t str, ParseError> {
        let Kind::Word(word) = *self.peek() else { return Err(self.expected(what)) };
        self.skip();
        Ok(word)
    }

    pub(super) fn string(&mut self, what: &str) -> Result<Cow<'t, str>, ParseError> {
        let Kind::Str(text) = self.peek() else { return Err(self.expected(what)) };
        let text = text.clone();
        self.skip();
        Ok(text)
    }

    /// A word or a string.
    pub(super) fn name(&mut self, what: &str) -> Result<Cow<'t, str>, ParseError> {
        match self.peek() {
            Kind::Word(_) => Ok(Cow::Borrowed(self.word(what)?)),
            _ => self.string(what),
        }
    }

    /// A word or a number, as text: digits of a hash.
    pub(super) fn alphanumeric(&mut self, what: &str) -> Result<Cow<'t, str>, ParseError> {
        if let Kind::Number(digits) = *self.peek() {
            self.skip();
            return Ok(Cow::Borrowed(digits));
        }
        self.name(what)
    }

    /// An unsigned integer, decimal or `0x` hex.
    pub(super) fn int<N: TryFrom<u64>>(&mut self, what: &str) -> Result<N, ParseError> {
        let Kind::Number(text) = *self.peek() else { return Err(self.expected(what)) };
        let digits = |it: &str| it.bytes().all(|b| b.is_ascii_alphanumeric());
        let value = match text.strip_prefix("0x") {
            Some(hex) if digits(hex) => u64::from_str_radix(hex, 16).ok(),
            _ => text.parse().ok(),
        };
        let value = value.and_then(|it| N::try_from(it).ok()).ok_or_else(|| self.expected(what))?;
        self.skip();
        Ok(value)
    }

    /// A finite number.
    pub(super) fn float(&mut self, what: &str) -> Result<f64, ParseError> {
        let Kind::Number(text) = *self.peek() else { return Err(self.expected(what)) };
        let value: Option<f64> = text.parse().ok();
        let value = value.filter(|it| it.is_finite()).ok_or_else(|| self.expected(what))?;
        self.skip();
        Ok(value)
    }

    /// The text of an attribute's value: a word or number, with a `{…}` right after a word.
    pub(super) fn attr_text(&mut self) -> Result<&'t str, ParseError> {
        let start = self.offset();
        let (Kind::Word(_) | Kind::Number(_)) = self.peek() else {
            return Err(self.expected("a value"));
        };
        let is_word = matches!(self.peek(), Kind::Word(_));
        let mut end = self.tokens[self.at].end;
        self.skip();
        if is_word && *self.peek() == Kind::Punct('{') {
            while *self.peek() != Kind::Punct('}') {
                if *self.peek() == Kind::End {
                    return Err(self.expected("'}'"));
                }
                self.skip();
            }
            end = self.tokens[self.at].end;
            self.skip();
        }
        Ok(&self.text[start..end])
    }
}
