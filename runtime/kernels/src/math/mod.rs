//! The transcendental functions of every kernel (numerics §1.3): one polynomial each, the same on every tier.
//!
//! All are straight-line code with selections in place of branches, so that the one definition below vectorises when
//! a kernel that inlines it is compiled for a wider instruction set; every step is an IEEE operation, so the bits do
//! not depend on that. Measured against f64: at most 3 units in the last place where the result is a normal number
//! (`gelu_*` near their negative tail excepted: there the *absolute* error stays below 2^-23 of the input).
//!
//! | function | exact points |
//! |---|---|
//! | exp | exp(±0) = 1, exp(−inf) = 0, overflow is inf |
//! | sigmoid | 1 / (1 + e^−x), e of −abs(x) only: 0 and 1 at the infinities |
//! | tanh | odd, ±1 at the infinities |
//! | softplus | max(x, 0) + ln(1 + e^−abs(x)) |
//! | erf | odd, ±1 at the infinities |
//!
//! A NaN stays a NaN. silu and the gelus are x times a sigmoid or a cdf: at −inf they are NaN (0 · inf).
//! The coefficients were fitted here (near-minimax, 40 digits, rounded to f32); intervals stand beside them.

mod portable;

pub use portable::{erf, exp, gelu_erf, gelu_tanh, relu, sigmoid, silu, softplus, tanh};
