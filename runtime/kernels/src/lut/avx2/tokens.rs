//! A few tokens at once. They are the lanes of a register: an entry of the tables of all of them is one load, and what
//! a row costs, finding out which entries, is shared by them.
//!
//! Scratch holds the tables of a block of positions, `[v][stage][entry][8 tokens]`, and two sums a row: of the block,
//! exact in words, and of all blocks. The tables of one position stay in L1 while all rows pass over them.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256, _mm256_broadcast_ss,
    _mm256_castps_si256, _mm256_castsi256_ps, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_max_epi32,
    _mm256_set1_epi32, _mm256_setzero_ps, _mm256_setzero_si256,
};

use waste_plan::Tables;
use waste_plan::vq::{ROW_BLOCK, VEC_DIM, VQ_TOKENS};

use super::super::Code;
use super::build::quantised;
use crate::avx2::{load_ps, prefetch, store_32, store_ps};
use crate::half16::f16_to_f32;
use crate::linear::portable::half_at;
use crate::quant_act::portable::step;
use crate::view::{RowsF32, TileMut};

/// Entries made side by side: as many sums as hide the latency of fma.
const CHAINS: usize = 8;

/// A number of each token.
type Lanes = [f32; VQ_TOKENS];
/// The tables of a position.
type Position<const S: usize, const E: usize> = [[Lanes; E]; S];

/// The whole product; see the family. Lanes without a token hold zeros.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn linear<C: Code, const S: usize, const E: usize>(
    tables: Tables,
    x: &RowsF32<'_>,
    books: &[f32],
    indices: &[u8],
    scales: &[u8],
    scratch: &mut [f32],
    y: &mut TileMut<'_>,
) {
    let (n, positions) = (y.cols(), x.cols() / VEC_DIM);
    let of_rows = positions * C::POSITION;
    let indices = &indices[..n.div_ceil(ROW_BLOCK) * of_rows];
    assert_eq!(books.len(), C::CODE.books_len(), "codebooks of {}", C::CODE.name());
    let (books, _) = books.as_chunks().0.as_chunks();

    let (lanes, _) = scratch.as_chunks_mut::<VQ_TOKENS>();
    let (floats, sums) = lanes.split_at_mut(tables.block() * C::ENTRIES);
    let (block, _) = floats.as_chunks_mut().0.as_chunks_mut();
    let (of_block, sums) = sums.split_at_mut(n.next_multiple_of(ROW_BLOCK));
    let sums = &mut sums[..of_block.len()];
    sums.fill([0.0; VQ_TOKENS]);

    for from in (0..positions).step_by(tables.block()) {
        let block = &mut block[..tables.block().min(positions - from)];
        let mut amax = _mm256_setzero_si256();
        for (v, table) in block.iter_mut().enumerate() {
            products::<S, E>(&inputs(x, from + v), books, table, &mut amax);
        }
        let scale = tables.q_max().map(|q_max| Scale::of(amax, q_max));
        of_block.fill([0.0; VQ_TOKENS]);
        for (v, table) in block.iter_mut().enumerate() {
            let rows = indices[(from + v) * C::POSITION..].chunks(of_rows);
            match &scale {
                Some(scale) => {
                    scale.quantise(table);
                    let words = |a, b| {
                        let sum = _mm256_add_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b));
                        _mm256_castsi256_ps(sum)
                    };
                    add::<C, S, E>(rows, table, of_block, words);
                }
                None => add::<C, S, E>(rows, table, sums, |a, b| _mm256_add_ps(a, b)),
            }
        }
        if let Some(scale) = scale {
            for (sum, of_block) in sums.iter_mut().zip(&*of_block) {
                let exact = _mm256_cvtepi32_ps(_mm256_castps_si256(load_ps(of_block)));
                store_ps(sum, _mm256_fmadd_ps(exact, scale.step, load_ps(sum)));
            }
        }
    }
    for t in 0..x.rows() {
        for (r, (y, sum)) in y.row_mut(t).iter_mut().zip(&*sums).enumerate() {
            *y = f16_to_f32(half_at(scales, r)) * sum[t];
        }
    }
}

