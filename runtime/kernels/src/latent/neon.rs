//! NEON twins.
//!
//! Up to three queries share what is loaded. Scores: lanes are positions, latents go in chunks that stay in L1 while all
//! queries pass. Values: lanes are latents, so 32 of them at a time are transposed, also for all queries. What happens
//! between the two is the portable code.

use std::arch::aarch64::{
    float32x4_t, vdupq_n_f32, vfmaq_f32, vfmaq_n_f32, vmulq_n_f32, vreinterpretq_f32_f64,
    vreinterpretq_f64_f32, vtrn1q_f32, vtrn2q_f32, vzip1q_f64, vzip2q_f64,
};

use half::f16;

use super::portable::{Work, add_columns, check_matrix, walk};
use super::{COLUMNS, Queries};
use crate::attention::TILE;
use crate::attention::neon::load;
use crate::attention::portable::CacheElem;
use crate::cpu::Isa;
use crate::half16::{bf16_to_f32, f16_to_f32};
use crate::neon::{load_eight, load_ps, store_ps, widen_8, widen_8_bf16};
use crate::table::{Entry, KernelTable};
use crate::view::{RowsF32, TileMut};

/// Queries that share a register of the cache.
const QUERIES: usize = 3;
/// Latents of a tile that all queries pass over.
const CHUNK: usize = 64;

/// Overlays the rows of this tier. The caller has the tier.
pub(crate) fn install(table: &mut KernelTable) {
    table.latent_attention_f32 = Entry { call: latent_attention_f32, isa: Isa::Neon };
    table.latent_attention_f16 = Entry { call: latent_attention_f16, isa: Isa::Neon };
    table.head_linear_t_f32 = Entry { call: head_linear_t_f32, isa: Isa::Neon };
    table.head_linear_t_f16 = Entry { call: head_linear_t_f16, isa: Isa::Neon };
    table.head_linear_t_bf16 = Entry { call: head_linear_t_bf16, isa: Isa::Neon };
}

macro_rules! rows {
    ($($name:ident: $elem:ty;)+) => {
        $(#[target_feature(enable = "neon")]
        fn $name(
            q: &RowsF32<'_>, q_rope: &RowsF32<'_>, n_pos: &[u32], cache: &[$elem], scale: f32, scratch: &mut [f32],
            out: &mut TileMut<'_>,
        ) {
            attention(&Queries { q, q_rope, n_pos, cache, scale }, scratch, out);
        })+
    };
}

rows! {
    latent_attention_f32: f32;
    latent_attention_f16: f16;
}

#[inline]
#[target_feature(enable = "neon")]
fn attention<T: CacheElem>(queries: &Queries<'_, T>, scratch: &mut [f32], out: &mut TileMut<'_>) {
    walk(queries, scratch, out, |tile, first, work, out| one_tile(queries, tile, first, work, out));
}

/// Takes a tile into all queries.
#[inline]
#[target_feature(enable = "neon")]
fn one_tile<T: CacheElem>(
    queries: &Queries<'_, T>,
    tile: &[T],
    first: usize,
    work: &mut Work<'_>,
    out: &mut TileMut<'_>,
) {
    let (n, kl) = (out.rows(), out.cols());
    let (p, rest) = work.rest.split_at_mut(n * TILE);
    let (p, _) = p.as_chunks_mut::<TILE>();
    let (factors, columns) = rest.split_at_mut(2 * n);
    let (factors, _) = factors.as_chunks_mut::<2>();

    p.fill([0.0; TILE]);
    let (values, keys) = tile.split_at(kl * TILE);
    add_products(queries.q, values, p);
    add_products(queries.q_rope, keys, p);
    for (i, (p, factors)) in p.iter_mut().zip(&mut *factors).enumerate() {
        let visible = queries.visible(i, first);
        if visible > 0 {
            let (a, b);
            (*p, (a, b)) = work.running.fold(i, &p.map(|s| queries.scale * s), visible);
            *factors = [a, b];
        }
    }

    let weights = Weights { queries, first, p, factors };
    let mut at = 0;
    while at < kl {
        let latents = &values[at * TILE..];
        at += match kl - at {
            COLUMNS.. => all_queries::<T, { COLUMNS / 4 }>(&weights, latents, columns, at, out),
            4.. => all_queries::<T, 1>(&weights, latents, columns, at, out),
            rest => {
                for i in 0..n {
                    let (visible, [a, b]) = (queries.visible(i, first), weights.factors[i]);
                    if visible > 0 {
                        add_columns(&weights.p[i][..visible], latents, (a, b), &mut out.row_mut(i)[at..]);
                    }
                }
                rest
            }
        };
    }
}

