//! AVX-512 twins of the fixed-point linears: a register is 4 inputs of all 16 rows of a block, as they stand in memory.
//!
//! Weights are multiplied straight from the packed bytes; what a token brings to a weight group ([`Part`]) is laid out
//! once. A matrix product walks the inputs in chunks of one activation group, so that the parts of [`TOKENS`] tokens
//! and the weights of two blocks stay in L1; its accumulators live in the tile between chunks. One token goes through
//! all inputs of two blocks at a time. Groups ascend, so each output sees the order of the definition.

pub(crate) mod vnni;

use waste_plan::{FX_GROUP, LANES, Packing};

use crate::linear::portable::{Codes, GROUP};
use crate::view::FxRows;

/// Tokens whose part of a chunk is laid out at once.
const TOKENS: usize = 32;
/// Weight groups in a chunk of inputs.
const GROUPS: usize = FX_GROUP / GROUP;
/// Quads of inputs in a group.
const QUADS: usize = GROUP / 4;
/// Groups of a single token that are laid out at once: 2048 inputs.
const SPAN: usize = 64;
/// How far ahead of a matrix-vector product its weights are asked for, in bytes.
const AHEAD: usize = 4096;

/// One weight group's part of one token.
#[derive(Clone, Copy)]
struct Part<const PLANES: usize> {
    /// 4 inputs each, plane by plane.
    quads: [[[u8; 4]; QUADS]; PLANES],
    /// Sums of the group's two halves of 16.
    sums: [[i16; 2]; PLANES],
    z: f32,
    xs: f32,
}

impl<const PLANES: usize> Part<PLANES> {
    const ZERO: Self = Self { quads: [[[0; 4]; QUADS]; PLANES], sums: [[0; 2]; PLANES], z: 0.0, xs: 0.0 };
}

/// Some groups of some tokens: token after token, [`GROUPS`] apart where there are several.
#[derive(Clone, Copy)]
struct Parts<'a, const PLANES: usize> {
    flat: &'a [Part<PLANES>],
    groups: usize,
}

/// The rows of one token.
struct Token<'a, const PLANES: usize> {
    planes: [&'a [[[u8; 4]; QUADS]]; PLANES],
    sums: [&'a [[i16; 2]]; PLANES],
    z: &'a [f32],
    xs: &'a [f32],
}

impl<'a, const PLANES: usize> Token<'a, PLANES> {
    #[inline(always)]
    fn new(x: &FxRows<'a>, t: usize) -> Self {
        Self {
            planes: std::array::from_fn(|p| x.plane_bytes(t, p).as_chunks().0.as_chunks().0),
            sums: std::array::from_fn(|p| x.sums(t, p).as_chunks().0),
            z: x.z(t),
            xs: x.xs(t),
        }
    }

    /// The parts of the groups from `from` on.
    #[inline(always)]
    fn lay_out(&self, from: usize, parts: &mut [Part<PLANES>]) {
        for (g, part) in (from..).zip(parts) {
            part.quads = self.planes.map(|plane| plane[g]);
            part.sums = self.sums.map(|sums| sums[g]);
            (part.z, part.xs) = (self.z[g], self.xs[g / GROUPS]);
        }
    }
}

/// One packed block of 16 rows from some group on.
#[derive(Clone, Copy)]
struct Block<'a> {
    /// Lines of 64 bytes: a quad of inputs, or two in nibbles.
    codes: &'a [[u8; 64]],
    scales: &'a [[u8; 2 * LANES]],
    /// Empty where the format has none.
    minima: &'a [[u8; 2 * LANES]],
    /// From one block to the next.
    bytes: usize,
}

impl<'a> Block<'a> {
    #[inline(always)]
    fn new<C: Codes>(block: &'a [u8], k: usize, from: usize) -> Self {
        let payload = C::PACKING.payload_bytes(k);
        let minima = match C::PACKING {
            Packing::W4M => &block[C::PACKING.minima_at(k)..],
            _ => &[],
        };
        Self {
            codes: block[from * C::GROUP_BYTES..payload].as_chunks().0,
            scales: &block[payload..].as_chunks().0[from..],
            minima: minima.as_chunks().0.get(from..).unwrap_or(&[]),
            bytes: block.len(),
        }
    }
}
