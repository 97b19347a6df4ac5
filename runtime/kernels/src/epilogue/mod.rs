//! Elementwise work on a tile just computed, one pass while it is in L1: bias, activation, gate, residual.
//!
//! Every output depends on the same element of the inputs only, so any width gives the same bits. Lengths are those
//! of `y`; a shorter input is a panic.

pub(crate) mod portable;

/// An elementwise function of one operand; formulas in [`crate::math`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// x / (1 + e^−x).
    Silu,
    /// The tanh form of gelu.
    GeluTanh,
    /// The erf form of gelu.
    GeluErf,
    /// max(x, 0).
    Relu,
    /// 1 / (1 + e^−x).
    Sigmoid,
    /// tanh x.
    Tanh,
    /// ln(1 + e^x).
    Softplus,
    /// e^x.
    Exp,
    /// −x.
    Neg,
}

impl Unary {
    /// Every function, in declaration order.
    pub const ALL: [Self; 9] = [
        Self::Silu,
        Self::GeluTanh,
        Self::GeluErf,
        Self::Relu,
        Self::Sigmoid,
        Self::Tanh,
        Self::Softplus,
        Self::Exp,
        Self::Neg,
    ];
}
