//! Text to tokens.

use std::borrow::Cow;

use super::ParseError;

/// What a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind<'t> {
    /// `linear`, `v12`, `k.0`.
    Word(&'t str),
    /// `12`, `0x1f`, `-1e-5`: checked where it is read.
    Number(&'t str),
    /// `"name"`, unescaped.
    Str(Cow<'t, str>),
    /// `w"name"`, unescaped.
    Weight(Cow<'t, str>),
    /// One of `{}[]()@:=,*+^`.
    Punct(char),
    /// `..=`.
    Through,
    /// The end of the text.
    End,
}

/// A token and the bytes it covers.
#[derive(Clone, Debug)]
pub(super) struct Token<'t> {
    pub(super) kind: Kind<'t>,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Whether `text` can stand unquoted as a name.
pub(crate) fn is_word(text: &str) -> bool {
    text.starts_with(is_word_start) && word_len(text) == text.len()
}

fn is_word_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

fn is_word_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

/// Bytes of the word, or number, at the start of `text`: word characters and single inner dots.
fn word_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let word = |i: usize| bytes.get(i).copied().is_some_and(is_word_byte);
    let mut len = 0;
    while word(len) || (len > 0 && bytes.get(len) == Some(&b'.') && word(len + 1)) {
        len += 1;
    }
    len
}

/// Bytes of the number at the start of `text`, with sign and signed exponent.
fn number_len(text: &str) -> usize {
    let sign = usize::from(text.starts_with('-'));
    let mut len = sign + word_len(&text[sign..]);
    let exponent = text[..len].ends_with(['e', 'E']) && !text[sign..].starts_with("0x");
    if exponent && text[len..].starts_with(['-', '+']) {
        len += 1;
        len += word_len(&text[len..]);
    }
    len
}

/// Splits `text` into tokens, the last one [`Kind::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, ParseError> {
    let mut out = Vec::with_capacity(text.len() / 4 + 1);
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        }
        if c == ';' {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        }
        let (kind, len) = token(text, at, c)?;
        out.push(Token { kind, start: at, end: at + len });
        at += len;
    }
    out.push(Token { kind: Kind::End, start: at, end: at });
    Ok(out)
}

/// The token at `at`, which begins with `c`, and its bytes.
fn token(text: &str, at: usize, c: char) -> Result<(Kind<'_>, usize), ParseError> {
    let rest = &text[at..];
    Ok(match c {
        '"' => {
            let (name, len) = string(text, at)?;
            (Kind::Str(name), len)
        }
        'w' if rest.as_bytes().get(1) == Some(&b'"') => {
            let (name, len) = string(text, at + 1)?;
            (Kind::Weight(name), len + 1)
        }
        '{' | '}' | '[' | ']' | '(' | ')' | '@' | ':' | '=' | ',' | '*' | '+' | '^' => (Kind::Punct(c), 1),
        '.' if rest.starts_with("..=") => (Kind::Through, 3),
        '-' | '0'..='9' => {
            let len = number_len(rest);
            (Kind::Number(&rest[..len]), len)
        }
        _ if is_word_start(c) => {
            let len = word_len(rest);
            (Kind::Word(&rest[..len]), len)
        }
        _ => return Err(error_at(text, at, format!("unexpected character {c:?}"))),
    })
}

/// The string whose opening quote is at `at`: its value and its bytes with quotes.
fn string(text: &str, at: usize) -> Result<(Cow<'_, str>, usize), ParseError> {
    let body = &text[at + 1..];
    let unended = || error_at(text, at, "this string has no end on its line".to_owned());
    let plain = body.find(['"', '\\', '\n']).ok_or_else(unended)?;
    if body.as_bytes()[plain] == b'"' {
        return Ok((Cow::Borrowed(&body[..plain]), plain + 2));
    }
    let mut value = String::new();
    let mut chars = body.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return Ok((Cow::Owned(value), i + 2)),
            '\n' => break,
            '\\' => {
                let bad = || error_at(text, at + 1 + i, "unknown escape in a string".to_owned());
                let (c, len) = escape(&body[i + 1..]).ok_or_else(bad)?;
                value.push(c);
                chars.nth(len - 1);
            }
            _ => value.push(c),
        }
    }
    Err(unended())
}

/// The character that an escape stands for, and its characters after the backslash.
fn escape(rest: &str) -> Option<(char, usize)> {
    Some(match rest.chars().next()? {
        'n' => ('\n', 1),
        'r' => ('\r', 1),
        't' => ('\t', 1),
        c @ ('"' | '\\') => (c, 1),
        'u' => {
            let digits = rest.strip_prefix("u{")?.split_once('}')?.0;
            if digits.is_empty() || digits.len() > 6 || !digits.bytes().all(|it| it.is_ascii_hexdigit()) {
                return None;
            }
            (char::from_u32(u32::from_str_radix(digits, 16).ok()?)?, digits.len() + 3)
        }
        _ => return None,
    })
}

/// An error at byte `at` of `text`.
pub(super) fn error_at(text: &str, at: usize, message: String) -> ParseError {
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |it| it + 1);
    let count = |n: usize| u32::try_from(n + 1).unwrap_or(u32::MAX);
    ParseError {
        line: count(before.matches('\n').count()),
        column: count(before[line_start..].chars().count()),
        message,
    }
}
