//! AVX2 twins: lanes are columns of the state, and channels of the convolution.
//!
//! After a first reading pass, a step of the recurrence is one pass over the block: it finishes token t (update, read)
//! and begins token t + 1 (decay, what the state holds for its key) on every row while that is in registers. Every
//! column's sums still ascend over dk and take the same operands, so the bits are those of the plain order. The first
//! token's decay is computed twice, which costs less than writing it in between.

use std::arch::x86_64::{
    __m256, _mm256_fmadd_ps, _mm256_mul_ps, _mm256_permute2f128_ps, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_sub_ps,
};

use super::Tokens;
use super::portable::{self, History, some_channels};
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
    let history = History::new(x, w, taps, ring, next, y);
    let mut at = 0;
    while at < x.cols() {
        at += match x.cols() - at {
            16.. if taps == TAPS => four_taps::<2>(&history, w, at, next, y),
            8.. if taps == TAPS => four_taps::<1>(&history, w, at, next, y),
            _ => some_channels::<1>(&history, w, taps, at, next, y),
        };
    }
}

/// `N` registers of channels from `at` on, all tokens; returns the number of channels.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn four_taps<const N: usize>(
    history: &History<'_>,
    w: &[f32],
    at: usize,
    next: &mut [f32],
    y: &mut TileMut<'_>,
) -> usize {
    let (w, _) = w[at * TAPS..][..8 * N * TAPS].as_chunks::<{ 8 * TAPS }>();
    let mut taps = [[_mm256_setzero_ps(); TAPS]; N];
    for (taps, w) in taps.iter_mut().zip(w) {
        *taps = by_tap(w);
    }
    let [mut x0, mut x1, mut x2] = [0, 1, 2].map(|j| eights::<N>(&history.row(j)[at..]));
    for t in 0..y.rows() {
        let x3 = eights::<N>(&history.row(t + TAPS - 1)[at..]);
        let (y, _) = y.row_mut(t)[at..][..8 * N].as_chunks_mut();
        for n in 0..N {
            let sum = _mm256_fmadd_ps(taps[n][0], x0[n], _mm256_setzero_ps());
            let sum = _mm256_fmadd_ps(taps[n][1], x1[n], sum);
            let sum = _mm256_fmadd_ps(taps[n][2], x2[n], sum);
            store_ps(&mut y[n], _mm256_fmadd_ps(taps[n][3], x3[n], sum));
        }
        (x0, x1, x2) = (x1, x2, x3);
    }
    for (next, x) in next.chunks_exact_mut(history.channels()).zip([x0, x1, x2]) {
        let (next, _) = next[at..][..8 * N].as_chunks_mut();
        for (next, x) in next.iter_mut().zip(x) {
            store_ps(next, x);
        }
    }
    8 * N
}

/// The first `N` registers of a row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eights<const N: usize>(row: &[f32]) -> [__m256; N] {
    let (row, _) = row[..8 * N].as_chunks();
    let mut res = [_mm256_setzero_ps(); N];
    for (res, row) in res.iter_mut().zip(row) {
        *res = load_ps(row);
    }
    res
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
    match o.cols() {
        32 => block::<4>(&tokens, from, to, o),
        24 => block::<3>(&tokens, from, to, o),
        16 => block::<2>(&tokens, from, to, o),
        8 => block::<1>(&tokens, from, to, o),
        _ => portable::kda_step(q, k, v, decay, beta, from, to, o),
    }
}

/// Some columns of one row of the state.
type Row<const N: usize> = [[f32; 8]; N];

/// All tokens of a block of `N` registers of columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn block<const N: usize>(tokens: &Tokens<'_>, from: Option<&[f32]>, to: &mut [f32], o: &mut TileMut<'_>) {
    let from = from.map(|it| it.as_chunks().0.as_chunks().0);
    let (to, _) = to.as_chunks_mut().0.as_chunks_mut();
    let mut u = begin::<N>(tokens, from, to);
    for t in 0..o.rows() {
        let beta = _mm256_set1_ps(tokens.beta[t]);
        let mut d = eights(tokens.v.row(t));
        for (v, u) in d.iter_mut().zip(u) {
            *v = _mm256_mul_ps(beta, _mm256_sub_ps(*v, u));
        }
        let read;
        (read, u) = match (from.filter(|_| t == 0), t + 1 < o.rows()) {
            (Some(from), true) => step::<N, true, true>(tokens, t, d, from, to),
            (Some(from), false) => step::<N, true, false>(tokens, t, d, from, to),
            (None, true) => step::<N, false, true>(tokens, t, d, &[], to),
            (None, false) => step::<N, false, false>(tokens, t, d, &[], to),
        };
        let (o, _) = o.row_mut(t).as_chunks_mut();
        for (o, read) in o.iter_mut().zip(read) {
            store_ps(o, read);
        }
    }
}

/// What the state holds for the key of token 0 after its decay. Without a state, the decayed zeros are left in `to`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn begin<const N: usize>(tokens: &Tokens<'_>, from: Option<&[Row<N>]>, to: &mut [Row<N>]) -> [__m256; N] {
    let mut u = [_mm256_setzero_ps(); N];
    let (decay, k) = (&tokens.decay.row(0)[..to.len()], &tokens.k.row(0)[..to.len()]);
    for i in 0..to.len() {
        let (decay, k) = (_mm256_set1_ps(decay[i]), _mm256_set1_ps(k[i]));
        for n in 0..N {
            let s = from.map_or(_mm256_setzero_ps(), |from| load_ps(&from[i][n]));
            let s = _mm256_mul_ps(s, decay);
            u[n] = _mm256_fmadd_ps(k, s, u[n]);
            if from.is_none() {
                store_ps(&mut to[i][n], s);
            }
        }
    }
    u
}

/// Finishes token t, S = S + k · d and o, and begins the `NEXT` one, S = diag(decay) · S and u; returns o and u.
///
/// `FIRST`: S is read from `from` and decays here, else it lies in `to` and has decayed.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn step<const N: usize, const FIRST: bool, const NEXT: bool>(
    tokens: &Tokens<'_>,
    t: usize,
    d: [__m256; N],
    from: &[Row<N>],
    to: &mut [Row<N>],
) -> ([__m256; N], [__m256; N]) {
    let dk = to.len();
    let from = if FIRST { &from[..dk] } else { from };
    let next = t + usize::from(NEXT);
    let [k, q, decay] = [tokens.k, tokens.q, tokens.decay].map(|it| &it.row(t)[..dk]);
    let [next_k, next_decay] = [tokens.k, tokens.decay].map(|it| &it.row(next)[..dk]);
    let (mut o, mut u) = ([_mm256_setzero_ps(); N], [_mm256_setzero_ps(); N]);
    for i in 0..dk {
        for n in 0..N {
            let s = if FIRST {
                _mm256_mul_ps(load_ps(&from[i][n]), _mm256_set1_ps(decay[i]))
            } else {
                load_ps(&to[i][n])
            };
            let mut s = _mm256_fmadd_ps(_mm256_set1_ps(k[i]), d[n], s);
            o[n] = _mm256_fmadd_ps(_mm256_set1_ps(q[i]), s, o[n]);
            if NEXT {
                s = _mm256_mul_ps(s, _mm256_set1_ps(next_decay[i]));
                u[n] = _mm256_fmadd_ps(_mm256_set1_ps(next_k[i]), s, u[n]);
            }
            store_ps(&mut to[i][n], s);
        }
    }
    (o, u)
}
