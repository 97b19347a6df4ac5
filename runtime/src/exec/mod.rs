//! Carrying out steps: one tile of one step at a time, one arm a step kind.
//!
//! Invariants
//! - a tile writes only its rows and columns of the step's results;
//! - nothing here allocates; a thread's scratch is sized by the plan;
//! - steps were resolved at open, so no kernel can be missing here.

mod attention;
mod experts;
mod latent;
mod linear;
mod lut;
mod recurrent;
mod rows;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use waste_kernels::KernelTable;
use waste_plan::schema::{Place, Situ, Step, StepKind};
use waste_plan::{Act, DType, LutLayout, UnaryKind};

use crate::arena::{Call, Spaces};
use crate::stream::ExpertSource;
pub(crate) use attention::CacheShape;
pub(crate) use linear::missing_kernels;

/// What every tile of a call needs.
pub(crate) struct Exec<'a> {
    pub(crate) spaces: &'a Spaces,
    pub(crate) table: &'a KernelTable,
    pub(crate) call: Call,
    /// The accepted half of each row's recurrent states, 0 or 1.
    pub(crate) halves: &'a [usize],
    /// Where experts come from, if the plan has any in files.
    pub(crate) experts: Option<&'a ExpertSource>,
    pub(crate) cancel: &'a AtomicBool,
    /// Bytes of experts' matrices multiplied with so far, each matrix counted once a window.
    pub(crate) expert_bytes: AtomicU64,
}

/// A tile: rows and columns of a step's first result.
pub(crate) struct Part {
    pub(crate) rows: Range<usize>,
    pub(crate) cols: Range<usize>,
}

/// Rows and columns that a step's tiles cover: those of its result, or of the appended tokens for a cache, or tokens by all heads'
/// columns where each head has its own matrix, or experts that may have a token.
fn extent(step: &Step, call: Call) -> (usize, usize) {
    let out = &step.writes[0];
    let (rows, cols) = (call.rows(out.rows), out.cols as usize);
    match step.kind {
        StepKind::KvAppend => (call.rows(step.reads[0].rows), step.reads[0].cols as usize),
        StepKind::HeadLinear | StepKind::HeadLinearT => {
            let heads = heads(step, call);
            (rows / heads, heads * cols)
        }
        StepKind::ExpertLinear { .. }
        | StepKind::ExpertGlu { .. }
        | StepKind::ExpertLut { .. }
        | StepKind::ExpertVq { .. } => (rows.min(experts::n_experts(step, call)), cols),
        _ => (rows, cols),
    }
}

/// Matrices of the bank that a step over heads reads.
fn heads(step: &Step, call: Call) -> usize {
    let bank = &step.reads[1];
    let rows = match step.kind {
        StepKind::HeadLinearT => step.reads[0].cols,
        _ => step.writes[0].cols,
    };
    call.rows(bank.rows) / rows as usize
}

/// Runs of consecutive tokens of one row, at most `most` tokens each.
fn runs(rows: &[i32], range: Range<usize>, most: usize) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
    let mut from = range.start;
    std::iter::from_fn(move || {
        let first = *rows[..range.end].get(from)?;
        let same = rows[from..range.end].iter().take_while(|it| **it == first).count();
        let run = from..from + same.min(most);
        from = run.end;
        Some((usize::try_from(first).expect("the session checks rows"), run))
    })
}

impl Exec<'_> {
    /// The rows that tiles of `step` cover in this call, and the columns: of a step in a loop over experts those of the window.
    fn covered(&self, step: &Step) -> (Range<usize>, usize) {
        let (rows, cols) = extent(step, self.call);
        let window = self.experts.filter(|_| step.window).map(|it| it.window());
        match (&step.kind, window) {
            (_, None) => (0..rows, cols),
            (StepKind::ExpertLut { .. } | StepKind::ExpertVq { .. }, Some(it)) => (it.groups, cols),
            (_, Some(it)) => (it.pairs, cols),
        }
    }

    /// The number of tiles of `step` in this call.
    pub(crate) fn n_tiles(&self, step: &Step) -> usize {
        if step.kind.moves_experts() {
            return 1;
        }
        let (rows, cols) = self.covered(step);
        rows.len().div_ceil(step.tile.rows as usize) * cols.div_ceil(step.tile.cols as usize)
    }

    /// Tile `index` of `step`: columns vary fastest, so that tiles which follow each other share activations.
    fn part(&self, step: &Step, index: usize) -> Part {
        let (rows, cols) = self.covered(step);
        let (tile_rows, tile_cols) = (step.tile.rows as usize, step.tile.cols as usize);
        let across = cols.div_ceil(tile_cols);
        let (row, col) = (rows.start + index / across * tile_rows, index % across * tile_cols);
        Part { rows: row..(row + tile_rows).min(rows.end), cols: col..(col + tile_cols).min(cols) }
    }
}

