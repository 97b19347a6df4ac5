//! Tiles: no two threads share a lane, a group, a head or a state, and no tile leaves out or repeats a part of the work.

use super::step::Operands;
use super::{Checked, ensure};
use crate::schema::{Program, RING_COLS, StepKind};
use crate::vq::{ROW_BLOCK, SLAB, VEC_DIM};
use crate::{FX_GROUP, LANES};

impl Operands<'_> {
    /// Columns of a tile are all, or whole units; its rows are any, one expert, or all.
    pub(super) fn tile(&self, program: &Program) -> Checked {
        let tile = self.step.tile;
        let (all, unit) = self.columns();
        let is_whole = tile.cols >= all || (tile.cols > 0 && tile.cols.is_multiple_of(unit));
        ensure(tile.rows > 0 && (is_whole || self.cuts_heads()), || {
            let (rows, cols) = (tile.rows, tile.cols);
            format!("tiles of {rows} × {cols}, expected columns in multiples of {unit} or all {all}")
        })?;
        match self.step.kind {
            StepKind::ExpertLinear { .. }
            | StepKind::ExpertGlu { .. }
            | StepKind::ExpertLut { .. }
            | StepKind::ExpertVq { .. } => {
                ensure(tile.rows == 1, || format!("tiles of {} experts", tile.rows))
            }
            // A recurrence walks a row's tokens from the accepted state, and a sort counts all pairs.
            StepKind::ShortConv { .. } | StepKind::KdaStep | StepKind::ExpertSort { .. } => {
                let rows = self.y.rows.count(program.tokens, program.want);
                ensure(u64::from(tile.rows) >= rows, || format!("tiles of {} of {rows} rows", tile.rows))
            }
            _ => Ok(()),
        }
    }

    /// The columns that tiles cover, and the unit in which they may be cut: all of them for steps that work row by row.
    fn columns(&self) -> (u32, u32) {
        let all = self.y.cols;
        let heads = |bank: Option<u32>| all.saturating_mul(bank.unwrap_or(1));
        let unit = match &self.step.kind {
            // A state's vector is one head of what is appended.
            StepKind::KvAppend => return (self.step.reads[0].cols, self.step.reads[0].cols),
            StepKind::HeadLinear | StepKind::HeadLinearT => {
                return (heads(self.weight(1).ok().map(|it| it.bank)), all);
            }
            StepKind::Attention { heads, .. } => all / heads,
            StepKind::LinearGlu { quant: Some(_), .. } | StepKind::ExpertGlu { quant: Some(_), .. } => {
                FX_GROUP as u32
            }
            StepKind::Linear { .. }
            | StepKind::LinearGlu { quant: None, .. }
            | StepKind::ExpertLinear { .. }
            | StepKind::ExpertGlu { quant: None, .. } => LANES as u32,
            StepKind::ShortConv { .. } => RING_COLS,
            StepKind::LutBuild { .. } => (SLAB * VEC_DIM) as u32,
            StepKind::ExpertLut { .. } | StepKind::ExpertVq { .. } => ROW_BLOCK as u32,
            StepKind::L2Norm { dim, .. } => *dim,
            StepKind::KdaGate { .. } => self.step.reads[0].cols / self.step.reads[1].cols,
            StepKind::GatedRmsNorm { .. } => self.step.reads[2].cols,
            StepKind::KdaStep => all / self.step.reads[4].cols,
            StepKind::Embed
            | StepKind::QuantAct { .. }
            | StepKind::Add
            | StepKind::Mul
            | StepKind::Unary { .. }
            | StepKind::Glu { .. }
            | StepKind::RmsNorm { .. }
            | StepKind::LayerNorm { .. }
            | StepKind::RopeAngles { .. }
            | StepKind::Rope { .. }
            | StepKind::SelectRows
            | StepKind::Argmax
            | StepKind::FiniteCheck
            | StepKind::Concat
            | StepKind::LatentAttention { .. }
            | StepKind::AttnResMix { .. }
            | StepKind::RouteTopK { .. }
            | StepKind::ExpertSort { .. }
            | StepKind::ExpertGather
            | StepKind::ExpertSum => all,
            StepKind::ExpertPrefetch { .. }
            | StepKind::ExpertWindow { .. }
            | StepKind::ExpertRelease { .. } => unreachable!("they have no results"),
        };
        (all, unit)
    }

    /// Whether tiles cut each head alike: lanes are counted from a head's first column.
    const fn cuts_heads(&self) -> bool {
        let (cols, all) = (self.step.tile.cols, self.y.cols);
        let in_lanes = cols > 0 && cols.is_multiple_of(LANES as u32) && all.is_multiple_of(cols);
        matches!(self.step.kind, StepKind::HeadLinear) && in_lanes
    }
}
