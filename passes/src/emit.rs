//! Applying edits: liveness backwards, then emission forwards into fresh graphs.
//!
//! Invariant: only what an output, an op with an effect, a live op or a live region reads is emitted; a weight stays if a live op reads
//! it, or if it is part or codebooks of one that stays.

use std::collections::{BTreeMap, BTreeSet};

use waste_ir::{
    BuildError, Built, Def, Graph, GraphBuilder, Module, OpData, OpId, RegionId, ValueId, WeightDecl,
    WeightId,
};
use waste_plan::ids::{EntityRef, PrimaryMap, SecondaryMap};

use crate::rewrite::{Arg, Edit, Edits};

/// `module` with `edits[i]` applied to its graph i and `extra` weights after its own, without what is dead.
///
/// # Errors
/// If a new op does not type.
pub(crate) fn rebuild(module: &Module, edits: &[Edits], extra: &[WeightDecl]) -> Result<Module, BuildError> {
    let lives: Vec<Live<'_>> =
        module.graphs.values().zip(edits).map(|(graph, edits)| Live::of(graph, edits)).collect();
    let declared: PrimaryMap<WeightId, &WeightDecl> = module.weights.values().chain(extra).collect();
    let kept = kept_weights(&declared, &lives);
    let mut shell = Module {
        info: module.info.clone(),
        sources: module.sources.clone(),
        syms: module.syms.clone(),
        states: module.states.clone(),
        weights: kept_decls(&declared, &kept),
        graphs: PrimaryMap::new(),
    };
    let graphs = lives.iter().map(|live| emit(&shell, live, &kept)).collect::<Result<_, _>>()?;
    shell.graphs = graphs;
    Ok(shell)
}

/// What of a graph is needed once its edits are applied.
struct Live<'a> {
    graph: &'a Graph,
    edits: &'a Edits,
    values: Vec<bool>,
    new: BTreeSet<(OpId, u32)>,
    weights: BTreeSet<WeightId>,
}

impl<'a> Live<'a> {
    fn of(graph: &'a Graph, edits: &'a Edits) -> Self {
        let values = vec![false; graph.values.len()];
        let mut live = Self { graph, edits, values, new: BTreeSet::new(), weights: BTreeSet::new() };
        for output in &graph.outputs {
            live.need(Arg::Old(output.value));
        }
        live.walk_back(&graph.order);
        live
    }

    fn need(&mut self, arg: Arg) {
        match arg {
            Arg::Old(value) => {
                self.values[value.index()] = true;
                self.weights.extend(self.graph.weight(value));
            }
            Arg::New(op, i) => {
                self.new.insert((op, i));
            }
            Arg::Weight(weight) => {
                self.weights.insert(weight);
            }
        }
    }

    fn walk_back(&mut self, order: &[OpId]) {
        let (graph, edits) = (self.graph, self.edits);
        for op in order.iter().rev() {
            let data = &graph.ops[*op];
            match &edits[*op] {
                Some(edit) => self.need_edit(*op, data, edit),
                None if self.is_live(data) => self.need_op(data),
                None => {}
            }
        }
    }

    fn is_live(&self, data: &OpData) -> bool {
        data.op.has_effect() || data.results.iter().any(|it| self.values[it.index()])
    }

    fn need_op(&mut self, data: &OpData) {
        for value in data.uses() {
            self.need(Arg::Old(value));
        }
        if let Some(region) = data.region {
            let region = &self.graph.regions[region];
            for value in &region.yields {
                self.need(Arg::Old(*value));
            }
            self.walk_back(&region.order);
        }
    }

    fn need_edit(&mut self, op: OpId, data: &OpData, edit: &Edit) {
        for (old, arg) in data.results.iter().zip(&edit.results) {
            if self.values[old.index()] {
                self.need(*arg);
            }
        }
        for (i, new) in (0..).zip(&edit.ops).collect::<Vec<_>>().into_iter().rev() {
            if self.new.contains(&(op, i)) {
                for arg in new.operands.iter().flatten() {
                    self.need(*arg);
                }
            }
        }
    }
}

