//! AVX2 twins: lanes are columns of the state, and channels of the convolution.
//!
//! A step of the recurrence is one pass over the tile: it finishes token t (update, read) and begins token t + 1 (decay,
//! what the state holds for its key) on every row while that is in registers. Every column's sums still ascend over dk
//! and take the same operands, so the bits are those of two passes.

use std::arch::x86_64::{
    __m256, _mm256_fmadd_ps, _mm256_mul_ps, _mm256_permute2f128_ps, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_sub_ps,
};

use super::Tokens;
use super::portable::{History, some_channels, some_columns};
use crate::avx2::{load_ps, store_ps, transpose_quarters};
use crate::cpu::Isa;
use crate::table::{Entry, KernelTable};
use crate::view::{RowsF32, TileMut};

/// Taps of the convolution that has a twin; all models known have as many.
const TAPS: usize = 4;

/// Overlays the rows of this tier. The caller has the tier.
pub(crate) fn install(table: &mut KernelTable) {
    table.short_conv = Entry { call: short_conv, isa: Isa::Avx2 };
    table.kda_step = Entry { call: kda_step, isa: Isa::Avx2 };
}

#[target_feature(enable = "avx2,fma,f16c")]
fn short_conv(x: &RowsF32<'_>, w: &[f32], taps: usize, ring: &[f32], next: &mut [f32], y: &mut TileMut<'_>) {
    let history = History::new(x, w, taps, ring, y);
    let mut at = 0;
    while at < x.cols() {
        at += match x.cols() - at {
            16.. if taps == TAPS => four_taps::<2>(&history, w, at, y),
            8.. if taps == TAPS => four_taps::<1>(&history, w, at, y),
            _ => some_channels::<1>(&history, w, taps, at, y),
        };
    }
    history.keep(next);
}

/// `N` registers of channels from `at` on, all tokens; returns the number of channels.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn four_taps<const N: usize>(history: &History<'_>, w: &[f32], at: usize, y: &mut TileMut<'_>) -> usize {
    let (w, _) = w[at * TAPS..][..8 * N * TAPS].as_chunks::<{ 8 * TAPS }>();
    let w: [[__m256; TAPS]; N] = std::array::from_fn(|n| by_tap(&w[n]));
    let mut past: [[__m256; N]; TAPS - 1] = std::array::from_fn(|j| eights(&history.row(j)[at..]));
    for t in 0..y.rows() {
        let now = eights(&history.row(t + TAPS - 1)[at..]);
        let (y, _) = y.row_mut(t)[at..][..8 * N].as_chunks_mut();
        for (n, y) in y.iter_mut().enumerate() {
            let sum = _mm256_fmadd_ps(w[n][0], past[0][n], _mm256_setzero_ps());
            let sum = _mm256_fmadd_ps(w[n][1], past[1][n], sum);
            let sum = _mm256_fmadd_ps(w[n][2], past[2][n], sum);
            store_ps(y, _mm256_fmadd_ps(w[n][3], now[n], sum));
        }
        past = [past[1], past[2], now];
    }
    8 * N
}

/// The first `N` registers of a row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eights<const N: usize>(row: &[f32]) -> [__m256; N] {
    let (row, _) = row[..8 * N].as_chunks();
    std::array::from_fn(|n| load_ps(&row[n]))
}

/// The taps of 8 channels, tap by tap.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn by_tap(w: &[f32; 8 * TAPS]) -> [__m256; TAPS] {
    // A register holds two channels; channels 0 … 3 go to the lower halves, 4 … 7 to the upper ones.
    let [c01, c23, c45, c67] = eights(w);
    transpose_quarters([
        _mm256_permute2f128_ps::<0x20>(c01, c45),
        _mm256_permute2f128_ps::<0x31>(c01, c45),
        _mm256_permute2f128_ps::<0x20>(c23, c67),
        _mm256_permute2f128_ps::<0x31>(c23, c67),
    ])
}

#[target_feature(enable = "avx2,fma,f16c")]
#[expect(clippy::too_many_arguments, reason = "one argument an operand")]
fn kda_step(
    q: &RowsF32<'_>,
    k: &RowsF32<'_>,
    v: &RowsF32<'_>,
    decay: &RowsF32<'_>,
    beta: &[f32],
    from: Option<&[f32]>,
    to: &mut [f32],
    o: &mut TileMut<'_>,
) {
    let tokens = Tokens { q, k, v, decay, beta };
    tokens.check(from, to, o);
    let mut at = 0;
    while at < o.cols() {
        at += match o.cols() - at {
            32.. => columns::<4>(&tokens, from, to, at, o),
            16.. => columns::<2>(&tokens, from, to, at, o),
            8.. => columns::<1>(&tokens, from, to, at, o),
            _ => some_columns::<1>(&tokens, from, to, at, o),
        };
    }
}

