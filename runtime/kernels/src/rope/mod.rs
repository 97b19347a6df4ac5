//! Rotary position embedding of one row of heads.
//!
//! x: `f32[n_heads · head_dim]`, rotated in place; cos, sin: `f32[dims / 2]`; the first `dims` of every head turn, the
//! rest stays. Pair i is (i, i + dims / 2) in `rope_half` and (2i, 2i + 1) in `rope_pair`:
//!
//! ```text
//! y0 = fma(x0, cos, −(x1 · sin))      y1 = fma(x1, cos, x0 · sin)
//! ```

pub(crate) mod portable;
