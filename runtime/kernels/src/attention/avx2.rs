//! AVX2 twins: scores of up to three queries share every key that is loaded, lanes are positions; values go by 64
//! columns of a query at a time, lanes are columns. What happens between the two is the portable code.

use std::arch::x86_64::{
    __m256, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_setzero_ps,
};

use half::f16;

use super::portable::{CacheElem, Eight, Queries, Running, Tile, add_last_columns, walk};
use super::{KvTiles, TILE, tier};
use crate::avx2::{load_halves, load_ps, store_ps};
use crate::cpu::Isa;
use crate::table::{Entry, KernelTable};
use crate::view::{RowsF32, TileMut};

tier!(Isa::Avx2, target_feature(enable = "avx2,fma,f16c"), 3, 2);

/// Scores of all positions of a tile for `N` queries.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scores<T: CacheElem, const N: usize>(q: [&[f32]; N], k: &[T], scale: f32) -> [[f32; TILE]; N] {
    let mut sums = [[_mm256_setzero_ps(); TILE / 8]; N];
    for (i, k) in k.as_chunks::<TILE>().0.iter().enumerate() {
        let (k, _) = k.as_chunks::<8>();
        let q: [__m256; N] = std::array::from_fn(|n| _mm256_set1_ps(q[n][i]));
        for (lane, k) in k.iter().enumerate() {
            let k = load(k);
            for (sums, q) in sums.iter_mut().zip(q) {
                sums[lane] = _mm256_fmadd_ps(q, k, sums[lane]);
            }
        }
    }
    let mut res = [[0.0; TILE]; N];
    for (res, sums) in res.iter_mut().zip(sums) {
        for (res, sum) in res.as_chunks_mut().0.iter_mut().zip(sums) {
            store_ps(res, _mm256_mul_ps(_mm256_set1_ps(scale), sum));
        }
    }
    res
}

/// o = fma(o, a, o_t · b), with o_t summed over the visible positions.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
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

/// `N` registers of columns from `at` on; returns their number.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_columns<T: CacheElem, const N: usize>(
    p: &[f32],
    v: &[T],
    at: usize,
    (a, b): (f32, f32),
    out: &mut [f32],
) -> usize {
    let mut sums = [_mm256_setzero_ps(); N];
    for (p, v) in p.iter().zip(v.chunks_exact(out.len())) {
        let p = _mm256_set1_ps(*p);
        for (sum, v) in sums.iter_mut().zip(v[at..][..8 * N].as_chunks().0) {
            *sum = _mm256_fmadd_ps(p, load(v), *sum);
        }
    }
    let (a, b) = (_mm256_set1_ps(a), _mm256_set1_ps(b));
    for (out, sum) in out[at..][..8 * N].as_chunks_mut().0.iter_mut().zip(sums) {
        store_ps(out, _mm256_fmadd_ps(load_ps(out), a, _mm256_mul_ps(sum, b)));
    }
    8 * N
}

/// Eight elements as f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load<T: CacheElem>(src: &[T; 8]) -> __m256 {
    match T::eight(src) {
        Eight::F32(src) => load_ps(src),
        Eight::F16(src) => _mm256_cvtph_ps(load_halves(src)),
    }
}
