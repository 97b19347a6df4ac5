//! Builds: lanes are entries. The floats of a block are made in place, with their largest magnitude on the way, and
//! then turned into integers where they stand.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_setr_epi8, _mm_setzero_si128, _mm_unpackhi_epi32, _mm_unpackhi_epi64,
    _mm_unpacklo_epi32, _mm_unpacklo_epi64, _mm_xor_si128, _mm256_add_epi32, _mm256_and_si256,
    _mm256_broadcastsi128_si256, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cvtps_epi32, _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_max_epi32, _mm256_min_epi32,
    _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256,
    _mm256_shuffle_epi8,
};
use std::ops::Range;

use waste_plan::vq::VEC_DIM;
use waste_plan::{LutLayout, Tables};

use super::super::{Code, Vq4p, bias, inputs};
use crate::avx2::{load_ps, store_16, store_32, store_ps};
use crate::bytes::cast_mut;
use crate::quant_act::portable::step;

/// Entries as words, `[v][stage][entry]`, then the scales: the portable layout.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn words<C: Code, const S: usize, const E: usize>(
    tables: Tables,
    x: &[f32],
    books: &[f32],
    positions: Range<usize>,
    out: &mut [u8],
) {
    build::<C, S, E>(tables, x, books, positions, out, |block, q_max, inverse| {
        for eight in cast_mut::<f32>(block).as_chunks_mut::<8>().0 {
            let q = quantised(load_ps(eight), q_max, _mm256_set1_ps(inverse));
            store_ps(eight, _mm256_castsi256_ps(q));
        }
    });
}

/// Entries of 64 as `P` planes of biased bytes, highest first, `[v][stage][plane][64]`, where each 16 bytes of a plane
/// hold their exclusive or with the 16 before. A block begins where its words would; the scales are the portable ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn planes<const P: usize>(
    tables: Tables,
    x: &[f32],
    books: &[f32],
    positions: Range<usize>,
    out: &mut [u8],
) {
    build::<Vq4p, 4, 64>(tables, x, books, positions, out, |block, q_max, inverse| {
        for i in 0..block.len() / (4 * 64) {
            let mut planes = [[0; 64]; P];
            let mut before = [_mm_setzero_si128(); P];
            let floats: &[f32] = cast_mut(&mut block[i * 4 * 64..][..4 * 64]);
            for (j, sixteen) in floats.as_chunks::<16>().0.iter().enumerate() {
                let digits = digits::<P>(sixteen, q_max, inverse);
                for (p, plane) in planes.iter_mut().enumerate() {
                    store_16(&mut plane.as_chunks_mut().0[j], _mm_xor_si128(digits[p], before[p]));
                }
                before = digits;
            }
            block[i * 64 * P..][..64 * P].copy_from_slice(planes.as_flattened());
        }
    });
}

/// Makes the tables block by block; `convert` turns the floats of a block into integers, given Q and Q / amax.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn build<C: Code, const S: usize, const E: usize>(
    tables: Tables,
    x: &[f32],
    books: &[f32],
    positions: Range<usize>,
    out: &mut [u8],
    convert: impl Fn(&mut [u8], i32, f32),
) {
    let layout = LutLayout { code: C::CODE, tables };
    let x = inputs(layout, x, books, &positions, out);
    let (entries, scales) = out.split_at_mut(layout.entry_bytes(x.len()));
    let scales = cast_mut(&mut scales[..4 * layout.scales(x.len())]);
    let (books, _) = books.as_chunks().0.as_chunks();
    let blocks = entries.chunks_mut(layout.entry_bytes(tables.block()));
    for (b, (x, block)) in x.chunks(tables.block()).zip(blocks).enumerate() {
        let floats: &mut [f32] = cast_mut(block);
        let amax = products::<S, E>(x, books, floats.as_chunks_mut().0.as_chunks_mut().0);
        if let Some(q_max) = tables.q_max() {
            let (xs, inverse) = step(amax, q_max);
            scales[b] = xs;
            if inverse.is_none() {
                block.fill(0);
            }
            convert(block, q_max, inverse.unwrap_or(0.0));
        }
    }
}

