//! The one way to change a module: a pass states edits, and `rebuild` applies them into fresh graphs.
//!
//! A [`Matcher`] is a read-only view of one graph with use counts; a pass looks at it and answers an [`Edit`] for an op.
//! `rebuild` then walks `order`, regions included, and emits what is still needed with a map from old to new values.
//!
//! Invariants
//! - ids of the new graph are dense and ascend in execution order;
//! - ops without effect whose results nobody reads, and weights that no graph reads, are not emitted;
//! - an error leaves the old module whole.
//!
//! Deliberately absent: in-place mutation of a graph.

use bumpalo::Bump;
use smallvec::{SmallVec, smallvec};
use waste_ir::view::use_counts;
use waste_ir::{Def, Graph, Module, Op, OpData, OpId, ValueId, ValueNames, WeightDecl, WeightId, print_op};
use waste_plan::ids::{EntityRef, SecondaryMap};

use crate::emit::rebuild;
use crate::pass::{Changed, PassCx, PassError};

/// An operand of a new op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    /// What a value of the old graph has become.
    Old(ValueId),
    /// The first result of new op number `1` in the edit of op `0`.
    New(OpId, u32),
    /// A weight of the module, or one that the pass adds.
    Weight(WeightId),
}

/// An op to emit.
#[derive(Clone, Debug)]
pub struct NewOp {
    /// What it does. It owns no region.
    pub op: Op,
    /// One entry per operand name.
    pub operands: SmallVec<[Option<Arg>; 4]>,
}

/// What stands in the place of one old op.
#[derive(Clone, Debug)]
pub struct Edit {
    /// The ops to emit there, in order.
    pub ops: SmallVec<[NewOp; 1]>,
    /// For each old result, what it becomes.
    pub results: SmallVec<[Arg; 2]>,
}

impl Edit {
    /// Op `at` becomes `op` over `operands`, which are values of the old graph.
    #[must_use]
    pub fn replace(at: OpId, op: Op, operands: &[Option<ValueId>]) -> Self {
        let operands = operands.iter().map(|it| it.map(Arg::Old)).collect();
        Self { ops: smallvec![NewOp { op, operands }], results: smallvec![Arg::New(at, 0)] }
    }

    /// The only result of an op is a value that is there already.
    #[must_use]
    pub fn alias(value: ValueId) -> Self {
        Self { ops: SmallVec::new(), results: smallvec![Arg::Old(value)] }
    }
}

/// The edits of one graph.
pub type Edits = SecondaryMap<OpId, Option<Edit>>;

/// Why an op keeps its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The pattern does not begin to match.
    Other,
    /// It begins to match, but this condition fails.
    Near(&'static str),
}

/// The answer of a fusion about one op.
pub type Attempt = Result<Edit, Miss>;

/// `Ok` if `condition`, else a near miss with `reason`.
///
/// # Errors
/// [`Miss::Near`] if `condition` does not hold.
pub const fn demand(condition: bool, reason: &'static str) -> Result<(), Miss> {
    if condition { Ok(()) } else { Err(Miss::Near(reason)) }
}

/// A graph as passes look at it: order with regions, and how often each value is read.
#[derive(Debug)]
pub struct Matcher<'a> {
    /// The module.
    pub module: &'a Module,
    /// The graph.
    pub graph: &'a Graph,
    uses: SecondaryMap<ValueId, u32>,
    blocks: &'a [u32],
    walk: &'a [OpId],
    edits: Edits,
}

impl<'a> Matcher<'a> {
    /// Looks at `graph` of `module`; its tables live in `scratch`.
    #[must_use]
    pub fn new(module: &'a Module, graph: &'a Graph, scratch: &'a Bump) -> Self {
        let blocks = scratch.alloc_slice_fill_copy(graph.ops.len(), 0);
        let mut walk = Vec::with_capacity(graph.ops.len());
        flatten(graph, &graph.order, 0, blocks, &mut walk);
        let walk = scratch.alloc_slice_copy(&walk);
        Self { module, graph, uses: use_counts(graph), blocks, walk, edits: Edits::new(None) }
    }

    /// Decides that `edit` stands in the place of `op`.
    pub fn edit(&mut self, op: OpId, edit: Edit) {
        self.edits[op] = Some(edit);
    }

    /// Ends the look: what was decided.
    #[must_use]
    pub fn into_edits(self) -> Edits {
        self.edits
    }

