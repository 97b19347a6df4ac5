//! Kimi Delta Attention and what surrounds its recurrence (Kimi Linear report, 2025): the short convolution, the decay
//! gate, the l2 norm of queries and keys, one delta-rule step a token, and the gated norm of what was read.
//!
//! **`short_conv`** — some channels of one row's run of tokens. x, y `f32[T, c]`; w `f32[c, taps]` row-major, the last
//! tap meets the token itself; ring and next `f32[taps − 1, c]`, the inputs before the first and before the next token,
//! oldest first. With x\[−i\] the ring's i-th row from its end:
//!
//! ```text
//! y[t] = Σ_j fma(w[j], x[t − taps + 1 + j], ·)      j ascending, from 0; the activation is the caller's
//! ```
//!
//! **`kda_gate`** — the decay of one head, `f32[n]` each, *as a factor*: exp is taken here, once per token and key
//! channel, and not once per block of columns. a = exp(a_log), x = z + dt_bias:
//!
//! ```text
//! lower_bound < 0:  y = exp(lower_bound · sigmoid(a · x))        otherwise:  y = exp(−(a · softplus(x)))
//! ```
//!
//! **`l2_norm`** — y = (x · (1 / sqrt(Σx² + eps))) · scale; the sum as in a norm (16 lanes by fma, then the tree).
//!
//! **`kda_step`** — the delta rule of one head over some columns of its state S, T tokens one after the other. q, k,
//! decay `f32[T, dk]`; v, o `f32[T, c]`, c ≤ [`STATE_COLS`]; beta `f32[T]`; from and to `f32[dk][c]`: the state before
//! the first and after the last token (`None` is all zeros, the same bits). Every column is on its own, and sums run
//! over dk ascending, from 0:
//!
//! ```text
//! S = diag(decay) · S;   u = Σ_k fma(k_k, S_k, ·);   d = beta · (v − u);   S_k = fma(k_k, d, S_k);   o = Σ_k fma(q_k, S_k, ·)
//! ```
//!
//! A head's whole state is therefore stored column-blocked, `[dv / STATE_COLS][dk][STATE_COLS]` with a narrower last
//! block: what one call reads and writes is contiguous, and two threads never write one line.
//!
//! **`gated_rms_norm`** — y = ((x · rms) · w) · sigmoid(gate), rms as in `rms_norm`; all `f32[n]`.
//!
//! Deliberately absent: a form that takes several tokens at once. It would round differently from decode.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;

use crate::view::{RowsF32, TileMut};

/// Columns of a block of the state. Measured on 128 rows: both halves of a block fit L1, which 64 columns do not, and
/// four registers of sums hide the latency of fma, which two do not.
pub const STATE_COLS: usize = 32;

/// The operands of a step.
#[derive(Clone, Copy)]
pub(crate) struct Tokens<'a> {
    pub(crate) q: &'a RowsF32<'a>,
    pub(crate) k: &'a RowsF32<'a>,
    pub(crate) v: &'a RowsF32<'a>,
    pub(crate) decay: &'a RowsF32<'a>,
    pub(crate) beta: &'a [f32],
}

impl Tokens<'_> {
    /// What a step asserts once, in front of its loops; returns the key channels.
    #[inline(always)]
    pub(crate) fn check(&self, from: Option<&[f32]>, to: &[f32], o: &TileMut<'_>) -> usize {
        let (tokens, dk, c) = (o.rows(), self.q.cols(), o.cols());
        assert!((1..=STATE_COLS).contains(&c), "{c} columns of a state in blocks of {STATE_COLS}");
        assert!(tokens > 0, "a step takes a token");
        assert_eq!(
            (self.k.cols(), self.decay.cols(), self.v.cols()),
            (dk, dk, c),
            "channels of the operands"
        );
        let rows = [self.q, self.k, self.v, self.decay].map(RowsF32::rows);
        assert_eq!((rows, self.beta.len()), ([tokens; 4], tokens), "tokens of the operands");
        assert!(to.len() == dk * c && from.is_none_or(|it| it.len() == to.len()), "a state of {dk} by {c}");
        dk
    }
}