/// The floats of some positions, the books transposed; their largest magnitude, a NaN above all.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn products<const S: usize, const E: usize>(
    x: &[[f32; VEC_DIM]],
    books: &[[[f32; E]; VEC_DIM]],
    floats: &mut [[[f32; E]; S]],
) -> f32 {
    let mut amax = _mm256_setzero_si256();
    let (pairs, last) = x.as_chunks();
    let (tables_of_pairs, tables_of_last) = floats.as_chunks_mut();
    for (x, tables) in pairs.iter().zip(tables_of_pairs) {
        products_of::<2, S, E>(x, books, tables, &mut amax);
    }
    for (x, tables) in last.iter().zip(tables_of_last) {
        products_of(std::array::from_ref(x), books, std::array::from_mut(tables), &mut amax);
    }
    let mut lanes = [0; 32];
    store_32(&mut lanes, amax);
    let bits = lanes.as_chunks().0.iter().map(|bits| u32::from_le_bytes(*bits));
    f32::from_bits(bits.max().unwrap_or(0))
}

/// The floats of `N` positions, 32 entries of each at a time: as many sums as hide the latency of fma.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn products_of<const N: usize, const S: usize, const E: usize>(
    x: &[[f32; VEC_DIM]; N],
    books: &[[[f32; E]; VEC_DIM]],
    tables: &mut [[[f32; E]; S]; N],
    amax: &mut __m256i,
) {
    for (s, book) in books.iter().enumerate().take(S) {
        for i in 0..E / 32 {
            let mut t = [[_mm256_setzero_ps(); 4]; N];
            for (d, of_dim) in book.iter().enumerate() {
                let entries = &of_dim.as_chunks::<8>().0[4 * i..][..4];
                for (t, x) in t.iter_mut().zip(x) {
                    for (t, entries) in t.iter_mut().zip(entries) {
                        *t = _mm256_fmadd_ps(_mm256_set1_ps(x[d]), load_ps(entries), *t);
                    }
                }
            }
            for (t, table) in t.iter().zip(&mut *tables) {
                for (t, eight) in t.iter().zip(&mut table[s].as_chunks_mut().0[4 * i..][..4]) {
                    store_ps(eight, *t);
                    let magnitude = _mm256_and_si256(_mm256_castps_si256(*t), _mm256_set1_epi32(i32::MAX));
                    *amax = _mm256_max_epi32(*amax, magnitude);
                }
            }
        }
    }
}

/// 8 entries as integers. `vcvtps2dq` rounds to the nearest even: nobody changes the mode.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quantised(floats: __m256, q_max: i32, inverse: __m256) -> __m256i {
    let q = _mm256_cvtps_epi32(_mm256_mul_ps(floats, inverse));
    _mm256_min_epi32(_mm256_max_epi32(q, _mm256_set1_epi32(-q_max)), _mm256_set1_epi32(q_max))
}

/// 16 entries as biased bytes, the highest plane first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn digits<const P: usize>(floats: &[f32; 16], q_max: i32, inverse: f32) -> [__m128i; P] {
    let by_plane =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    let (eights, _) = floats.as_chunks();
    let [a, b]: [__m256i; 2] = std::array::from_fn(|i| {
        let q = quantised(load_ps(&eights[i]), q_max, _mm256_set1_ps(inverse));
        let biased = _mm256_add_epi32(q, _mm256_set1_epi32(bias(P)));
        _mm256_shuffle_epi8(biased, by_plane)
    });
    let (a0, a1) = (_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
    let (b0, b1) = (_mm256_castsi256_si128(b), _mm256_extracti128_si256::<1>(b));
    let low = [_mm_unpacklo_epi32(a0, a1), _mm_unpacklo_epi32(b0, b1)];
    let high = [_mm_unpackhi_epi32(a0, a1), _mm_unpackhi_epi32(b0, b1)];
    let ascending = [
        _mm_unpacklo_epi64(low[0], low[1]),
        _mm_unpackhi_epi64(low[0], low[1]),
        _mm_unpacklo_epi64(high[0], high[1]),
    ];
    std::array::from_fn(|p| ascending[P - 1 - p])
}
