//! Attention over the residual stream (Kimi's AttnRes): a token's next input is a mixture of what it was at some
//! earlier layers and of what it is now.
//!
//! **`attn_res_mix`** — one token: blocks `f32[nb, h]`, nb ≤ [`MAX_BLOCKS`], may be none; x, norm, proj, y `f32[h]`.
//!
//! ```text
//! score(v) = Σ fma((v · rms(v)) · norm, proj, ·)      16 lanes, then the tree; rms as in rms_norm
//! p = exp(score − max) / Σ                            over the blocks, x last; the 16-lane sum
//! y = x · p_x;  y = fma(p_i, block_i, y)              blocks ascending
//! ```

pub(crate) mod portable;

/// The most blocks that a token can mix.
pub const MAX_BLOCKS: usize = 255;
