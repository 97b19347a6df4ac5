//! Rebuilding graphs op by op, for passes that change regions, operands of regions, or ops with several results.
//!
//! Invariants
//! - weights, states and symbols keep their ids; ops and values are numbered anew in execution order;
//! - an error leaves the old module whole.
//!
//! Deliberately absent: removal of what is dead (`dce`, and every pass that goes through [`crate::rewrite`]).

use waste_ir::{BuildError, Built, Def, Graph, GraphBuilder, Module, Op, OpId, RegionId, ValueId};
use waste_plan::ids::{EntityRef, PrimaryMap};

/// Builds a graph beside the one it copies.
pub(crate) struct Copier<'m> {
    /// Which graph of the module is copied, from 0.
    pub(crate) index: usize,
    /// The graph that is copied.
    pub(crate) graph: &'m Graph,
    /// The graph that is built.
    pub(crate) builder: GraphBuilder<'m>,
    new: Vec<Option<ValueId>>,
}

/// Rebuilds every graph: `each` is called with every op of the top level in execution order, and either copies or replaces it.
///
/// # Errors
/// If an op does not type.
pub(crate) fn copy_graphs(
    module: &Module,
    mut each: impl FnMut(&mut Copier<'_>, OpId) -> Built<()>,
) -> Result<Module, BuildError> {
    let mut shell = Module {
        info: module.info.clone(),
        sources: module.sources.clone(),
        syms: module.syms.clone(),
        weights: module.weights.clone(),
        states: module.states.clone(),
        graphs: PrimaryMap::new(),
    };
    let mut graphs = PrimaryMap::new();
    for (index, graph) in module.graphs.values().enumerate() {
        let builder = GraphBuilder::new(&shell, &graph.name, graph.phase);
        let mut copier = Copier { index, graph, builder, new: vec![None; graph.values.len()] };
        for input in &graph.inputs {
            let data = &graph.values[*input];
            copier.new[input.index()] = Some(copier.builder.input(&data.name, data.ty.clone()));
        }
        graph.order.iter().try_for_each(|op| each(&mut copier, *op))?;
        for output in &graph.outputs {
            let value = copier.value(output.value);
            copier.builder.output(&output.name, value);
        }
        graphs.push(copier.builder.finish());
    }
    shell.graphs = graphs;
    Ok(shell)
}

impl Copier<'_> {
    /// What `value` has become.
    pub(crate) fn value(&mut self, value: ValueId) -> ValueId {
        match self.graph.values[value].def {
            Def::Weight(weight) => self.builder.weight(weight),
            Def::State(state) => self.builder.state(state),
            Def::Op(..) | Def::Input(_) | Def::Arg(..) => {
                self.new[value.index()].expect("operands are copied before their uses")
            }
        }
    }

    /// Decides that `old` has become `new`.
    pub(crate) fn set(&mut self, old: ValueId, new: ValueId) {
        self.new[old.index()] = Some(new);
    }

    /// Copies `op` with its region.
    pub(crate) fn copy(&mut self, op: OpId) -> Built<()> {
        let kind = self.graph.ops[op].op.clone();
        self.copy_as(op, kind)
    }

    /// Copies `id` with its operands and region, as `kind`.
    pub(crate) fn copy_as(&mut self, id: OpId, kind: Op) -> Built<()> {
        let graph = self.graph;
        let data = &graph.ops[id];
        let region = data.region.map(|it| self.region(it)).transpose()?;
        let operands: Vec<_> = data.operands.iter().map(|it| it.map(|it| self.value(it))).collect();
        let new = self.builder.push(kind, &operands, region)?;
        self.take_results(id, new);
        Ok(())
    }

    /// Lets the results of old op `old` become those of new op `new`.
    pub(crate) fn take_results(&mut self, old: OpId, new: OpId) {
        let graph = self.graph;
        let results = self.builder.graph().ops[new].results.clone();
        for (old, new) in graph.ops[old].results.iter().zip(results) {
            self.set(*old, new);
        }
    }

    fn region(&mut self, region: RegionId) -> Built<RegionId> {
        let graph = self.graph;
        let region = &graph.regions[region];
        let types: Vec<_> = region.args.iter().map(|it| graph.ty(*it).clone()).collect();
        let (_, args) = self.builder.open_region(&types);
        for (old, new) in region.args.iter().zip(args) {
            self.set(*old, new);
        }
        region.order.iter().try_for_each(|op| self.copy(*op))?;
        let yields: Vec<_> = region.yields.iter().map(|it| self.value(*it)).collect();
        Ok(self.builder.close_region(&yields))
    }
}
