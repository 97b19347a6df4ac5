//! Linears in f32 arithmetic: float weights, and integer weights under `--math f32` (numerics §2): y = x · Wᵀ.
//!
//! `linear_W_f32(w, k, x, y)`: w is whole packed blocks of 16 rows over k inputs, x: f32 rows of k, y: the tile
//! f32[tokens, columns], columns ≤ 16 · blocks.
//!
//! - f32, f16, bf16 weights: acc = fma(w_i, x_i, acc), k ascending, from 0. f16 and bf16 widen exactly;
//! - integer weights, per group of 32: g = Σ fma(w_i, x_i, g), k ascending, from 0; acc = fma(d, g, acc). W4M then:
//!   u = Σ x_i, plain sums, k ascending, from 0; acc = fma(m, u, acc). w_i is the code as f32 (W4: code − 8).

pub(crate) mod portable;
