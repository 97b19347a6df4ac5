//! Rules 19 to 21: what each phase permits.

use waste_plan::{DType, Packing};

use super::GraphCx;
use crate::attrs::Act;
use crate::graph::{Module, OpData, OpId, Phase};
use crate::ops::Op;

/// The dtype of quantised activations in the legal graphs of `module`: the first one found.
pub(super) fn fixed_point(module: &Module) -> Option<DType> {
    let legal = module.graphs.values().filter(|it| it.phase >= Phase::Legal);
    legal.flat_map(|it| it.values.values()).map(|it| it.ty.dtype).find(|it| it.fx().is_some())
}

/// Rules 19 to 21 for one graph of sound structure; `fx` is [`fixed_point`] of the module.
pub(super) fn graph(cx: &mut GraphCx<'_, '_>, fx: Option<DType>) {
    for (id, op) in cx.graph.ops.iter() {
        if cx.graph.phase == Phase::Imported
            && let Some(what) = fused(op)
        {
            cx.op(id, 19, format!("{what} is not allowed in an imported graph"));
        }
        if cx.graph.phase >= Phase::Legal {
            legal(cx, id, op, fx);
        }
        if cx.graph.phase == Phase::Final {
            packed(cx, id, op);
        }
    }
}

/// What a pass must have put into `op`.
fn fused(op: &OpData) -> Option<&'static str> {
    match op.op {
        Op::Linear { act } if act != Act::None => Some("an activation in a linear"),
        Op::Linear { .. } if op.optional(3).is_some() => Some("a residual in a linear"),
        Op::ShortConv { act } if act != Act::None => Some("an activation in a short conv"),
        Op::LinearGlu { .. } => Some("'linear_glu'"),
        Op::QuantAct { .. } => Some("'quant_act'"),
        Op::ExpertLinear { .. } => Some("'expert_linear'"),
        Op::ExpertGlu { .. } => Some("'expert_glu'"),
        Op::ExpertLut { .. } => Some("'expert_lut'"),
        Op::ExpertVq { .. } => Some("'expert_vq'"),
        Op::LutBuild { .. } => Some("'lut_build'"),
        Op::LutApply {} => Some("'lut_apply'"),
        Op::ExpertHint {} => Some("'expert_hint'"),
        Op::RmsNorm { quant: Some(_), .. } | Op::LayerNorm { quant: Some(_), .. } => {
            Some("a norm with quantised result")
        }
        Op::Linear { .. }
        | Op::RmsNorm { quant: None, .. }
        | Op::LayerNorm { quant: None, .. }
        | Op::Embed {}
        | Op::Add {}
        | Op::Mul {}
        | Op::Unary { .. }
        | Op::Glu { .. }
        | Op::RopeAngles { .. }
        | Op::Rope { .. }
        | Op::KvAppend {}
        | Op::Attention { .. }
        | Op::SelectRows {}
        | Op::Slice { .. }
        | Op::Reshape { .. }
        | Op::Argmax {}
        | Op::FiniteCheck {}
        | Op::RouteTopK { .. }
        | Op::ForEachExpert { .. }
        | Op::BankSlice {}
        | Op::ExpertSort { .. }
        | Op::ExpertGather {}
        | Op::ExpertSum {}
        | Op::HeadLinear {}
        | Op::HeadLinearT {}
        | Op::Concat {}
        | Op::L2Norm { .. }
        | Op::GatedRmsNorm { .. }
        | Op::AttnResMix { .. }
        | Op::LatentAttention { .. }
        | Op::ShortConv { .. }
        | Op::KdaGate { .. }
        | Op::KdaStep {} => None,
    }
}

/// Rule 20.
fn legal(cx: &mut GraphCx<'_, '_>, id: OpId, op: &OpData, fx: Option<DType>) {
    let takes_codes = matches!(
        op.op,
        Op::LutApply {} | Op::ExpertLut { .. } | Op::ExpertVq { .. } | Op::BankSlice {} | Op::ExpertHint {}
    );
    let vq = op.uses().map(|it| cx.graph.ty(it).dtype).find(|it| it.vq().is_some());
    if let Some(vq) = vq.filter(|_| !takes_codes) {
        return cx.op(id, 20, format!("{} is read through lookup tables here", vq.name()));
    }
    let is_linear = matches!(
        op.op,
        Op::Linear { .. }
            | Op::LinearGlu { .. }
            | Op::HeadLinear {}
            | Op::ExpertLinear { .. }
            | Op::ExpertGlu { .. }
    );
    if !is_linear {
        return;
    }
    let found = cx.graph.ty(op.operand(0)).dtype;
    let weight = cx.graph.ty(op.operand(1)).dtype;
    let expected = if weight.is_integer_weight() { fx.unwrap_or(DType::F32) } else { DType::F32 };
    if found != expected {
        let message =
            format!("a linear over {} reads {} here, found {}", weight.name(), expected.name(), found.name());
        cx.op(id, 20, message);
    }
}

/// How an op reads a weight.
enum Role {
    Matrix,
    Table,
    Books,
    Vector,
}

/// Rule 21.
fn packed(cx: &mut GraphCx<'_, '_>, id: OpId, op: &OpData) {
    for (slot, value) in op.operands.iter().enumerate() {
        let Some(weight) = value.and_then(|it| cx.graph.weight(it)) else { continue };
        let decl = &cx.module().weights[weight];
        let matrix = Packing::of(decl.ty.dtype);
        let role = match (&op.op, slot) {
            (Op::Linear { .. }, 1) | (Op::LinearGlu { .. }, 1 | 2) | (Op::BankSlice {}, 0) => Role::Matrix,
            (Op::HeadLinear {} | Op::ExpertLinear { .. } | Op::ExpertGlu { .. }, 1)
            | (Op::ExpertGlu { .. }, 2) => Role::Matrix,
            (Op::LutApply {} | Op::ExpertLut { .. } | Op::ExpertVq { .. } | Op::ExpertHint {}, 1) => {
                Role::Matrix
            }
            (Op::LutBuild { .. }, 1) | (Op::ExpertVq { .. }, 4) => Role::Books,
            (Op::HeadLinearT {}, 1) => Role::Vector,
            (Op::Embed {}, 1) => Role::Table,
            _ => Role::Vector,
        };
        let Some(packing) = decl.packing else {
            cx.op(id, 21, format!("weight {:?} has no packing", decl.name));
            continue;
        };
        let fits = match role {
            Role::Matrix => Some(packing) == matrix,
            Role::Books => packing == Packing::Columns,
            Role::Vector => packing == Packing::Plain,
            Role::Table => packing == Packing::Plain || Some(packing) == matrix,
        };
        if !fits {
            cx.op(id, 21, format!("weight {:?} is packed {} here", decl.name, packing.name()));
        }
    }
}
