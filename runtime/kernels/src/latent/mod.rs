//! Multi-head latent attention in its absorbed form (DeepSeek-V2 report, 2024, §2.1.2): one cached latent per position
//! serves all heads as key *and* value.
//!
//! **`latent_attention_*`** — the queries of some heads and tokens of one row. q `f32[n, kl]`: each head's query times
//! its key matrix; q_rope `f32[n, r]`, r may be 0; n_pos `u32[n]`; cache: tiles `[tile][kl + r][32]` from position 0 on,
//! f32 or f16, at least ⌈max n_pos / 32⌉ of them; out `f32[n, kl]`; scratch f32\[[`latent_scratch_len`]\].
//!
//! ```text
//! s_i = scale · (Σ_d fma(q_d, c_di, ·))      d ascending over q, then q_rope, from 0
//! o   = Σ_i p_i · c_i                        over the first kl of the kl + r latents
//! ```
//!
//! Tiles, p, their sums and the fold are those of [`crate::attention`]. Invisible positions take part in nothing. Each
//! query's arithmetic is its own, so blocks of queries may be cut anywhere; the more there are, the less a tile's
//! transposition weighs (about two queries' worth).
//!
//! **`head_linear_t_*`** — the absorption itself, one head: y_j = Σ_i fma(x_i, w_ij, y_j), i ascending, from 0. w: a plain
//! row-major matrix `[n, k]` of little-endian f32, f16 or bf16 without demands on its alignment; x `f32[n]`; y `f32[k]`.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;

use crate::attention::TILE;
use crate::view::RowsF32;

/// Latents that are transposed at a time.
pub(crate) const COLUMNS: usize = 32;

/// Elements of scratch that latent attention of `queries` queries over latents of `kl` values needs.
#[must_use]
pub const fn latent_scratch_len(queries: usize, kl: usize) -> usize {
    let columns = if kl < COLUMNS { kl } else { COLUMNS };
    queries * (TILE + 4) + TILE * columns
}

/// The operands of a call.
pub(crate) struct Queries<'a, T> {
    pub(crate) q: &'a RowsF32<'a>,
    pub(crate) q_rope: &'a RowsF32<'a>,
    pub(crate) n_pos: &'a [u32],
    pub(crate) cache: &'a [T],
    pub(crate) scale: f32,
}
