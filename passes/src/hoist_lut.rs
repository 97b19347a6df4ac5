//! Move what does not depend on the expert out of `for_each_expert`: once a token instead of once an expert.
//!
//! Before / After: see snapshots/passes/hoist-lut/basic.
//! Requires: phase legal.  Refuses when: the region would gather more than three values.
//! Numerics: preserves (an op that works row by row commutes with gathering rows).
//! Why: a token's table for gate and up is the same for every expert it is routed to. So is its quantised form.

use std::collections::BTreeMap;

use waste_ir::{Built, Def, Graph, Module, Op, OpData, OpId, TensorType, ValueId};

use crate::copy::{Copier, copy_graphs};
use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::rewrite::place;

/// Values that a region may gather: operands x, y and z of `for_each_expert`.
const GATHERED: [usize; 3] = [0, 3, 4];

/// See the module.
#[derive(Debug)]
pub struct HoistLut;

impl Pass for HoistLut {
    const NAME: &'static str = "hoist-lut";
    const NUMERICS: Numerics = Numerics::Preserves;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut plans = Vec::new();
        for graph in module.graphs.values() {
            plans.push(plan(module, graph, cx));
        }
        if plans.iter().all(BTreeMap::is_empty) {
            return Ok(Changed::No);
        }
        let copied = copy_graphs(module, |copier, op| match plans[copier.index].get(&op) {
            Some(hoisted) => hoist(copier, op, hoisted),
            None => copier.copy(op),
        });
        *module = copied.map_err(|it| cx.emit_error(it))?;
        Ok(Changed::Yes)
    }
}

/// For each loop over experts the ops of its region that leave it, in order.
fn plan(module: &Module, graph: &Graph, cx: &mut PassCx<'_>) -> BTreeMap<OpId, Vec<OpId>> {
    let mut plans = BTreeMap::new();
    for owner in &graph.order {
        let mut chosen = Vec::new();
        for op in invariant(graph, &graph.ops[*owner]) {
            chosen.push(op);
            if gathered(graph, &graph.ops[*owner], &chosen).len() > GATHERED.len() {
                chosen.pop();
                cx.near_miss("the region would gather more than three values", || place(module, graph, op));
            } else if !cx.permit() {
                chosen.pop();
            }
        }
        if !chosen.is_empty() {
            plans.insert(*owner, chosen);
        }
    }
    plans
}

/// Ops of the region that read gathered rows and nothing else of the region, and work row by row.
fn invariant(graph: &Graph, owner: &OpData) -> Vec<OpId> {
    let Some(region) = owner.region.map(|it| &graph.regions[it]) else { return Vec::new() };
    let rows = &region.args[1..];
    let is_outer =
        |value: &ValueId| rows.contains(value) || matches!(graph.values[*value].def, Def::Weight(_));
    let is_invariant = |op: &&OpId| {
        let data = &graph.ops[**op];
        matches!(data.op, Op::QuantAct { .. } | Op::LutBuild { .. }) && data.uses().all(|it| is_outer(&it))
    };
    region.order.iter().filter(is_invariant).copied().collect()
}

/// What the region gathers once `hoisted` are gone from it: old arguments that it still reads, and their results.
fn gathered(graph: &Graph, owner: &OpData, hoisted: &[OpId]) -> Vec<ValueId> {
    let Some(region) = owner.region.map(|it| &graph.regions[it]) else { return Vec::new() };
    let staying = region.order.iter().filter(|it| !hoisted.contains(it));
    let read: Vec<ValueId> =
        staying.flat_map(|it| graph.ops[*it].uses()).chain(region.yields.iter().copied()).collect();
    let args = region.args[1..].iter().filter(|it| read.contains(it)).copied();
    args.chain(hoisted.iter().map(|it| graph.ops[*it].results[0])).collect()
}

/// Emits `hoisted` before the loop over their gathered operands, then the loop with their results as what it gathers.
fn hoist(copier: &mut Copier<'_>, id: OpId, hoisted: &[OpId]) -> Built<()> {
    let graph = copier.graph;
    let owner = &graph.ops[id];
    let region = &graph.regions[owner.region.expect("a loop over experts has a region")];
    let outer: Vec<ValueId> = GATHERED.iter().filter_map(|slot| owner.optional(*slot)).collect();
    // Outside, an argument is what it is gathered from.
    for (arg, from) in region.args[1..].iter().zip(&outer) {
        let from = copier.value(*from);
        copier.set(*arg, from);
    }
    hoisted.iter().try_for_each(|op| copier.copy(*op))?;
    let values = gathered(graph, owner, hoisted);
    let sources: Vec<ValueId> = values.iter().map(|it| copier.value(*it)).collect();

    let rows = graph.ty(region.args[1]).shape.dims()[0];
    let mut types = vec![graph.ty(region.args[0]).clone()];
    types.extend(values.iter().map(|it| {
        let ty = graph.ty(*it);
        TensorType::matrix(ty.dtype, rows, ty.shape.cols().expect("gathered values have known columns"))
    }));
    let (_, args) = copier.builder.open_region(&types);
    copier.set(region.args[0], args[0]);
    for (value, arg) in values.iter().zip(&args[1..]) {
        copier.set(*value, *arg);
    }
    for op in region.order.iter().filter(|it| !hoisted.contains(it)) {
        copier.copy(*op)?;
    }
    let yields: Vec<ValueId> = region.yields.iter().map(|it| copier.value(*it)).collect();
    let new_region = copier.builder.close_region(&yields);
    let mut operands: Vec<Option<ValueId>> =
        owner.operands.iter().map(|it| it.map(|it| copier.value(it))).collect();
    for (i, slot) in GATHERED.iter().enumerate() {
        operands[*slot] = sources.get(i).copied();
    }
    let new = copier.builder.push(owner.op.clone(), &operands, Some(new_region))?;
    copier.take_results(id, new);
    Ok(())
}
