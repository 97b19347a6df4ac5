//! Rules 1, 2 and 9 to 12: names, ids, orders, scopes, arity.

use std::collections::HashSet;

use waste_plan::ids::SecondaryMap;

use super::{Errors, GraphCx};
use crate::graph::{Def, Module, OpData, OpId, RegionId, ValueId};
use crate::text::{MAX_DEPTH, is_word};
use crate::types::{Dim, TensorType};

/// Rules 1 and 2, but for inputs and outputs.
pub(super) fn names(errors: &mut Errors<'_>) {
    let module = errors.module;
    let mut seen = HashSet::new();
    for (id, sym) in module.syms.iter() {
        if let Some(message) = name_fault(&mut seen, &sym.name, "symbol") {
            errors.sym(id, 1, message);
        }
        if sym.lo > sym.hi || sym.hi == 0 {
            errors.sym(id, 2, format!("{}..={} is no range of sizes", sym.lo, sym.hi));
        }
    }
    seen.clear();
    for (id, weight) in module.weights.iter() {
        if !seen.insert(&weight.name) {
            errors.weight(id, 1, format!("a second weight {:?}", weight.name));
        }
    }
    seen.clear();
    for (id, state) in module.states.iter() {
        if let Some(message) = name_fault(&mut seen, &state.name, "state") {
            errors.state(id, 1, message);
        }
    }
    seen.clear();
    for (id, graph) in module.graphs.iter() {
        if let Some(message) = name_fault(&mut seen, &graph.name, "graph") {
            errors.graph(id, 1, message);
        }
    }
}

/// Why `name` is no good name for one more `what`.
fn name_fault<'a>(seen: &mut HashSet<&'a String>, name: &'a String, what: &str) -> Option<String> {
    if !is_word(name) {
        return Some(format!("{name:?} is no word"));
    }
    (!seen.insert(name)).then(|| format!("a second {what} '{name}'"))
}

/// Rules 1 and 9 to 12 for one graph.
pub(super) fn graph(cx: &mut GraphCx<'_, '_>) {
    let graph = cx.graph;
    let mut walk = Walk {
        cx,
        visible: SecondaryMap::new(false),
        seen: SecondaryMap::new(false),
        owned: SecondaryMap::new(false),
        n_seen: 0,
    };
    walk.inputs();
    walk.outer_values();
    walk.order(&graph.order, 0);
    walk.outputs();
    walk.leftovers();
}

struct Walk<'c, 'a, 'm> {
    cx: &'c mut GraphCx<'a, 'm>,
    /// Values that the next op may read.
    visible: SecondaryMap<ValueId, bool>,
    /// Ops met so far.
    seen: SecondaryMap<OpId, bool>,
    /// Regions met so far.
    owned: SecondaryMap<RegionId, bool>,
    n_seen: usize,
}

