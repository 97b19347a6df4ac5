//! Text to tokens and back, and the choice of the next token.
//!
//! A tokenizer is read from any source into a [`TokenizerSpec`], which a plan carries as a section, and which
//! [`TokenizerSpec::build`] turns into a [`Tokenizer`].
//!
//! Invariants
//! - text supplied by a user never becomes a control token;
//! - one owner of BOS; stop ids are the union of all sources;
//! - streamed text equals the text decoded at once, and never ends within a character.
//! - a template owns the control tokens of a chat, and no text in it becomes one.
//!
//! Deliberately absent: sessions (`crate::chat` keeps conversations over turns).

mod bpe;
mod bytelevel;
mod chat;
mod error;
mod gguf;
mod json;
mod load;
mod pre;
mod sampler;
mod section;
mod spec;
mod stream;
mod tiktoken;
mod tokenizer;
mod words;

pub use chat::{ChatInput, ChatTemplate, Message, Rendered, Zoned};
pub use error::{Result, TextError};
pub use load::stop_ids;
pub use sampler::{Sampler, SamplerOptions, greedy};
pub use spec::TokenizerSpec;
pub use stream::{StopFilter, TextStream};
pub use tokenizer::{TextStart, Tokenizer};
