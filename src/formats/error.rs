//! What can be wrong with a model file, and the one line that says so.
//!
//! Invariants
//! - every message names the file, the tensor or key, and the byte offset where one exists;
//! - a message is one line of bounded length, whatever bytes the file puts into its names.
//!
//! Deliberately absent: errors about *meaning* (an unknown architecture, a wrong shape): those are the front ends'.

use std::fmt;
use std::path::Path;

/// A result of this module.
pub type Result<T> = std::result::Result<T, FormatError>;

/// Why a model could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The operating system refused.
    #[error("{file}: {source}")]
    Io {
        /// The file or folder.
        file: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file ends before something it announces.
    #[error("{file}: {item} at {offset:#x} needs {} bytes, file ends at {end:#x} (truncated download?)", grouped(*.need))]
    Truncated {
        /// The file.
        file: String,
        /// What does not fit.
        item: Item,
        /// Where it starts, in bytes from the start of the file.
        offset: u64,
        /// The bytes it needs.
        need: u64,
        /// The length of the file in bytes.
        end: u64,
    },
    /// The file contradicts itself or its format.
    #[error("{file}: {item}{}: {reason}", at(item, *offset))]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong.
        item: Item,
        /// Where, in bytes from the start of the file.
        offset: u64,
        /// Found and expected.
        reason: String,
    },
    /// A correct file that uses something this program does not know.
    #[error("{file}: {item}{}: {what} is not supported ({supported})", at(item, *offset))]
    Unsupported {
        /// The file.
        file: String,
        /// Where it occurs.
        item: Item,
        /// Where, in bytes from the start of the file.
        offset: u64,
        /// The name of the unknown thing.
        what: String,
        /// What is known instead.
        supported: &'static str,
    },
    /// Something a model must have is not there.
    #[error("{file}: {item} is missing{hint}")]
    Missing {
        /// The file or folder.
        file: String,
        /// What is missing.
        item: Item,
        /// Empty, or ` (…)` saying what to do.
        hint: String,
    },
    /// The model argument names nothing that can be opened.
    #[error("{file}: {reason}")]
    NotAModel {
        /// The argument.
        file: String,
        /// Why not.
        reason: String,
    },
}

impl FormatError {
    /// An [`FormatError::Io`] about `path`.
    #[must_use]
    pub fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { file: shown(&path.to_string_lossy()), source }
    }

    /// An [`FormatError::NotAModel`] about `path`.
    #[must_use]
    pub fn not_a_model(path: &Path, reason: impl Into<String>) -> Self {
        Self::NotAModel { file: shown(&path.to_string_lossy()), reason: reason.into() }
    }
}

/// ` at 0x1a40`; nothing for a key of a JSON file, whose place is not kept: no file of another kind begins with a key.
fn at(item: &Item, offset: u64) -> String {
    match item {
        Item::Key(_) if offset == 0 => String::new(),
        _ => format!(" at {offset:#x}"),
    }
}

/// The thing inside a file that an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// The fixed part at the start.
    Header,
    /// A metadata key.
    Key(String),
    /// A tensor.
    Tensor(String),
    /// A whole file of the model.
    File(String),
    /// The record of a routed expert.
    Expert {
        /// The expert.
        expert: u32,
        /// Its layer, from 0.
        layer: u32,
    },
    /// A codebook, by its number in its file.
    Codebook(u32),
}

impl Item {
    /// A metadata key, by a name from a file.
    #[must_use]
    pub fn key(name: &str) -> Self {
        Self::Key(shown(name))
    }

    /// A tensor, by a name from a file.
    #[must_use]
    pub fn tensor(name: &str) -> Self {
        Self::Tensor(shown(name))
    }

    /// A file of the model, by its name.
    #[must_use]
    pub fn file(name: &str) -> Self {
        Self::File(shown(name))
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("header"),
            Self::Key(name) => write!(f, "key '{name}'"),
            Self::Tensor(name) => write!(f, "tensor '{name}'"),
            Self::File(name) => write!(f, "file '{name}'"),
            Self::Expert { expert, layer } => write!(f, "expert {expert} of layer {layer}"),
            Self::Codebook(index) => write!(f, "codebook {index}"),
        }
    }
}

/// `text` made fit for one line: control characters escaped, at most 120 characters.
#[must_use]
pub fn shown(text: &str) -> String {
    const MOST: usize = 120;
    let mut out = String::new();
    for (idx, c) in text.chars().enumerate() {
        if idx == MOST {
            out.push('…');
            break;
        }
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Lower-case hexadecimal, as hashes are written.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|it| format!("{it:02x}")).collect()
}

/// `n` with thousands separated: 4,718,592.
#[must_use]
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_truncation_message_is_the_promised_one() {
        let err = FormatError::Truncated {
            file: "model.gguf".into(),
            item: Item::tensor("blk.3.ffn_up.weight"),
            offset: 0x1a_2b00,
            need: 4_718_592,
            end: 0x1a_3000,
        };
        assert_eq!(
            err.to_string(),
            "model.gguf: tensor 'blk.3.ffn_up.weight' at 0x1a2b00 needs 4,718,592 bytes, \
             file ends at 0x1a3000 (truncated download?)"
        );
    }

    #[test]
    fn names_from_files_stay_on_one_short_line() {
        let item = Item::tensor(&"a\n\u{1b}[31m".repeat(1000));
        let text = item.to_string();
        assert!(text.chars().count() < 500 && !text.contains(char::is_control), "{text}");
    }

    #[test]
    fn digits_are_grouped_from_the_right() {
        let all = [0, 12, 123, 1234, 1_234_567].map(grouped);
        assert_eq!(all, ["0", "12", "123", "1,234", "1,234,567"]);
    }
}
