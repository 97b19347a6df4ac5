//! tiktoken's rank files (`tiktoken.model`, `tokenizer.model` of a container), and the control tokens that lie beside them. A rank
//! file does not name its pre-tokeniser: in a model's folder it is Kimi's.
//!
//! A line is base64 of a token's bytes, a space, its rank, which is its id too. tiktoken joins, again and again, the adjacent
//! pair whose joined bytes have the lowest rank, the leftmost of equals. As merges: every way to cut a token in two tokens,
//! in the order of the ranks. Of the ways of one token the one with the longest left part comes first, which is the leftmost
//! pair wherever pairs that make the same token overlap in a border of less than half of it (and no order serves the others).
//!
//! Invariants
//! - every byte has a rank, so no text is without ids;
//! - work and memory are bounded by the file: tokens are short.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::bytelevel;
use super::error::{Result, TextError};
use super::pre::{self, PreTokenizer};
use super::spec::{Flags, Kind, Match, Token, TokenizerSpec};
use crate::formats::shown;

/// Bytes of a token at most: its cuts are quadratic work.
const MAX_TOKEN: usize = 1024;

/// A token beside the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Special {
    id: u32,
    text: String,
    kind: Kind,
}

/// Reads `specials.json`: `[{"id": …, "text": …}, …]`, all of them control tokens.
pub(super) fn specials(file: &str, json: &[u8]) -> Result<Vec<Special>> {
    #[derive(Deserialize)]
    struct Row {
        id: u32,
        text: String,
    }
    let rows: Vec<Row> = serde_json::from_slice(json)
        .map_err(|err| TextError::malformed(file, format!("not valid: {err}")))?;
    let kind = Kind::Control(Match::default());
    Ok(rows.into_iter().map(|Row { id, text }| Special { id, text, kind }).collect())
}

/// Reads `added_tokens_decoder` of a tokenizer_config.json; none if there is no such key.
pub(super) fn added_tokens(file: &str, json: &[u8]) -> Result<Vec<Special>> {
    #[derive(Deserialize)]
    struct Config {
        #[serde(default)]
        added_tokens_decoder: BTreeMap<String, Row>,
    }
    #[derive(Deserialize)]
    #[serde(default)]
    struct Row {
        content: String,
        special: bool,
        lstrip: bool,
        rstrip: bool,
        single_word: bool,
        normalized: bool,
    }
    impl Default for Row {
        fn default() -> Self {
            let (content, special) = (String::new(), true);
            Self { content, special, lstrip: false, rstrip: false, single_word: false, normalized: false }
        }
    }
    let bad = |reason: String| TextError::malformed(file, format!("added_tokens_decoder: {reason}"));
    let config: Config = serde_json::from_slice(json).map_err(|err| bad(err.to_string()))?;
    let special = |(name, row): (String, Row)| {
        let id = name.parse().map_err(|_| bad(format!("'{}' is no id", shown(&name))))?;
        let Row { content, special, lstrip, rstrip, single_word, normalized } = row;
        let by = Match { lstrip, rstrip, single_word, normalized };
        let kind = if special { Kind::Control(by) } else { Kind::Added(by) };
        Ok(Special { id, text: content, kind })
    };
    config.added_tokens_decoder.into_iter().map(special).collect()
}

impl TokenizerSpec {
    /// Reads tiktoken's rank file `text`, called `file` in errors, under the pre-tokeniser that GGUFs call `pre`, with the control
    /// tokens `controls` beside the ranks.
    ///
    /// # Errors
    /// If `pre` is not known, a line is no rank, two tokens have the same bytes or id, or a byte has no rank.
    pub fn from_rank_file(file: &str, text: &[u8], pre: &str, controls: &[(u32, &str)]) -> Result<Self> {
        let known = pre::by_name(pre).ok_or_else(|| TextError::Unsupported {
            file: file.to_owned(),
            what: "pre-tokenizer",
            found: shown(pre),
            supported: pre::NAMES,
        })?;
        let kind = Kind::Control(Match::default());
        let special = |&(id, text): &(u32, &str)| Special { id, text: text.to_owned(), kind };
        ranked(file, text, known, controls.iter().map(special).collect())
    }

    /// Reads Kimi's rank file `text`, called `file` in errors, with `specials` beside it.
    ///
    /// # Errors
    /// If a line is no rank, two tokens have the same bytes or id, or a byte has no rank.
    pub(super) fn from_ranks(file: &str, text: &[u8], specials: Vec<Special>) -> Result<Self> {
        ranked(file, text, pre::by_name("kimi-k2").expect("in the table"), specials)
    }
}

