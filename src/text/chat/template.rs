//! A chat template as data.

use jiff::Zoned;

use super::input::{ChatInput, Message};
use super::marks::Marks;
use super::render::{self, Rendered};
use crate::text::error::{Result, TextError};
use crate::text::tokenizer::Tokenizer;

/// Bytes of a template at most; real ones have some ten thousand.
const MAX_SOURCE: usize = 1 << 17;

/// A Jinja template and the words it may name, such as `bos_token`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    pub(crate) source: String,
    /// Names of special tokens and their texts, by name.
    pub(crate) words: Vec<(String, String)>,
}

impl ChatTemplate {
    /// The template `source`, called `file` in errors, with the special tokens `words` by name. It is not parsed yet: a model whose
    /// template is not understood can still continue texts.
    ///
    /// # Errors
    /// If it is larger than any real one.
    pub fn new(file: &str, source: String, words: Vec<(String, String)>) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            let reason = format!("a chat template of {} bytes, at most {MAX_SOURCE} are read", source.len());
            return Err(TextError::malformed(file, reason));
        }
        Ok(Self { source, words })
    }

    /// Checks that Jinja can parse it; it is called `file` in errors.
    ///
    /// # Errors
    /// With the line at fault.
    pub fn check(&self, file: &str) -> Result<()> {
        render::parse(&self.source).map_err(|err| TextError::malformed(file, err.to_string()))
    }

    /// The Jinja text.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Names of special tokens and their texts, by name.
    #[must_use]
    pub fn words(&self) -> &[(String, String)] {
        &self.words
    }

    /// Renders `input`; `tokenizer` says which texts are control tokens.
    ///
    /// # Errors
    /// [`TextError::Template`] with the line at fault, also where the template refuses the conversation;
    /// [`TextError::TemplateLimit`] if it does not end, or takes more memory than a template may;
    /// a part of it may still run then.
    pub fn render(&self, input: &ChatInput, tokenizer: &Tokenizer) -> Result<Rendered> {
        render::render(self, input, &tokenizer.control_texts())
    }

    /// `text` with `mark` wherever a control token could begin, as it stands in a [`Rendered`] conversation.
    pub(crate) fn marked(&self, text: &str, mark: char, controls: &[&str]) -> String {
        Marks::with(mark, controls, &self.source).text(text)
    }

    /// The one of `controls`, texts of control tokens, that ends a turn of the assistant: what follows its words at once. `None` if
    /// the template refuses the shortest of conversations, or ends turns by text alone.
    ///
    /// # Errors
    /// [`TextError::TemplateLimit`] as [`ChatTemplate::render`]: what was left behind may still run.
    pub fn turn_end<'c>(&self, controls: &[&'c str]) -> Result<Option<&'c str>> {
        const ANSWER: &str = "Zwölf Boxkämpfer";
        let messages = [Message::new("user", "Hm"), Message::new("assistant", ANSWER)];
        let input = ChatInput::new(&messages, false, &Zoned::default());
        let text = match render::render(self, &input, controls) {
            Ok(it) => it.text(),
            Err(err @ TextError::TemplateLimit(_)) => return Err(err),
            Err(_) => return Ok(None),
        };
        let Some((_, after)) = text.rsplit_once(ANSWER) else { return Ok(None) };
        let fits = controls.iter().filter(|it| after.trim_start().starts_with(**it));
        Ok(fits.max_by_key(|it| it.len()).copied())
    }
}
