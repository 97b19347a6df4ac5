//! Conversations, and whatever else a template is given.

use jiff::Zoned;
use minijinja::value::{Value, ValueKind};
use serde::{Deserialize, Serialize};

use crate::text::error::{Result, TextError};

/// One turn: who speaks, and what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`, as the template knows them.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// What `role` says.
    #[must_use]
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: content.to_owned() }
    }
}

/// What a template is rendered with: `messages`, `add_generation_prompt`, and more by name (`tools`, `enable_thinking`).
#[derive(Clone, Debug)]
pub struct ChatInput {
    pub(super) variables: Vec<(String, Value)>,
    pub(super) now: Zoned,
}

impl ChatInput {
    /// The conversation `messages` at the time `now`; `answers` asks for the beginning of an answer at its end.
    #[must_use]
    pub fn new(messages: &[Message], answers: bool, now: &Zoned) -> Self {
        let variables = vec![
            ("messages".to_owned(), Value::from_serialize(messages)),
            ("add_generation_prompt".to_owned(), answers.into()),
        ];
        Self { variables, now: now.clone() }
    }

    /// Reads JSON, called `file` in errors: an array of messages, or an object with `messages` and whatever else the template
    /// names. Where it does not say, the beginning of an answer is asked for if the last message is not the assistant's.
    ///
    /// # Errors
    /// If it is not valid JSON, or a message is no object with a text as `role`.
    pub fn from_json(file: &str, text: &[u8], now: &Zoned) -> Result<Self> {
        let bad = |reason: String| TextError::malformed(file, reason);
        let root: Value =
            serde_json::from_slice(text).map_err(|err| bad(format!("not a conversation: {err}")))?;
        let mut variables = Vec::new();
        match root.kind() {
            ValueKind::Seq => variables.push(("messages".to_owned(), root)),
            ValueKind::Map => {
                for key in root.try_iter().map_err(|err| bad(err.to_string()))? {
                    let value = root.get_item(&key).map_err(|err| bad(err.to_string()))?;
                    variables.push((key.to_string(), value));
                }
            }
            _ => return Err(bad("expected an array of messages, or an object with \"messages\"".into())),
        }
        let messages = variables.iter().find(|it| it.0 == "messages").map(|it| it.1.clone());
        let messages = messages.filter(|it| it.kind() == ValueKind::Seq && it.len() > Some(0));
        let messages = messages.ok_or_else(|| bad("there are no \"messages\"".into()))?;
        let mut last = String::new();
        for (number, message) in (1..).zip(messages.try_iter().map_err(|err| bad(err.to_string()))?) {
            let role = message.get_attr("role").ok().filter(|it| it.kind() == ValueKind::String);
            last = role.ok_or_else(|| bad(format!("message {number} has no \"role\"")))?.to_string();
        }
        if !variables.iter().any(|it| it.0 == "add_generation_prompt") {
            variables.push(("add_generation_prompt".to_owned(), (last != "assistant").into()));
        }
        Ok(Self { variables, now: now.clone() })
    }
}
