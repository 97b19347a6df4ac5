//! Executes plans: memory, threads, states, sessions. It never sees the IR.
//!
//! | file | holds |
//! |---|---|
//! | `loaded` | a plan file mapped and validated, its weights |
//! | `session`, `walk` | the accepted history of each row; steps as transactions; the way through a program |
//! | `needs` | bytes that a plan needs and moves |
//! | `saved` | a row of a session as a file |
//! | `learned` | which experts sessions used, as a file |
//! | `exec` | one tile of one step |
//! | `team` | threads that walk a program together |
//! | `arena`, `weights` | memory and the views of it |
//! | `experts`, `stream` | records of experts, streamed from disk; the windows in which a plan uses them |
//! | `sys` | what the operating system says about processors and memory |
//! | `profile`, `peak` | measured time by step; what arithmetic the machine can do |
//! | `trace` | what every thread did and when |
//! | `look`, `poison` | results seen and changed between steps; dead bytes that no step may read |
//!
//! Invariants: no step allocates; a step is all or nothing; the same bits for every number of threads.
#![warn(missing_docs)]

mod arena;
mod error;
mod exec;
pub mod experts;
mod learned;
mod loaded;
mod look;
mod needs;
mod options;
mod peak;
mod poison;
mod profile;
mod saved;
mod session;
mod stream;
pub mod sys;
mod team;
mod trace;
mod walk;
pub mod weights;

pub use error::RuntimeError;
pub use learned::{Learned, Warmed};
pub use loaded::{LoadedPlan, pack_pieces, pack_weight};
pub use look::{StepView, Values};
pub use needs::{needed_bytes, needed_bytes_with};
pub use options::{Counters, SessionOptions, Token};
pub use peak::peak_flops;
pub use poison::{Death, Deaths};
pub use profile::{Calls, Profile};
pub use session::Session;
pub use stream::{ExpertOptions, check_experts};
pub use trace::{Slice, Trace};
pub use waste_kernels::{CpuFeatures, Isa, KernelTable};
