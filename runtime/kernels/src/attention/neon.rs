//! NEON twins: scores of up to three queries share every key that is loaded, lanes are positions; values go by 64
//! columns of a query at a time, lanes are columns. What happens between the two is the portable code.

use std::arch::aarch64::{float32x4_t, vdupq_n_f32, vfmaq_f32, vfmaq_n_f32, vmulq_n_f32};

use half::f16;

use super::portable::{CacheElem, Eight, Queries, Running, Tile, add_last_columns, walk};
use super::{KvTiles, TILE, tier};
use crate::cpu::Isa;
use crate::neon::{load_ps, store_ps, widen_8_halves};
use crate::table::{Entry, KernelTable};
use crate::view::{RowsF32, TileMut};

tier!(Isa::Neon, target_feature(enable = "neon"), 3, 2);

/// Scores of all positions of a tile for `N` queries.
#[inline]
#[target_feature(enable = "neon")]
fn scores<T: CacheElem, const N: usize>(q: [&[f32]; N], k: &[T], scale: f32) -> [[f32; TILE]; N] {
    let mut sums = [[[vdupq_n_f32(0.0); 2]; TILE / 8]; N];
    for (i, k) in k.as_chunks::<TILE>().0.iter().enumerate() {
        let q: [f32; N] = q.map(|q| q[i]);
        for (lane, k) in k.as_chunks().0.iter().enumerate() {
            let [low, high] = load(k);
            for (sums, q) in sums.iter_mut().zip(q) {
                let sum = &mut sums[lane];
                *sum = [vfmaq_n_f32(sum[0], low, q), vfmaq_n_f32(sum[1], high, q)];
            }
        }
    }
    let mut res = [[0.0; TILE]; N];
    for (res, sums) in res.iter_mut().zip(sums) {
        for (res, sum) in res.as_chunks_mut().0.iter_mut().zip(sums.as_flattened()) {
            store_ps(res, vmulq_n_f32(*sum, scale));
        }
    }
    res
}

/// o = fma(o, a, o_t · b), with o_t summed over the visible positions.
#[inline]
#[target_feature(enable = "neon")]
fn add_values<T: CacheElem>(p: &[f32], v: &[T], factors: (f32, f32), out: &mut [f32]) {
    let dv = out.len();
    let mut at = 0;
    while at < dv {
        at += match dv - at {
            64.. => add_columns::<T, 8>(p, v, at, factors, out),
            32.. => add_columns::<T, 4>(p, v, at, factors, out),
            8.. => add_columns::<T, 1>(p, v, at, factors, out),
            _ => add_last_columns(p, v, at, factors, out),
        };
    }
}

/// `N` pairs of registers of columns from `at` on; returns the number of columns.
#[inline]
#[target_feature(enable = "neon")]
fn add_columns<T: CacheElem, const N: usize>(
    p: &[f32],
    v: &[T],
    at: usize,
    (a, b): (f32, f32),
    out: &mut [f32],
) -> usize {
    let mut sums = [[vdupq_n_f32(0.0); 2]; N];
    for (p, v) in p.iter().zip(v.chunks_exact(out.len())) {
        for (sum, v) in sums.iter_mut().zip(v[at..][..8 * N].as_chunks().0) {
            let [low, high] = load(v);
            *sum = [vfmaq_n_f32(sum[0], low, *p), vfmaq_n_f32(sum[1], high, *p)];
        }
    }
    let out = out[at..][..8 * N].as_chunks_mut().0.iter_mut();
    for (out, sum) in out.zip(sums.as_flattened()) {
        store_ps(out, vfmaq_f32(vmulq_n_f32(*sum, b), load_ps(out), vdupq_n_f32(a)));
    }
    8 * N
}

/// Eight elements as f32.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn load<T: CacheElem>(src: &[T; 8]) -> [float32x4_t; 2] {
    match T::eight(src) {
        Eight::F32(src) => {
            let (fours, _) = src.as_chunks();
            [load_ps(&fours[0]), load_ps(&fours[1])]
        }
        Eight::F16(src) => widen_8_halves(src),
    }
}
