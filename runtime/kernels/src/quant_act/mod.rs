//! Fixed-point activations (numerics §2): one f32 row to balanced signed byte planes, group scales and sums.
//!
//! x: `f32[n]`; out: a row of n inputs in [`FxLayout`](waste_plan::FxLayout) with 3, 2 or 1 planes. Per group of 128:
//!
//! ```text
//! amax = max |x|;  xs = amax / Q;  q = clamp(round-half-even(x · (Q / amax)), −Q, Q)
//! amax < 2^-100: q = 0, xs = 0.    A NaN or an infinity in the group: q = 0, xs = NaN.
//! q = h·2^16 + m·2^8 + l,  bytes in −128 … 127 (h in −127 … 127 because of Q)
//! ```
//!
//! Bounds: a sum of 16 bytes is at most 2048 in magnitude (i16), one of 32 at most 4096, exact in f32. z is the
//! recombination of the plane sums of 32 inputs, as a linear with weights of 1 would make it. Inputs past n are zero.
//! The maximum is taken on the bits of |x|, where integer order is the order of magnitudes and a NaN is largest, so
//! one scan answers both questions.

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;
