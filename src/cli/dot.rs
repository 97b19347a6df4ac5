//! A module as a graph for Graphviz: a cluster a program, a node an op, an edge a value with its type.
//!
//! Weights are named in the ops that read them, not drawn: a graph with an arrow from every weight shows nothing.

use std::fmt::Write as _;

use waste_ir::{Def, Graph, Module, OpId, ValueId, ValueNames};

/// The whole module.
pub(crate) fn print(module: &Module) -> String {
    let mut out = String::from("digraph waste {\n  rankdir=TB; node [shape=box fontname=monospace];\n");
    for (index, graph) in module.graphs.values().enumerate() {
        Cluster { module, graph, names: ValueNames::of(graph), index, out: &mut out }.print();
    }
    out.push_str("}\n");
    out
}

/// One graph on its way into `out`.
struct Cluster<'a> {
    module: &'a Module,
    graph: &'a Graph,
    names: ValueNames,
    index: usize,
    out: &'a mut String,
}

impl Cluster<'_> {
    fn print(mut self) {
        let at = self.index;
        self.line(&format!("subgraph cluster_{at} {{ label={};", quoted(&self.graph.name)));
        for &input in &self.graph.inputs {
            let label = self.names.name(self.module, self.graph, input);
            self.line(&format!("  {} [label={} shape=ellipse];", self.source(input), quoted(&label)));
        }
        let mut waiting: Vec<OpId> = self.graph.order.iter().rev().copied().collect();
        while let Some(id) = waiting.pop() {
            self.op(id);
            if let Some(region) = self.graph.ops[id].region {
                waiting.extend(self.graph.regions[region].order.iter().rev());
            }
        }
        for (number, output) in self.graph.outputs.iter().enumerate() {
            let node = format!("g{at}_out{number}");
            self.line(&format!("  {node} [label={} shape=ellipse];", quoted(&output.name)));
            self.edge(output.value, &node);
        }
        self.line("}");
    }

    fn op(&mut self, id: OpId) {
        let data = &self.graph.ops[id];
        let node = self.node(id);
        let mut label = data.op.name().to_owned();
        for value in
            data.uses().filter(|it| matches!(self.graph.values[*it].def, Def::Weight(_) | Def::State(_)))
        {
            write!(label, "\\n{}", self.names.name(self.module, self.graph, value).replace('"', "'"))
                .expect("writing to a string");
        }
        self.line(&format!("  {node} [label=\"{label}\"];"));
        data.uses().for_each(|value| self.edge(value, &node));
    }

    /// An arrow from where `value` is made to `to`; none from weights and states, which are named in the op.
    fn edge(&mut self, value: ValueId, to: &str) {
        if matches!(self.graph.values[value].def, Def::Weight(_) | Def::State(_)) {
            return;
        }
        let name = self.names.name(self.module, self.graph, value);
        let label = format!("{name}: {}", self.graph.ty(value).display(&self.module.syms));
        self.line(&format!("  {} -> {to} [label={}];", self.source(value), quoted(&label)));
    }

    /// The node that makes `value`.
    fn source(&self, value: ValueId) -> String {
        match self.graph.values[value].def {
            Def::Op(op, _) => self.node(op),
            Def::Input(n) => format!("g{}_in{n}", self.index),
            Def::Arg(region, _) => {
                let owner = self.graph.ops.iter().find(|it| it.1.region == Some(region));
                owner.map_or_else(String::new, |it| self.node(it.0))
            }
            Def::Weight(id) => format!("g{}_{id}", self.index),
            Def::State(id) => format!("g{}_{id}", self.index),
        }
    }

    fn node(&self, op: OpId) -> String {
        format!("g{}_{op}", self.index)
    }

    fn line(&mut self, text: &str) {
        writeln!(self.out, "  {text}").expect("writing to a string");
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_and_output_is_drawn() {
        let module = waste_ir::random::decoder(3).module;
        let text = print(&module);
        let ops: usize = module.graphs.values().map(|it| it.ops.len()).sum();
        let outputs: usize = module.graphs.values().map(|it| it.outputs.len()).sum();
        let inputs: usize = module.graphs.values().map(|it| it.inputs.len()).sum();
        assert_eq!(text.matches("[label=").count() - text.matches("-> ").count(), ops + outputs + inputs);
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(quoted(r#"a"b\c"#), r#""a\"b\\c""#);
    }
}