/// Adds the products of queries `f32[n, d]` with d rows of a tile to their scores.
#[inline]
#[target_feature(enable = "neon")]
fn add_products<T: CacheElem>(q: &RowsF32<'_>, rows: &[T], scores: &mut [[f32; TILE]]) {
    let (rows, _) = rows.as_chunks::<TILE>();
    for (chunk, rows) in rows.chunks(CHUNK).enumerate() {
        let mut i = 0;
        while i < scores.len() {
            i += match scores.len() - i {
                1 => add_some_products::<T, 1>(q, chunk * CHUNK, rows, i, scores),
                2 | 4 => add_some_products::<T, 2>(q, chunk * CHUNK, rows, i, scores),
                _ => add_some_products::<T, QUERIES>(q, chunk * CHUNK, rows, i, scores),
            };
        }
    }
}

/// `N` queries from `from` on times some rows of a tile, of which the first is latent `at`; returns `N`.
#[inline]
#[target_feature(enable = "neon")]
fn add_some_products<T: CacheElem, const N: usize>(
    q: &RowsF32<'_>,
    at: usize,
    rows: &[[T; TILE]],
    from: usize,
    scores: &mut [[f32; TILE]],
) -> usize {
    let q: [&[f32]; N] = std::array::from_fn(|n| &q.row(from + n)[at..][..rows.len()]);
    let scores = scores[from..].first_chunk_mut::<N>().expect("the queries have scores");
    let mut sums = [[[vdupq_n_f32(0.0); 2]; TILE / 8]; N];
    for (sums, scores) in sums.iter_mut().zip(&*scores) {
        for (sum, score) in sums.as_flattened_mut().iter_mut().zip(scores.as_chunks().0) {
            *sum = load_ps(score);
        }
    }
    for (i, row) in rows.iter().enumerate() {
        let q: [f32; N] = q.map(|q| q[i]);
        for (lane, c) in row.as_chunks().0.iter().enumerate() {
            let [low, high] = load(c);
            for (sums, q) in sums.iter_mut().zip(q) {
                let sum = &mut sums[lane];
                *sum = [vfmaq_n_f32(sum[0], low, q), vfmaq_n_f32(sum[1], high, q)];
            }
        }
    }
    for (scores, sums) in scores.iter_mut().zip(sums) {
        for (score, sum) in scores.as_chunks_mut().0.iter_mut().zip(sums.as_flattened()) {
            store_ps(score, *sum);
        }
    }
    N
}

/// p and the factors of every query that sees something of the tile at `first`.
struct Weights<'a, T> {
    queries: &'a Queries<'a, T>,
    first: usize,
    p: &'a [[f32; TILE]],
    factors: &'a [[f32; 2]],
}

