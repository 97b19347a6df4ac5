//! The definitions: token by token, key channel by key channel; columns and channels are the lanes.

use super::Tokens;
use crate::math::{exp, sigmoid, softplus};
use crate::norm::portable::{LANES, inverse_root, lane_sum};
use crate::view::{RowsF32, TileMut};

#[inline(always)]
pub(crate) fn short_conv(
    x: &RowsF32<'_>,
    w: &[f32],
    taps: usize,
    ring: &[f32],
    next: &mut [f32],
    y: &mut TileMut<'_>,
) {
    let history = History::new(x, w, taps, ring, next, y);
    let mut at = 0;
    while at < x.cols() {
        at += match x.cols() - at {
            LANES.. => some_channels::<LANES>(&history, w, taps, at, next, y),
            _ => some_channels::<1>(&history, w, taps, at, next, y),
        };
    }
}

/// `C` channels from `at` on, all tokens; returns `C`.
#[inline(always)]
pub(crate) fn some_channels<const C: usize>(
    history: &History<'_>,
    w: &[f32],
    taps: usize,
    at: usize,
    next: &mut [f32],
    y: &mut TileMut<'_>,
) -> usize {
    for t in 0..y.rows() {
        let mut sum = [0.0f32; C];
        for j in 0..taps {
            let x: &[f32; C] = history.row(t + j)[at..].first_chunk().expect("the channels are in the rows");
            for (c, (sum, x)) in sum.iter_mut().zip(x).enumerate() {
                *sum = w[(at + c) * taps + j].mul_add(*x, *sum);
            }
        }
        y.row_mut(t)[at..][..C].copy_from_slice(&sum);
    }
    for (i, next) in next.chunks_exact_mut(history.channels()).enumerate() {
        next[at..][..C].copy_from_slice(&history.row(y.rows() + i)[at..][..C]);
    }
    C
}

/// The ring and the tokens after it as one run of rows.
#[derive(Clone, Copy)]
pub(crate) struct History<'a> {
    x: &'a RowsF32<'a>,
    ring: &'a [f32],
    /// Rows of the ring.
    past: usize,
}

impl<'a> History<'a> {
    /// Asserts that the operands of a convolution fit.
    #[inline(always)]
    pub(crate) fn new(
        x: &'a RowsF32<'a>,
        w: &[f32],
        taps: usize,
        ring: &'a [f32],
        next: &[f32],
        y: &TileMut<'_>,
    ) -> Self {
        assert!(
            taps > 0 && w.len() == taps * x.cols(),
            "{taps} taps of {} channels in {}",
            x.cols(),
            w.len()
        );
        assert_eq!((y.rows(), y.cols()), (x.rows(), x.cols()), "an output for every input");
        assert_eq!([ring.len(), next.len()], [(taps - 1) * x.cols(); 2], "rings of {} inputs", taps - 1);
        Self { x, ring, past: taps - 1 }
    }

    /// Row `i` of the run; the ring's come first.
    #[inline(always)]
    pub(crate) fn row(&self, i: usize) -> &'a [f32] {
        let c = self.x.cols();
        if i < self.past { &self.ring[i * c..][..c] } else { self.x.row(i - self.past) }
    }

    /// Elements of a row.
    #[inline(always)]
    pub(crate) fn channels(&self) -> usize {
        self.x.cols()
    }
}

#[inline(always)]
pub(crate) fn kda_gate(z: &[f32], dt_bias: &[f32], a_log: f32, lower_bound: f32, y: &mut [f32]) {
    let n = y.len();
    let a = exp(a_log);
    let inputs = y.iter_mut().zip(&z[..n]).zip(&dt_bias[..n]);
    if lower_bound < 0.0 {
        inputs.for_each(|((y, z), bias)| *y = exp(lower_bound * sigmoid(a * (z + bias))));
    } else {
        inputs.for_each(|((y, z), bias)| *y = exp(-(a * softplus(z + bias))));
    }
}

#[inline(always)]
pub(crate) fn l2_norm(x: &[f32], eps: f32, scale: f32, y: &mut [f32]) {
    let x = &x[..y.len()];
    let root = 1.0 / (lane_sum(x, |x, sum| x.mul_add(x, sum)) + eps).sqrt();
    for (y, x) in y.iter_mut().zip(x) {
        *y = (x * root) * scale;
    }
}

#[inline(always)]
pub(crate) fn gated_rms_norm(x: &[f32], gate: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
    let n = y.len();
    let (x, gate, w) = (&x[..n], &gate[..n], &w[..n]);
    let rms = inverse_root(lane_sum(x, |x, sum| x.mul_add(x, sum)), n, eps);
    for (((y, x), gate), w) in y.iter_mut().zip(x).zip(gate).zip(w) {
        *y = ((x * rms) * w) * sigmoid(*gate);
    }
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one argument an operand")]
pub(crate) fn kda_step(
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
            LANES.. => some_columns::<LANES>(&tokens, from, to, at, o),
            _ => some_columns::<1>(&tokens, from, to, at, o),
        };
    }
}

/// `C` columns from `at` on, all tokens; returns `C`.
#[inline(always)]
pub(crate) fn some_columns<const C: usize>(
    tokens: &Tokens<'_>,
    from: Option<&[f32]>,
    to: &mut [f32],
    at: usize,
    o: &mut TileMut<'_>,
) -> usize {
    let c = o.cols();
    for (i, row) in to.chunks_exact_mut(c).enumerate() {
        match from {
            Some(from) => row[at..][..C].copy_from_slice(&from[i * c + at..][..C]),
            None => row[at..][..C].fill(0.0),
        }
    }
    for t in 0..o.rows() {
        let (q, k, decay) = (tokens.q.row(t), tokens.k.row(t), tokens.decay.row(t));
        let mut u = [0.0f32; C];
        for ((s, decay), k) in to.chunks_exact_mut(c).zip(decay).zip(k) {
            let s: &mut [f32; C] = columns(s, at);
            s.iter_mut().for_each(|s| *s *= decay);
            u.iter_mut().zip(s).for_each(|(u, s)| *u = k.mul_add(*s, *u));
        }
        let v: &[f32; C] = tokens.v.row(t)[at..].first_chunk().expect("a block's columns");
        let d: [f32; C] = std::array::from_fn(|c| tokens.beta[t] * (v[c] - u[c]));
        let mut read = [0.0f32; C];
        for ((s, k), q) in to.chunks_exact_mut(c).zip(k).zip(q) {
            let s: &mut [f32; C] = columns(s, at);
            s.iter_mut().zip(d).for_each(|(s, d)| *s = k.mul_add(d, *s));
            read.iter_mut().zip(s).for_each(|(read, s)| *read = q.mul_add(*s, *read));
        }
        *columns(o.row_mut(t), at) = read;
    }
    C
}

/// `C` columns of a row.
#[inline(always)]
fn columns<const C: usize>(row: &mut [f32], at: usize) -> &mut [f32; C] {
    row[at..].first_chunk_mut().expect("a block's columns")
}