impl Walk<'_, '_, '_> {
    fn inputs(&mut self) {
        let graph = self.cx.graph;
        let mut seen = HashSet::new();
        for (i, &value) in graph.inputs.iter().enumerate() {
            let Some(data) = graph.values.get(value) else {
                self.cx.whole(9, format!("input {i} is no value of the graph"));
                continue;
            };
            if !is_index(data.def, i, |def| if let Def::Input(i) = def { Some(i) } else { None }) {
                self.cx.whole(9, format!("input {i} does not say so of itself"));
            }
            if let Some(fault) = type_fault(self.cx.module(), &data.ty) {
                self.cx.whole(9, format!("input {i}: {fault}"));
            }
            let numbered = |it: &str| !it.is_empty() && it.bytes().all(|b| b.is_ascii_digit());
            if data.name.strip_prefix('v').is_some_and(numbered) {
                self.cx.whole(1, format!("input '{}' is called like a result", data.name));
            } else if let Some(fault) = name_fault(&mut seen, &data.name, "input") {
                self.cx.whole(1, fault);
            }
            self.visible[value] = true;
        }
    }

    /// Weights and states are visible everywhere; each has one value at most.
    fn outer_values(&mut self) {
        let module = self.cx.module();
        let (mut weights, mut states) = (SecondaryMap::new(false), SecondaryMap::new(false));
        for (value, data) in self.cx.graph.values.iter() {
            let (known, second) = match data.def {
                Def::Weight(id) => {
                    (module.weights.get(id).is_some(), std::mem::replace(&mut weights[id], true))
                }
                Def::State(id) => (module.states.get(id).is_some(), std::mem::replace(&mut states[id], true)),
                Def::Op(..) | Def::Input(_) | Def::Arg(..) => continue,
            };
            if !known || second {
                let fault = if known { "has a second value" } else { "is not in the module" };
                self.cx.whole(9, format!("{:?} {fault}", data.def));
            }
            self.visible[value] = known;
        }
    }

    fn order(&mut self, order: &[OpId], depth: usize) -> Vec<ValueId> {
        let graph = self.cx.graph;
        let mut defined = Vec::new();
        for &id in order {
            let Some(op) = graph.ops.get(id) else {
                self.cx.whole(9, format!("{id} is no op of the graph"));
                continue;
            };
            if std::mem::replace(&mut self.seen[id], true) {
                self.cx.op(id, 10, "the op stands in an order twice".to_owned());
                continue;
            }
            self.operands(id, op);
            if let Some(region) = op.region {
                self.region(id, region, depth);
            }
            self.n_seen += 1;
            self.cx.order[id] = self.n_seen;
            self.results(id, op, &mut defined);
        }
        defined
    }

    fn operands(&mut self, id: OpId, op: &OpData) {
        let names = op.op.operand_names();
        if op.operands.len() != names.len() {
            let message = format!("found {} operands, expected {}", op.operands.len(), names.len());
            self.cx.op(id, 12, message);
        }
        for (operand, name) in op.operands.iter().zip(names) {
            match operand {
                Some(value) => self.used(*value, |cx, rule, message| cx.op(id, rule, message)),
                None if name.ends_with('?') => {}
                None => self.cx.op(id, 12, format!("operand '{name}' is missing")),
            }
        }
        if op.op.has_region() != op.region.is_some() {
            let verb = if op.op.has_region() { "needs a" } else { "takes no" };
            self.cx.op(id, 12, format!("'{}' {verb} region", op.op.name()));
        }
        if op.results.len() != op.op.n_results() {
            let message = format!("found {} results, expected {}", op.results.len(), op.op.n_results());
            self.cx.op(id, 12, message);
        }
    }

    fn used(&mut self, value: ValueId, report: impl FnOnce(&mut GraphCx<'_, '_>, u16, String)) {
        if self.cx.graph.values.get(value).is_none() {
            report(self.cx, 9, format!("{value} is no value of the graph"));
        } else if !self.visible[value] {
            let message = format!("{} is used where it is not defined", self.cx.name(value));
            report(self.cx, 11, message);
        }
    }

    fn results(&mut self, id: OpId, op: &OpData, defined: &mut Vec<ValueId>) {
        for (i, &value) in op.results.iter().enumerate() {
            let Some(data) = self.cx.graph.values.get(value) else {
                self.cx.op(id, 9, format!("result {i} is no value of the graph"));
                continue;
            };
            let own = |def| if let Def::Op(op, i) = def { (op == id).then_some(i) } else { None };
            if !is_index(data.def, i, own) {
                self.cx.op(id, 9, format!("result {i} does not say so of itself"));
            }
            if let Some(fault) = type_fault(self.cx.module(), &data.ty) {
                self.cx.op(id, 9, format!("result {i}: {fault}"));
            }
            self.visible[value] = true;
            defined.push(value);
        }
    }

    fn region(&mut self, owner: OpId, id: RegionId, depth: usize) {
        let Some(region) = self.cx.graph.regions.get(id) else {
            return self.cx.op(owner, 9, format!("{id} is no region of the graph"));
        };
        if std::mem::replace(&mut self.owned[id], true) {
            return self.cx.op(owner, 10, "the region has another owner".to_owned());
        }
        if depth == MAX_DEPTH {
            return self.cx.op(owner, 10, format!("more than {MAX_DEPTH} nested regions"));
        }
        for (i, &arg) in region.args.iter().enumerate() {
            let Some(data) = self.cx.graph.values.get(arg) else {
                self.cx.op(owner, 9, format!("argument {i} is no value of the graph"));
                continue;
            };
            let own = |def| if let Def::Arg(region, i) = def { (region == id).then_some(i) } else { None };
            if !is_index(data.def, i, own) {
                self.cx.op(owner, 9, format!("argument {i} does not say so of itself"));
            }
            if let Some(fault) = type_fault(self.cx.module(), &data.ty) {
                self.cx.op(owner, 9, format!("argument {i}: {fault}"));
            }
            self.visible[arg] = true;
        }
        let inner = self.order(&region.order, depth + 1);
        for &value in &region.yields {
            self.used(value, |cx, rule, message| cx.op(owner, rule, message));
        }
        for value in inner.into_iter().chain(region.args.iter().copied()) {
            self.visible[value] = false;
        }
    }

    fn outputs(&mut self) {
        let outputs = &self.cx.graph.outputs;
        let mut seen = HashSet::new();
        for (i, output) in outputs.iter().enumerate() {
            self.used(output.value, |cx, rule, message| cx.output(i, rule, message));
            let word = output.name.strip_prefix('@').unwrap_or(&output.name);
            if !is_word(word) {
                self.cx.output(i, 1, format!("{:?} is no word", output.name));
            } else if !seen.insert(&output.name) {
                self.cx.output(i, 1, format!("a second output '{}'", output.name));
            }
        }
    }

    /// Ops and regions that no order reaches.
    fn leftovers(&mut self) {
        let graph = self.cx.graph;
        for id in graph.ops.keys().filter(|it| !self.seen[*it]) {
            self.cx.op(id, 10, "the op stands in no order".to_owned());
        }
        for id in graph.regions.keys().filter(|it| !self.owned[*it]) {
            self.cx.whole(10, format!("{id} has no owner"));
        }
    }
}

/// What is wrong with the sizes of `ty`.
pub(super) fn type_fault(module: &Module, ty: &TensorType) -> Option<String> {
    for dim in ty.shape.dims() {
        match *dim {
            Dim::Const(0) | Dim::Scaled { mul: 0, .. } => return Some("a size of 0".to_owned()),
            Dim::Scaled { sym, .. } if module.syms.get(sym).is_none() => {
                return Some(format!("{sym} is not in the module"));
            }
            Dim::Const(_) | Dim::Scaled { .. } => {}
        }
    }
    let fits = module.upper_bytes(ty).is_some();
    (!fits).then(|| format!("{} has no size in bytes", ty.display(&module.syms)))
}

/// Whether `def` is entry `i` of what `entry` looks for.
fn is_index(def: Def, i: usize, entry: impl FnOnce(Def) -> Option<u32>) -> bool {
    entry(def).is_some_and(|it| it as usize == i)
}
