//! AVX2 twins.
//!
//! Up to three queries share what is loaded. Scores: lanes are positions, latents go in chunks that stay in L1 while
//! all queries pass. Values: lanes are latents, so 32 of them at a time are transposed, also for all queries.
//! What happens between the two is the portable code.

use std::arch::x86_64::{
    __m256, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_mul_ps,
    _mm256_permute2f128_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32,
};

use half::f16;

use super::portable::{Work, add_columns, check_matrix, walk};
use super::{COLUMNS, Queries};
use crate::attention::TILE;
use crate::attention::portable::{CacheElem, Eight};
use crate::avx2::{load_16, load_32, load_halves, load_ps, prefetch, store_ps, transpose_quarters};
use crate::cpu::Isa;
use crate::half16::{bf16_to_f32, f16_to_f32};
use crate::table::{Entry, KernelTable};
use crate::view::{RowsF32, TileMut};

/// Queries that share a register of the cache.
const QUERIES: usize = 3;
/// Latents of an f32 tile that all queries pass over: 8 KB.
const CHUNK: usize = 64;

/// Overlays the rows of this tier. The caller has the tier.
pub(crate) fn install(table: &mut KernelTable) {
    table.latent_attention_f32 = Entry { call: latent_attention_f32, isa: Isa::Avx2 };
    table.latent_attention_f16 = Entry { call: latent_attention_f16, isa: Isa::Avx2 };
    table.head_linear_t_f32 = Entry { call: head_linear_t_f32, isa: Isa::Avx2 };
    table.head_linear_t_f16 = Entry { call: head_linear_t_f16, isa: Isa::Avx2 };
    table.head_linear_t_bf16 = Entry { call: head_linear_t_bf16, isa: Isa::Avx2 };
}

macro_rules! rows {
    ($($name:ident: $elem:ty;)+) => {
        $(#[target_feature(enable = "avx2,fma,f16c")]
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
#[target_feature(enable = "avx2,fma,f16c")]
fn attention<T: CacheElem>(queries: &Queries<'_, T>, scratch: &mut [f32], out: &mut TileMut<'_>) {
    walk(queries, scratch, out, |tile, first, work, out| one_tile(queries, tile, first, work, out));
}

/// Takes a tile into all queries.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
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
    add_products(queries.q, values, columns, p);
    add_products(queries.q_rope, keys, columns, p);
    for (i, (p, factors)) in p.iter_mut().zip(&mut *factors).enumerate() {
        let visible = queries.visible(i, first);
        if visible > 0 {
            let (a, b);
            (*p, (a, b)) = work.running.fold(i, &p.map(|s| queries.scale * s), visible);
            *factors = [a, b];
        }
    }

    let mut at = 0;
    while at < kl {
        let (p, latents) = (Weights { queries, first, p, factors }, &values[at * TILE..]);
        at += match kl - at {
            COLUMNS.. => all_queries::<T, 4>(&p, latents, columns, at, out),
            8.. => all_queries::<T, 1>(&p, latents, columns, at, out),
            rest => {
                for i in 0..n {
                    let (visible, [a, b]) = (queries.visible(i, first), p.factors[i]);
                    if visible > 0 {
                        add_columns(&p.p[i][..visible], latents, (a, b), &mut out.row_mut(i)[at..]);
                    }
                }
                rest
            }
        };
    }
}

/// Adds the products of queries `f32[n, d]` with d rows of a tile to their scores. `widened` is a place for rows as f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_products<T: CacheElem>(q: &RowsF32<'_>, rows: &[T], widened: &mut [f32], scores: &mut [[f32; TILE]]) {
    let at_once = if T::floats(rows).is_some() { CHUNK * TILE } else { widened.len() };
    for (chunk, stored) in rows.chunks(at_once).enumerate() {
        let rows = T::floats(stored).unwrap_or_else(|| widen(stored, widened));
        let (rows, _) = rows.as_chunks::<TILE>();
        let (at, n) = (chunk * at_once / TILE, scores.len());
        let mut i = 0;
        while i < n {
            let done = match n - i {
                1 => add_some_products::<1>(q, at, rows, i, scores),
                2 | 4 => add_some_products::<2>(q, at, rows, i, scores),
                _ => add_some_products::<QUERIES>(q, at, rows, i, scores),
            };
            // The next chunk arrives piece by piece while the queries pass over this one.
            let piece = i * stored.len() / n..(i + done) * stored.len() / n;
            for line in stored[piece].chunks(64 / size_of::<T>()) {
                prefetch(line, size_of_val(stored));
            }
            i += done;
        }
    }
}

/// `N` queries from `from` on times some rows of a tile, of which the first is latent `at`; returns `N`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_some_products<const N: usize>(
    q: &RowsF32<'_>,
    at: usize,
    rows: &[[f32; TILE]],
    from: usize,
    scores: &mut [[f32; TILE]],
) -> usize {
    let q: [&[f32]; N] = std::array::from_fn(|n| &q.row(from + n)[at..][..rows.len()]);
    let scores = scores[from..].first_chunk_mut::<N>().expect("the queries have scores");
    let mut sums = [[_mm256_setzero_ps(); TILE / 8]; N];
    for (sums, scores) in sums.iter_mut().zip(&*scores) {
        for (sum, score) in sums.iter_mut().zip(scores.as_chunks().0) {
            *sum = load_ps(score);
        }
    }
    for (i, row) in rows.iter().enumerate() {
        let (row, _) = row.as_chunks();
        let q: [__m256; N] = std::array::from_fn(|n| _mm256_set1_ps(q[n][i]));
        for (lane, c) in row.iter().enumerate() {
            let c = load_ps(c);
            for (sums, q) in sums.iter_mut().zip(q) {
                sums[lane] = _mm256_fmadd_ps(q, c, sums[lane]);
            }
        }
    }
    for (scores, sums) in scores.iter_mut().zip(sums) {
        for (score, sum) in scores.as_chunks_mut().0.iter_mut().zip(sums) {
            store_ps(score, sum);
        }
    }
    N
}