fn ranked(file: &str, text: &[u8], pre: PreTokenizer, specials: Vec<Special>) -> Result<TokenizerSpec> {
    let ranks = ranks(file, text)?;
    let ids: HashMap<&[u8], u32> = ranks.iter().map(|(bytes, id)| (bytes.as_slice(), *id)).collect();
    if ids.len() < ranks.len() {
        let mut sorted: Vec<&[u8]> = ranks.iter().map(|it| it.0.as_slice()).collect();
        sorted.sort_unstable();
        let twice = sorted.windows(2).find(|it| it[0] == it[1]).map_or(&[][..], |it| it[0]);
        return Err(TextError::malformed(file, format!("'{}' has two ranks", shown(&spelled(twice)))));
    }
    if let Some(byte) = (0..=255).find(|it| !ids.contains_key(&[*it][..])) {
        return Err(TextError::malformed(file, format!("byte {byte:#04x} has no rank")));
    }
    let merges = cuts(&ranks, &ids);
    let ordinary = |(bytes, id): &(Vec<u8>, u32)| Token { id: *id, text: spelled(bytes), kind: Kind::Normal };
    let mut tokens: Vec<Token> = ranks.iter().map(ordinary).collect();
    tokens.extend(specials.into_iter().map(|Special { id, text, kind }| Token { id, text, kind }));
    let spec = TokenizerSpec {
        tokens,
        merges,
        // tiktoken looks a whole piece up before it joins any pair.
        flags: Flags { ignore_merges: true, ..Flags::default() },
        normalizer: pre.normalizer(),
        pre_tokenizer: Some(pre.json()),
        ..TokenizerSpec::empty()
    };
    spec.checked(file)
}

/// Every way to cut a token in two tokens: lowest rank first, then the longest left part.
fn cuts(ranks: &[(Vec<u8>, u32)], ids: &HashMap<&[u8], u32>) -> Vec<(u32, u32)> {
    let mut by_rank: Vec<&(Vec<u8>, u32)> = ranks.iter().collect();
    by_rank.sort_by_key(|it| it.1);
    let cuts_of = |bytes: &[u8]| {
        let pair = |at: usize| {
            let (left, right) = bytes.split_at(at);
            Some((*ids.get(left)?, *ids.get(right)?))
        };
        (1..bytes.len()).rev().filter_map(pair).collect::<Vec<_>>()
    };
    by_rank.into_iter().flat_map(|it| cuts_of(&it.0)).collect()
}

/// Tokens and ranks in the order of the file.
fn ranks(file: &str, text: &[u8]) -> Result<Vec<(Vec<u8>, u32)>> {
    let mut out = Vec::new();
    for (number, line) in (1..).zip(text.split(|it| *it == b'\n')) {
        let line = line.trim_ascii_end();
        if line.is_empty() {
            continue;
        }
        let bad = |reason: &str| TextError::malformed(file, format!("line {number}: {reason}"));
        let at = line
            .iter()
            .position(|it| *it == b' ')
            .ok_or_else(|| bad("expected base64, a space and a rank"))?;
        let rank = std::str::from_utf8(&line[at + 1..]).ok().and_then(|it| it.parse().ok());
        let rank = rank.ok_or_else(|| bad("the rank is no number of 32 bits"))?;
        let bytes = base64(&line[..at]).ok_or_else(|| bad("the token is not base64"))?;
        if bytes.is_empty() || bytes.len() > MAX_TOKEN {
            return Err(bad(&format!("a token of {} bytes, expected 1 to {MAX_TOKEN}", bytes.len())));
        }
        out.push((bytes, rank));
    }
    Ok(out)
}

/// `bytes` in GPT-2's alphabet.
fn spelled(bytes: &[u8]) -> String {
    bytes.iter().map(|it| bytelevel::char_of(*it)).collect()
}

