//! Expert records: when they are fetched, waited for and let go.
//!
//! The body of a mixture of experts whose matrices lie in records becomes a loop: a window waits for an expert and takes those after it
//! that are here too, the steps of the body work on their pairs, a release lets them go. Reading begins as soon as the router has
//! chosen, so that whatever stands between hides a part of it.

use std::collections::BTreeMap;

use waste_ir::{Graph, Op, OpId, ValueId};
use waste_plan::ids::EntityRef;
use waste_plan::schema::{Bank, Program, StepKind};

use crate::lower::OpenStep;
use crate::memory::{MemoryMap, PlanIds};

/// A loop over experts that has no end yet.
#[derive(Clone, Copy)]
struct Loop {
    bank: u32,
    groups: ValueId,
    /// The step of the window.
    window: usize,
    /// The first op that reads records: the loop's window and release name it.
    reader: OpId,
}

/// The expert records of one graph, and the loop that is open.
pub(crate) struct ExpertRecords<'a> {
    graph: &'a Graph,
    /// The bank of each op that reads records, and its groups.
    readers: BTreeMap<OpId, (u32, ValueId)>,
    /// The bank that the experts chosen by an op live in.
    routers: BTreeMap<OpId, u32>,
    /// The bank of each hint whose experts live in one.
    hints: BTreeMap<OpId, u32>,
    /// The loop that is open.
    open: Option<Loop>,
}

impl<'a> ExpertRecords<'a> {
    /// Finds which ops read records, and who chooses their experts.
    pub(crate) fn of(graph: &'a Graph, ids: &PlanIds) -> Self {
        let mut readers = BTreeMap::new();
        let mut routers = BTreeMap::new();
        let mut hints = BTreeMap::new();
        for id in &graph.order {
            let data = &graph.ops[*id];
            let (Op::ExpertLut { .. } | Op::ExpertVq { .. } | Op::ExpertHint {}) = data.op else { continue };
            let bank = graph.weight(data.operand(1)).and_then(|it| ids.banks[it.index()]);
            let Some(bank) = bank else { continue };
            if matches!(data.op, Op::ExpertHint {}) {
                hints.insert(*id, bank);
                continue;
            }
            let groups = data.operand(3);
            readers.insert(*id, (bank, groups));
            let chosen = graph.def_op(groups).map(|sort| sort.operand(0));
            let router = chosen.and_then(|ids| match graph.values[ids].def {
                waste_ir::Def::Op(op, _) => Some(op),
                _ => None,
            });
            routers.extend(router.map(|it| (it, bank)));
        }
        Self { graph, readers, routers, hints, open: None }
    }

    /// Whether the next step stands in a loop.
    pub(crate) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Opens a loop before the first op that reads records, and closes it before the sum over experts.
    pub(crate) fn before(&mut self, map: &MemoryMap<'_>, id: OpId, steps: &mut Vec<OpenStep>) {
        if let (None, Some((bank, groups))) = (self.open, self.readers.get(&id).copied()) {
            self.open = Some(Loop { bank, groups, window: steps.len(), reader: id });
            steps.push(edge(map, StepKind::ExpertWindow { bank, body: 0 }, groups, id));
        }
        let is_sum = matches!(self.graph.ops[id].op, Op::ExpertSum {});
        if let Some(Loop { bank, groups, window, reader }) = self.open.filter(|_| is_sum) {
            let body = u32::try_from(steps.len() - window).expect("few steps");
            steps[window].kind = StepKind::ExpertWindow { bank, body };
            steps.push(edge(map, StepKind::ExpertRelease { bank, body }, groups, reader));
            self.open = None;
        }
    }

    /// Begins to read as soon as experts are chosen.
    pub(crate) fn after(&self, map: &MemoryMap<'_>, id: OpId, steps: &mut Vec<OpenStep>) {
        if let Some(bank) = self.routers.get(&id).copied() {
            let chosen = self.graph.ops[id].results[0];
            steps.push(edge(map, StepKind::ExpertPrefetch { bank, speculative: false }, chosen, id));
        }
    }

    /// Begins to read what op `id`, a hint, guesses; no step where the bank is in memory.
    pub(crate) fn hint(&self, map: &MemoryMap<'_>, id: OpId, steps: &mut Vec<OpenStep>) {
        if let Some(bank) = self.hints.get(&id).copied() {
            let guessed = self.graph.ops[id].operand(0);
            steps.push(edge(map, StepKind::ExpertPrefetch { bank, speculative: true }, guessed, id));
        }
    }
}

/// A step that moves records, by what `value` says.
fn edge(map: &MemoryMap<'_>, kind: StepKind, value: ValueId, op: OpId) -> OpenStep {
    OpenStep { kind, reads: vec![map.loc(value)], writes: vec![], window: false, op }
}

/// Bytes of a slot of the expert cache: the largest record, with room for blocks that a direct read begins and ends in.
#[must_use]
pub fn slot_bytes(banks: &[Bank]) -> u64 {
    let bytes = |it: &Bank| {
        let is_aligned = it.offset.is_multiple_of(DIRECT) && it.bytes.is_multiple_of(DIRECT);
        let room = if is_aligned { 0 } else { DIRECT };
        it.bytes.saturating_add(room).checked_next_multiple_of(DIRECT).unwrap_or(u64::MAX)
    };
    banks.iter().map(bytes).max().unwrap_or(0)
}

/// Blocks in which files are read past the page cache.
const DIRECT: u64 = 4096;

/// Most experts of one token.
#[must_use]
pub fn top_k(programs: &[Program]) -> u64 {
    let steps = programs.iter().flat_map(|it| &it.steps);
    let chosen = steps.filter(|it| matches!(it.kind, StepKind::ExpertPrefetch { speculative: false, .. }));
    chosen.filter_map(|it| it.reads.first()).map(|it| u64::from(it.cols)).max().unwrap_or(1)
}

/// Records of a cache that serves well: twice those of a token in one layer, and three times those of a token in all layers; at
/// most all there are.
#[must_use]
pub fn recommended_slots(banks: &[Bank], top_k: u64) -> u64 {
    let all = banks.iter().map(|it| u64::from(it.experts)).sum();
    (2 * top_k).saturating_add(top_k.saturating_mul(3 * banks.len() as u64)).min(all)
}