/// `N` registers of columns from `at` on, all tokens; returns the number of columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn columns<const N: usize>(
    tokens: &Tokens<'_>,
    from: Option<&[f32]>,
    to: &mut [f32],
    at: usize,
    o: &mut TileMut<'_>,
) -> usize {
    let mut u = begin::<N>(tokens, from, to, at, o.cols());
    for t in 0..o.rows() {
        let beta = _mm256_set1_ps(tokens.beta[t]);
        let v: [__m256; N] = eights(&tokens.v.row(t)[at..]);
        let d = std::array::from_fn(|n| _mm256_mul_ps(beta, _mm256_sub_ps(v[n], u[n])));
        let read;
        (read, u) = if t + 1 < o.rows() {
            advance(tokens, t, d, to, at, o.cols())
        } else {
            (finish(tokens, t, d, to, at, o.cols()), u)
        };
        let (o, _) = o.row_mut(t)[at..][..8 * N].as_chunks_mut();
        o.iter_mut().zip(read).for_each(|(o, read)| store_ps(o, read));
    }
    8 * N
}

/// Begins token 0: S = diag(decay) · S, and u.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn begin<const N: usize>(
    tokens: &Tokens<'_>,
    from: Option<&[f32]>,
    to: &mut [f32],
    at: usize,
    c: usize,
) -> [__m256; N] {
    let mut u = [_mm256_setzero_ps(); N];
    let rows = to.chunks_exact_mut(c).zip(tokens.decay.row(0)).zip(tokens.k.row(0)).enumerate();
    for (i, ((to, decay), k)) in rows {
        let (decay, k) = (_mm256_set1_ps(*decay), _mm256_set1_ps(*k));
        let s = from.map_or([_mm256_setzero_ps(); N], |from| eights(&from[i * c + at..]));
        let (to, _) = to[at..][..8 * N].as_chunks_mut();
        for n in 0..N {
            let s = _mm256_mul_ps(s[n], decay);
            u[n] = _mm256_fmadd_ps(k, s, u[n]);
            store_ps(&mut to[n], s);
        }
    }
    u
}

/// Finishes token t and begins the next one: S = S + k · d, o; then the next S and u.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn advance<const N: usize>(
    tokens: &Tokens<'_>,
    t: usize,
    d: [__m256; N],
    to: &mut [f32],
    at: usize,
    c: usize,
) -> ([__m256; N], [__m256; N]) {
    let (mut o, mut u) = ([_mm256_setzero_ps(); N], [_mm256_setzero_ps(); N]);
    let now = tokens.k.row(t).iter().zip(tokens.q.row(t));
    let next = tokens.k.row(t + 1).iter().zip(tokens.decay.row(t + 1));
    for ((s, (k, q)), (next_k, decay)) in to.chunks_exact_mut(c).zip(now).zip(next) {
        let (k, q) = (_mm256_set1_ps(*k), _mm256_set1_ps(*q));
        let (next_k, decay) = (_mm256_set1_ps(*next_k), _mm256_set1_ps(*decay));
        let (s, _) = s[at..][..8 * N].as_chunks_mut();
        for n in 0..N {
            let updated = _mm256_fmadd_ps(k, d[n], load_ps(&s[n]));
            o[n] = _mm256_fmadd_ps(q, updated, o[n]);
            let decayed = _mm256_mul_ps(updated, decay);
            u[n] = _mm256_fmadd_ps(next_k, decayed, u[n]);
            store_ps(&mut s[n], decayed);
        }
    }
    (o, u)
}

/// Finishes token t: S = S + k · d, and o.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn finish<const N: usize>(
    tokens: &Tokens<'_>,
    t: usize,
    d: [__m256; N],
    to: &mut [f32],
    at: usize,
    c: usize,
) -> [__m256; N] {
    let mut o = [_mm256_setzero_ps(); N];
    for ((s, k), q) in to.chunks_exact_mut(c).zip(tokens.k.row(t)).zip(tokens.q.row(t)) {
        let (k, q) = (_mm256_set1_ps(*k), _mm256_set1_ps(*q));
        let (s, _) = s[at..][..8 * N].as_chunks_mut();
        for n in 0..N {
            let updated = _mm256_fmadd_ps(k, d[n], load_ps(&s[n]));
            o[n] = _mm256_fmadd_ps(q, updated, o[n]);
            store_ps(&mut s[n], updated);
        }
    }
    o
}