/// Folds `N` registers of latents from `at` on into all queries; returns the number of latents.
#[inline]
#[target_feature(enable = "neon")]
fn all_queries<T: CacheElem, const N: usize>(
    weights: &Weights<'_, T>,
    latents: &[T],
    columns: &mut [f32],
    at: usize,
    out: &mut TileMut<'_>,
) -> usize {
    let columns = &mut columns.as_chunks_mut().0.as_chunks_mut::<N>().0[..TILE];
    transpose::<T, N>(latents, columns);
    let mut i = 0;
    while i < out.rows() {
        i += match out.rows() - i {
            1 => some_queries::<T, N, 1>(weights, columns, i, at, out),
            2 | 4 => some_queries::<T, N, 2>(weights, columns, i, at, out),
            _ => some_queries::<T, N, QUERIES>(weights, columns, i, at, out),
        };
    }
    4 * N
}

/// o = fma(o, a, o_t · b) of `Q` queries from `from` on; returns `Q`.
#[inline]
#[target_feature(enable = "neon")]
fn some_queries<T: CacheElem, const N: usize, const Q: usize>(
    weights: &Weights<'_, T>,
    positions: &[[[f32; 4]; N]],
    from: usize,
    at: usize,
    out: &mut TileMut<'_>,
) -> usize {
    let visible: [usize; Q] = std::array::from_fn(|i| weights.queries.visible(from + i, weights.first));
    let p = weights.p[from..].first_chunk::<Q>().expect("the queries have weights");
    // What all of them see, then what only some do.
    let common = visible.iter().fold(TILE, |common, it| common.min(*it));
    let mut sums = [[vdupq_n_f32(0.0); N]; Q];
    for (i, columns) in positions[..common].iter().enumerate() {
        for (n, c) in columns.iter().enumerate() {
            let c = load_ps(c);
            for (sums, p) in sums.iter_mut().zip(p) {
                sums[n] = vfmaq_n_f32(sums[n], c, p[i]);
            }
        }
    }
    for ((sums, p), visible) in sums.iter_mut().zip(p).zip(visible) {
        for (columns, p) in positions[..visible].iter().zip(p).skip(common) {
            for (sum, c) in sums.iter_mut().zip(columns) {
                *sum = vfmaq_n_f32(*sum, load_ps(c), *p);
            }
        }
    }
    for (i, sums) in sums.into_iter().enumerate().filter(|(i, _)| visible[*i] > 0) {
        let [a, b] = weights.factors[from + i];
        let (out, _) = out.row_mut(from + i)[at..][..4 * N].as_chunks_mut();
        for (out, sum) in out.iter_mut().zip(sums) {
            store_ps(out, vfmaq_f32(vmulq_n_f32(sum, b), load_ps(out), vdupq_n_f32(a)));
        }
    }
    Q
}

/// 4 · `N` latents \[..\]\[32\] as f32\[32\]\[4 · N\].
#[inline]
#[target_feature(enable = "neon")]
fn transpose<T: CacheElem, const N: usize>(latents: &[T], positions: &mut [[[f32; 4]; N]]) {
    let (eights, _) = latents.as_chunks::<8>().0.as_chunks::<{ TILE / 8 }>();
    for (n, fours) in eights[..4 * N].as_chunks::<4>().0.iter().enumerate() {
        for at in 0..TILE / 8 {
            let [a, b, c, d] = fours.each_ref().map(|latent| load(&latent[at]));
            for half in 0..2 {
                let square = transpose_square([a[half], b[half], c[half], d[half]]);
                for (position, four) in positions[8 * at + 4 * half..].iter_mut().zip(square) {
                    store_ps(&mut position[n], four);
                }
            }
        }
    }
}

/// The transpose of 4 × 4 elements.
#[inline]
#[target_feature(enable = "neon")]
fn transpose_square([a, b, c, d]: [float32x4_t; 4]) -> [float32x4_t; 4] {
    let even = [vtrn1q_f32(a, b), vtrn1q_f32(c, d)].map(|it| vreinterpretq_f64_f32(it));
    let odd = [vtrn2q_f32(a, b), vtrn2q_f32(c, d)].map(|it| vreinterpretq_f64_f32(it));
    [
        vreinterpretq_f32_f64(vzip1q_f64(even[0], even[1])),
        vreinterpretq_f32_f64(vzip1q_f64(odd[0], odd[1])),
        vreinterpretq_f32_f64(vzip2q_f64(even[0], even[1])),
        vreinterpretq_f32_f64(vzip2q_f64(odd[0], odd[1])),
    ]
}

