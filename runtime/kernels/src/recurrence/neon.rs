//! NEON twins: lanes are columns of the state, and channels of the convolution.
//!
//! A step of the recurrence is one pass over the block, as the AVX2 twin describes: it finishes token t and begins token
//! t + 1 on every row while that is in registers. Eight registers are a row of 32 columns, so the three sums of a pass
//! are 24.

use std::arch::aarch64::{
    float32x4_t, float32x4x4_t, vdupq_n_f32, vfmaq_f32, vfmaq_n_f32, vld4q_f32, vmulq_n_f32, vsubq_f32,
};

use super::Tokens;
use super::portable::{self, History, some_channels};
use crate::cpu::Isa;
use crate::neon::{load_ps, store_ps};
use crate::table::{Entry, KernelTable};
use crate::view::{RowsF32, TileMut};

/// Taps of the convolution that has a twin; all models known have as many.
const TAPS: usize = 4;

/// Overlays the rows of this tier. The caller has the tier.
pub(crate) fn install(table: &mut KernelTable) {
    table.short_conv = Entry { call: short_conv, isa: Isa::Neon };
    table.kda_step = Entry { call: kda_step, isa: Isa::Neon };
}

#[target_feature(enable = "neon")]
fn short_conv(x: &RowsF32<'_>, w: &[f32], taps: usize, ring: &[f32], next: &mut [f32], y: &mut TileMut<'_>) {
    let history = History::new(x, w, taps, ring, next, y);
    let mut at = 0;
    while at < x.cols() {
        at += match x.cols() - at {
            16.. if taps == TAPS => four_taps::<4>(&history, w, at, next, y),
            4.. if taps == TAPS => four_taps::<1>(&history, w, at, next, y),
            _ => some_channels::<1>(&history, w, taps, at, next, y),
        };
    }
}

/// `N` registers of channels from `at` on, all tokens; returns the number of channels.
#[inline]
#[target_feature(enable = "neon")]
fn four_taps<const N: usize>(
    history: &History<'_>,
    w: &[f32],
    at: usize,
    next: &mut [f32],
    y: &mut TileMut<'_>,
) -> usize {
    let mut taps = [by_tap(&[0.0; 4 * TAPS]); N];
    for (taps, w) in taps.iter_mut().zip(w[at * TAPS..].as_chunks().0) {
        *taps = by_tap(w);
    }
    let [mut x0, mut x1, mut x2] = [0, 1, 2].map(|j| fours::<N>(&history.row(j)[at..]));
    for t in 0..y.rows() {
        let x3 = fours::<N>(&history.row(t + TAPS - 1)[at..]);
        let (y, _) = y.row_mut(t)[at..][..4 * N].as_chunks_mut();
        for n in 0..N {
            let mut sum = vfmaq_f32(vdupq_n_f32(0.0), taps[n].0, x0[n]);
            sum = vfmaq_f32(sum, taps[n].1, x1[n]);
            sum = vfmaq_f32(sum, taps[n].2, x2[n]);
            store_ps(&mut y[n], vfmaq_f32(sum, taps[n].3, x3[n]));
        }
        (x0, x1, x2) = (x1, x2, x3);
    }
    for (next, x) in next.chunks_exact_mut(history.channels()).zip([x0, x1, x2]) {
        let (next, _) = next[at..][..4 * N].as_chunks_mut();
        for (next, x) in next.iter_mut().zip(x) {
            store_ps(next, x);
        }
    }
    4 * N
}

/// The first `N` registers of a row.
#[inline]
#[target_feature(enable = "neon")]
fn fours<const N: usize>(row: &[f32]) -> [float32x4_t; N] {
    let (row, _) = row[..4 * N].as_chunks();
    let mut res = [vdupq_n_f32(0.0); N];
    for (res, row) in res.iter_mut().zip(row) {
        *res = load_ps(row);
    }
    res
}

/// The taps of 4 channels, tap by tap.
#[inline]
#[target_feature(enable = "neon")]
fn by_tap(w: &[f32; 4 * TAPS]) -> float32x4x4_t {
    // SAFETY: `w` is 16 readable floats.
    unsafe { vld4q_f32(w.as_ptr()) }
}

