//! Choose how each weight lies in the plan: phase legal becomes final.
//!
//! Before / After: see snapshots/passes/select-layout/basic.
//! Requires: phase legal.  Refuses when: never.
//! Numerics: preserves (no op changes; packing keeps exact values).
//! Why: a matrix that is multiplied lies in blocks of 16 rows, so that kernels read contiguous lines; a table that is only read row by
//! row, and a vector, stay plain. A table that is also multiplied (tied embeddings) is packed once and read from there.

use waste_ir::{Graph, Module, Op, Phase, ValueId, WeightId};
use waste_plan::Packing;
use waste_plan::ids::SecondaryMap;

use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::raise_canonical::raise;

/// See the module.
#[derive(Debug)]
pub struct SelectLayout;

impl Pass for SelectLayout {
    const NAME: &'static str = "select-layout";
    const NUMERICS: Numerics = Numerics::Preserves;
    const MANDATORY: bool = true;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let multiplied = multiplied(module);
        let mut changed = Changed::No;
        for id in module.weights.keys() {
            let decl = &mut module.weights[id];
            let packed = if multiplied[id] { Packing::of(decl.ty.dtype) } else { None };
            let packing = Some(packed.unwrap_or(Packing::Plain));
            if decl.packing != packing && cx.permit() {
                decl.packing = packing;
                changed = Changed::Yes;
            }
        }
        Ok(changed.or(raise(module, Phase::Final)))
    }
}

/// Which weights are matrices of a linear, be it through a bank.
fn multiplied(module: &Module) -> SecondaryMap<WeightId, bool> {
    let mut out = SecondaryMap::new(false);
    for graph in module.graphs.values() {
        for data in graph.ops.values() {
            let matrices: &[usize] = match data.op {
                Op::Linear { .. } => &[1],
                Op::LinearGlu { .. } => &[1, 2],
                _ => &[],
            };
            for slot in matrices {
                if let Some(weight) = origin(graph, data.operand(*slot)) {
                    out[weight] = true;
                }
            }
        }
    }
    out
}

/// The weight that `value` is, or is one expert's part of.
fn origin(graph: &Graph, value: ValueId) -> Option<WeightId> {
    match graph.def_op(value) {
        Some(data) if matches!(data.op, Op::BankSlice {}) => graph.weight(data.operand(0)),
        _ => graph.weight(value),
    }
}
