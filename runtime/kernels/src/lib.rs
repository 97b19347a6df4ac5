//! The CPU kernels of `waste` and their dispatch table.
//!
//! One folder a family; in it `mod.rs` states the contract, `portable.rs` *is* the specification, and one file an
//! instruction set holds faster twins. [`KernelTable::new`] picks, row by row, the best twin a machine has.
//!
//! Invariants
//! - every twin of a row returns the bits of the portable one, on any register width: the order of summation belongs
//!   to the output element (numerics §1). The payload of a NaN is not part of that: a NaN is a NaN;
//! - memory safety never depends on an argument's value: kernels take slices and views, a length that does not fit
//!   is a panic with a clear text or a wrong answer;
//! - no kernel allocates, prints, reads the environment or knows of threads. Scratch is an argument.
//!
//! Deliberately absent: thread pools, plans, models; anything that splits a reduction.
#![deny(missing_docs)]

pub mod argmax;
pub mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bytes;
mod cpu;
mod embed;
mod epilogue;
pub mod half16;
mod latent;
mod linear;
mod linear_f32;
mod lut;
pub mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod norm;
mod quant_act;
mod recurrence;
mod residual;
mod rope;
mod route;
mod table;
mod view;

pub use argmax::ArgMax;
pub use cpu::{CpuFeatures, Isa};
pub use epilogue::Unary;
pub use latent::latent_scratch_len;
pub use recurrence::STATE_COLS;
pub use residual::MAX_BLOCKS;
pub use route::RouteRule;
pub use table::{Exactness, KernelTable, RowInfo};
pub use view::{FxRowMut, FxRows, RowsF32, TileMut};