#[target_feature(enable = "neon")]
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
        32 => block::<8>(&tokens, from, to, o),
        16 => block::<4>(&tokens, from, to, o),
        8 => block::<2>(&tokens, from, to, o),
        _ => portable::kda_step(q, k, v, decay, beta, from, to, o),
    }
}

/// Some columns of one row of the state.
type Row<const N: usize> = [[f32; 4]; N];

/// All tokens of a block of `N` registers of columns.
#[inline]
#[target_feature(enable = "neon")]
fn block<const N: usize>(tokens: &Tokens<'_>, from: Option<&[f32]>, to: &mut [f32], o: &mut TileMut<'_>) {
    let from: Option<&[Row<N>]> = from.map(|it| it.as_chunks().0.as_chunks().0);
    let (to, _) = to.as_chunks_mut().0.as_chunks_mut();
    let mut u = begin::<N>(tokens, from, to);
    for t in 0..o.rows() {
        let mut d = fours(tokens.v.row(t));
        for (v, u) in d.iter_mut().zip(u) {
            *v = vmulq_n_f32(vsubq_f32(*v, u), tokens.beta[t]);
        }
        let read;
        (read, u) = match (from.filter(|_| t == 0), t + 1 < o.rows()) {
            (Some(from), true) => step::<N, true, true>(tokens, t, d, from, to),
            (Some(from), false) => step::<N, true, false>(tokens, t, d, from, to),
            (None, true) => step::<N, false, true>(tokens, t, d, &[], to),
            (None, false) => step::<N, false, false>(tokens, t, d, &[], to),
        };
        for (o, read) in o.row_mut(t).as_chunks_mut().0.iter_mut().zip(read) {
            store_ps(o, read);
        }
    }
}

/// What the state holds for the key of token 0 after its decay. Without a state, the decayed zeros are left in `to`.
#[inline]
#[target_feature(enable = "neon")]
fn begin<const N: usize>(
    tokens: &Tokens<'_>,
    from: Option<&[Row<N>]>,
    to: &mut [Row<N>],
) -> [float32x4_t; N] {
    let mut u = [vdupq_n_f32(0.0); N];
    let (decay, k) = (&tokens.decay.row(0)[..to.len()], &tokens.k.row(0)[..to.len()]);
    for (i, to) in to.iter_mut().enumerate() {
        for (n, u) in u.iter_mut().enumerate() {
            let s = from.map_or(vdupq_n_f32(0.0), |from| load_ps(&from[i][n]));
            let s = vmulq_n_f32(s, decay[i]);
            *u = vfmaq_n_f32(*u, s, k[i]);
            if from.is_none() {
                store_ps(&mut to[n], s);
            }
        }
    }
    u
}

/// Finishes token t, S = S + k · d and o, and begins the `NEXT` one, S = diag(decay) · S and u; returns o and u.
///
/// `FIRST`: S is read from `from` and decays here, else it lies in `to` and has decayed.
#[inline]
#[target_feature(enable = "neon")]
fn step<const N: usize, const FIRST: bool, const NEXT: bool>(
    tokens: &Tokens<'_>,
    t: usize,
    d: [float32x4_t; N],
    from: &[Row<N>],
    to: &mut [Row<N>],
) -> ([float32x4_t; N], [float32x4_t; N]) {
    let dk = to.len();
    let from = if FIRST { &from[..dk] } else { from };
    let next = t + usize::from(NEXT);
    let [k, q, decay] = [tokens.k, tokens.q, tokens.decay].map(|it| &it.row(t)[..dk]);
    let [next_k, next_decay] = [tokens.k, tokens.decay].map(|it| &it.row(next)[..dk]);
    let (mut o, mut u) = ([vdupq_n_f32(0.0); N], [vdupq_n_f32(0.0); N]);
    for (i, to) in to.iter_mut().enumerate() {
        for (n, to) in to.iter_mut().enumerate() {
            let mut s = if FIRST { vmulq_n_f32(load_ps(&from[i][n]), decay[i]) } else { load_ps(to) };
            s = vfmaq_n_f32(s, d[n], k[i]);
            o[n] = vfmaq_n_f32(o[n], s, q[i]);
            if NEXT {
                s = vmulq_n_f32(s, next_decay[i]);
                u[n] = vfmaq_n_f32(u[n], s, next_k[i]);
            }
            store_ps(to, s);
        }
    }
    (o, u)
}
