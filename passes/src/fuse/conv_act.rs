//! Fuse an activation into the `short_conv` that produces its operand.
//!
//! Before / After: see snapshots/passes/fuse-conv-act/basic.
//! Requires: phase canonical.  Refuses when: the sums have a second use; the function is no activation.
//! Numerics: preserves (same operations in the same order per element).
//! Why: saves one arena buffer of [T, channels] and a pass over it for each convolution.

use waste_ir::{Act, Graph, Module, Op, OpId};

use crate::copy::copy_graphs;
use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::rewrite::{Matcher, Miss, demand, place};

/// See the module.
#[derive(Debug)]
pub struct FuseConvAct;

impl Pass for FuseConvAct {
    const NAME: &'static str = "fuse-conv-act";
    const NUMERICS: Numerics = Numerics::Preserves;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        // By graph: each activation with the convolution that takes it over.
        let mut all: Vec<Vec<(OpId, OpId, Act)>> = Vec::new();
        for graph in module.graphs.values() {
            all.push(find(module, graph, cx));
        }
        if all.iter().all(Vec::is_empty) {
            return Ok(Changed::No);
        }
        let copied = copy_graphs(module, |copier, op| {
            let here = &all[copier.index];
            if let Some((_, _, act)) = here.iter().find(|it| it.1 == op) {
                return copier.copy_as(op, Op::ShortConv { act: *act });
            }
            if here.iter().any(|it| it.0 == op) {
                let graph = copier.graph;
                let sums = copier.value(graph.ops[op].operand(0));
                copier.set(graph.ops[op].results[0], sums);
                return Ok(());
            }
            copier.copy(op)
        });
        *module = copied.map_err(|it| cx.emit_error(it))?;
        Ok(Changed::Yes)
    }
}

fn find(module: &Module, graph: &Graph, cx: &mut PassCx<'_>) -> Vec<(OpId, OpId, Act)> {
    let matcher = Matcher::new(module, graph, cx.scratch);
    let mut found = Vec::new();
    for at in &graph.order {
        match attempt(&matcher, *at) {
            Ok((conv, act)) if cx.permit() => found.push((*at, conv, act)),
            Ok(_) | Err(Miss::Other) => {}
            Err(Miss::Near(reason)) => cx.near_miss(reason, || place(module, graph, *at)),
        }
    }
    found
}

fn attempt(m: &Matcher<'_>, at: OpId) -> Result<(OpId, Act), Miss> {
    let data = &m.graph.ops[at];
    let Op::Unary { kind } = data.op else { return Err(Miss::Other) };
    let sums = data.operand(0);
    let (conv, conv_data) = m.def(sums).ok_or(Miss::Other)?;
    let Op::ShortConv { act } = conv_data.op else { return Err(Miss::Other) };
    demand(act == Act::None, "the convolution has an activation already")?;
    let act = kind.as_act().ok_or(Miss::Near("the function is no activation of a convolution"))?;
    m.may_absorb(conv, sums, at)?;
    Ok((conv, act))
}