/// Rows as f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen<'a, T: CacheElem>(rows: &[T], widened: &'a mut [f32]) -> &'a [f32] {
    let (rows, _) = rows.as_chunks();
    let (eights, _) = widened.as_chunks_mut();
    for (to, from) in eights.iter_mut().zip(rows) {
        store_ps(to, load(from));
    }
    &widened[..8 * rows.len()]
}

/// p and the factors of every query that sees something of the tile at `first`.
struct Weights<'a, T> {
    queries: &'a Queries<'a, T>,
    first: usize,
    p: &'a [[f32; TILE]],
    factors: &'a [[f32; 2]],
}

/// Folds `N` registers of latents from `at` on into all queries; returns their number.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn all_queries<T: CacheElem, const N: usize>(
    weights: &Weights<'_, T>,
    latents: &[T],
    columns: &mut [f32],
    at: usize,
    out: &mut TileMut<'_>,
) -> usize {
    let (columns, _) = columns.as_chunks_mut::<8>();
    let columns = &mut columns[..TILE * N];
    transpose::<T, N>(latents, columns);
    let mut i = 0;
    while i < out.rows() {
        i += match out.rows() - i {
            1 => some_queries::<T, N, 1>(weights, columns, i, at, out),
            2 | 4 => some_queries::<T, N, 2>(weights, columns, i, at, out),
            _ => some_queries::<T, N, QUERIES>(weights, columns, i, at, out),
        };
    }
    8 * N
}

/// o = fma(o, a, o_t · b) of `Q` queries from `from` on; returns `Q`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn some_queries<T: CacheElem, const N: usize, const Q: usize>(
    weights: &Weights<'_, T>,
    columns: &[[f32; 8]],
    from: usize,
    at: usize,
    out: &mut TileMut<'_>,
) -> usize {
    let visible: [usize; Q] = std::array::from_fn(|i| weights.queries.visible(from + i, weights.first));
    let p = weights.p[from..].first_chunk::<Q>().expect("the queries have weights");
    let (positions, _) = columns.as_chunks::<N>();
    // What all of them see, then what only some do.
    let common = visible.iter().fold(TILE, |common, it| common.min(*it));
    let mut sums = [[_mm256_setzero_ps(); N]; Q];
    for (i, columns) in positions[..common].iter().enumerate() {
        let p: [__m256; Q] = std::array::from_fn(|q| _mm256_set1_ps(p[q][i]));
        for (n, c) in columns.iter().enumerate() {
            let c = load_ps(c);
            for (sums, p) in sums.iter_mut().zip(p) {
                sums[n] = _mm256_fmadd_ps(p, c, sums[n]);
            }
        }
    }
    for ((sums, p), visible) in sums.iter_mut().zip(p).zip(visible) {
        for (columns, p) in positions[..visible].iter().zip(p).skip(common) {
            for (sum, c) in sums.iter_mut().zip(columns) {
                *sum = _mm256_fmadd_ps(_mm256_set1_ps(*p), load_ps(c), *sum);
            }
        }
    }
    for (i, sums) in sums.into_iter().enumerate().filter(|(i, _)| visible[*i] > 0) {
        let [a, b] = weights.factors[from + i];
        let (a, b) = (_mm256_set1_ps(a), _mm256_set1_ps(b));
        let (out, _) = out.row_mut(from + i)[at..][..8 * N].as_chunks_mut();
        for (out, sum) in out.iter_mut().zip(sums) {
            store_ps(out, _mm256_fmadd_ps(load_ps(out), a, _mm256_mul_ps(sum, b)));
        }
    }
    Q
}

