//! Let a layer guess which experts the next one will want: its own input through the next layer's router, as a hint.
//!
//! Before / After: see snapshots/passes/lookahead-experts/basic.
//! Requires: phase legal, after `flatten-experts`.  Refuses when: the next layer's router is a part of a merged linear, reads another kind
//! of activations, or adds or ranks by what is no weight; and, silently, in `prefill`, where a chunk wants nearly all experts, and where
//! experts are in memory.
//! Numerics: preserves (what is there stays; a hint has no result).
//! Why: between a router and its experts there is hardly any work to hide a read behind; between two routers there is a layer. A residual
//! changes little from one layer to the next, so most of the guess is right.
//!
//! The guess follows the demand: the layer's own experts are announced first, then the next layer's router is a linear, its rule a
//! `route_top_k` of as many as were asked for, and an `expert_hint`.

use std::collections::BTreeMap;

use waste_ir::{Built, Def, Graph, Module, Op, OpData, OpId, ValueId, WeightInit};

use crate::copy::{Copier, copy_graphs};
use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::rewrite::{Miss, demand, place};

/// The graph in which one token at a time waits for its experts.
const DECODE: &str = "decode";

/// See the module.
#[derive(Debug)]
pub struct LookaheadExperts {
    /// Experts of the next layer that each layer guesses; as many as its rule can choose if that is fewer. 0: none.
    pub experts: u32,
}

impl Pass for LookaheadExperts {
    const NAME: &'static str = "lookahead-experts";
    const NUMERICS: Numerics = Numerics::Preserves;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut all = Vec::with_capacity(module.graphs.len());
        for graph in module.graphs.values() {
            let is_wanted = self.experts > 0 && graph.name == DECODE;
            all.push(if is_wanted { self.guesses(module, graph, cx) } else { BTreeMap::new() });
        }
        if all.iter().all(BTreeMap::is_empty) {
            return Ok(Changed::No);
        }
        let copied = copy_graphs(module, |copier, op| {
            copier.copy(op)?;
            all[copier.index].get(&op).map_or(Ok(()), |guess| guess.emit(copier))
        });
        *module = copied.map_err(|it| cx.emit_error(it))?;
        Ok(Changed::Yes)
    }
}

impl LookaheadExperts {
    /// What each router of `graph` is to be followed by.
    fn guesses(&self, module: &Module, graph: &Graph, cx: &mut PassCx<'_>) -> BTreeMap<OpId, Guess> {
        let is_hint = |it: &&OpData| matches!(it.op, Op::ExpertHint {});
        let hinted: Vec<ValueId> = graph.ops.values().filter(is_hint).map(|it| it.operand(1)).collect();
        let layers = layers(module, graph);
        let mut guesses = BTreeMap::new();
        for (this, next) in layers.iter().zip(layers.iter().skip(1)) {
            if hinted.contains(&next.bank) {
                continue;
            }
            match Guess::of(graph, this, next, self.experts) {
                Ok(guess) if cx.permit() => drop(guesses.insert(this.router, guess)),
                Ok(_) | Err(Miss::Other) => {}
                Err(Miss::Near(reason)) => cx.near_miss(reason, || place(module, graph, next.router)),
            }
        }
        guesses
    }
}

/// A layer whose experts live in records.
struct Layer {
    /// The op that chooses its experts.
    router: OpId,
    /// One of their matrices.
    bank: ValueId,
}

/// The layers of `graph` whose experts live in records, in order.
fn layers(module: &Module, graph: &Graph) -> Vec<Layer> {
    let mut layers: Vec<Layer> = Vec::new();
    let products = graph.order.iter().map(|it| &graph.ops[*it]);
    for data in products.filter(|it| matches!(it.op, Op::ExpertLut { .. })) {
        let bank = data.operand(1);
        let init = graph.weight(bank).map(|it| &module.weights[it].init);
        let in_records = matches!(init, Some(WeightInit::Records { .. }));
        let sort = graph.def_op(data.operand(3)).filter(|_| in_records);
        let Some(Def::Op(router, 0)) = sort.map(|it| graph.values[it.operand(0)].def) else { continue };
        let is_router = matches!(graph.ops[router].op, Op::RouteTopK { .. });
        if is_router && layers.iter().all(|it| it.router != router) {
            layers.push(Layer { router, bank });
        }
    }
    layers
}

/// A guess to be emitted: values and ops of the old graph.
struct Guess {
    /// What the layer's own router reads.
    x: ValueId,
    /// The linear of the next layer's router.
    linear: OpId,
    /// The next layer's router.
    router: OpId,
    /// Its rule for as many as are guessed.
    rule: Op,
    bank: ValueId,
}

impl Guess {
    /// The guess of `n` experts of layer `next` in layer `this`.
    fn of(graph: &Graph, this: &Layer, next: &Layer, n: u32) -> Result<Self, Miss> {
        let own = graph.def_op(graph.ops[this.router].operand(0)).ok_or(Miss::Other)?;
        // Where routers are merged with other linears, their logits are columns of the product.
        let own = if let Op::Slice { .. } = own.op { graph.def_op(own.operand(0)) } else { Some(own) };
        let x = own.filter(|it| matches!(it.op, Op::Linear { .. })).ok_or(Miss::Other)?.operand(0);

        let router = &graph.ops[next.router];
        let Def::Op(linear, 0) = graph.values[router.operand(0)].def else { return Err(Miss::Other) };
        let product = &graph.ops[linear];
        let is_linear = matches!(product.op, Op::Linear { .. });
        demand(is_linear, "the next layer's router is no linear of its own")?;
        let same_kind = graph.ty(product.operand(0)) == graph.ty(x);
        demand(same_kind, "the next layer's router reads another kind of activations")?;
        let mut others = product.uses().skip(1).chain(router.uses().skip(1));
        let is_constant = others.all(|it| graph.weight(it).is_some());
        demand(is_constant, "the next layer's router adds or ranks by what is no weight")?;
        let rule = rule(graph, router, n).ok_or(Miss::Other)?;
        Ok(Self { x, linear, router: next.router, rule, bank: next.bank })
    }

    fn emit(&self, copier: &mut Copier<'_>) -> Built<()> {
        let x = copier.value(self.x);
        let linear = copier.graph.ops[self.linear].op.clone();
        let logits = over(copier, self.linear, linear, x)?;
        let ids = over(copier, self.router, self.rule.clone(), logits)?;
        let bank = copier.value(self.bank);
        copier.builder.push(Op::ExpertHint {}, &[Some(ids), Some(bank)], None).map(drop)
    }
}

/// Emits `kind` over the new value `x` and the weights of old op `id`; its first result.
fn over(copier: &mut Copier<'_>, id: OpId, kind: Op, x: ValueId) -> Built {
    let graph = copier.graph;
    let mut operands = vec![Some(x)];
    operands.extend(graph.ops[id].operands.iter().skip(1).map(|it| it.map(|it| copier.value(it))));
    let new = copier.builder.push(kind, &operands, None)?;
    Ok(copier.builder.graph().ops[new].results[0])
}

/// The rule of `router` for `n` experts, or all that it can choose.
fn rule(graph: &Graph, router: &OpData, n: u32) -> Option<Op> {
    let Op::RouteTopK { k: _, scoring, renorm, scale, groups, keep } = router.op else { return None };
    let experts = graph.ty(router.operand(0)).shape.cols()?;
    let k = n.min(experts / groups * keep);
    Some(Op::RouteTopK { k, scoring, renorm, scale, groups, keep })
}