/// The inputs of position `v` of all tokens.
#[inline(always)]
fn inputs(x: &RowsF32<'_>, v: usize) -> [Lanes; VEC_DIM] {
    let mut out = [[0.0; VQ_TOKENS]; VEC_DIM];
    for t in 0..x.rows() {
        for (lanes, x) in out.iter_mut().zip(&x.row(t)[v * VEC_DIM..]) {
            lanes[t] = *x;
        }
    }
    out
}

/// The floats of a position, and the largest magnitude of each token so far, a NaN above all.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn products<const S: usize, const E: usize>(
    x: &[Lanes; VEC_DIM],
    books: &[[[f32; E]; VEC_DIM]],
    table: &mut Position<S, E>,
    amax: &mut __m256i,
) {
    let magnitude = _mm256_set1_epi32(i32::MAX);
    for (book, table) in books.iter().zip(table) {
        let (eights, _) = table.as_chunks_mut::<CHAINS>();
        for (i, eight) in eights.iter_mut().enumerate() {
            let mut t = [_mm256_setzero_ps(); CHAINS];
            for (x, of_dim) in x.iter().zip(book) {
                let x = load_ps(x);
                for (t, entry) in t.iter_mut().zip(&of_dim.as_chunks::<CHAINS>().0[i]) {
                    *t = _mm256_fmadd_ps(x, _mm256_broadcast_ss(entry), *t);
                }
            }
            for (t, lanes) in t.iter().zip(eight) {
                store_ps(lanes, *t);
                *amax = _mm256_max_epi32(*amax, _mm256_and_si256(_mm256_castps_si256(*t), magnitude));
            }
        }
    }
}

/// How each token's block is quantised.
struct Scale {
    q_max: i32,
    step: __m256,
    inverse: __m256,
}

impl Scale {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn of(amax: __m256i, q_max: i32) -> Self {
        let mut bytes = [0; 32];
        store_32(&mut bytes, amax);
        let (mut steps, mut inverses) = ([0.0; VQ_TOKENS], [0.0; VQ_TOKENS]);
        for (t, bits) in bytes.as_chunks().0.iter().enumerate() {
            let (xs, inverse) = step(f32::from_le_bytes(*bits), q_max);
            (steps[t], inverses[t]) = (xs, inverse.unwrap_or(0.0));
        }
        Self { q_max, step: load_ps(&steps), inverse: load_ps(&inverses) }
    }

    /// Replaces the floats of a position by the bits of its integers. What becomes of a NaN or an infinity does not
    /// matter: its token's step is a NaN.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn quantise<const S: usize, const E: usize>(&self, table: &mut Position<S, E>) {
        for lanes in table.as_flattened_mut() {
            let q = quantised(load_ps(lanes), self.q_max, self.inverse);
            store_ps(lanes, _mm256_castsi256_ps(q));
        }
    }
}

/// Adds what the rows of all blocks name in a position: stages first, then the sum so far. Of words the order does not
/// matter.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add<'a, C: Code, const S: usize, const E: usize>(
    rows: impl Iterator<Item = &'a [u8]>,
    table: &Position<S, E>,
    sums: &mut [Lanes],
    plus: impl Fn(__m256, __m256) -> __m256,
) {
    for (indices, sums) in rows.zip(sums.as_chunks_mut::<ROW_BLOCK>().0) {
        ahead::<C>(indices);
        for (indices, sum) in indices.chunks_exact(C::BYTES).zip(sums) {
            let numbers = C::CODE.unpack(indices);
            let entry = |s: usize| load_ps(&table[s][usize::from(numbers[s]) % E]);
            let mut all = entry(0);
            for s in 1..S {
                all = plus(all, entry(s));
            }
            store_ps(sum, plus(load_ps(sum), all));
        }
    }
}

/// Asks for the same rows' indices of the next block of positions.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn ahead<C: Code>(indices: &[u8]) {
    (0..C::POSITION).step_by(64).for_each(|line| prefetch(indices, 16 * C::POSITION + line));
}
