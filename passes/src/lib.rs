//! Graph to graph: what a model means stays, how it is computed improves.
//!
//! | file | holds |
//! |---|---|
//! | `pass` | the trait, the context a pass works in, errors |
//! | `rewrite` | the one way to change a module: edits, applied into fresh graphs |
//! | `pipeline` | the order and its reasons; the manager |
//! | `report` | hits and near misses, as a table |
//! | the rest | one file a pass |
//!
//! Invariants
//! - a pass leaves a verified module verified, and evaluates to the same outputs ([`Numerics`] says how exactly);
//! - a second run of a pass changes nothing;
//! - a pass that fails leaves its input whole;
//! - the same module and options give the same module, on any machine.
//!
//! Deliberately absent: devices and kernels (that is code generation), and passes found by registration.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod canonicalize;
mod copy;
pub mod cse;
pub mod dce;
mod emit;
pub mod flatten_experts;
pub mod fuse;
pub mod hoist_lut;
pub mod legalize_vq;
pub mod lookahead;
pub mod merge_linears;
pub mod pass;
pub mod pipeline;
pub mod quantize_acts;
pub mod raise_canonical;
pub mod report;
pub mod rewrite;
pub mod select_layout;
pub mod sink_lut;

pub use pass::{Changed, Numerics, Pass, PassCx, PassError};
pub use pipeline::{Entry, Event, PipelineOptions, optional_passes, pipeline, print_pipeline, run};
pub use report::{NearMiss, PassReport, PipelineReport, TableBuilds};
