//! What compiler and runtime agree on.
//!
//! The ground floor of the project: element types and block formats with their reference decode, packed layouts,
//! entity ids, the plan schema, its file and text forms, and the structural validation that every load runs.
//! It imports nothing of ours.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod dtype;
pub mod file;
pub mod fx;
pub mod grouped;
pub mod ids;
pub mod low_rank;
pub mod overlap;
pub mod pack;
pub mod record;
pub mod schema;
mod stored;
pub mod text;
pub mod units;
pub mod validate;
pub mod vq;
pub mod words;

pub use dtype::{Block, DType, Math};
pub use fx::{FX_GROUP, FxLayout};
pub use grouped::GroupedLayout;
pub use low_rank::LowRank;
pub use pack::{LANES, Packing};
pub use units::UnitLayout;
pub use vq::{LutLayout, Tables, VqCode};
pub use words::{Act, RopeStyle, Scoring, StateKind, UnaryKind};