impl Exec<'_> {
    /// Carries out tile `index` of `step`.
    pub(crate) fn tile(&self, step: &Step, index: usize, scratch: &mut [f32]) {
        if step.kind.moves_experts() {
            return self.move_experts(step);
        }
        let part = self.part(step, index);
        match &step.kind {
            StepKind::Embed => self.embed(step, part),
            StepKind::QuantAct { .. } => self.quant_act(step, part),
            StepKind::Linear { act, bias, residual } => {
                self.linear(step, part, (*act, *bias, *residual), scratch);
            }
            StepKind::LinearGlu { act, situ, quant } => {
                self.linear_glu(step, part, (*act, *situ, quant.is_some()), scratch)
            }
            StepKind::Add => self.binary(step, part, |a, b, y| self.table.add(a, b, y)),
            StepKind::Mul => self.binary(step, part, |a, b, y| self.table.mul(a, b, y)),
            StepKind::Glu { act, situ } => {
                self.binary(step, part, |g, u, y| self.glu((*act, *situ), g, u, y))
            }
            StepKind::Unary { kind } => self.unary(step, part, *kind),
            StepKind::RmsNorm { eps, quant } => self.rms_norm(step, part, *eps, quant.is_some(), scratch),
            StepKind::LayerNorm { eps, bias, quant } => {
                self.layer_norm(step, part, *eps, (*bias, quant.is_some()), scratch);
            }
            StepKind::RopeAngles { freqs, factors } => self.rope_angles(step, part, freqs, *factors),
            StepKind::Rope { head_dim, skip, style } => {
                self.rope(step, part, (*head_dim as usize, *skip as usize), *style)
            }
            StepKind::KvAppend => self.kv_append(step, part),
            StepKind::Attention { scale, heads } => {
                self.attention(step, part, *scale, *heads as usize, scratch)
            }
            StepKind::SelectRows => self.select_rows(step, part),
            StepKind::Argmax => self.argmax(step, part),
            StepKind::FiniteCheck => self.finite_check(step, part),
            StepKind::Concat => self.concat(step, part),
            StepKind::ShortConv { act } => self.short_conv(step, part, *act, scratch),
            StepKind::L2Norm { dim, eps, scale } => self.l2_norm(step, &part, *dim as usize, (*eps, *scale)),
            StepKind::KdaGate { lower_bound } => self.kda_gate(step, &part, *lower_bound),
            StepKind::KdaStep => self.kda_step(step, part, scratch),
            StepKind::GatedRmsNorm { eps } => self.gated_rms_norm(step, &part, *eps),
            StepKind::HeadLinear => self.head_linear(step, part),
            StepKind::HeadLinearT => self.head_linear_t(step, part),
            StepKind::LatentAttention { scale, heads, rope } => {
                self.latent_attention(step, part, (*scale, *heads as usize, *rope), scratch);
            }
            StepKind::AttnResMix { eps, blocks } => self.attn_res_mix(step, part, *eps, *blocks),
            StepKind::RouteTopK { .. } => self.route_top_k(step, part, scratch),
            StepKind::ExpertSort { experts } => self.expert_sort(step, *experts as usize, scratch),
            StepKind::ExpertGather => self.expert_gather(step, part),
            StepKind::ExpertLinear { act, gather } => {
                self.expert_linear(step, &part, (*act, *gather), scratch)
            }
            StepKind::ExpertGlu { act, situ, quant, gather } => {
                self.expert_glu(step, &part, (*act, *situ, quant.is_some(), *gather), scratch);
            }
            StepKind::ExpertSum => self.expert_sum(step, part),
            StepKind::LutBuild { code, tables } => self.lut_build(step, &part, (*code, *tables)),
            StepKind::ExpertLut { gather } => self.expert_lut(step, &part, *gather, scratch),
            StepKind::ExpertVq { code, tables, gather } => {
                let layout = LutLayout { code: *code, tables: *tables };
                self.expert_vq(step, &part, (layout, *gather), scratch);
            }
            StepKind::ExpertPrefetch { .. }
            | StepKind::ExpertWindow { .. }
            | StepKind::ExpertRelease { .. } => {
                unreachable!("handled above")
            }
        }
    }

    /// Counts the matrices of an expert: in the first of the tiles that share them.
    fn count_expert(&self, part: &Part, bytes: usize) {
        if part.cols.start == 0 {
            self.expert_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Whether every f32 result of `step` is finite; other results always are.
    pub(crate) fn is_finite(&self, step: &Step) -> bool {
        step.writes.iter().all(|it| {
            let has_rows = matches!(it.place, Place::Scratch(_) | Place::Io(_));
            let mut rows = 0..if has_rows && it.dtype == DType::F32 { self.call.rows(it.rows) } else { 0 };
            rows.all(|row| self.table.first_non_finite(self.spaces.f32_row(it, row)).is_none())
        })
    }

    /// y = act(gate) ∘ up on equal slices.
    fn glu(&self, (act, situ): (Act, Situ), gate: &[f32], up: &[f32], y: &mut [f32]) {
        if act == Act::Situ {
            return self.table.situ(gate, up, situ.beta, situ.linear, y);
        }
        match act_kernel(act) {
            None => self.table.mul(gate, up, y),
            Some(act) => self.table.glu(act, gate, up, y),
        }
    }
}

/// The kernel of an activation; `None` for the identity.
fn act_kernel(act: Act) -> Option<UnaryKind> {
    match act {
        // A gate with two operands: `glu` handles it before.
        Act::None | Act::Situ => None,
        Act::Silu => Some(UnaryKind::Silu),
        Act::GeluTanh => Some(UnaryKind::GeluTanh),
        Act::GeluErf => Some(UnaryKind::GeluErf),
        Act::Relu => Some(UnaryKind::Relu),
    }
}
