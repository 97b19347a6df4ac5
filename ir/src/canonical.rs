//! Canonical numbering: the ids that the parser gives, so that a graph equals its printed and parsed self.
//!
//! Values and ops are numbered in print order: inputs first; then for each op the weights and states it is the first to
//! read, its region (arguments, ops, yields), the op, its results; at last what only outputs read. Nothing unused remains.

use smallvec::SmallVec;
use waste_plan::ids::SecondaryMap;

use crate::graph::{Graph, Module, OpData, OpId, Output, Region, RegionId, ValueId};

impl Module {
    /// The same module with every graph in canonical numbering.
    ///
    /// # Panics
    /// If the verifier would refuse the structure of a graph.
    #[must_use]
    pub fn canonical(&self) -> Self {
        Self { graphs: self.graphs.values().map(Graph::canonical).collect(), ..self.clone() }
    }
}

impl Graph {
    /// The same graph in canonical numbering.
    ///
    /// # Panics
    /// If the verifier would refuse the structure of the graph.
    #[must_use]
    pub fn canonical(&self) -> Self {
        let to = Self { name: self.name.clone(), phase: self.phase, ..Self::default() };
        let mut renumber = Renumber { from: self, to, map: SecondaryMap::new(None) };
        renumber.to.inputs = self.inputs.iter().map(|it| renumber.value(*it)).collect();
        renumber.to.order = renumber.ops(&self.order);
        let outputs = self.outputs.iter();
        renumber.to.outputs =
            outputs.map(|it| Output { name: it.name.clone(), value: renumber.value(it.value) }).collect();
        renumber.to
    }
}

struct Renumber<'a> {
    from: &'a Graph,
    to: Graph,
    map: SecondaryMap<ValueId, Option<ValueId>>,
}

impl Renumber<'_> {
    /// The new id of a value; a value seen for the first time is an input, a weight, a state, or being defined.
    fn value(&mut self, old: ValueId) -> ValueId {
        if let Some(new) = self.map[old] {
            return new;
        }
        let new = self.to.values.push(self.from.values[old].clone());
        self.map[old] = Some(new);
        new
    }

    fn ops(&mut self, order: &[OpId]) -> Vec<OpId> {
        order.iter().map(|it| self.op(&self.from.ops[*it])).collect()
    }

    fn op(&mut self, old: &OpData) -> OpId {
        let operands = old.operands.iter().map(|it| it.map(|it| self.value(it))).collect();
        let region = old.region.map(|it| self.region(it));
        let id = self.to.ops.push(OpData { op: old.op.clone(), operands, results: SmallVec::new(), region });
        for (i, &result) in old.results.iter().enumerate() {
            let new = self.value(result);
            self.to.values[new].def = crate::Def::Op(id, u32::try_from(i).expect("few results"));
            self.to.ops[id].results.push(new);
        }
        id
    }

    fn region(&mut self, old: RegionId) -> RegionId {
        let from = &self.from.regions[old];
        let id = self.to.regions.push(Region::default());
        for (i, &arg) in from.args.iter().enumerate() {
            let new = self.value(arg);
            self.to.values[new].def = crate::Def::Arg(id, u32::try_from(i).expect("few arguments"));
            self.to.regions[id].args.push(new);
        }
        self.to.regions[id].order = self.ops(&from.order);
        self.to.regions[id].yields = from.yields.iter().map(|it| self.value(*it)).collect();
        id
    }
}
