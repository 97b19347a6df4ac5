//! AVX-512 twins: scores of up to six queries share every key that is loaded, lanes are positions, so a tile is two
//! registers; values go by up to 128 columns of a query at a time, lanes are columns. What happens between the two is the
//! portable code.

use std::arch::x86_64::{
    __m512, _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_setzero_ps,
};

use half::f16;
use waste_plan::LANES;

use super::portable::{CacheElem, Queries, Running, Sixteen, Tile, add_last_columns, walk};
use super::{KvTiles, TILE, tier};
use crate::avx512::{load_16_halves, load_16_ps, store_16_ps};
use crate::cpu::Isa;
use crate::table::{Entry, KernelTable};
use crate::view::{RowsF32, TileMut};

tier!(Isa::Avx512, target_feature(enable = "avx512bw,avx512dq,avx512vl"), 6, 3, 2);

/// Scores of all positions of a tile for `N` queries.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn scores<T: CacheElem, const N: usize>(q: [&[f32]; N], k: &[T], scale: f32) -> [[f32; TILE]; N] {
    let mut sums = [[_mm512_setzero_ps(); TILE / LANES]; N];
    for (i, k) in k.as_chunks::<TILE>().0.iter().enumerate() {
        let mut keys = [_mm512_setzero_ps(); TILE / LANES];
        for (register, k) in keys.iter_mut().zip(k.as_chunks().0) {
            *register = load(k);
        }
        for (sums, q) in sums.iter_mut().zip(q) {
            let q = _mm512_set1_ps(q[i]);
            for (sum, k) in sums.iter_mut().zip(keys) {
                *sum = _mm512_fmadd_ps(q, k, *sum);
            }
        }
    }
    let mut res = [[0.0; TILE]; N];
    for (res, sums) in res.iter_mut().zip(sums) {
        for (res, sum) in res.as_chunks_mut().0.iter_mut().zip(sums) {
            store_16_ps(res, _mm512_mul_ps(_mm512_set1_ps(scale), sum));
        }
    }
    res
}

/// o = fma(o, a, o_t · b), with o_t summed over the visible positions.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn add_values<T: CacheElem>(p: &[f32], v: &[T], factors: (f32, f32), out: &mut [f32]) {
    let mut at = 0;
    while at < out.len() {
        at += match out.len() - at {
            128.. => add_columns::<T, 8>(p, v, at, factors, out),
            64.. => add_columns::<T, 4>(p, v, at, factors, out),
            16.. => add_columns::<T, 1>(p, v, at, factors, out),
            _ => add_last_columns(p, v, at, factors, out),
        };
    }
}

/// `N` registers of columns from `at` on; returns their number.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn add_columns<T: CacheElem, const N: usize>(
    p: &[f32],
    v: &[T],
    at: usize,
    (a, b): (f32, f32),
    out: &mut [f32],
) -> usize {
    let mut sums = [_mm512_setzero_ps(); N];
    for (p, v) in p.iter().zip(v.chunks_exact(out.len())) {
        for (sum, v) in sums.iter_mut().zip(v[at..][..LANES * N].as_chunks().0) {
            *sum = _mm512_fmadd_ps(_mm512_set1_ps(*p), load(v), *sum);
        }
    }
    for (out, sum) in out[at..][..LANES * N].as_chunks_mut().0.iter_mut().zip(sums) {
        let sum = _mm512_mul_ps(sum, _mm512_set1_ps(b));
        store_16_ps(out, _mm512_fmadd_ps(load_16_ps(out), _mm512_set1_ps(a), sum));
    }
    LANES * N
}

/// 16 elements as f32.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn load<T: CacheElem>(src: &[T; LANES]) -> __m512 {
    match T::sixteen(src) {
        Sixteen::F32(src) => load_16_ps(src),
        Sixteen::F16(src) => _mm512_cvtph_ps(load_16_halves(src)),
    }
}
