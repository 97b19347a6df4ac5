//! Choose how each weight lies in the plan: phase legal becomes final.
//!
//! Before / After: see snapshots/passes/select-layout/basic.
//! Requires: phase legal.  Refuses when: never.
//! Numerics: preserves (no op changes; packing keeps exact values).
//! Why: a matrix that is multiplied lies in blocks of 16 rows, so that kernels read contiguous lines; a vector-quantised bank stays in the
//! records of its file, and its codebooks are transposed, so that lanes are entries; a table that is only read row by
//! row, and a vector, stay plain. A table that is also multiplied (tied embeddings) is packed once and read from there. A weight that no
//! op reads, because it is a part of a merged one, gets no layout: it is not in the plan by itself.

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
        let wanted = wanted(module);
        let mut changed = Changed::No;
        for id in module.weights.keys() {
            let decl = &mut module.weights[id];
            let packing = match wanted[id] {
                Reads::None => None,
                // A row that lies in two pieces is read from its block.
                Reads::Rows if decl.ty.dtype.grouped().is_some() => Packing::of(decl.ty.dtype),
                Reads::Rows => Some(Packing::Plain),
                Reads::Books => Some(Packing::Columns),
                Reads::Product => Packing::of(decl.ty.dtype),
            };
            if decl.packing != packing && cx.permit() {
                decl.packing = packing;
                changed = Changed::Yes;
            }
        }
        Ok(changed.or(raise(module, Phase::Final)))
    }
}

/// How a weight is read, by all graphs together; the later variant wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reads {
    /// Not at all.
    None,
    /// As it is: a vector, or row by row.
    Rows,
    /// As codebooks.
    Books,
    /// As the matrix of a linear, be it through a bank.
    Product,
}

fn wanted(module: &Module) -> SecondaryMap<WeightId, Reads> {
    let mut out = SecondaryMap::new(Reads::None);
    for graph in module.graphs.values() {
        for data in graph.ops.values() {
            let matrices: &[usize] = match data.op {
                Op::Linear { .. } | Op::HeadLinear {} | Op::ExpertLinear { .. } => &[1],
                Op::LutApply {} | Op::ExpertLut { .. } | Op::ExpertVq { .. } | Op::ExpertHint {} => &[1],
                Op::LinearGlu { .. } | Op::ExpertGlu { .. } => &[1, 2],
                _ => &[],
            };
            for (slot, value) in data.operands.iter().enumerate() {
                let reads = match (&data.op, slot) {
                    _ if matrices.contains(&slot) => Reads::Product,
                    (Op::LutBuild { .. }, 1) | (Op::ExpertVq { .. }, 4) => Reads::Books,
                    _ => Reads::Rows,
                };
                if let Some(weight) = value.and_then(|it| origin(graph, it)) {
                    out[weight] = reads.max(out[weight]);
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