/// The new id of each weight that stays.
fn kept_weights(
    declared: &PrimaryMap<WeightId, &WeightDecl>,
    lives: &[Live<'_>],
) -> SecondaryMap<WeightId, Option<WeightId>> {
    let mut pending: Vec<WeightId> = lives.iter().flat_map(|it| it.weights.iter().copied()).collect();
    let mut used = SecondaryMap::new(false);
    while let Some(weight) = pending.pop() {
        used[weight] = true;
        pending.extend(declared[weight].init.parts().iter().chain(&declared[weight].books));
    }
    let mut kept = SecondaryMap::new(None);
    for (i, weight) in declared.keys().filter(|it| used[*it]).enumerate() {
        kept[weight] = Some(WeightId::new(i));
    }
    kept
}

fn kept_decls(
    declared: &PrimaryMap<WeightId, &WeightDecl>,
    kept: &SecondaryMap<WeightId, Option<WeightId>>,
) -> PrimaryMap<WeightId, WeightDecl> {
    let stays = declared.iter().filter(|(id, _)| kept[*id].is_some());
    stays
        .map(|(_, decl)| {
            let mut decl = WeightDecl::clone(decl);
            for part in decl.init.parts_mut().iter_mut().chain(&mut decl.books) {
                *part = kept[*part].expect("parts and codebooks of a kept weight are kept");
            }
            decl
        })
        .collect()
}

/// Emits what is live of one graph.
struct Emitter<'m, 'a> {
    builder: GraphBuilder<'m>,
    live: &'a Live<'a>,
    kept: &'a SecondaryMap<WeightId, Option<WeightId>>,
    old: Vec<Option<ValueId>>,
    new: BTreeMap<(OpId, u32), ValueId>,
}

fn emit(
    shell: &Module,
    live: &Live<'_>,
    kept: &SecondaryMap<WeightId, Option<WeightId>>,
) -> Result<Graph, BuildError> {
    let graph = live.graph;
    let builder = GraphBuilder::new(shell, &graph.name, graph.phase);
    let old = vec![None; graph.values.len()];
    let mut emitter = Emitter { builder, live, kept, old, new: BTreeMap::new() };
    for input in &graph.inputs {
        let data = &graph.values[*input];
        emitter.old[input.index()] = Some(emitter.builder.input(&data.name, data.ty.clone()));
    }
    emitter.order(&graph.order)?;
    for output in &graph.outputs {
        let value = emitter.value(output.value);
        emitter.builder.output(&output.name, value);
    }
    Ok(emitter.builder.finish())
}

impl Emitter<'_, '_> {
    fn order(&mut self, order: &[OpId]) -> Built<()> {
        let live = self.live;
        for op in order {
            let data = &live.graph.ops[*op];
            match &live.edits[*op] {
                Some(edit) => self.edit(*op, data, edit)?,
                None if live.is_live(data) => self.keep(data)?,
                None => {}
            }
        }
        Ok(())
    }

    fn keep(&mut self, data: &OpData) -> Built<()> {
        let region = data.region.map(|it| self.region(it)).transpose()?;
        let operands: Vec<_> = data.operands.iter().map(|it| it.map(|it| self.value(it))).collect();
        let id = self.builder.push(data.op.clone(), &operands, region)?;
        let results = self.builder.graph().ops[id].results.clone();
        for (old, new) in data.results.iter().zip(results) {
            self.old[old.index()] = Some(new);
        }
        Ok(())
    }

    fn region(&mut self, region: RegionId) -> Built<RegionId> {
        let region = &self.live.graph.regions[region];
        let types: Vec<_> = region.args.iter().map(|it| self.live.graph.ty(*it).clone()).collect();
        let (_, args) = self.builder.open_region(&types);
        for (old, new) in region.args.iter().zip(args) {
            self.old[old.index()] = Some(new);
        }
        self.order(&region.order)?;
        let yields: Vec<_> = region.yields.iter().map(|it| self.value(*it)).collect();
        Ok(self.builder.close_region(&yields))
    }

    fn edit(&mut self, op: OpId, data: &OpData, edit: &Edit) -> Built<()> {
        for (i, new) in (0..).zip(&edit.ops) {
            if !self.live.new.contains(&(op, i)) {
                continue;
            }
            let operands: Vec<_> = new.operands.iter().map(|it| it.map(|it| self.arg(it))).collect();
            let id = self.builder.push(new.op.clone(), &operands, None)?;
            self.new.insert((op, i), self.builder.graph().ops[id].results[0]);
        }
        for (old, arg) in data.results.iter().zip(&edit.results) {
            if self.live.values[old.index()] {
                self.old[old.index()] = Some(self.arg(*arg));
            }
        }
        Ok(())
    }

    fn arg(&mut self, arg: Arg) -> ValueId {
        match arg {
            Arg::Old(value) => self.value(value),
            Arg::New(op, i) => self.new[&(op, i)],
            Arg::Weight(weight) => self.weight(weight),
        }
    }

    fn value(&mut self, value: ValueId) -> ValueId {
        match self.live.graph.values[value].def {
            Def::Weight(weight) => self.weight(weight),
            Def::State(state) => self.builder.state(state),
            Def::Op(..) | Def::Input(_) | Def::Arg(..) => {
                self.old[value.index()].expect("operands are defined earlier and live")
            }
        }
    }

    fn weight(&mut self, weight: WeightId) -> ValueId {
        self.builder.weight(self.kept[weight].expect("weights of live ops are kept"))
    }
}
