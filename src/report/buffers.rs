//! What lies in scratch, and when: read off the steps of a plan.
//!
//! A *buffer* is what one write begins, with all that is later written in place over it. It lives from the step that begins it to
//! the last that reads or writes it; across a loop over experts, for the whole loop, since the body runs several times.
//!
//! Invariant: the most bytes live at one step of a plan's programs are its `scratch_lower_bound`. The planner found that number from
//! the graph, before any buffer had a place.

use std::ops::{Range, RangeInclusive};

use waste_plan::schema::{Operand, Place, Program, Step, StepKind};

/// A range of scratch while it holds something that is still needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The step that writes it first.
    pub step: usize,
    /// Which of that step's writes.
    pub slot: usize,
    /// First and last step in which it is live.
    pub live: RangeInclusive<usize>,
    /// Byte offset in scratch.
    pub offset: u64,
    /// Bytes, at the largest call of the program.
    pub bytes: u64,
}

impl Buffer {
    fn holds(&self, offset: u64) -> bool {
        self.offset <= offset && offset - self.offset < self.bytes
    }
}

/// Every buffer of `program`, in the order in which they begin.
#[must_use]
pub fn buffers(program: &Program) -> Vec<Buffer> {
    let mut all: Vec<Buffer> = Vec::new();
    for (at, step) in program.steps.iter().enumerate() {
        let touched = step.reads.iter().filter_map(scratch);
        for offset in touched {
            touch(&mut all, offset, at);
        }
        for (slot, operand) in step.writes.iter().enumerate() {
            let Some(offset) = scratch(operand) else { continue };
            if slot == 0 && read_below(step).is_some() {
                touch(&mut all, offset, at);
                continue;
            }
            let rows = operand.rows.count(program.tokens, program.want);
            let bytes = operand.span(rows).and_then(|it| it.checked_next_multiple_of(64)).unwrap_or(u64::MAX);
            all.push(Buffer { step: at, slot, live: at..=at, offset, bytes });
        }
    }
    for buffer in &mut all {
        for (first, last) in loops(program) {
            let (start, end) = (*buffer.live.start(), *buffer.live.end());
            let body = first..=last;
            let start = if body.contains(&start) && last < end { first } else { start };
            let end = if start < first && body.contains(&end) { last } else { end };
            buffer.live = start..=end;
        }
    }
    all
}

/// The bytes live at each step.
#[must_use]
pub fn live_bytes(program: &Program) -> Vec<u64> {
    let mut live = vec![0u64; program.steps.len()];
    for it in buffers(program) {
        live[it.live].iter_mut().for_each(|sum| *sum = sum.saturating_add(it.bytes));
    }
    live
}

/// For each step and each of its reads, the step that wrote what is read; `None` for weights, states and what the caller gives.
///
/// Operands are compared by their first rows: a slice of a matrix shares rows with the rest of it, but no columns.
#[must_use]
pub fn writers(program: &Program) -> Vec<Vec<Option<usize>>> {
    let mut written: Vec<(usize, FirstRow)> = Vec::new();
    let mut all = Vec::with_capacity(program.steps.len());
    for (at, step) in program.steps.iter().enumerate() {
        let writer = |it: &Operand| {
            let row = FirstRow::of(it)?;
            written.iter().rev().find(|it| it.1.overlaps(&row)).map(|it| it.0)
        };
        all.push(step.reads.iter().map(writer).collect());
        for row in step.writes.iter().filter_map(FirstRow::of) {
            written.retain(|it| !row.covers(&it.1));
            written.push((at, row));
        }
    }
    all
}

/// The bytes of an operand's first row, in scratch or in the caller's arrays.
struct FirstRow {
    is_io: bool,
    bytes: Range<u64>,
}

impl FirstRow {
    fn of(it: &Operand) -> Option<Self> {
        let (is_io, start) = match it.place {
            Place::Scratch(offset) => (false, offset),
            Place::Io(offset) => (true, offset),
            Place::Weight(_) | Place::State(_) => return None,
        };
        Some(Self { is_io, bytes: start..start.saturating_add(it.row_bytes().unwrap_or(0)) })
    }

    fn overlaps(&self, it: &Self) -> bool {
        self.is_io == it.is_io && self.bytes.start < it.bytes.end && it.bytes.start < self.bytes.end
    }

    fn covers(&self, it: &Self) -> bool {
        self.is_io == it.is_io && self.bytes.start <= it.bytes.start && it.bytes.end <= self.bytes.end
    }
}

/// The read of `step`, by its number, that the first result lies exactly over.
#[must_use]
pub fn read_below(step: &Step) -> Option<usize> {
    let write = step.writes.first()?;
    let is_same = |slot: &usize| {
        step.reads.get(*slot).is_some_and(|it| (it.place, it.stride) == (write.place, write.stride))
    };
    step.kind.in_place().iter().copied().find(is_same)
}

fn scratch(operand: &Operand) -> Option<u64> {
    match operand.place {
        Place::Scratch(offset) => Some(offset),
        Place::Io(_) | Place::Weight(_) | Place::State(_) => None,
    }
}

/// The newest buffer at `offset` is needed at step `at`.
fn touch(all: &mut [Buffer], offset: u64, at: usize) {
    if let Some(it) = all.iter_mut().rev().find(|it| it.holds(offset)) {
        it.live = *it.live.start()..=at;
    }
}

/// First and last step of each loop over experts.
pub(super) fn loops(program: &Program) -> impl Iterator<Item = (usize, usize)> + '_ {
    program.steps.iter().enumerate().filter_map(|(at, step)| match step.kind {
        StepKind::ExpertWindow { body, .. } => Some((at, (at + body as usize).min(program.steps.len() - 1))),
        _ => None,
    })
}
