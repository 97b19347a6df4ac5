//! Linears in f32 arithmetic: float weights, and integer weights under `--math f32` (numerics §2): y = x · Wᵀ.
//!
//! `linear_W_f32(w, k, x, y)`: w is whole packed blocks of 16 rows over k inputs, x: f32 rows of k, y: the tile
//! `f32[tokens, columns]`, columns ≤ 16 · blocks.
//!
//! - f32, f16, bf16 weights: acc = fma(w_i, x_i, acc), k ascending, from 0. f16 and bf16 widen exactly;
//! - integer weights, per group of 32: g = Σ fma(w_i, x_i, g), k ascending, from 0; acc = fma(d, g, acc). W4M then:
//!   u = Σ x_i, plain sums, k ascending, from 0; acc = fma(m, u, acc). w_i is the code as f32 (W4: code − 8).

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;

use waste_plan::Packing;

use crate::linear::check_tile;
use crate::linear::portable::{Format, GROUP};
use crate::view::{RowsF32, TileMut};

/// What every linear asserts once, in front of its loops.
#[inline(always)]
fn check<W: Format>(w: &[u8], k: usize, x: &RowsF32<'_>, y: &TileMut<'_>) {
    let unit = if matches!(W::PACKING, Packing::W8 | Packing::W4 | Packing::W4M) { GROUP } else { 1 };
    assert!(k > 0 && k.is_multiple_of(unit), "{k} inputs are not whole groups of {unit}");
    assert_eq!(x.cols(), k, "inputs of the activations");
    check_tile(W::PACKING, w, k, x.rows(), y);
}
