//! Op to step: operands placed, results given a buffer or written in place.

use waste_ir::{Graph, Module, Op, OpData, OpId, ValueId};
use waste_plan::ids::{EntityRef, SecondaryMap};
use waste_plan::schema::{Port, Step, StepKind};

use crate::memory::{Loc, MemoryMap, PlanIds, Space};
use crate::planner::PlanError;
use crate::tile::tile;

/// A step whose scratch offsets are not known yet.
pub(crate) struct OpenStep {
    pub(crate) kind: StepKind,
    pub(crate) reads: Vec<Loc>,
    pub(crate) writes: Vec<Loc>,
    pub(crate) op: OpId,
}

/// One graph as steps over buffer classes.
pub(crate) struct Lowered<'a> {
    pub(crate) map: MemoryMap<'a>,
    pub(crate) steps: Vec<OpenStep>,
}

/// Lowers every op of `graph` in order; views become aliases.
pub(crate) fn lower<'a>(
    module: &'a Module,
    graph: &'a Graph,
    ids: &PlanIds,
    ports: &[Port],
) -> Result<Lowered<'a>, PlanError> {
    let mut map = MemoryMap::new(module, graph, ids, ports)?;
    let last_use = last_uses(graph);
    let mut steps = Vec::with_capacity(graph.order.len());
    for (at, &id) in graph.order.iter().enumerate() {
        let data = &graph.ops[id];
        if data.op.is_view() {
            map.view(&data.op, data.operand(0), data.results[0])?;
            continue;
        }
        let kind = step_kind(graph, data)?;
        let reads: Vec<Loc> = read_values(data).map(|it| map.loc(it)).collect();
        place_result(&mut map, data, &kind, at, &last_use)?;
        let writes = data.results.iter().map(|it| map.loc(*it)).collect();
        steps.push(OpenStep { kind, reads, writes, op: id });
    }
    Ok(Lowered { map, steps })
}

/// The values a step reads: all operands, but for `kv_append`, which only writes its cache.
fn read_values(data: &OpData) -> impl Iterator<Item = ValueId> + '_ {
    let skip = usize::from(matches!(data.op, Op::KvAppend {}));
    data.uses().skip(skip)
}

/// For each value the last position in `order` of an op, not a view, that reads it; outputs are read at the end.
fn last_uses(graph: &Graph) -> SecondaryMap<ValueId, Option<usize>> {
    let mut last = SecondaryMap::new(None);
    for (at, id) in graph.order.iter().enumerate() {
        if !graph.ops[*id].op.is_view() {
            graph.ops[*id].uses().for_each(|it| last[it] = Some(at));
        }
    }
    graph.outputs.iter().for_each(|it| last[it.value] = Some(usize::MAX));
    last
}

/// Gives the result of `data` a place: its state, its port, the place of an operand that dies here, or a fresh buffer.
fn place_result(
    map: &mut MemoryMap<'_>,
    data: &OpData,
    kind: &StepKind,
    at: usize,
    last_use: &SecondaryMap<ValueId, Option<usize>>,
) -> Result<(), PlanError> {
    let result = data.results[0];
    if matches!(data.op, Op::KvAppend {}) {
        let cache = map.loc(data.operand(0));
        map.alias(result, cache);
        return Ok(());
    }
    if map.is_placed(result) {
        return Ok(());
    }
    let reads: Vec<ValueId> = read_values(data).collect();
    let (rows, cols) = map.matrix(result)?;
    for slot in kind.in_place() {
        let loc = map.loc(reads[*slot]);
        let fits = loc.rows == rows && loc.cols == cols && loc.dtype == waste_plan::DType::F32;
        let read_twice = reads.iter().filter(|it| **it == reads[*slot]).count() > 1;
        if fits && !read_twice && dies_here(map, &loc, at, last_use) {
            map.alias(result, loc);
            return Ok(());
        }
    }
    map.fresh(result)
}