/// Rows of a matrix that pass over the outputs at once.
const ROWS: usize = 4;

#[target_feature(enable = "neon")]
fn head_linear_t_f32(w: &[u8], x: &[f32], y: &mut [f32]) {
    let eight = |w: &[[u8; 4]; 8]| load_eight(w.as_flattened().first_chunk().expect("8 elements of 4 bytes"));
    head_linear_t(w, x, y, eight, f32::from_le_bytes);
}

#[target_feature(enable = "neon")]
fn head_linear_t_f16(w: &[u8], x: &[f32], y: &mut [f32]) {
    let eight = |w: &[[u8; 2]; 8]| widen_8(w.as_flattened().first_chunk().expect("8 elements of 2 bytes"));
    head_linear_t(w, x, y, eight, |it| f16_to_f32(u16::from_le_bytes(it)));
}

#[target_feature(enable = "neon")]
fn head_linear_t_bf16(w: &[u8], x: &[f32], y: &mut [f32]) {
    let eight =
        |w: &[[u8; 2]; 8]| widen_8_bf16(w.as_flattened().first_chunk().expect("8 elements of 2 bytes"));
    head_linear_t(w, x, y, eight, |it| bf16_to_f32(u16::from_le_bytes(it)));
}

/// `eight` and `one` widen so many stored elements.
#[inline]
#[target_feature(enable = "neon")]
fn head_linear_t<const B: usize>(
    w: &[u8],
    x: &[f32],
    y: &mut [f32],
    eight: impl Fn(&[[u8; B]; 8]) -> [float32x4_t; 2] + Copy,
    one: impl Fn([u8; B]) -> f32 + Copy,
) {
    let rows = check_matrix::<B>(w, x, y);
    y.fill(0.0);
    let (fours, rest) = x.as_chunks::<ROWS>();
    let (many, few) = rows.split_at(fours.len() * ROWS * y.len());
    for (x, rows) in fours.iter().zip(many.chunks_exact(ROWS * y.len())) {
        add_rows(rows, x, y, eight, one);
    }
    for (x, row) in rest.iter().zip(few.chunks_exact(y.len())) {
        add_rows(row, &[*x], y, eight, one);
    }
}

/// Adds `R` rows times their inputs, ascending.
#[inline]
#[target_feature(enable = "neon")]
fn add_rows<const B: usize, const R: usize>(
    rows: &[[u8; B]],
    x: &[f32; R],
    y: &mut [f32],
    eight: impl Fn(&[[u8; B]; 8]) -> [float32x4_t; 2],
    one: impl Fn([u8; B]) -> f32,
) {
    let k = y.len();
    let (y, last) = y.as_chunks_mut::<8>();
    let rows: [&[[u8; B]]; R] = std::array::from_fn(|r| &rows[r * k..][..k]);
    let eights: [&[[[u8; B]; 8]]; R] = std::array::from_fn(|r| &rows[r].as_chunks().0[..y.len()]);
    for (j, y) in y.iter_mut().enumerate() {
        let (halves, _) = y.as_chunks_mut();
        let mut sum = [load_ps(&halves[0]), load_ps(&halves[1])];
        for (row, x) in eights.iter().zip(x) {
            let [low, high] = eight(&row[j]);
            sum = [vfmaq_n_f32(sum[0], low, *x), vfmaq_n_f32(sum[1], high, *x)];
        }
        store_ps(&mut halves[0], sum[0]);
        store_ps(&mut halves[1], sum[1]);
    }
    for (j, y) in (k - last.len()..).zip(last) {
        *y = rows.iter().zip(x).fold(*y, |sum, (row, x)| x.mul_add(one(row[j]), sum));
    }
}
