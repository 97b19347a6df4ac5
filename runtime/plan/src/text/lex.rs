//! Words, numbers, strings and marks of one line, and a cursor over them.

use super::ParseError;

/// A token and the column where it starts.
#[derive(Debug)]
struct Token<'a> {
    column: usize,
    kind: TokenKind<'a>,
}

#[derive(Debug)]
enum TokenKind<'a> {
    /// Letters, digits and `_`, starting with a letter.
    Word(&'a str),
    /// Starts with a digit or a minus; letters, digits, dots and the sign of an exponent may follow.
    Number(&'a str),
    /// The text between quotes, escapes resolved.
    Str(String),
    /// Any other character.
    Mark(char),
}

/// The tokens of a line, read from left to right.
#[derive(Debug)]
pub(super) struct Line<'a> {
    number: usize,
    tokens: Vec<Token<'a>>,
    at: usize,
    end: usize,
}

/// The result of reading a part of a line.
pub(super) type Parsed<T> = Result<T, ParseError>;

impl<'a> Line<'a> {
    /// Splits `text`, which is line `number`.
    pub(super) fn new(text: &'a str, number: usize) -> Parsed<Self> {
        let mut line = Self { number, tokens: Vec::new(), at: 0, end: 1 };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let length = match first {
                ';' => break,
                '"' => line.string(rest)?,
                it if it.is_whitespace() => it.len_utf8(),
                it if it.is_ascii_alphabetic() => {
                    let length = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
                    line.push(TokenKind::Word(&rest[..length]));
                    length
                }
                it if it.is_ascii_digit() || it == '-' => {
                    let length = number_length(rest);
                    line.push(TokenKind::Number(&rest[..length]));
                    length
                }
                it => {
                    line.push(TokenKind::Mark(it));
                    it.len_utf8()
                }
            };
            line.end += rest[..length].chars().count();
            rest = &rest[length..];
        }
        Ok(line)
    }

    fn push(&mut self, kind: TokenKind<'a>) {
        self.tokens.push(Token { column: self.end, kind });
    }

    /// Reads a quoted string at the start of `rest`; escapes are those of `char::escape_debug`. Returns its length.
    fn string(&mut self, rest: &str) -> Parsed<usize> {
        let unclosed = || self.error_at(self.end, "an unclosed string".into());
        let mut out = String::new();
        let mut chars = rest.char_indices().skip(1);
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.push(TokenKind::Str(out));
                    return Ok(i + 1);
                }
                '\\' => {
                    let escaped = match chars.next().ok_or_else(unclosed)?.1 {
                        'n' => Some('\n'),
                        't' => Some('\t'),
                        'r' => Some('\r'),
                        '0' => Some('\0'),
                        it @ ('\\' | '"' | '\'') => Some(it),
                        'u' => {
                            let code: String =
                                chars.by_ref().map(|it| it.1).skip(1).take_while(|it| *it != '}').collect();
                            u32::from_str_radix(&code, 16).ok().and_then(char::from_u32)
                        }
                        _ => None,
                    };
                    let unknown = || self.error_at(self.end, "an unknown escape in a string".into());
                    out.push(escaped.ok_or_else(unknown)?);
                }
                it => out.push(it),
            }
        }
        Err(unclosed())
    }

    fn error_at(&self, column: usize, message: String) -> ParseError {
        ParseError { line: self.number, column, message }
    }

    /// An error at the next token.
    pub(super) fn error(&self, message: impl Into<String>) -> ParseError {
        let column = self.tokens.get(self.at).map_or(self.end, |it| it.column);
        self.error_at(column, message.into())
    }

    /// An error at the token just read.
    pub(super) fn error_before(&self, message: impl Into<String>) -> ParseError {
        let column = self.tokens.get(self.at.saturating_sub(1)).map_or(self.end, |it| it.column);
        self.error_at(column, message.into())
    }

    fn peek(&self) -> Option<&TokenKind<'a>> {
        self.tokens.get(self.at).map(|it| &it.kind)
    }

    /// Whether nothing is left.
    pub(super) fn is_done(&self) -> bool {
        self.at == self.tokens.len()
    }

    /// Demands that nothing is left.
    pub(super) fn done(&self) -> Parsed<()> {
        if self.is_done() { Ok(()) } else { Err(self.error("superfluous text")) }
    }

    /// Reads any word.
    pub(super) fn word(&mut self) -> Parsed<&'a str> {
        match self.peek() {
            Some(TokenKind::Word(it)) => {
                let it = *it;
                self.at += 1;
                Ok(it)
            }
            _ => Err(self.error("expected a word")),
        }
    }

    /// Reads the word `expected` if it is next.
    pub(super) fn takes_word(&mut self, expected: &str) -> bool {
        let is_next = matches!(self.peek(), Some(TokenKind::Word(it)) if *it == expected);
        self.at += usize::from(is_next);
        is_next
    }

    /// Reads the word `expected` as the next item of a list: after a comma, unless it `is_first`.
    pub(super) fn takes_item(&mut self, expected: &str, is_first: bool) -> bool {
        let start = self.at;
        let is_next = (is_first || self.takes(',')) && self.takes_word(expected);
        if !is_next {
            self.at = start;
        }
        is_next
    }

    /// Reads the word `expected`.
    pub(super) fn key(&mut self, expected: &str) -> Parsed<()> {
        if self.takes_word(expected) { Ok(()) } else { Err(self.error(format!("expected '{expected}'"))) }
    }

    /// Reads the character `expected` if it is next.
    pub(super) fn takes(&mut self, expected: char) -> bool {
        let is_next = matches!(self.peek(), Some(TokenKind::Mark(it)) if *it == expected);
        self.at += usize::from(is_next);
        is_next
    }

    /// Reads the character `expected`.
    pub(super) fn mark(&mut self, expected: char) -> Parsed<()> {
        if self.takes(expected) { Ok(()) } else { Err(self.error(format!("expected '{expected}'"))) }
    }

    /// Reads a quoted string.
    pub(super) fn quoted(&mut self) -> Parsed<String> {
        match self.tokens.get_mut(self.at).map(|it| &mut it.kind) {
            Some(TokenKind::Str(it)) => {
                self.at += 1;
                Ok(std::mem::take(it))
            }
            _ => Err(self.error("expected a quoted string")),
        }
    }

    /// Reads the raw text of a number.
    pub(super) fn digits(&mut self) -> Parsed<&'a str> {
        match self.peek() {
            Some(TokenKind::Number(it)) => {
                let it = *it;
                self.at += 1;
                Ok(it)
            }
            _ => Err(self.error("expected a number")),
        }
    }

    /// Reads a whole number, decimal or hexadecimal.
    pub(super) fn int<T: TryFrom<u64>>(&mut self) -> Parsed<T> {
        let text = self.digits()?;
        let value = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        let value = value.ok().and_then(|it| T::try_from(it).ok());
        value.ok_or_else(|| self.error_before(format!("'{text}' is no whole number in range")))
    }

    /// Reads the word `key` and a whole number.
    pub(super) fn int_of<T: TryFrom<u64>>(&mut self, key: &str) -> Parsed<T> {
        self.key(key)?;
        self.int()
    }

    /// Reads a finite f32 or f64.
    pub(super) fn float<T: std::str::FromStr + Into<f64> + Copy>(&mut self) -> Parsed<T> {
        let text = self.digits()?;
        let value = text.parse().ok().filter(|it: &T| (*it).into().is_finite());
        value.ok_or_else(|| self.error_before(format!("'{text}' is no finite number")))
    }

    /// Reads a word of a closed vocabulary.
    pub(super) fn named<T>(&mut self, what: &str, from_name: impl Fn(&str) -> Option<T>) -> Parsed<T> {
        let word = self.word()?;
        from_name(word).ok_or_else(|| self.error_before(format!("'{word}' is no {what}")))
    }

    /// Reads an id: `prefix` and a number in one word, such as `w12`.
    pub(super) fn id(&mut self, prefix: &str) -> Parsed<u32> {
        let word = self.word()?;
        let number = word.strip_prefix(prefix).and_then(|it| it.parse().ok());
        number.ok_or_else(|| self.error_before(format!("expected '{prefix}' and a number, found '{word}'")))
    }

    /// Whether the next word is `prefix` and a number.
    pub(super) fn begins(&self, prefix: &str) -> bool {
        let number = match self.peek() {
            Some(TokenKind::Word(it)) => it.strip_prefix(prefix),
            _ => None,
        };
        number.is_some_and(|it| !it.is_empty() && it.bytes().all(|c| c.is_ascii_digit()))
    }

    /// Whether the next word begins an operand of a step.
    pub(super) fn begins_operand(&self) -> bool {
        matches!(self.peek(), Some(TokenKind::Word("s" | "io"))) || self.begins("w") || self.begins("st")
    }

    /// Reads `[item, item, …]`.
    pub(super) fn list<T>(&mut self, item: impl Fn(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        self.mark('[')?;
        let mut out = Vec::new();
        if self.takes(']') {
            return Ok(out);
        }
        loop {
            out.push(item(self)?);
            if self.takes(']') {
                return Ok(out);
            }
            self.mark(',')?;
        }
    }
}

const fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// A number may hold a sign after an `e`, unless it is hexadecimal.
fn number_length(text: &str) -> usize {
    let is_hex = text.starts_with("0x");
    let bytes = text.as_bytes();
    let ends = |i: &usize| {
        let is_exponent = !is_hex && matches!(bytes[i - 1], b'e' | b'E') && matches!(bytes[*i], b'+' | b'-');
        !(bytes[*i].is_ascii_alphanumeric() || bytes[*i] == b'.' || is_exponent)
    };
    (1..bytes.len()).find(ends).unwrap_or(bytes.len())
}
