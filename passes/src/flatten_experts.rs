//! Flatten `for_each_expert` into ops over (token, expert) pairs: sort, the body over all pairs at once, weighted sum.
//!
//! Before / After: see snapshots/passes/flatten-experts/basic.
//! Requires: phase legal, after all fusions.  Refuses when: never.
//! Numerics: preserves (each pair is computed as in the loop; a token's experts are summed in ascending order as before).
//! Why: a plan is a list of steps. Pairs of one expert follow each other, so its matrices are read once for all its tokens, and
//! all experts' tiles can be shared among the threads without a barrier an expert.

use std::collections::BTreeMap;

use waste_ir::{BuildError, Built, Module, Op, OpData, OpId, ValueId};

use crate::copy::{Copier, copy_graphs};
use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};

/// See the module.
#[derive(Debug)]
pub struct FlattenExperts;

impl Pass for FlattenExperts {
    const NAME: &'static str = "flatten-experts";
    const NUMERICS: Numerics = Numerics::Preserves;
    const MANDATORY: bool = true;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let is_loop = |it: &OpData| matches!(it.op, Op::ForEachExpert { .. });
        if !module.graphs.values().any(|graph| graph.ops.values().any(is_loop)) {
            return Ok(Changed::No);
        }
        let copied = copy_graphs(module, |copier, op| match copier.graph.ops[op].op {
            Op::ForEachExpert { experts } => {
                let _ = cx.permit();
                flatten(copier, op, experts)
            }
            _ => copier.copy(op),
        });
        *module = copied.map_err(|it| cx.emit_error(it))?;
        Ok(Changed::Yes)
    }
}

/// The body of a loop while it is flattened.
struct Body {
    order: ValueId,
    groups: ValueId,
    /// Arguments of the region by what they are gathered from, and rows of pairs once an op needed them.
    rows: BTreeMap<ValueId, (ValueId, Option<ValueId>)>,
    /// Matrices of the expert at hand, by the bank that holds them.
    banks: BTreeMap<ValueId, ValueId>,
}

fn flatten(copier: &mut Copier<'_>, id: OpId, experts: u32) -> Built<()> {
    let graph = copier.graph;
    let owner = &graph.ops[id];
    let region = &graph.regions[owner.region.expect("a loop over experts has a region")];
    let (ids, weights) = (copier.value(owner.operand(1)), copier.value(owner.operand(2)));
    let sort = copier.builder.push(Op::ExpertSort { experts }, &[Some(ids)], None)?;
    let [order, groups, slots] = copier.builder.graph().ops[sort].results[..] else {
        unreachable!("the op table gives three results")
    };
    let mut body = Body { order, groups, rows: BTreeMap::new(), banks: BTreeMap::new() };
    let outer = [0, 3, 4].iter().filter_map(|slot| owner.optional(*slot));
    for (arg, from) in region.args[1..].iter().zip(outer) {
        let from = copier.value(from);
        body.rows.insert(*arg, (from, None));
    }
    for op in &region.order {
        body.op(copier, *op)?;
    }
    let y = body.pairs(copier, region.yields[0])?;
    let operands = [Some(y), Some(weights), Some(order), Some(slots)];
    let sum = copier.builder.push(Op::ExpertSum {}, &operands, None)?;
    copier.take_results(id, sum);
    Ok(())
}

impl Body {
    /// `value` as rows of pairs: an argument is gathered, once.
    fn pairs(&mut self, copier: &mut Copier<'_>, value: ValueId) -> Built {
        let Some((from, gathered)) = self.rows.get(&value).copied() else { return Ok(copier.value(value)) };
        if let Some(gathered) = gathered {
            return Ok(gathered);
        }
        let op = copier.builder.push(Op::ExpertGather {}, &[Some(from), Some(self.order)], None)?;
        let gathered = copier.builder.graph().ops[op].results[0];
        self.rows.insert(value, (from, Some(gathered)));
        Ok(gathered)
    }

    /// What a linear reads: rows that it gathers itself, or rows of pairs.
    fn source(&self, copier: &mut Copier<'_>, value: ValueId) -> (ValueId, bool) {
        match self.rows.get(&value) {
            Some((from, _)) => (*from, true),
            None => (copier.value(value), false),
        }
    }

    fn op(&mut self, copier: &mut Copier<'_>, id: OpId) -> Built<()> {
        let graph = copier.graph;
        let data = &graph.ops[id];
        let bank = |slot: usize| data.optional(slot).and_then(|it| self.banks.get(&it)).copied();
        match data.op {
            Op::BankSlice {} => {
                let bank = copier.value(data.operand(0));
                self.banks.insert(data.results[0], bank);
                Ok(())
            }
            Op::Linear { act } if data.optional(2).is_none() && data.optional(3).is_none() => {
                let Some(bank) = bank(1) else { return self.plain(copier, id) };
                let (x, gather) = self.source(copier, data.operand(0));
                let operands = [x, bank, self.order, self.groups].map(Some);
                let new = copier.builder.push(Op::ExpertLinear { act, gather }, &operands, None)?;
                copier.take_results(id, new);
                Ok(())
            }
            Op::LutApply {} => {
                let Some(bank) = bank(1) else { return self.plain(copier, id) };
                let (lut, gather) = self.source(copier, data.operand(0));
                let operands = [lut, bank, self.order, self.groups].map(Some);
                let new = copier.builder.push(Op::ExpertLut { gather }, &operands, None)?;
                copier.take_results(id, new);
                Ok(())
            }
            Op::LinearGlu { act, quant, beta, linear } => {
                let (Some(gate), Some(up)) = (bank(1), bank(2)) else { return self.plain(copier, id) };
                let (x, gather) = self.source(copier, data.operand(0));
                let operands = [x, gate, up, self.order, self.groups].map(Some);
                let op = Op::ExpertGlu { act, gather, quant, beta, linear };
                let new = copier.builder.push(op, &operands, None)?;
                copier.take_results(id, new);
                Ok(())
            }
            Op::Linear { act } if bank(1).is_some() && data.optional(2).is_none() => {
                self.linear_with_epilogue(copier, id, act)
            }
            _ => self.plain(copier, id),
        }
    }

    /// A bank's linear with a residual, which stands apart here.
    fn linear_with_epilogue(&mut self, copier: &mut Copier<'_>, id: OpId, act: waste_ir::Act) -> Built<()> {
        let data = &copier.graph.ops[id];
        let bank = self.banks[&data.operand(1)];
        let (x, gather) = self.source(copier, data.operand(0));
        let operands = [x, bank, self.order, self.groups].map(Some);
        let product = copier.builder.push(Op::ExpertLinear { act, gather }, &operands, None)?;
        let product = copier.builder.graph().ops[product].results[0];
        let residual = self.pairs(copier, data.operand(3))?;
        let new = copier.builder.push(Op::Add {}, &[Some(product), Some(residual)], None)?;
        copier.take_results(id, new);
        Ok(())
    }

    /// An op that does not care which expert it works for: over all pairs.
    fn plain(&mut self, copier: &mut Copier<'_>, id: OpId) -> Built<()> {
        let data = &copier.graph.ops[id];
        if data.uses().any(|it| self.banks.contains_key(&it)) {
            let message = "an expert's matrix is read by more than a linear without bias".to_owned();
            return Err(BuildError { op: data.op.name(), message });
        }
        let mut operands = Vec::new();
        for operand in &data.operands {
            operands.push(operand.map(|it| self.pairs(copier, it)).transpose()?);
        }
        let new = copier.builder.push(data.op.clone(), &operands, None)?;
        copier.take_results(id, new);
        Ok(())
    }
}
