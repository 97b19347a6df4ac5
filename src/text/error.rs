//! What can be wrong with a tokenizer, in one line.

use crate::formats::FormatError;

/// A result of this module.
pub type Result<T> = std::result::Result<T, TextError>;

/// Why text and tokens cannot be told apart.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The model file itself.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The tokenizer contradicts itself.
    #[error("{file}: {reason}")]
    Malformed {
        /// The file, or what stands for it.
        file: String,
        /// Found and expected, with key or token.
        reason: String,
    },
    /// A tokenizer that is made in a way we do not know.
    #[error("{file}: {what} '{found}' is not supported ({supported})")]
    Unsupported {
        /// The file, or what stands for it.
        file: String,
        /// The kind of thing.
        what: &'static str,
        /// Its name in the file.
        found: String,
        /// What is known instead.
        supported: &'static str,
    },
    /// A tokenizer section of a plan that was damaged.
    #[error("tokenizer section at {offset:#x}: {reason}")]
    Section {
        /// Bytes from the start of the section.
        offset: usize,
        /// Found and expected.
        reason: String,
    },
    /// The tokenizer refused a text.
    #[error("cannot tokenize: {0}")]
    Encode(String),
    /// A chat template that is wrong, or refuses a conversation.
    #[error("chat template: {0}")]
    Template(String),
    /// A chat template that was ended.
    #[error("chat template: {0}")]
    TemplateLimit(String),
    /// Sampling options out of range.
    #[error("{name} is {found}, expected {expected}")]
    Option {
        /// The option.
        name: &'static str,
        /// Its value.
        found: f64,
        /// The range.
        expected: &'static str,
    },
}

impl TextError {
    pub(crate) fn malformed(file: &str, reason: impl Into<String>) -> Self {
        Self::Malformed { file: file.to_owned(), reason: reason.into() }
    }
}