/// Decodes base64 (RFC 4648 §4, with padding); `None` if it is none, or has bits beyond its last byte.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let (quads, []) = text.as_chunks::<4>() else { return None };
    let mut out = Vec::with_capacity(3 * quads.len());
    for (idx, quad) in quads.iter().enumerate() {
        let padding = quad.iter().rev().take_while(|it| **it == b'=').count();
        if padding > 2 || (padding > 0 && idx + 1 < quads.len()) {
            return None;
        }
        let sextets = quad[..4 - padding].iter().map(|it| sextet(*it));
        let word = sextets
            .chain(std::iter::repeat_n(Some(0), padding))
            .try_fold(0, |word, it| Some(word << 6 | it?))?;
        let bytes = u32::to_be_bytes(word);
        let (kept, cut) = bytes[1..].split_at(3 - padding);
        if cut.iter().any(|it| *it != 0) {
            return None;
        }
        out.extend(kept);
    }
    Some(out)
}

fn sextet(c: u8) -> Option<u32> {
    Some(u32::from(match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::text::Tokenizer;

    /// RFC 4648 §10, and what is none.
    #[test]
    fn base64_is_that_of_the_rfc() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmE=", "fooba")]
        {
            assert_eq!(base64(text.as_bytes()).unwrap(), bytes.as_bytes());
        }
        assert_eq!(base64(b"+/8=").unwrap(), [0xfb, 0xff]);
        for wrong in ["Z", "Zg", "Zg=", "Z===", "====", "Zh==", "Zm9=", "Zg==Zg==", "Zg=x", "Z g=", "Zm9-"] {
            assert_eq!(base64(wrong.as_bytes()), None, "{wrong}");
        }
    }

    /// A rank file of all bytes and then `more`; the ids of more begin at 256.
    fn file(more: &[&str]) -> String {
        let encode = |bytes: &[u8]| -> String {
            let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            let quad = |part: &[u8]| -> String {
                let byte = |at: usize| u32::from(part.get(at).copied().unwrap_or(0));
                let word = byte(0) << 16 | byte(1) << 8 | byte(2);
                let c = |at: usize| char::from(alphabet[(word >> (18 - 6 * at) & 63) as usize]);
                (0..4).map(|at| if at <= part.len() { c(at) } else { '=' }).collect()
            };
            bytes.chunks(3).map(quad).collect()
        };
        let tokens = (0..=255u8).map(|it| vec![it]).chain(more.iter().map(|it| it.as_bytes().to_vec()));
        tokens.enumerate().map(|(rank, it)| format!("{} {rank}\n", encode(&it))).collect()
    }

    fn tokenizer(more: &[&str]) -> Tokenizer {
        TokenizerSpec::from_ranks("t", file(more).as_bytes(), Vec::new()).unwrap().build().unwrap()
    }

    fn encode(text: &str, more: &[&str]) -> Vec<u32> {
        tokenizer(more).encode_bare(text).unwrap()
    }

    #[test]
    fn the_lowest_rank_is_joined_first_whatever_its_parts_are() {
        // "abc" can be made from either cut; "bc" has the lower rank and comes first.
        assert_eq!(encode("abcd", &["bc", "ab", "abc", "abcd"]), [259], "a whole piece is a token");
        assert_eq!(encode("xabc", &["bc", "ab", "abc"]), [120, 258]);
        assert_eq!(encode("xabcab", &["ab", "bc", "abc"]), [120, 258, 256]);
    }

    #[test]
    fn trained_ranks_give_what_tiktokens_loop_gives() {
        let mut state = 1u64;
        let mut letters = |n: usize| -> Vec<u8> {
            let letter = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                b'a' + (state >> 33) as u8 % 3
            };
            (0..n).map(letter).collect()
        };
        for _ in 0..40 {
            let mut words: Vec<Vec<Vec<u8>>> =
                (0..12).map(|_| letters(9).into_iter().map(|it| vec![it]).collect()).collect();
            let mut more: Vec<String> = Vec::new();
            for _ in 0..14 {
                let token = train_one(&mut words).unwrap();
                if !more.contains(&token) {
                    more.push(token);
                }
            }
            let more: Vec<&str> = more.iter().map(String::as_str).collect();
            let tokenizer = tokenizer(&more);
            for n in 2..25 {
                let word = letters(n);
                let text = String::from_utf8(word.clone()).unwrap();
                let ids = tokenizer.encode_bare(&text).unwrap();
                assert_eq!(ids, reference(&word, &more, b""), "{text} by {more:?}");
            }
        }
    }

    /// One step of training: joins the most frequent pair of neighbours everywhere.
    fn train_one(words: &mut [Vec<Vec<u8>>]) -> Option<String> {
        let mut counts: BTreeMap<(Vec<u8>, Vec<u8>), usize> = BTreeMap::new();
        for word in words.iter() {
            word.windows(2).for_each(|it| *counts.entry((it[0].clone(), it[1].clone())).or_default() += 1);
        }
        let (left, right) = counts.into_iter().max_by_key(|it| it.1)?.0;
        for word in words {
            while let Some(at) = word.windows(2).position(|it| it[0] == left && it[1] == right) {
                let tail = word.remove(at + 1);
                word[at].extend(tail);
            }
        }
        Some(String::from_utf8([left, right].concat()).unwrap())
    }

    #[test]
    fn a_word_of_one_letter_is_joined_from_the_left() {
        let tokenizer = tokenizer(&["aa", "aaa", "aaaa"]);
        for n in 1..12 {
            let text = "a".repeat(n) + "!";
            let ids = tokenizer.encode_bare(&text).unwrap();
            assert_eq!(
                ids,
                reference(text.trim_end_matches('!').as_bytes(), &["aa", "aaa", "aaaa"], b"!"),
                "{n}"
            );
        }
    }

    /// tiktoken's loop, literally; a piece that is a token is that token.
    fn reference(piece: &[u8], more: &[&str], rest: &[u8]) -> Vec<u32> {
        let rank = |bytes: &[u8]| match bytes {
            [one] => Some(u32::from(*one)),
            _ => more.iter().position(|it| it.as_bytes() == bytes).map(|it| 256 + it as u32),
        };
        let mut parts: Vec<Vec<u8>> = piece.iter().map(|it| vec![*it]).collect();
        while rank(piece).is_none() || parts.len() > 1 {
            let joined = |at: usize| rank(&[parts[at].as_slice(), &parts[at + 1]].concat());
            let best = (0..parts.len() - 1).filter_map(|at| Some((joined(at)?, at))).min();
            let Some((_, at)) = best else { break };
            let right = parts.remove(at + 1);
            parts[at].extend(right);
        }
        parts.iter().map(|it| rank(it).unwrap()).chain(rest.iter().map(|it| u32::from(*it))).collect()
    }

    #[test]
    fn broken_rank_files_are_refused_by_line() {
        let good = file(&["ab"]);
        let refuse =
            |text: &str| TokenizerSpec::from_ranks("t", text.as_bytes(), Vec::new()).unwrap_err().to_string();
        for (text, says) in [
            (format!("{good}YQ=="), "line 258: expected base64, a space and a rank"),
            (format!("{good}YQ= 300"), "line 258: the token is not base64"),
            (format!("{good}YWI= -1"), "line 258: the rank is no number"),
            (format!("{good}YWI= 99999999999"), "line 258: the rank is no number"),
            (format!("{good} 300"), "line 258: a token of 0 bytes"),
            (format!("{good}{} 300", "YWJj".repeat(342)), "line 258: a token of 1026 bytes"),
            (format!("{good}YWI= 300"), "'ab' has two ranks"),
            (format!("{good}YWM= 3"), "have the same id 3"),
            (format!("{good}YWM= 4194304"), "not below"),
            ("AA== 0\n".to_owned(), "byte 0x01 has no rank"),
            (String::new(), "byte 0x00 has no rank"),
        ] {
            assert!(refuse(&text).contains(says), "{says}: {}", refuse(&text));
        }
    }

    #[test]
    fn specials_are_controls() {
        let read = specials("s", br#"[{"id": 256, "text": "<|\u0065nd|>"}]"#).unwrap();
        let spec = TokenizerSpec::from_ranks("t", file(&[]).as_bytes(), read).unwrap();
        let tokenizer = spec.build().unwrap();
        assert_eq!(tokenizer.control_id("<|end|>"), Some(256));
        assert_eq!(tokenizer.encode_with_specials("a<|end|>").unwrap(), [97, 256]);
        assert_eq!(tokenizer.encode("<|end|>").unwrap().len(), 7, "a user's text is text");
        assert!(specials("s", b"[{}]").unwrap_err().to_string().starts_with("s: not valid"));
        let json = br#"{"added_tokens_decoder": {"256": {"content": "<a>"}, "257": {"content": "<b>", "special": false}}}"#;
        let kinds: Vec<bool> =
            added_tokens("c", json).unwrap().iter().map(|it| matches!(it.kind, Kind::Control(_))).collect();
        assert_eq!(kinds, [true, false]);
        assert!(added_tokens("c", br#"{"added_tokens_decoder": {"x": {}}}"#).is_err());
        assert_eq!(added_tokens("c", b"{}").unwrap(), []);
    }
}
