//! What a step must be to carry out an op: its kind with every attribute.

use waste_ir::{Graph, Op, OpData};
use waste_plan::schema::StepKind;

use super::freqs::freqs;

/// The kind of step that carries out `data`; `None` for views and for ops that no kernel computes.
pub(super) fn expected(graph: &Graph, data: &OpData) -> Option<StepKind> {
    Some(match &data.op {
        Op::Embed {} => StepKind::Embed,
        Op::QuantAct { math } => StepKind::QuantAct { math: *math },
        Op::Linear { act } => StepKind::Linear {
            act: *act,
            bias: data.optional(2).is_some(),
            residual: data.optional(3).is_some(),
        },
        Op::LinearGlu { act, quant } => StepKind::LinearGlu { act: *act, quant: *quant },
        Op::Add {} => StepKind::Add,
        Op::Mul {} => StepKind::Mul,
        Op::Unary { kind } => StepKind::Unary { kind: *kind },
        Op::Glu { act } => StepKind::Glu { act: *act },
        Op::RmsNorm { eps, quant } => StepKind::RmsNorm { eps: *eps, quant: *quant },
        Op::LayerNorm { eps, quant } => {
            StepKind::LayerNorm { eps: *eps, bias: data.optional(2).is_some(), quant: *quant }
        }
        Op::RopeAngles { dims, base, scaling } => {
            StepKind::RopeAngles { freqs: freqs(*dims, *base, *scaling), factors: data.optional(1).is_some() }
        }
        Op::Rope { head_dim, style } => StepKind::Rope { head_dim: *head_dim, style: *style },
        Op::KvAppend {} => StepKind::KvAppend,
        Op::Attention { scale } => {
            let cols = graph.ty(data.optional(0)?).shape.cols()?;
            let d = graph.ty(data.optional(1)?).shape.cols()?;
            StepKind::Attention { scale: *scale, heads: cols.checked_div(d)? }
        }
        Op::SelectRows {} => StepKind::SelectRows,
        Op::Argmax {} => StepKind::Argmax,
        Op::FiniteCheck {} => StepKind::FiniteCheck,
        Op::Slice { .. }
        | Op::Reshape { .. }
        | Op::BankSlice {}
        | Op::RouteTopK { .. }
        | Op::ForEachExpert { .. } => return None,
    })
}
