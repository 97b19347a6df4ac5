//! Rules 8, 16 and 17: states.

use waste_plan::DType;
use waste_plan::ids::SecondaryMap;

use super::structure::type_fault;
use super::{Errors, GraphCx};
use crate::graph::{Def, OpData, OpId, StateId, StateKind, ValueId};
use crate::ops::Op;
use crate::types::Dim;

/// Rule 8.
pub(super) fn declarations(errors: &mut Errors<'_>) {
    for (id, state) in errors.module.states.iter() {
        let shaped = matches!(state.ty.shape.dims(), [_, _, Dim::Const(1..), Dim::Const(1..)]);
        if !shaped || !matches!(state.ty.dtype, DType::F32 | DType::F16) {
            errors.state(id, 8, "a state is f32 or f16 [B, S, heads, d]".to_owned());
        } else if state.kind == StateKind::Recurrent && state.ty.dtype != DType::F32 {
            errors.state(id, 8, "a recurrent state is f32".to_owned());
        } else if let Some(fault) = type_fault(errors.module, &state.ty) {
            errors.state(id, 8, fault);
        }
    }
}

/// Rules 16 and 17 for one graph of sound structure.
pub(super) fn graph(cx: &mut GraphCx<'_, '_>) {
    let mut walk = Walk { cx, newest: SecondaryMap::new(None) };
    let graph = walk.cx.graph;
    walk.order(&graph.order, false);
    for (i, output) in graph.outputs.iter().enumerate() {
        walk.output(i, &output.name, output.value);
    }
    walk.all_returned();
}

struct Walk<'c, 'a, 'm> {
    cx: &'c mut GraphCx<'a, 'm>,
    /// The version of each state that replaced the others; `None` while none did.
    newest: SecondaryMap<StateId, Option<ValueId>>,
}

impl Walk<'_, '_, '_> {
    fn order(&mut self, order: &[OpId], in_region: bool) {
        let graph = self.cx.graph;
        for &id in order {
            let op = &graph.ops[id];
            if let Some(region) = op.region {
                self.order(&graph.regions[region].order, true);
            }
            self.kinds(id, op);
            for value in op.uses() {
                self.read(id, value);
            }
            if let (Some(next), Some(state)) = (op.op.next_state(), graph.state(op.operand(0))) {
                if in_region {
                    self.cx.op(id, 16, "a state is replaced inside a region".to_owned());
                }
                self.newest[state] = Some(op.results[next]);
            }
        }
    }

    fn read(&mut self, op: OpId, value: ValueId) {
        let Some(state) = self.cx.graph.state(value) else { return };
        if let Some(message) = self.stale(state, value) {
            self.cx.op(op, 16, message);
        }
    }

    /// Why `value` is no longer the state.
    fn stale(&self, state: StateId, value: ValueId) -> Option<String> {
        let newest = self.newest[state]?;
        (newest != value).then(|| format!("{} was replaced by {}", self.cx.name(value), self.cx.name(newest)))
    }

    /// Rule 17.
    fn kinds(&mut self, id: OpId, op: &OpData) {
        let wanted: &[(usize, &[StateKind])] = match op.op {
            Op::KvAppend {} => &[(0, &[StateKind::Keys, StateKind::Values])],
            Op::Attention { .. } => &[(1, &[StateKind::Keys]), (2, &[StateKind::Values])],
            Op::LatentAttention { .. } => &[(1, &[StateKind::Keys])],
            Op::ShortConv { .. } | Op::KdaStep {} => &[(0, &[StateKind::Recurrent])],
            _ => return,
        };
        let graph = self.cx.graph;
        for (slot, kinds) in wanted {
            let (name, value) = (op.op.operand_names()[*slot], op.operand(*slot));
            let Some(state) = graph.state(value) else {
                self.cx.op(id, 17, format!("'{name}' must be a state"));
                continue;
            };
            let kind = self.cx.module().states[state].kind;
            if !kinds.contains(&kind) {
                let kinds: Vec<&str> = kinds.iter().map(|it| it.name()).collect();
                self.cx.op(id, 17, format!("'{name}' must be a state of {}", kinds.join(" or ")));
            } else if kind == StateKind::Recurrent && !matches!(graph.values[value].def, Def::State(_)) {
                self.cx.op(id, 17, format!("'{name}' has been replaced in this graph"));
            }
        }
    }

    fn output(&mut self, i: usize, name: &str, value: ValueId) {
        let state = self.cx.graph.state(value);
        let expected = state.map(|it| format!("@{}", self.cx.module().states[it].name));
        match (state, expected) {
            (None, _) if name.starts_with('@') => {
                self.cx.output(i, 16, format!("'{name}' is no version of a state"));
            }
            (Some(_), Some(expected)) if expected != name => {
                self.cx.output(i, 16, format!("found the output '{name}', expected '{expected}'"));
            }
            (Some(state), _) => {
                if let Some(message) = self.stale(state, value) {
                    self.cx.output(i, 16, message);
                }
            }
            (None, _) => {}
        }
    }

    /// Each state that was replaced is an output.
    fn all_returned(&mut self) {
        for state in self.cx.module().states.keys() {
            let Some(newest) = self.newest[state] else { continue };
            if !self.cx.graph.outputs.iter().any(|it| it.value == newest)
                && let Def::Op(op, _) = self.cx.graph.values[newest].def
            {
                let name = &self.cx.module().states[state].name;
                self.cx.op(op, 16, format!("the last version must be the output '@{name}'"));
            }
        }
    }
}
