//! What algorithms see of a graph.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use petgraph::algo::{tarjan_scc, toposort};
use petgraph::visit::{Dfs, Reversed};
use waste_ir::view::{DefUse, dot, op_counts, use_counts};
use waste_ir::{Graph, Module, OpId, parse_module, random};

fn experts() -> Module {
    let text = "module \"m\" arch=a ctx=1 vocab=1 {
      source @0 \"m\" bytes=64 header=sha256:00
      sym T in 1..=8
      weight \"the bank\": f32[2, 1, 1] = f32 @0+0
      graph @g(x: f32[T, 1], i: i32[T, 2], p: f32[T, 2]) phase=imported {
        v0: f32[T, 1] = add x, x
        v5: f32[T, 1] = for_each_expert v0, i, p {experts=2} {
          ^(v1: i32[1], v2: f32[T, 1])
          v3: f32[1, 1] = bank_slice w\"the bank\", v1
          v4: f32[T, 1] = linear v2, v3
          yield v4
        }
        v6: f32[T, 1] = mul v5, v0
        return y: v6, again: v6
      }
    }";
    parse_module(text).unwrap()
}

/// Ops by name, in the order given.
fn names(graph: &Graph, ops: impl IntoIterator<Item = OpId>) -> Vec<&'static str> {
    ops.into_iter().map(|it| graph.ops[it].op.name()).collect()
}

#[test]
fn uses_count_operands_yields_and_outputs() {
    let module = experts();
    let graph = module.graphs.values().next().unwrap();
    let counts = use_counts(graph);
    let count = |op: &str| {
        let op = graph.ops.values().find(|it| it.op.name() == op).unwrap();
        counts[op.results[0]]
    };
    assert_eq!(counts[graph.inputs[0]], 2);
    assert_eq!(["add", "bank_slice", "linear", "for_each_expert", "mul"].map(count), [2, 1, 1, 1, 2]);
    assert_eq!(op_counts(graph).into_iter().collect::<Vec<_>>().len(), 5);
}

#[test]
fn petgraph_walks_a_graph() {
    let module = experts();
    let graph = module.graphs.values().next().unwrap();
    let view = DefUse::of(graph);
    let sorted = toposort(&view, None).unwrap();
    assert_eq!(sorted.len(), 5);
    let at = |name: &str| names(graph, sorted.iter().copied()).iter().position(|it| *it == name).unwrap();
    assert!(at("add") < at("for_each_expert") && at("bank_slice") < at("linear"));
    assert!(at("linear") < at("for_each_expert") && at("for_each_expert") < at("mul"));
    assert!(tarjan_scc(&view).iter().all(|it| it.len() == 1));
    // What the bank's matrix reaches, and what it needs.
    let slice = graph.ops.keys().find(|it| graph.ops[*it].op.name() == "bank_slice").unwrap();
    let mut reached = Vec::new();
    let mut dfs = Dfs::new(&view, slice);
    while let Some(op) = dfs.next(&view) {
        reached.push(op);
    }
    let mut reached = names(graph, reached);
    reached.sort_unstable();
    assert_eq!(reached, ["bank_slice", "for_each_expert", "linear", "mul"]);
    let mut dfs = Dfs::new(Reversed(&view), slice);
    assert_eq!(dfs.next(Reversed(&view)), Some(slice));
    assert_eq!(dfs.next(Reversed(&view)), None);
}

#[test]
fn random_graphs_are_acyclic_in_their_own_order() {
    for seed in 0..20 {
        let module = random::expert_decoder(seed).module;
        for graph in module.graphs.values() {
            assert_eq!(toposort(&DefUse::of(graph), None).unwrap().len(), graph.ops.len());
        }
    }
}

#[test]
fn dot_shows_every_op_and_read() {
    let module = experts();
    let text = dot(&module, module.graphs.values().next().unwrap());
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    for line in [
        "digraph \"g\" {",
        "v0 [shape=ellipse, label=\"x\\nf32[T, 1]\"];",
        "op1 [label=\"bank_slice\\nw\\\"the bank\\\"\"];",
        "op0 -> op3 [label=\"f32[T, 1]\"];",
        "op2 -> op3 [style=dashed, label=yield];",
        "op4 -> out1;",
    ] {
        assert!(lines.contains(&line), "{line} is not in\n{text}");
    }
    assert_eq!(lines.iter().filter(|it| **it == "v0 -> op0 [label=\"f32[T, 1]\"];").count(), 2);
}