/// 8 · `N` latents \[..\]\[32\] as f32\[32\]\[8 · N\].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose<T: CacheElem, const N: usize>(latents: &[T], columns: &mut [[f32; 8]]) {
    let (latents, _) = latents.as_chunks::<8>();
    for n in 0..N {
        for at in 0..TILE / 8 {
            let row = |i: usize| load(&latents[(8 * n + i) * (TILE / 8) + at]);
            let square = transpose_square(std::array::from_fn(row));
            for (i, positions) in square.into_iter().enumerate() {
                store_ps(&mut columns[(8 * at + i) * N + n], positions);
            }
        }
    }
}

/// The transpose of 8 × 8 elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose_square(rows: [__m256; 8]) -> [__m256; 8] {
    // Rows i and i + 4 share a register's halves, so that what remains are two 4 × 4 squares side by side.
    let low = |i: usize| _mm256_permute2f128_ps::<0x20>(rows[i], rows[i + 4]);
    let high = |i: usize| _mm256_permute2f128_ps::<0x31>(rows[i], rows[i + 4]);
    let [a, b] = [[low(0), low(1), low(2), low(3)], [high(0), high(1), high(2), high(3)]]
        .map(|it| transpose_quarters(it));
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}

/// Eight cache elements as f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load<T: CacheElem>(src: &[T; 8]) -> __m256 {
    match T::eight(src) {
        Eight::F32(src) => load_ps(src),
        Eight::F16(src) => _mm256_cvtph_ps(load_halves(src)),
    }
}

/// Rows of a matrix that pass over the outputs at once.
const ROWS: usize = 4;

#[target_feature(enable = "avx2,fma,f16c")]
fn head_linear_t_f32(w: &[u8], x: &[f32], y: &mut [f32]) {
    let eight = |w: &[[u8; 4]; 8]| {
        let bytes = w.as_flattened().first_chunk().expect("8 elements of 4 bytes");
        _mm256_castsi256_ps(load_32(bytes))
    };
    head_linear_t(w, x, y, eight, f32::from_le_bytes);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn head_linear_t_f16(w: &[u8], x: &[f32], y: &mut [f32]) {
    let eight = |w: &[[u8; 2]; 8]| {
        let bytes = w.as_flattened().first_chunk().expect("8 elements of 2 bytes");
        _mm256_cvtph_ps(load_16(bytes))
    };
    head_linear_t(w, x, y, eight, |it| f16_to_f32(u16::from_le_bytes(it)));
}

#[target_feature(enable = "avx2,fma,f16c")]
fn head_linear_t_bf16(w: &[u8], x: &[f32], y: &mut [f32]) {
    let eight = |w: &[[u8; 2]; 8]| {
        let bytes = w.as_flattened().first_chunk().expect("8 elements of 2 bytes");
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_16(bytes))))
    };
    head_linear_t(w, x, y, eight, |it| bf16_to_f32(u16::from_le_bytes(it)));
}

/// `eight` and `one` widen so many stored elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn head_linear_t<const B: usize>(
    w: &[u8],
    x: &[f32],
    y: &mut [f32],
    eight: impl Fn(&[[u8; B]; 8]) -> __m256 + Copy,
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
#[target_feature(enable = "avx2,fma,f16c")]
fn add_rows<const B: usize, const R: usize>(
    rows: &[[u8; B]],
    x: &[f32; R],
    y: &mut [f32],
    eight: impl Fn(&[[u8; B]; 8]) -> __m256,
    one: impl Fn([u8; B]) -> f32,
) {
    let k = y.len();
    let (y, last) = y.as_chunks_mut::<8>();
    let rows: [&[[u8; B]]; R] = std::array::from_fn(|r| &rows[r * k..][..k]);
    let eights: [&[[[u8; B]; 8]]; R] = std::array::from_fn(|r| &rows[r].as_chunks().0[..y.len()]);
    for (j, y) in y.iter_mut().enumerate() {
        let mut sum = load_ps(y);
        for (row, x) in eights.iter().zip(x) {
            sum = _mm256_fmadd_ps(_mm256_set1_ps(*x), eight(&row[j]), sum);
        }
        store_ps(y, sum);
    }
    for (j, y) in (k - last.len()..).zip(last) {
        *y = rows.iter().zip(x).fold(*y, |sum, (row, x)| x.mul_add(one(row[j]), sum));
    }
}
