//! The definitions.

use crate::argmax::portable::argmax_f32;
use crate::math::exp;

/// Virtual lanes of a row reduction.
pub(crate) const LANES: usize = 16;

#[inline(always)]
pub(crate) fn rms_norm(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
    let n = y.len();
    let (x, w) = (&x[..n], &w[..n]);
    let rms = inverse_root(lane_sum(x, |x, sum| x.mul_add(x, sum)), n, eps);
    for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
        *y = (x * rms) * w;
    }
}

#[inline(always)]
pub(crate) fn layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32, y: &mut [f32]) {
    let n = y.len();
    let (x, w, b) = (&x[..n], &w[..n], &b[..n]);
    #[expect(clippy::cast_precision_loss, reason = "the count is rounded once, as part of the definition")]
    let mean = lane_sum(x, |x, sum| sum + x) / n as f32;
    let squares = lane_sum(x, |x, sum| (x - mean).mul_add(x - mean, sum));
    let rstd = inverse_root(squares, n, eps);
    for (((y, x), w), b) in y.iter_mut().zip(x).zip(w).zip(b) {
        *y = ((x - mean) * rstd).mul_add(*w, *b);
    }
}

/// x = exp(x − max) / Σ, the sum on 16 lanes. A NaN makes all of x NaN.
#[inline(always)]
pub(crate) fn softmax(x: &mut [f32]) {
    let max = argmax_f32(x).value;
    x.iter_mut().for_each(|x| *x = exp(*x - max));
    let sum = lane_sum(x, |p, sum| sum + p);
    x.iter_mut().for_each(|p| *p /= sum);
}

/// 1 / sqrt(sum / n + eps).
#[inline(always)]
pub(crate) fn inverse_root(sum: f32, n: usize, eps: f32) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "the count is rounded once, as part of the definition")]
    let mean = sum / n as f32;
    1.0 / (mean + eps).sqrt()
}

/// Folds each element into its lane, then the lanes by the tree.
#[inline(always)]
pub(crate) fn lane_sum(x: &[f32], fold: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = fold(*x, *lane);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(tail) {
        *lane = fold(*x, *lane);
    }
    tree(lanes)
}

/// The sum of 16 lanes: l + 8, l + 4, l + 2, l + 1.
#[inline(always)]
pub(crate) fn tree(mut lanes: [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}
