//! What a token brings to the fixed-point linears of every tier that multiplies four inputs of a row at a time.
//!
//! A weight group's part of a token is laid out once, so that the loops over blocks find its planes, sums and scale side by
//! side. A matrix product walks the inputs in chunks of one activation group, so that the parts of [`TOKENS`] tokens stay
//! in L1.

use waste_plan::FX_GROUP;

use super::portable::GROUP;
use crate::view::FxRows;

/// Tokens whose part of a chunk is laid out at once.
pub(super) const TOKENS: usize = 32;
/// Weight groups in a chunk of inputs.
pub(super) const GROUPS: usize = FX_GROUP / GROUP;
/// Quads of inputs in a group.
pub(super) const QUADS: usize = GROUP / 4;
/// Groups of a single token that are laid out at once: 2048 inputs.
pub(super) const SPAN: usize = 64;

/// One weight group's part of one token.
#[derive(Clone, Copy)]
pub(super) struct Part<const P: usize> {
    /// 4 inputs each, plane by plane.
    pub(super) quads: [[[u8; 4]; QUADS]; P],
    /// Sums of the group's two halves of 16.
    pub(super) sums: [[i16; 2]; P],
    pub(super) z: f32,
    pub(super) xs: f32,
}

impl<const P: usize> Part<P> {
    pub(super) const ZERO: Self = Self { quads: [[[0; 4]; QUADS]; P], sums: [[0; 2]; P], z: 0.0, xs: 0.0 };

    /// The sum of plane `p` over the group.
    #[inline(always)]
    pub(super) fn sum(&self, p: usize) -> i32 {
        let [low, high] = self.sums[p];
        i32::from(low) + i32::from(high)
    }
}

/// The rows of one token, by groups.
pub(super) struct Token<'a, const P: usize> {
    pub(super) planes: [&'a [[[u8; 4]; QUADS]]; P],
    pub(super) sums: [&'a [[i16; 2]]; P],
    pub(super) z: &'a [f32],
    /// By chunks.
    pub(super) xs: &'a [f32],
}

impl<'a, const P: usize> Token<'a, P> {
    #[inline(always)]
    pub(super) fn new(x: &FxRows<'a>, t: usize) -> Self {
        Self {
            planes: std::array::from_fn(|p| x.plane_bytes(t, p).as_chunks().0.as_chunks().0),
            sums: std::array::from_fn(|p| x.sums(t, p).as_chunks().0),
            z: x.z(t),
            xs: x.xs(t),
        }
    }

    /// The parts of the groups from `from` on.
    #[inline(always)]
    pub(super) fn lay_out(&self, from: usize, parts: &mut [Part<P>]) {
        for (g, part) in (from..).zip(parts) {
            part.quads = self.planes.map(|plane| plane[g]);
            part.sums = self.sums.map(|sums| sums[g]);
            (part.z, part.xs) = (self.z[g], self.xs[g / GROUPS]);
        }
    }
}
