//! Builds: lanes are entries. The floats of a block are made in place, two positions at a time so that they share the
//! codebooks' loads, with their largest magnitude on the way; then they become bytes where they stand.

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_cvtps_epi32, _mm512_fmadd_ps,
    _mm512_max_epi32, _mm512_min_epi32, _mm512_mul_ps, _mm512_permutexvar_epi8, _mm512_reduce_max_epi32,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_i32x4,
};
use std::ops::Range;

use waste_plan::vq::VEC_DIM;
use waste_plan::{LANES, LutLayout, Tables};

use super::super::{Code, bias, inputs};
use crate::avx512::{load_16_ps, load_64, store_16_ps, store_64};
use crate::bytes::{cast, cast_mut};
use crate::quant_act::portable::step;

/// Positions that pass over the codebooks together.
const POSITIONS: usize = 2;

/// Tables as `P` planes of biased bytes, highest first: `[v][stage][plane][entry]`. A block begins where its words would;
/// the scales are the portable ones.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
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
        let amax = products::<S, E>(x, books, cast_mut::<f32>(block).as_chunks_mut().0.as_chunks_mut().0);
        let (xs, inverse) = step(amax, q_max);
        *scale = xs;
        match inverse {
            Some(inverse) => quantise::<E, P>(block, q_max, inverse),
            None => block.fill(128),
        }
    }
}

/// The floats of some positions, the books transposed; their largest magnitude, a NaN above all.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn products<const S: usize, const E: usize>(
    x: &[[f32; VEC_DIM]],
    books: &[[[f32; E]; VEC_DIM]],
    floats: &mut [[[f32; E]; S]],
) -> f32 {
    let mut amax = _mm512_setzero_si512();
    let (many, rest) = x.as_chunks::<POSITIONS>();
    let (of_many, of_rest) = floats.as_chunks_mut::<POSITIONS>();
    for (x, floats) in many.iter().zip(of_many) {
        amax = some_products(x, books, floats, amax);
    }
    for (x, floats) in rest.as_chunks::<1>().0.iter().zip(of_rest.as_chunks_mut().0) {
        amax = some_products(x, books, floats, amax);
    }
    f32::from_bits(_mm512_reduce_max_epi32(amax).cast_unsigned())
}

/// The floats of `N` positions; the larger of their magnitudes and those before, lane by lane.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn some_products<const N: usize, const S: usize, const E: usize>(
    x: &[[f32; VEC_DIM]; N],
    books: &[[[f32; E]; VEC_DIM]],
    floats: &mut [[[f32; E]; S]; N],
    mut amax: __m512i,
) -> __m512i {
    let mut wide = [[_mm512_setzero_ps(); VEC_DIM]; N];
    for (wide, x) in wide.as_flattened_mut().iter_mut().zip(x.as_flattened()) {
        *wide = _mm512_set1_ps(*x);
    }
    for (s, book) in books.iter().enumerate().take(S) {
        for i in 0..E / LANES {
            let mut t = [_mm512_setzero_ps(); N];
            for (d, of_dim) in book.iter().enumerate() {
                let c = load_16_ps(&of_dim.as_chunks().0[i]);
                for (t, wide) in t.iter_mut().zip(&wide) {
                    *t = _mm512_fmadd_ps(wide[d], c, *t);
                }
            }
            for (t, floats) in t.iter().zip(&mut *floats) {
                store_16_ps(&mut floats[s].as_chunks_mut().0[i], *t);
                let magnitude = _mm512_and_si512(_mm512_castps_si512(*t), _mm512_set1_epi32(i32::MAX));
                amax = _mm512_max_epi32(amax, magnitude);
            }
        }
    }
    amax
}

/// Turns the floats of a block, table by table, into planes that end before the floats of the next table begin.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn quantise<const E: usize, const P: usize>(block: &mut [u8], q_max: i32, inverse: f32) {
    for i in 0..block.len() / (4 * E) {
        let mut planes = [[0; E]; P];
        let floats: &[f32] = cast(&block[i * 4 * E..][..4 * E]);
        for (j, floats) in floats.as_chunks::<64>().0.iter().enumerate() {
            let digits = digits::<P>(floats, q_max, inverse);
            for (plane, digits) in planes.iter_mut().zip(digits) {
                store_64(&mut plane.as_chunks_mut().0[j], digits);
            }
        }
        block[i * E * P..][..E * P].copy_from_slice(planes.as_flattened());
    }
}

/// The bytes of 16 words: all lowest, all second, all third, all highest.
const BY_PLANE: [u8; 64] = {
    let mut places = [0; 64];
    let mut i = 0;
    while i < 64 {
        places[i as usize] = i % 16 * 4 + i / 16;
        i += 1;
    }
    places
};

/// 64 entries as biased bytes, the highest plane first. `vcvtps2dq` rounds to the nearest even: nobody changes the mode.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn digits<const P: usize>(floats: &[f32; 64], q_max: i32, inverse: f32) -> [__m512i; P] {
    let mut z = [_mm512_setzero_si512(); 4];
    for (z, floats) in z.iter_mut().zip(floats.as_chunks().0) {
        let q = _mm512_cvtps_epi32(_mm512_mul_ps(load_16_ps(floats), _mm512_set1_ps(inverse)));
        let q = _mm512_min_epi32(_mm512_max_epi32(q, _mm512_set1_epi32(-q_max)), _mm512_set1_epi32(q_max));
        let biased = _mm512_add_epi32(q, _mm512_set1_epi32(bias(P)));
        *z = _mm512_permutexvar_epi8(load_64(&BY_PLANE), biased);
    }
    let [z0, z1, z2, z3] = z;
    let low = [_mm512_shuffle_i32x4::<0x44>(z0, z1), _mm512_shuffle_i32x4::<0x44>(z2, z3)];
    let high = [_mm512_shuffle_i32x4::<0xee>(z0, z1), _mm512_shuffle_i32x4::<0xee>(z2, z3)];
    let ascending = [
        _mm512_shuffle_i32x4::<0x88>(low[0], low[1]),
        _mm512_shuffle_i32x4::<0xdd>(low[0], low[1]),
        _mm512_shuffle_i32x4::<0x88>(high[0], high[1]),
    ];
    let mut planes = [_mm512_setzero_si512(); P];
    for (plane, digits) in planes.iter_mut().rev().zip(ascending) {
        *plane = digits;
    }
    planes
}
