//! Linears and embeddings over weights packed in units (`waste_plan::units`): GGML's K-quants and their kin (numerics §2).
//!
//! `linear_units_M(packing, w, k, x, y)` is what `linear_W_M` is for other packings: w is whole packed blocks of 16 rows over k inputs, x
//! the tokens, y the tile `f32[tokens, columns]`. A *step* is the inputs that share a float scale and an activation scale: 128 of a unit
//! of 256, all 32 of a small one. With integer scales s_j of the groups j of a step (1 in small units) and integers w_i of the codes,
//!
//! ```text
//! H, M, L = Σ_j s_j Σ_{i in j} w_i · (h, m, l)_i                            exact in i32
//! s   = fma(f32(H), 65536, fma(f32(M), 256, f32(L)))                       (fewer planes, fewer terms)
//! acc = fma(s, d · xs, acc);                                               steps ascending, from 0
//! minima of large units: z likewise of Σ_j t_j Σ_{i in j} (h, m, l)_i;     acc = fma(z, −(m · xs), acc)
//! minima of small units: z the activations' own;                           acc = fma(z, m · xs, acc)
//! ```
//!
//! Bounds, |byte| ≤ 128 and so at most 2^14 a step of 128 before weights:
//!
//! | packing | largest \|s · w\| | \|H\|, \|M\|, \|L\| |
//! |---|---|---|
//! | `K2` | 15 · 3 | < 2^20 |
//! | `K3` | 32 · 4 | 2^21 |
//! | `K4` | 63 · 15 (a byte holds 255 · 15) | < 2^24 (< 2^26) |
//! | `K5` | 63 · 31 (255 · 31) | < 2^25 (< 2^27) |
//! | `K6` | 128 · 32 | 2^26 |
//! | `K4T` | 32 · 127 (128 · 127) | < 2^26 (< 2^28) |
//! | `W5`, `W5M`, `W4T`, `W4E` | 16, 31, 127, 12, over 32 inputs | < 2^19 |
//!
//! and |Σ t_j Σ| < 255 · 2^14 < 2^22. Beyond 2^24 a plane sum is rounded once, to nearest even, when it becomes f32, on every tier.
//!
//! `linear_units_f32`: per group g = Σ fma(w_i, x_i, g), k ascending, from 0; acc = fma(f32(d · s_j), g, acc); with minima then u = Σ x_i,
//! plain sums, k ascending, and acc = fma(−f32(m · t_j), u, acc), or fma(m, u, acc) in small units.
//!
//! `embed_units`: row `lane` of a block as f32, the reference decode, rounded once.
//!
//! One row serves all packings: there are ten, and they differ in how codes are unpacked, not in what is done with them.
//!
//! Deliberately absent: twins of their own for AVX-512 and VNNI, where AVX2's run; and for NEON, which compiles the definition.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
pub(crate) mod portable;

use waste_plan::{Packing, UnitLayout};

use super::check_tile;
use crate::view::TileMut;

/// The layout of `packing`, and what every linear asserts once, in front of its loops.
#[inline(always)]
fn check(packing: Packing, w: &[u8], k: usize, tokens: usize, y: &TileMut<'_>) -> UnitLayout {
    let layout = packing.units().expect("a packing in units");
    assert!(k > 0 && k.is_multiple_of(layout.inputs), "{k} inputs are not whole units of {}", layout.inputs);
    check_tile(packing, w, k, tokens, y);
    layout
}
