//! Graphs seen by algorithms: use counts, petgraph's traits over a borrowed graph, DOT, op counts.
//!
//! Deliberately absent: storage. A view borrows, and what it knows is computed anew for each graph.

use std::collections::BTreeMap;
use std::fmt::Write;

use petgraph::Direction;
use petgraph::visit::{
    GraphBase, IntoNeighbors, IntoNeighborsDirected, IntoNodeIdentifiers, NodeCount, NodeIndexable, VisitMap,
    Visitable,
};
use waste_plan::ids::{EntityRef, SecondaryMap};

use crate::graph::{Def, Graph, Module, OpId, ValueId};
use crate::text::ValueNames;

/// How often each value is read: by operands, yields and outputs, repeats counted.
#[must_use]
pub fn use_counts(graph: &Graph) -> SecondaryMap<ValueId, u32> {
    let mut counts = SecondaryMap::new(0);
    let operands = graph.ops.values().flat_map(crate::OpData::uses);
    let yields = graph.regions.values().flat_map(|it| it.yields.iter().copied());
    for value in operands.chain(yields).chain(graph.outputs.iter().map(|it| it.value)) {
        counts[value] += 1;
    }
    counts
}

/// How many ops of each name the graph has, those of regions included.
#[must_use]
pub fn op_counts(graph: &Graph) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for op in graph.ops.values() {
        *counts.entry(op.op.name()).or_insert(0) += 1;
    }
    counts
}

/// The ops of a graph and who reads whom, for petgraph's algorithms.
///
/// Nodes are ops, in any order petgraph likes. An edge leads from an op to each op that reads one of its results; an op that
/// owns a region also depends on the ops of that region. Repeated reads are repeated edges.
#[derive(Debug)]
pub struct DefUse<'g> {
    graph: &'g Graph,
    readers: Vec<Vec<OpId>>,
    sources: Vec<Vec<OpId>>,
}

impl<'g> DefUse<'g> {
    /// The view of a verified graph.
    #[must_use]
    pub fn of(graph: &'g Graph) -> Self {
        let mut sources = vec![Vec::new(); graph.ops.len()];
        for (id, op) in graph.ops.iter() {
            let defs = op.uses().filter_map(|it| match graph.values[it].def {
                Def::Op(def, _) => Some(def),
                Def::Input(_) | Def::Arg(..) | Def::Weight(_) | Def::State(_) => None,
            });
            sources[id.index()].extend(defs);
            if let Some(region) = op.region {
                sources[id.index()].extend(&graph.regions[region].order);
            }
        }
        let mut readers = vec![Vec::new(); graph.ops.len()];
        for id in graph.ops.keys() {
            for def in &sources[id.index()] {
                readers[def.index()].push(id);
            }
        }
        Self { graph, readers, sources }
    }
}

/// A set of ops that were visited.
#[derive(Debug, Clone)]
pub struct Visited(SecondaryMap<OpId, bool>);

impl VisitMap<OpId> for Visited {
    fn visit(&mut self, op: OpId) -> bool {
        !std::mem::replace(&mut self.0[op], true)
    }
    fn is_visited(&self, op: &OpId) -> bool {
        self.0[*op]
    }
    fn unvisit(&mut self, op: OpId) -> bool {
        std::mem::replace(&mut self.0[op], false)
    }
}

impl GraphBase for DefUse<'_> {
    type NodeId = OpId;
    type EdgeId = (OpId, OpId);
}

impl<'a> IntoNodeIdentifiers for &'a DefUse<'_> {
    type NodeIdentifiers = Box<dyn Iterator<Item = OpId> + 'a>;
    fn node_identifiers(self) -> Self::NodeIdentifiers {
        Box::new(self.graph.ops.keys())
    }
}

impl<'a> IntoNeighbors for &'a DefUse<'_> {
    type Neighbors = std::iter::Copied<std::slice::Iter<'a, OpId>>;
    fn neighbors(self, op: OpId) -> Self::Neighbors {
        self.neighbors_directed(op, Direction::Outgoing)
    }
}

impl<'a> IntoNeighborsDirected for &'a DefUse<'_> {
    type NeighborsDirected = std::iter::Copied<std::slice::Iter<'a, OpId>>;
    fn neighbors_directed(self, op: OpId, direction: Direction) -> Self::NeighborsDirected {
        let lists = match direction {
            Direction::Outgoing => &self.readers,
            Direction::Incoming => &self.sources,
        };
        lists[op.index()].iter().copied()
    }
}

impl NodeCount for DefUse<'_> {
    fn node_count(&self) -> usize {
        self.graph.ops.len()
    }
}

impl NodeIndexable for DefUse<'_> {
    fn node_bound(&self) -> usize {
        self.graph.ops.len()
    }
    fn to_index(&self, op: OpId) -> usize {
        op.index()
    }
    fn from_index(&self, i: usize) -> OpId {
        OpId::new(i)
    }
}

impl Visitable for DefUse<'_> {
    type Map = Visited;
    fn visit_map(&self) -> Visited {
        Visited(SecondaryMap::new(false))
    }
    fn reset_map(&self, map: &mut Visited) {
        *map = self.visit_map();
    }
}

/// The graph in GraphViz's DOT language: ops as boxes, inputs and outputs as ellipses, edges named by type; weights are listed
/// inside the ops that read them.
#[must_use]
pub fn dot(module: &Module, graph: &Graph) -> String {
    let names = ValueNames::of(graph);
    let mut out = String::new();
    let mut line = |text: String| writeln!(out, "{text}").expect("a string takes all that is written");
    line(format!("digraph {} {{\n  node [shape=box, fontname=monospace];", quoted(&graph.name)));
    for &value in &graph.inputs {
        let data = &graph.values[value];
        let label = format!("{}\n{}", data.name, data.ty.display(&module.syms));
        line(format!("  {value} [shape=ellipse, label={}];", quoted(&label)));
    }
    for (id, op) in graph.ops.iter() {
        let mut label = op.op.name().to_owned();
        for value in op.uses().filter(|it| matches!(graph.values[*it].def, Def::Weight(_) | Def::State(_))) {
            label += &format!("\n{}", names.name(module, graph, value));
        }
        line(format!("  {id} [label={}];", quoted(&label)));
        for value in op.uses() {
            if let Some(from) = node(graph, value) {
                let label = quoted(&graph.ty(value).display(&module.syms).to_string());
                line(format!("  {from} -> {id} [label={label}];"));
            }
        }
        let yields = op.region.map_or(&[][..], |it| &graph.regions[it].yields);
        for from in yields.iter().filter_map(|it| node(graph, *it)) {
            line(format!("  {from} -> {id} [style=dashed, label=yield];"));
        }
    }
    for (i, output) in graph.outputs.iter().enumerate() {
        line(format!("  out{i} [shape=ellipse, label={}];", quoted(&output.name)));
        if let Some(from) = node(graph, output.value) {
            line(format!("  {from} -> out{i};"));
        }
    }
    line("}".to_owned());
    out
}

/// The DOT node that a value comes from.
fn node(graph: &Graph, value: ValueId) -> Option<String> {
    match graph.values[value].def {
        Def::Op(op, _) => Some(op.to_string()),
        Def::Input(_) => Some(value.to_string()),
        Def::Arg(..) | Def::Weight(_) | Def::State(_) => None,
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
