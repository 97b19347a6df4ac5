//! Rules 13 to 15 and 18: result types, attributes, inputs, banks.

use waste_plan::DType;

use super::GraphCx;
use crate::attrs::{Act, RopeScaling};
use crate::graph::{Def, Graph, OpData, OpId};
use crate::infer::infer;
use crate::ops::Op;
use crate::types::Dim;

/// Rules 13 to 15 and 18 for one graph of sound structure.
pub(super) fn graph(cx: &mut GraphCx<'_, '_>) {
    let (module, graph) = (cx.module(), cx.graph);
    inputs(cx);
    for data in graph.values.values() {
        let declared = match data.def {
            Def::Weight(id) => &module.weights[id].ty,
            Def::State(id) => &module.states[id].ty,
            Def::Op(..) | Def::Input(_) | Def::Arg(..) => continue,
        };
        if data.ty != *declared {
            let (found, declared) = (data.ty.display(&module.syms), declared.display(&module.syms));
            cx.whole(13, format!("{:?} is used as {found}, declared {declared}", data.def));
        }
    }
    for (id, op) in graph.ops.iter() {
        result_types(cx, id, op);
        if let Err(message) = attributes(&op.op) {
            cx.op(id, 14, message);
        }
    }
    banks(cx, &graph.order, None);
}

fn result_types(cx: &mut GraphCx<'_, '_>, id: OpId, op: &OpData) {
    let (graph, syms) = (cx.graph, &cx.module().syms);
    match infer(graph, &op.op, &op.operands, op.region) {
        Err(message) => cx.op(id, 13, message),
        Ok(types) => {
            for (value, expected) in op.results.iter().zip(&types) {
                let found = graph.ty(*value);
                if found != expected {
                    let (found, expected) = (found.display(syms), expected.display(syms));
                    cx.op(id, 13, format!("found a result {found}, expected {expected}"));
                }
            }
        }
    }
}

/// Rule 15.
fn inputs(cx: &mut GraphCx<'_, '_>) {
    let mut tokens = None;
    for &value in &cx.graph.inputs {
        let data = &cx.graph.values[value];
        if !["token", "row", "pos", "want"].contains(&data.name.as_str()) {
            continue;
        }
        let [len] = *data.ty.shape.dims() else {
            cx.whole(15, format!("'{}' must be an i32 vector", data.name));
            continue;
        };
        if data.ty.dtype != DType::I32 {
            cx.whole(15, format!("'{}' must be an i32 vector", data.name));
        } else if data.name != "want" && *tokens.get_or_insert(len) != len {
            cx.whole(15, format!("'{}' must be as long as the inputs before it", data.name));
        }
    }
}

/// Rule 14.
fn attributes(op: &Op) -> Result<(), String> {
    match op {
        Op::RmsNorm { eps, .. } | Op::LayerNorm { eps, .. } => positive("eps", f64::from(*eps)),
        Op::GatedRmsNorm { eps } | Op::AttnResMix { eps } => positive("eps", f64::from(*eps)),
        Op::L2Norm { eps, scale, .. } => {
            positive("eps", f64::from(*eps))?;
            positive("scale", f64::from(*scale))
        }
        Op::RopeAngles { base, scaling, .. } => positive("base", *base).and_then(|()| scaling_rule(scaling)),
        Op::Attention { scale } | Op::LatentAttention { scale } | Op::RouteTopK { scale, .. } => {
            positive("scale", f64::from(*scale))
        }
        Op::KdaGate { lower_bound } if !lower_bound.is_finite() || *lower_bound > 0.0 => {
            Err(format!("'lower_bound' must be finite and not above 0, found {lower_bound:?}"))
        }
        Op::Linear { act } | Op::ShortConv { act } | Op::ExpertLinear { act, .. } if *act == Act::Situ => {
            Err(format!("'{}' has no gate for 'situ'", op.name()))
        }
        Op::Glu { act, beta, linear }
        | Op::LinearGlu { act, beta, linear, .. }
        | Op::ExpertGlu { act, beta, linear, .. } => situ_rule(*act, *beta, *linear),
        Op::ForEachExpert { experts: 0 } | Op::ExpertSort { experts: 0 } => {
            Err("'experts' must be at least 1".to_owned())
        }
        Op::ForEachExpert { .. }
        | Op::ExpertSort { .. }
        | Op::ExpertGather {}
        | Op::ExpertLinear { .. }
        | Op::ExpertSum {}
        | Op::ExpertHint {}
        | Op::ExpertLut { .. }
        | Op::ExpertVq { .. }
        | Op::LutBuild { .. }
        | Op::LutApply {}
        | Op::Embed {}
        | Op::QuantAct { .. }
        | Op::Linear { .. }
        | Op::Add {}
        | Op::Mul {}
        | Op::Unary { .. }
        | Op::Rope { .. }
        | Op::KvAppend {}
        | Op::SelectRows {}
        | Op::Slice { .. }
        | Op::Reshape { .. }
        | Op::Argmax {}
        | Op::FiniteCheck {}
        | Op::BankSlice {}
        | Op::HeadLinear {}
        | Op::HeadLinearT {}
        | Op::Concat {}
        | Op::ShortConv { .. }
        | Op::KdaGate { .. }
        | Op::KdaStep {} => Ok(()),
    }
}

