//! Row normalisations.
//!
//! A row is reduced on 16 virtual lanes, element i in lane i mod 16, then by the tree l+8, l+4, l+2, l+1
//! (numerics §1.2), whatever the register width:
//!
//! - rms_norm: s = lanes Σ fma(x, x); y = (x · (1 / sqrt(s / n + eps))) · w;
//! - layer_norm: mean = lanes Σ x / n; d = x − mean; s = lanes Σ fma(d, d); y = fma(d · (1 / sqrt(s / n + eps)), w, b).
//!
//! Shapes: x, w, b, y are `f32[n]`; y's length counts, shorter inputs are a panic.

pub(crate) mod portable;
