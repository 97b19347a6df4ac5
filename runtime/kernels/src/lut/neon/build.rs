//! Builds: lanes are entries. The floats of a block are made in place, two positions at a time so that they share the
//! codebooks' loads, with their largest magnitude on the way; then they become bytes where they stand.

use std::arch::aarch64::{
    vabsq_f32, vdupq_n_f32, vdupq_n_u32, vfmaq_n_f32, vmaxq_u32, vmaxvq_u32, vreinterpretq_u32_f32,
};
use std::ops::Range;

use waste_plan::vq::VEC_DIM;
use waste_plan::{LANES, LutLayout, Tables};

use super::super::{Code, inputs};
use crate::bytes::{cast, cast_mut};
use crate::neon::{biased_digits, load_lanes, store_bytes, store_lanes};
use crate::quant_act::portable::step;

/// Tables as `P` planes of biased bytes, highest first: `[v][stage][plane][entry]`. A block begins where its words would;
/// the scales are the portable ones.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn planes<C: Code, const S: usize, const E: usize, const P: usize>(
    tables: Tables,
    x: &[f32],
    books: &[f32],
    positions: Range<usize>,
    out: &mut [u8],
) {
    let layout = LutLayout { code: C::CODE, tables };
    let x = inputs(layout, x, books, &positions, out);
    let (entries, scales) = out.split_at_mut(layout.entry_bytes(x.len()));
    let scales: &mut [f32] = cast_mut(&mut scales[..4 * layout.scales(x.len())]);
    let (books, _) = books.as_chunks::<E>().0.as_chunks();
    let blocks = entries.chunks_mut(layout.entry_bytes(tables.block()));
    let q_max = tables.q_max().expect("these tables are integers");
    for ((x, block), scale) in x.chunks(tables.block()).zip(blocks).zip(scales) {
        let floats: &mut [f32] = cast_mut(block);
        let amax = products::<S, E>(x, books, floats.as_chunks_mut().0.as_chunks_mut().0);
        let (xs, inverse) = step(amax, q_max);
        *scale = xs;
        match inverse {
            Some(inverse) => quantise::<E, P>(block, inverse),
            None => block.fill(128),
        }
    }
}

/// The floats of some positions, the books transposed; their largest magnitude, a NaN above all.
#[inline]
#[target_feature(enable = "neon")]
fn products<const S: usize, const E: usize>(
    x: &[[f32; VEC_DIM]],
    books: &[[[f32; E]; VEC_DIM]],
    floats: &mut [[[f32; E]; S]],
) -> f32 {
    let (pairs, last) = x.as_chunks();
    let (of_pairs, of_last) = floats.as_chunks_mut();
    let mut amax = 0;
    for (x, floats) in pairs.iter().zip(of_pairs) {
        amax = amax.max(some_products::<2, S, E>(x, books, floats));
    }
    for (x, floats) in last.as_chunks().0.iter().zip(of_last.as_chunks_mut().0) {
        amax = amax.max(some_products::<1, S, E>(x, books, floats));
    }
    f32::from_bits(amax)
}

/// The floats of `N` positions, and the bits of their largest magnitude.
#[inline]
#[target_feature(enable = "neon")]
fn some_products<const N: usize, const S: usize, const E: usize>(
    x: &[[f32; VEC_DIM]; N],
    books: &[[[f32; E]; VEC_DIM]],
    floats: &mut [[[f32; E]; S]; N],
) -> u32 {
    let mut amax = vdupq_n_u32(0);
    for (s, book) in books.iter().enumerate().take(S) {
        for i in 0..E / LANES {
            let mut t = [[vdupq_n_f32(0.0); 4]; N];
            for (d, of_dim) in book.iter().enumerate() {
                let c = load_lanes(&of_dim.as_chunks().0[i]);
                for (t, x) in t.iter_mut().zip(x) {
                    for (t, c) in t.iter_mut().zip(c) {
                        *t = vfmaq_n_f32(*t, c, x[d]);
                    }
                }
            }
            for (t, floats) in t.iter().zip(&mut *floats) {
                store_lanes(&mut floats[s].as_chunks_mut().0[i], *t);
                for t in t {
                    amax = vmaxq_u32(amax, vreinterpretq_u32_f32(vabsq_f32(*t)));
                }
            }
        }
    }
    vmaxvq_u32(amax)
}

/// Turns the floats of a block, table by table, into planes that end before the floats of the next table begin.
#[inline]
#[target_feature(enable = "neon")]
fn quantise<const E: usize, const P: usize>(block: &mut [u8], inverse: f32) {
    for i in 0..block.len() / (4 * E) {
        let mut planes = [[0; E]; P];
        let floats: &[f32] = cast(&block[i * 4 * E..][..4 * E]);
        for (j, floats) in floats.as_chunks::<LANES>().0.iter().enumerate() {
            let digits = biased_digits::<P>(floats, inverse);
            for (plane, digits) in planes.iter_mut().zip(digits) {
                store_bytes(&mut plane.as_chunks_mut().0[j], digits);
            }
        }
        block[i * E * P..][..E * P].copy_from_slice(planes.as_flattened());
    }
}