fn situ_rule(act: Act, beta: f32, linear: f32) -> Result<(), String> {
    if act == Act::Situ {
        positive("beta", f64::from(beta))?;
        return if linear == 0.0 { Ok(()) } else { positive("linear", f64::from(linear)) };
    }
    if (beta, linear) != (1.0, 0.0) {
        return Err(format!("'{}' takes no 'beta' and 'linear'", act.name()));
    }
    Ok(())
}

fn scaling_rule(scaling: &RopeScaling) -> Result<(), String> {
    match *scaling {
        RopeScaling::None => Ok(()),
        RopeScaling::Linear { factor } => positive("factor", factor),
        RopeScaling::Llama3 { factor, low, high, orig } => {
            positive("factor", factor)?;
            positive("low", low)?;
            positive("orig", f64::from(orig))?;
            if high.is_finite() && low < high {
                return Ok(());
            }
            Err(format!("'high' must be finite and above 'low' = {low:?}, found {high:?}"))
        }
        RopeScaling::Yarn { factor, fast, slow, orig } => {
            positive("factor", factor)?;
            positive("fast", fast)?;
            positive("slow", slow)?;
            positive("orig", f64::from(orig))
        }
    }
}

fn positive(name: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(format!("'{name}' must be positive and finite, found {value:?}"))
}

/// Rule 18; `owner` is the innermost `for_each_expert` around `order`.
fn banks(cx: &mut GraphCx<'_, '_>, order: &[OpId], owner: Option<&OpData>) {
    let graph = cx.graph;
    for &id in order {
        let op = &graph.ops[id];
        if let Some(region) = op.region {
            banks(cx, &graph.regions[region].order, Some(op));
        }
        if matches!(op.op, Op::ExpertHint {})
            && let Err(message) = hint(graph, op, owner)
        {
            cx.op(id, 18, message);
        }
        if !matches!(op.op, Op::BankSlice {}) {
            continue;
        }
        let Some((Op::ForEachExpert { experts }, Some(region))) = owner.map(|it| (&it.op, it.region)) else {
            cx.op(id, 18, "'bank_slice' stands in no 'for_each_expert'".to_owned());
            continue;
        };
        if graph.ty(op.operand(0)).shape.dims().first() != Some(&Dim::Const(*experts)) {
            cx.op(id, 18, format!("the bank must hold {experts} experts"));
        }
        if graph.regions[region].args.first() != Some(&op.operand(1)) {
            cx.op(id, 18, "'expert' must be the first argument of the region".to_owned());
        }
    }
}

/// Rule 18 for `expert_hint`.
fn hint(graph: &Graph, op: &OpData, owner: Option<&OpData>) -> Result<(), String> {
    if owner.is_some() {
        return Err("'expert_hint' stands in a region".to_owned());
    }
    let experts = graph.ty(op.operand(1)).shape.dims().first().copied();
    let router = match graph.values[op.operand(0)].def {
        Def::Op(router, 0) if matches!(graph.ops[router].op, Op::RouteTopK { .. }) => &graph.ops[router],
        _ => return Err("'ids' must be those of a 'route_top_k'".to_owned()),
    };
    let chosen_of = graph.ty(router.operand(0)).shape.cols();
    if graph.weight(op.operand(1)).is_none() || experts != chosen_of.map(Dim::Const) {
        return Err(format!("'bank' must be a weight of {} experts", chosen_of.unwrap_or(0)));
    }
    Ok(())
}