/// Whether no op after position `at` reads a byte of `loc` as it is now.
fn dies_here(
    map: &MemoryMap<'_>,
    loc: &Loc,
    at: usize,
    last_use: &SecondaryMap<ValueId, Option<usize>>,
) -> bool {
    let Space::Class(class) = loc.space else { return false };
    map.classes[class].members.iter().all(|member| {
        let other = map.loc(*member);
        let apart = other.stride == loc.stride && columns_apart(&other, loc);
        apart || last_use[*member].is_none_or(|last| last <= at)
    })
}

/// Whether two parts of one buffer with equal strides share no column.
fn columns_apart(a: &Loc, b: &Loc) -> bool {
    let end = |it: &Loc| it.offset + it.dtype.row_bytes(u64::from(it.cols)).unwrap_or(u64::MAX - it.offset);
    end(a) <= b.offset || end(b) <= a.offset
}

fn step_kind(graph: &Graph, data: &OpData) -> Result<StepKind, PlanError> {
    Ok(match data.op {
        Op::Embed {} => StepKind::Embed,
        Op::QuantAct { math } => StepKind::QuantAct { math },
        Op::Linear { act } => {
            StepKind::Linear { act, bias: data.optional(2).is_some(), residual: data.optional(3).is_some() }
        }
        Op::LinearGlu { act, quant } => StepKind::LinearGlu { act, quant },
        Op::Add {} => StepKind::Add,
        Op::Mul {} => StepKind::Mul,
        Op::Unary { kind } => StepKind::Unary { kind },
        Op::Glu { act } => StepKind::Glu { act },
        Op::RmsNorm { eps, quant } => StepKind::RmsNorm { eps, quant },
        Op::LayerNorm { eps, quant } => StepKind::LayerNorm { eps, bias: data.optional(2).is_some(), quant },
        Op::RopeAngles { dims, base, scaling } => StepKind::RopeAngles {
            freqs: crate::weights::rope_freqs(dims, base, scaling),
            factors: data.optional(1).is_some(),
        },
        Op::Rope { head_dim, style } => StepKind::Rope { head_dim, style },
        Op::KvAppend {} => StepKind::KvAppend,
        Op::Attention { scale } => {
            let d = graph.ty(data.operand(1)).shape.cols().expect("a verified cache");
            let n = graph.ty(data.operand(0)).shape.cols().expect("verified queries");
            StepKind::Attention { scale, heads: n / d }
        }
        Op::SelectRows {} => StepKind::SelectRows,
        Op::Argmax {} => StepKind::Argmax,
        Op::FiniteCheck {} => StepKind::FiniteCheck,
        Op::RouteTopK { .. } | Op::ForEachExpert { .. } => {
            return Err(PlanError::Unsupported { op: data.op.name() });
        }
        Op::Slice { .. } | Op::Reshape { .. } | Op::BankSlice { .. } => unreachable!("views make no step"),
    })
}

impl Lowered<'_> {
    /// Closes the steps over the offsets of their classes.
    pub(crate) fn close(&self, offsets: &[u64]) -> Vec<Step> {
        let base = |class: crate::memory::ClassId| offsets[class.index()];
        let close = |step: &OpenStep| Step {
            kind: step.kind.clone(),
            reads: step.reads.iter().map(|it| it.operand(base)).collect(),
            writes: step.writes.iter().map(|it| it.operand(base)).collect(),
            tile: self.tile(step),
            barrier: false,
            op: u32::try_from(step.op.index()).expect("op ids are u32"),
        };
        self.steps.iter().map(close).collect()
    }

    /// A state is cut by the tokens appended to it, everything else by its result.
    fn tile(&self, step: &OpenStep) -> waste_plan::schema::Tile {
        let shape = if matches!(step.kind, StepKind::KvAppend) { &step.reads[0] } else { &step.writes[0] };
        tile(&step.kind, self.map.most(shape.rows), shape.cols)
    }
}
