//! Op to step: operands placed, results given a buffer or written in place.

use waste_ir::{Dim, Graph, Module, Op, OpData, OpId, ValueId};
use waste_plan::ids::{EntityRef, SecondaryMap};
use waste_plan::schema::{Port, Situ, Step, StepKind};

use crate::experts::ExpertRecords;
use crate::memory::{Loc, MemoryMap, PlanIds, Space};
use crate::planner::PlanError;
use crate::tile::tile;

/// A step whose scratch offsets are not known yet.
pub(crate) struct OpenStep {
    pub(crate) kind: StepKind,
    pub(crate) reads: Vec<Loc>,
    pub(crate) writes: Vec<Loc>,
    /// Whether it stands in a loop over experts.
    pub(crate) window: bool,
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
    let mut records = ExpertRecords::of(graph, ids);
    for (at, &id) in graph.order.iter().enumerate() {
        let data = &graph.ops[id];
        if data.op.is_view() {
            map.view(&data.op, data.operand(0), data.results[0])?;
            continue;
        }
        if matches!(data.op, Op::ExpertHint {}) {
            records.hint(&map, id, &mut steps);
            continue;
        }
        let kind = step_kind(graph, data)?;
        let reads: Vec<Loc> = read_values(data).map(|it| map.loc(it)).collect();
        for index in 0..data.results.len() {
            place_result(&mut map, data, index, &kind, at, &last_use)?;
        }
        let writes = data.results.iter().map(|it| map.loc(*it)).collect();
        records.before(&map, id, &mut steps);
        steps.push(OpenStep { kind, reads, writes, window: records.is_open(), op: id });
        records.after(&map, id, &mut steps);
    }
    Ok(Lowered { map, steps })
}

/// The values a step reads: all operands, but for the state whose next version it writes.
fn read_values(data: &OpData) -> impl Iterator<Item = ValueId> + '_ {
    let skip = usize::from(data.op.next_state().is_some());
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

/// Gives result `index` of `data` a place: its state, its port, the place of an operand that dies here, or a fresh buffer.
fn place_result(
    map: &mut MemoryMap<'_>,
    data: &OpData,
    index: usize,
    kind: &StepKind,
    at: usize,
    last_use: &SecondaryMap<ValueId, Option<usize>>,
) -> Result<(), PlanError> {
    let result = data.results[index];
    if data.op.next_state() == Some(index) {
        let cache = map.loc(data.operand(0));
        map.alias(result, cache);
        return Ok(());
    }
    if map.is_placed(result) {
        return Ok(());
    }
    let reads: Vec<ValueId> = read_values(data).collect();
    let (rows, cols) = map.matrix(result)?;
    for slot in kind.in_place().iter().filter(|_| index == 0) {
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
        Op::LinearGlu { act, quant, beta, linear } => {
            StepKind::LinearGlu { act, situ: Situ { beta, linear }, quant }
        }
        Op::Add {} => StepKind::Add,
        Op::Mul {} => StepKind::Mul,
        Op::Unary { kind } => StepKind::Unary { kind },
        Op::Glu { act, beta, linear } => StepKind::Glu { act, situ: Situ { beta, linear } },
        Op::RmsNorm { eps, quant } => StepKind::RmsNorm { eps, quant },
        Op::LayerNorm { eps, quant } => StepKind::LayerNorm { eps, bias: data.optional(2).is_some(), quant },
        Op::RopeAngles { dims, base, scaling } => StepKind::RopeAngles {
            freqs: crate::weights::rope_freqs(dims, base, scaling),
            factors: data.optional(1).is_some(),
        },
        Op::Rope { head_dim, style, skip } => StepKind::Rope { head_dim, skip, style },
        Op::KvAppend {} => StepKind::KvAppend,
        Op::Attention { scale } => {
            let d = graph.ty(data.operand(1)).shape.cols().expect("a verified cache");
            let n = graph.ty(data.operand(0)).shape.cols().expect("verified queries");
            StepKind::Attention { scale, heads: n / d }
        }
        Op::SelectRows {} => StepKind::SelectRows,
        Op::Argmax {} => StepKind::Argmax,
        Op::FiniteCheck {} => StepKind::FiniteCheck,
        Op::Concat {} => StepKind::Concat,
        Op::ShortConv { act } => StepKind::ShortConv { act },
        Op::L2Norm { dim, eps, scale } => StepKind::L2Norm { dim, eps, scale },
        Op::KdaGate { lower_bound } => StepKind::KdaGate { lower_bound },
        Op::KdaStep {} => StepKind::KdaStep,
        Op::GatedRmsNorm { eps } => StepKind::GatedRmsNorm { eps },
        Op::HeadLinear {} => StepKind::HeadLinear,
        Op::HeadLinearT {} => StepKind::HeadLinearT,
        Op::LatentAttention { scale } => {
            StepKind::LatentAttention { scale, heads: heads(graph, data), rope: data.optional(4).is_some() }
        }
        Op::AttnResMix { eps } => StepKind::AttnResMix { eps, blocks: data.optional(3).is_some() },
        Op::RouteTopK { k: _, scoring, renorm, scale, groups, keep } => {
            StepKind::RouteTopK { scoring, groups, keep, renorm, scale, bias: data.optional(1).is_some() }
        }
        Op::ExpertSort { experts } => StepKind::ExpertSort { experts },
        Op::ExpertGather {} => StepKind::ExpertGather,
        Op::ExpertLinear { act, gather } => StepKind::ExpertLinear { act, gather },
        Op::ExpertGlu { act, gather, quant, beta, linear } => {
            StepKind::ExpertGlu { act, situ: Situ { beta, linear }, quant, gather }
        }
        Op::ExpertSum {} => StepKind::ExpertSum,
        Op::LutBuild { code, tables } => StepKind::LutBuild { code, tables },
        Op::ExpertLut { gather } => StepKind::ExpertLut { gather },
        Op::ExpertVq { code, tables, gather } => StepKind::ExpertVq { code, tables, gather },
        Op::ForEachExpert { .. } | Op::LutApply {} => {
            return Err(PlanError::Unsupported { op: data.op.name() });
        }
        Op::Slice { .. } | Op::Reshape { .. } | Op::BankSlice { .. } => unreachable!("views make no step"),
        Op::ExpertHint {} => unreachable!("hints were lowered before"),
    })
}

/// Queries a token.
fn heads(graph: &Graph, data: &OpData) -> u32 {
    let rows = |slot: usize| match graph.ty(data.operand(slot)).shape.dims()[0] {
        Dim::Const(n) => n,
        Dim::Scaled { mul, .. } => mul,
    };
    rows(0) / rows(3)
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
            window: step.window,
            op: u32::try_from(step.op.index()).expect("op ids are u32"),
        };
        self.steps.iter().map(close).collect()
    }

    /// A state is cut by the tokens appended to it, everything else by its result; what works head by head, by whole heads.
    fn tile(&self, step: &OpenStep) -> waste_plan::schema::Tile {
        if step.kind.moves_experts() {
            return waste_plan::schema::Tile { rows: 1, cols: 1 };
        }
        let shape = if matches!(step.kind, StepKind::KvAppend) { &step.reads[0] } else { &step.writes[0] };
        let head = match step.kind {
            StepKind::L2Norm { dim, .. } => dim,
            StepKind::KdaGate { .. } => shape.cols / step.reads[1].cols,
            StepKind::GatedRmsNorm { .. } => step.reads[2].cols,
            StepKind::KdaStep => shape.cols / step.reads[4].cols,
            _ => shape.cols,
        };
        tile(&step.kind, self.map.most(shape.rows), shape.cols, head)
    }
}
