//! Elementwise work on a tile just computed, one pass while it is in L1: bias, activation, gate, residual.
//!
//! `situ` (Kimi K3's gate): y = ((beta · tanh(g / beta)) · sigmoid(g)) · v with v = linear · tanh(u / linear), or u where
//! linear ≤ 0.
//!
//! Every output depends on the same element of the inputs only, so any width gives the same bits. Lengths are those
//! of `y`; a shorter input is a panic.

pub(crate) mod portable;

/// An elementwise function of one operand; formulas in [`crate::math`].
pub use waste_plan::UnaryKind as Unary;
