//! The definitions: token by token, key channel by key channel; columns and channels are the lanes.

use super::{STATE_COLS, Tokens};
use crate::math::{exp, sigmoid, softplus};
use crate::norm::portable::{inverse_root, lane_sum};
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
    let history = History::new(x, w, taps, ring, y);
    for t in 0..y.rows() {
        y.row_mut(t).fill(0.0);
    }
    // A tap's weights lie `taps` apart: they are gathered once for all tokens.
    const CHANNELS: usize = 16;
    for from in (0..x.cols()).step_by(CHANNELS) {
        let channels = from..x.cols().min(from + CHANNELS);
        for j in 0..taps {
            let mut tap = [0.0; CHANNELS];
            for (tap, w) in tap.iter_mut().zip(w[channels.start * taps..channels.end * taps].chunks(taps)) {
                *tap = w[j];
            }
            for t in 0..y.rows() {
                let x = &history.row(t + j)[channels.clone()];
                for ((y, x), w) in y.row_mut(t)[channels.clone()].iter_mut().zip(x).zip(&tap) {
                    *y = w.mul_add(*x, *y);
                }
            }
        }
    }
    history.keep(next);
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
    pub(crate) fn new(x: &'a RowsF32<'a>, w: &[f32], taps: usize, ring: &'a [f32], y: &TileMut<'_>) -> Self {
        assert!(
            taps > 0 && w.len() == taps * x.cols(),
            "{taps} taps of {} channels in {}",
            x.cols(),
            w.len()
        );
        assert_eq!((y.rows(), y.cols()), (x.rows(), x.cols()), "an output for every input");
        assert_eq!(ring.len(), (taps - 1) * x.cols(), "a ring of {} inputs", taps - 1);
        Self { x, ring, past: taps - 1 }
    }

    /// Row `i` of the run; the ring's come first.
    #[inline(always)]
    pub(crate) fn row(&self, i: usize) -> &'a [f32] {
        let c = self.x.cols();
        if i < self.past { &self.ring[i * c..][..c] } else { self.x.row(i - self.past) }
    }

    /// Writes the ring of the run's end.
    #[inline(always)]
    pub(crate) fn keep(&self, next: &mut [f32]) {
        let c = self.x.cols();
        assert_eq!(next.len(), self.ring.len(), "the next ring");
        for i in 0..self.past {
            next[i * c..][..c].copy_from_slice(self.row(self.x.rows() + i));
        }
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
    Tokens { q, k, v, decay, beta }.check(from, to, o);
    match from {
        Some(from) => to.copy_from_slice(from),
        None => to.fill(0.0),
    }
    for t in 0..o.rows() {
        let o = o.row_mut(t);
        let mut u = [0.0f32; STATE_COLS];
        for ((s, decay), k) in to.chunks_exact_mut(o.len()).zip(decay.row(t)).zip(k.row(t)) {
            for (s, u) in s.iter_mut().zip(&mut u) {
                *s *= decay;
                *u = k.mul_add(*s, *u);
            }
        }
        let mut d = [0.0; STATE_COLS];
        for ((d, v), u) in d.iter_mut().zip(v.row(t)).zip(u) {
            *d = beta[t] * (v - u);
        }
        o.fill(0.0);
        for ((s, k), q) in to.chunks_exact_mut(o.len()).zip(k.row(t)).zip(q.row(t)) {
            for ((s, d), o) in s.iter_mut().zip(d).zip(o.iter_mut()) {
                *s = k.mul_add(d, *s);
                *o = q.mul_add(*s, *o);
            }
        }
    }
}
