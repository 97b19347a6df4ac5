//! GPT-2's alphabet: each byte as one printable character.
//!
//! Source: `bytes_to_unicode` of GPT-2's encoder.py: printable Latin-1 stands for itself, the other 68
//! bytes follow from U+0100 in order.

/// The byte that `c` stands for.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The character that stands for `byte`.
pub(crate) fn char_of(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
        0x00..=0x20 => 0x100 + u32::from(byte),
        0x7f..=0xa0 => 0x121 + u32::from(byte - 0x7f),
        0xad => 0x143,
    };
    char::from_u32(code).expect("far below the surrogates")
}

/// The bytes that `text` stands for; `None` if a character is outside the alphabet.
pub(crate) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection_onto_bytes() {
        let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert!((0..=255).all(|it| byte_of(char_of(it)) == Some(it)));
        assert_eq!((byte_of('Ġ'), byte_of('Ċ'), byte_of('a')), (Some(b' '), Some(b'\n'), Some(b'a')));
    }

    #[test]
    fn it_is_the_alphabet_of_the_crate_that_encodes() {
        let theirs = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        assert_eq!(theirs.len(), 256);
        assert_eq!(theirs.into_iter().filter(|c| byte_of(*c).is_none()).count(), 0);
    }
}
