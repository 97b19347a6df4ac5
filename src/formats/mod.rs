//! Readers of model files: GGUF and safetensors, single and sharded, and `.waste` containers, hardened against hostile bytes.
//!
//! Front ends see one type, [`ModelFiles`]: a checked tensor table, the bytes of each tensor, and typed
//! metadata ([`Meta`]) that remembers which keys were read.
//!
//! Invariants
//! - every count, offset, size and shape is bounded by the file before anything is allocated;
//! - arithmetic on numbers from a file is checked, and nothing recurses on a file's nesting;
//! - any refusal is one line with file, tensor or key, and offset ([`FormatError`]).
//!
//! Deliberately absent: meaning (that is `models`), decoding (`waste_plan::dtype`), downloads.

mod config;
pub mod container;
mod cursor;
mod error;
mod gguf;
mod hub;
mod meta;
mod model;
mod peft;
mod safetensors;
mod source;
mod tensor;

pub use config::parse_config;
pub use container::Container;
pub use error::{FormatError, Item, Result, grouped, hex, shown};
pub use hub::HubCache;
pub use meta::Meta;
pub use model::{Format, ModelFiles};
pub use peft::{AdaptedLayer, Adapter};
pub use safetensors::ForeignTensor;
pub use source::{FileStamp, Source, read_small};
pub use tensor::TensorInfo;
