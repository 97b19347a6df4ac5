//! Compute equal things once: an op with the same name, attributes and operands as an earlier one takes that one's results.
//!
//! Before / After: see snapshots/passes/cse/basic.
//! Requires: nothing.  Refuses when: the op replaces a state, owns a region or has an effect; the equal op is neither in the
//! same block nor at the top level.
//! Numerics: preserves (the same op on the same operands).
//! Why: rope angles once a step in place of once a layer; one quantised x for all the linears that read it.

use std::collections::HashMap;

use smallvec::SmallVec;
use waste_ir::{Module, Op, OpData, OpId, ValueId};

use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::rewrite::{Arg, Edit, Matcher, apply};

/// See the module.
#[derive(Debug)]
pub struct Cse;

impl Pass for Cse {
    const NAME: &'static str = "cse";
    const NUMERICS: Numerics = Numerics::Preserves;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut all = Vec::with_capacity(module.graphs.len());
        for graph in module.graphs.values() {
            let mut matcher = Matcher::new(module, graph, cx.scratch);
            let mut known = Known::default();
            for op in matcher.walk() {
                if let Some(earlier) = known.find_or_add(&matcher, *op)
                    && cx.permit()
                {
                    let results = graph.ops[earlier].results.iter().map(|it| Arg::Old(*it)).collect();
                    matcher.edit(*op, Edit { ops: SmallVec::new(), results });
                }
            }
            all.push(matcher.into_edits());
        }
        apply(module, cx, &all, &[])
    }
}

/// What two equal ops share. Attributes compare by their printed form, which is exact.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    name: &'static str,
    attrs: Vec<(&'static str, String)>,
    operands: SmallVec<[Option<ValueId>; 4]>,
}

/// The first op of each key, by block.
#[derive(Default)]
struct Known {
    first: HashMap<(u32, Key), OpId>,
}

impl Known {
    fn find_or_add(&mut self, m: &Matcher<'_>, op: OpId) -> Option<OpId> {
        let data = &m.graph.ops[op];
        if !is_pure(data) {
            return None;
        }
        let operands = data.operands.iter().map(|it| it.map(|it| m.resolve(it))).collect();
        let mut key = (m.block(op), Key { name: data.op.name(), attrs: data.op.attrs(), operands });
        if let Some(known) = self.first.get(&key) {
            return Some(*known);
        }
        // An equal op at the top level comes first if it is known at all: the walk is in execution order.
        let block = std::mem::replace(&mut key.0, 0);
        if let Some(known) = self.first.get(&key) {
            return Some(*known);
        }
        key.0 = block;
        self.first.insert(key, op);
        None
    }
}

const fn is_pure(data: &OpData) -> bool {
    !data.op.has_effect() && !matches!(data.op, Op::KvAppend { .. } | Op::ForEachExpert { .. })
}
