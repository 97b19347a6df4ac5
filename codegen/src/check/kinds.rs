//! What a step must be to carry out an op: its kind with every attribute.

use waste_ir::{Dim, Graph, Op, OpData};
use waste_plan::schema::{Situ, StepKind};

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
        Op::LinearGlu { act, quant, beta, linear } => {
            let situ = Situ { beta: *beta, linear: *linear };
            StepKind::LinearGlu { act: *act, situ, quant: *quant }
        }
        Op::Add {} => StepKind::Add,
        Op::Mul {} => StepKind::Mul,
        Op::Unary { kind } => StepKind::Unary { kind: *kind },
        Op::Glu { act, beta, linear } => {
            StepKind::Glu { act: *act, situ: Situ { beta: *beta, linear: *linear } }
        }
        Op::RmsNorm { eps, quant } => StepKind::RmsNorm { eps: *eps, quant: *quant },
        Op::LayerNorm { eps, quant } => {
            StepKind::LayerNorm { eps: *eps, bias: data.optional(2).is_some(), quant: *quant }
        }
        Op::RopeAngles { dims, base, scaling } => {
            StepKind::RopeAngles { freqs: freqs(*dims, *base, *scaling), factors: data.optional(1).is_some() }
        }
        Op::Rope { head_dim, style, skip } => {
            StepKind::Rope { head_dim: *head_dim, skip: *skip, style: *style }
        }
        Op::KvAppend {} => StepKind::KvAppend,
        Op::Attention { scale } => {
            let cols = graph.ty(data.optional(0)?).shape.cols()?;
            let d = graph.ty(data.optional(1)?).shape.cols()?;
            StepKind::Attention { scale: *scale, heads: cols.checked_div(d)? }
        }
        Op::SelectRows {} => StepKind::SelectRows,
        Op::Argmax {} => StepKind::Argmax,
        Op::FiniteCheck {} => StepKind::FiniteCheck,
        Op::Concat {} => StepKind::Concat,
        Op::ShortConv { act } => StepKind::ShortConv { act: *act },
        Op::L2Norm { dim, eps, scale } => StepKind::L2Norm { dim: *dim, eps: *eps, scale: *scale },
        Op::KdaGate { lower_bound } => StepKind::KdaGate { lower_bound: *lower_bound },
        Op::KdaStep {} => StepKind::KdaStep,
        Op::GatedRmsNorm { eps } => StepKind::GatedRmsNorm { eps: *eps },
        Op::HeadLinear {} => StepKind::HeadLinear,
        Op::HeadLinearT {} => StepKind::HeadLinearT,
        Op::LatentAttention { scale } => StepKind::LatentAttention {
            scale: *scale,
            heads: heads_of(graph, data)?,
            rope: data.optional(4).is_some(),
        },
        Op::AttnResMix { eps } => StepKind::AttnResMix { eps: *eps, blocks: data.optional(3).is_some() },
        Op::RouteTopK { k: _, scoring, renorm, scale, groups, keep } => StepKind::RouteTopK {
            scoring: *scoring,
            groups: *groups,
            keep: *keep,
            renorm: *renorm,
            scale: *scale,
            bias: data.optional(1).is_some(),
        },
        Op::ExpertSort { experts } => StepKind::ExpertSort { experts: *experts },
        Op::ExpertGather {} => StepKind::ExpertGather,
        Op::ExpertLinear { act, gather } => StepKind::ExpertLinear { act: *act, gather: *gather },
        Op::ExpertGlu { act, gather, quant, beta, linear } => StepKind::ExpertGlu {
            act: *act,
            situ: Situ { beta: *beta, linear: *linear },
            quant: *quant,
            gather: *gather,
        },
        Op::ExpertSum {} => StepKind::ExpertSum,
        Op::LutBuild { code, tables } => StepKind::LutBuild { code: *code, tables: *tables },
        Op::ExpertLut { gather } => StepKind::ExpertLut { gather: *gather },
        Op::ExpertVq { code, tables, gather } => {
            StepKind::ExpertVq { code: *code, tables: *tables, gather: *gather }
        }
        Op::Slice { .. }
        | Op::Reshape { .. }
        | Op::BankSlice {}
        | Op::LutApply {}
        | Op::ExpertHint {}
        | Op::ForEachExpert { .. } => return None,
    })
}

/// Queries a token: rows of q over rows of its positions.
fn heads_of(graph: &Graph, data: &OpData) -> Option<u32> {
    let q = graph.ty(data.optional(0)?).shape.rows()?;
    let pos = *graph.ty(data.optional(3)?).shape.dims().first()?;
    match (q, pos) {
        (Dim::Scaled { mul, .. }, Dim::Scaled { mul: each, .. }) => mul.checked_div(each),
        _ => None,
    }
}