    /// What `value` stands for after the aliases decided so far.
    #[must_use]
    pub fn resolve(&self, value: ValueId) -> ValueId {
        let Def::Op(op, slot) = self.graph.values[value].def else { return value };
        match self.edits[op].as_ref().and_then(|it| it.results.get(slot as usize)) {
            Some(Arg::Old(alias)) => *alias,
            Some(Arg::New(..) | Arg::Weight(_)) | None => value,
        }
    }

    /// Every op in execution order, those of a region directly after the op that owns it.
    #[must_use]
    pub const fn walk(&self) -> &'a [OpId] {
        self.walk
    }

    /// How often `value` is read: by ops, as an output, or as what a region yields.
    #[must_use]
    pub fn uses(&self, value: ValueId) -> u32 {
        self.uses[value]
    }

    /// The block that `op` is in: 0 at the top level, else one more than the index of its region.
    #[must_use]
    pub fn block(&self, op: OpId) -> u32 {
        self.blocks[op.index()]
    }

    /// The op that defines `value`, with its id.
    #[must_use]
    pub fn def(&self, value: ValueId) -> Option<(OpId, &'a OpData)> {
        match self.graph.values[value].def {
            Def::Op(id, _) => Some((id, &self.graph.ops[id])),
            Def::Input(_) | Def::Arg(..) | Def::Weight(_) | Def::State(_) => None,
        }
    }

    /// Whether op `at` may absorb `producer`, whose result is `value`.
    ///
    /// # Errors
    /// A near miss if `value` has other readers, or `at` runs once an expert and `producer` does not.
    pub fn may_absorb(&self, producer: OpId, value: ValueId, at: OpId) -> Result<(), Miss> {
        demand(self.uses(value) == 1, "the intermediate value has a second use")?;
        demand(self.block(producer) == self.block(at), "the producer is outside the region")
    }
}

fn flatten(graph: &Graph, order: &[OpId], block: u32, blocks: &mut [u32], walk: &mut Vec<OpId>) {
    for op in order {
        blocks[op.index()] = block;
        walk.push(*op);
        if let Some(region) = graph.ops[*op].region {
            let inner = u32::try_from(region.index() + 1).expect("few regions");
            flatten(graph, &graph.regions[region].order, inner, blocks, walk);
        }
    }
}

/// Offers every op of every graph to `attempt` and applies the edits it answers; counts hits and near misses in `cx`.
///
/// # Errors
/// [`PassError::Emit`] if an edit does not type; `module` is then as it was.
pub fn rewrite(
    module: &mut Module,
    cx: &mut PassCx<'_>,
    attempt: impl Fn(&Matcher<'_>, OpId) -> Attempt,
) -> Result<Changed, PassError> {
    let mut all = Vec::with_capacity(module.graphs.len());
    for graph in module.graphs.values() {
        let mut matcher = Matcher::new(module, graph, cx.scratch);
        for op in matcher.walk() {
            match attempt(&matcher, *op) {
                Ok(edit) if cx.permit() => matcher.edit(*op, edit),
                Ok(_) | Err(Miss::Other) => {}
                Err(Miss::Near(reason)) => cx.near_miss(reason, || place(module, graph, *op)),
            }
        }
        all.push(matcher.into_edits());
    }
    apply(module, cx, &all, &[])
}

/// Applies `edits[i]` to graph i, with `extra` weights after the module's own; nothing changes if there is no edit.
///
/// # Errors
/// [`PassError::Emit`] if an edit does not type; `module` is then as it was.
pub fn apply(
    module: &mut Module,
    cx: &PassCx<'_>,
    edits: &[Edits],
    extra: &[WeightDecl],
) -> Result<Changed, PassError> {
    let edited = |(graph, edits): (&Graph, &Edits)| graph.ops.keys().any(|it| edits[it].is_some());
    if !module.graphs.values().zip(edits).any(edited) {
        return Ok(Changed::No);
    }
    *module = rebuild(module, edits, extra).map_err(|it| cx.emit_error(it))?;
    Ok(Changed::Yes)
}

/// The graph and the printed op, for reports.
pub(crate) fn place(module: &Module, graph: &Graph, op: OpId) -> String {
    let printed = print_op(module, graph, &ValueNames::of(graph), op);
    format!("@{} {}", graph.name, printed.trim())
}
