//! The choice of experts of one token (DeepSeek-V3 report, 2024, §2.1.2; numerics §1.5).
//!
//! logits `f32[E]`; bias `f32[E]` or none; ids `i32[k]` and weights `f32[k]` with k ≤ E, best first; scratch `f32[2 · E]`.
//!
//! ```text
//! score = sigmoid(logit), or exp(logit − max) / Σ with the 16-lane sum over all experts
//! rank by score + bias; with groups > 1, of consecutive experts, only the `keep` best groups compete:
//!     a group's score is the sum of the two best of its members (of groups of one: that one)
//! weight = score, without bias; with renorm and k > 1: / (Σ of the chosen, in rank order, + 1e-20); then · scale
//! ```
//!
//! Ties go to the lower id. Where fewer than k candidates are left, −inf and the dropped groups follow by id, then NaNs:
//! ids are always k distinct experts, and a NaN that had to be taken shows in the weights.

pub(crate) mod portable;

use waste_plan::Scoring;

/// How a router chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteRule {
    /// How logits become scores.
    pub scoring: Scoring,
    /// Groups of consecutive experts, all of one size; 1 where there are none.
    pub groups: usize,
    /// Groups that compete.
    pub keep: usize,
    /// Whether the weights of the chosen are divided by their sum.
    pub renorm: bool,
    /// Factor of the weights.
    pub scale: f32,
}
