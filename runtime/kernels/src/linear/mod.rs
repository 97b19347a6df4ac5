//! Linears over integer weights with fixed-point activations (numerics §2): y = x · Wᵀ.
//!
//! `linear_W_M(w, k, x, y)`: w is whole packed blocks of 16 rows over k inputs (`waste_plan::pack`), x the quantised
//! tokens, y the tile `f32[tokens, columns]`, columns ≤ 16 · blocks. Token t reads row t of x. With M's planes,
//!
//! ```text
//! H, M, L = Σ w_i · (h, m, l)_i over the 32 inputs of a weight group        exact in i32
//! s   = fma(f32(H), 65536, fma(f32(M), 256, f32(L)))                       (fewer planes, fewer terms)
//! acc = fma(s, d · xs, acc);  W4M then: acc = fma(z, m · xs, acc)          groups ascending, from 0
//! ```
//!
//! Bounds: |w| ≤ 128, |byte| ≤ 128, so |H|, |M|, |L| ≤ 32 · 2^14 = 2^19. Each is exact in f32, and 256·M + L < 2^28
//! fits i32; f32(256·M + L) has the bits of the inner fma.
//!
//! How a twin blocks tokens, columns and inputs is its own business: exact sums make the order inside a group
//! irrelevant, and groups ascend for every output.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod parts;
pub(crate) mod portable;
pub(crate) mod units;

use waste_plan::Packing;

use crate::view::{FxRows, TileMut};

/// What every linear asserts once, in front of its loops.
#[inline(always)]
fn check(packing: Packing, planes: usize, w: &[u8], k: usize, x: &FxRows<'_>, y: &TileMut<'_>) {
    assert!(k.is_multiple_of(32) && k > 0, "{k} inputs are not whole groups of 32");
    assert_eq!((x.n(), x.layout().planes), (k, planes), "inputs and planes of the activations");
    check_tile(packing, w, k, x.rows(), y);
}

/// What every packed linear asserts about weights, tokens and tile.
#[inline(always)]
pub(crate) fn check_tile(packing: Packing, w: &[u8], k: usize, tokens: usize, y: &TileMut<'_>) {
    let blocks = y.cols().div_ceil(waste_plan::LANES);
    assert!(w.len() / packing.block_bytes(k) >= blocks, "{} columns need {blocks} packed blocks", y.cols());
    assert!(tokens >= y.rows(), "{tokens} tokens for a tile of {} rows", y.rows());
}
