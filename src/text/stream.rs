//! Text as it is generated: whole characters only, and nothing past a stop string.
//!
//! Invariants
//! - the pieces of a [`TextStream`] put together equal `Tokenizer::decode` of all ids;
//! - no piece ends within a character;
//! - what a [`StopFilter`] lets through does not depend on how the text was cut into pieces.

use super::tokenizer::Tokenizer;

/// Decodes ids as they come.
#[derive(Clone, Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The start of a character whose rest has not come yet.
    held: Vec<u8>,
    strip_space: bool,
}

impl<'a> TextStream<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, strip_space: bool) -> Self {
        Self { tokenizer, held: Vec::new(), strip_space }
    }

    /// Takes the next id; `None` if it completes no character.
    pub fn push(&mut self, id: u32) -> Option<String> {
        let mut bytes = self.tokenizer.bytes_of(id);
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.held.extend(bytes);
        let (text, used) = whole_characters(&self.held);
        self.held.drain(..used);
        (!text.is_empty()).then_some(text)
    }

    /// Ends the text: what is left of an unfinished character, as U+FFFD.
    pub fn finish(&mut self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        (!text.is_empty()).then_some(text)
    }
}

/// The text of `bytes` up to a character that may still be finished, and the bytes it took. Invalid
/// sequences become U+FFFD as in `String::from_utf8_lossy`.
fn whole_characters(bytes: &[u8]) -> (String, usize) {
    let mut text = String::new();
    let mut at = 0;
    loop {
        let err = match std::str::from_utf8(&bytes[at..]) {
            Ok(rest) => {
                text.push_str(rest);
                return (text, bytes.len());
            }
            Err(err) => err,
        };
        let valid = &bytes[at..at + err.valid_up_to()];
        text.push_str(std::str::from_utf8(valid).expect("valid up to here"));
        at += valid.len();
        match err.error_len() {
            Some(len) => {
                text.push(char::REPLACEMENT_CHARACTER);
                at += len;
            }
            None => return (text, at),
        }
    }
}

/// Ends a text at the first stop string to be completed.
#[derive(Clone, Debug)]
pub struct StopFilter {
    stops: Vec<String>,
    /// Text that may be the start of a stop string.
    held: String,
    is_stopped: bool,
}

impl StopFilter {
    /// A filter for `stops`; empty strings are not stops.
    #[must_use]
    pub fn new(stops: Vec<String>) -> Self {
        let stops = stops.into_iter().filter(|it| !it.is_empty()).collect();
        Self { stops, held: String::new(), is_stopped: false }
    }

    /// Takes more text and gives what can no longer belong to a stop string.
    pub fn push(&mut self, text: &str) -> String {
        if self.is_stopped {
            return String::new();
        }
        self.held.push_str(text);
        if let Some(start) = self.first_match() {
            self.is_stopped = true;
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let kept = self.held.split_off(self.safe_len());
        std::mem::replace(&mut self.held, kept)
    }

    /// Whether a stop string was completed.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Ends the text: what was held back and became no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the match starts that is completed first (of several, the longest).
    fn first_match(&self) -> Option<usize> {
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop).map(|at| (at + stop.len(), at)));
        found.min().map(|(_, start)| start)
    }

    /// Bytes at the front of `held` in which no stop string can start and still be completed.
    fn safe_len(&self) -> usize {
        let bytes = self.held.as_bytes();
        let could_stop = |at: usize| self.stops.iter().any(|stop| stop.as_bytes().starts_with(&bytes[at..]));
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = bytes.len().saturating_sub(longest);
        (from..bytes.len())
            .find(|at| self.held.is_char_boundary(*at) && could_stop(*at))
            .unwrap_or(bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_bytes_are_replaced_as_the_standard_library_does() {
        let cases: [&[u8]; 6] =
            [b"a\xffb", b"\xe2\x82", b"\xf0\x9f\x98\x80", b"\xe2\x28\xa1", b"\xc0\x80", b"\xed\xa0\x80x"];
        for bytes in cases {
            let mut text = String::new();
            let mut held = Vec::new();
            for byte in bytes {
                held.push(*byte);
                let (piece, used) = whole_characters(&held);
                held.drain(..used);
                text.push_str(&piece);
            }
            text.push_str(&String::from_utf8_lossy(&held));
            assert_eq!(text, String::from_utf8_lossy(bytes), "{bytes:?}");
        }
    }

    /// The text before the stop that is completed first, found without streaming.
    fn reference(text: &str, stops: &[&str]) -> String {
        for end in 0..=text.len() {
            let Some(head) = text.get(..end) else { continue };
            let longest = stops.iter().filter(|stop| head.ends_with(**stop)).max_by_key(|stop| stop.len());
            if let Some(stop) = longest {
                return text[..end - stop.len()].to_owned();
            }
        }
        text.to_owned()
    }

    #[test]
    fn a_stop_string_cuts_the_same_however_the_text_arrives() {
        let stops = ["\n\nUser:", "é!", "abab", "bc"];
        let texts = [
            "hello\n\nUser: x",
            "\n\nUs",
            "ababab",
            "café! x",
            "xabc",
            "aabab",
            "abab",
            "no stop",
            "caf",
            "aébcé!",
        ];
        for text in texts {
            let chars: Vec<char> = text.chars().collect();
            for cut in 1..=chars.len() {
                let mut filter = StopFilter::new(stops.map(String::from).to_vec());
                let pieces = chars.chunks(cut).map(|it| filter.push(&it.iter().collect::<String>()));
                let mut out: String = pieces.collect();
                out.push_str(&filter.finish());
                assert_eq!(out, reference(text, &stops), "{text:?} in pieces of {cut}");
                assert_eq!(filter.is_stopped(), out != text, "{text:?}");
            }
        }
    }
}
