//! Chat templates: a conversation to the text and the ids that a model was trained to continue.
//!
//! | file | holds |
//! |---|---|
//! | `template` | a template as data, and the turn ends it implies |
//! | `input` | conversations, from a program or a JSON file |
//! | `render` | the Jinja environment and its helpers |
//! | `limits` | what keeps a template from taking the process along |
//! | `marks` | what keeps texts in a conversation from becoming control tokens |
//! | `json` | `tojson` as Python writes it |
//! | `source` | where a model's files keep their template |
//!
//! Invariants
//! - the template owns the control tokens: nothing is put before or after what it writes;
//! - no text of a conversation becomes a control token, or a part of one;
//! - a template ends: its steps, its output, its time and the memory it may take are bounded.
//!
//! Deliberately absent: choice among several named templates (the default one is taken), and templates that include others.

mod input;
mod json;
mod limits;
mod marks;
mod render;
mod source;
mod template;

pub use input::{ChatInput, Message};
pub use jiff::Zoned;
pub use render::Rendered;
pub use template::ChatTemplate;
