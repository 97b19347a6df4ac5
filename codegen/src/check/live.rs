//! Live ranges, derived again from what the walk saw: no two live buffers share a byte, and how much is live at most.
//!
//! A buffer is a value, its views, and what is written in place over it; it is live from its first write to its last use. A loop over
//! experts repeats its steps for other rows, so that a buffer which crosses one of its edges is live in all of it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use waste_ir::ValueId;
use waste_plan::schema::{Program, StepKind};

use super::error::{CheckError, Fault};
use super::walk::Trace;

/// A buffer: its bytes in scratch and its steps, both as half-open and closed ranges respectively.
#[derive(Clone, Copy)]
struct Buffer {
    value: ValueId,
    start: u64,
    end: u64,
    first: usize,
    last: usize,
}

impl Buffer {
    /// Both together.
    fn join(self, other: Self) -> Self {
        Self {
            value: self.value,
            start: self.start.min(other.start),
            end: self.end.max(other.end),
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }
}

/// Reports buffers that share bytes while both are live; returns the most bytes live at one step, in lines of 64.
pub(super) fn sweep(program: &Program, trace: &Trace, errors: &mut Vec<CheckError>) -> u64 {
    let buffers = buffers(program, trace);
    let mut live: BTreeMap<u64, Buffer> = BTreeMap::new();
    let mut expiry: BinaryHeap<Reverse<(usize, u64)>> = BinaryHeap::new();
    let (mut bytes, mut most) = (0u64, 0u64);
    for buffer in buffers {
        while let Some(Reverse((last, start))) = expiry.peek().copied() {
            if last >= buffer.first {
                break;
            }
            expiry.pop();
            bytes -= live.remove(&start).map_or(0, |it| size(&it));
        }
        let below = live.range(..=buffer.start).next_back().filter(|(_, it)| it.end > buffer.start);
        let above = live.range(buffer.start..buffer.end).next();
        if let Some((_, other)) = below.or(above) {
            let shared = Fault::Shared { value: buffer.value, other: other.value, until: other.last };
            errors.push(CheckError::step(&program.name, buffer.first, shared));
            continue;
        }
        bytes += size(&buffer);
        most = most.max(bytes);
        expiry.push(Reverse((buffer.last, buffer.start)));
        live.insert(buffer.start, buffer);
    }
    most
}

/// `it`, stretched over each loop that it is written or read in but does not stay inside of.
fn whole_loops(program: &Program, mut it: Buffer) -> Buffer {
    for (window, step) in program.steps.iter().enumerate() {
        let StepKind::ExpertWindow { body, .. } = step.kind else { continue };
        let release = window + body as usize;
        let begins_inside = window <= it.first && it.first <= release;
        let ends_inside = window <= it.last && it.last <= release;
        if begins_inside && release < it.last {
            it.first = window;
        }
        if ends_inside && it.first < window {
            it.last = release;
        }
    }
    it
}

const fn size(it: &Buffer) -> u64 {
    (it.end - it.start).next_multiple_of(64)
}

/// The buffers of scratch by first step.
fn buffers(program: &Program, trace: &Trace) -> Vec<Buffer> {
    let mut parent: HashMap<ValueId, ValueId> = HashMap::new();
    let mut own: Vec<Buffer> = Vec::new();
    let mut index: HashMap<ValueId, usize> = HashMap::new();
    for (step, it) in trace.steps.iter().enumerate() {
        for read in &it.reads {
            if let Some(i) = index.get(read) {
                own[*i].last = step;
            }
        }
        for (nth, (value, runs)) in it.results.iter().enumerate() {
            index.insert(*value, own.len());
            own.push(Buffer { value: *value, start: runs.start(), end: runs.end(), first: step, last: step });
            // An in-place chain hangs below its first value, so roots are one step away.
            let over = it.over.filter(|over| nth == 0 && index.contains_key(over));
            let root = over.and_then(|over| parent.get(&over).copied());
            parent.insert(*value, root.unwrap_or(*value));
        }
    }
    let mut joined: BTreeMap<ValueId, Buffer> = BTreeMap::new();
    for buffer in own {
        let root = parent[&buffer.value];
        joined.entry(root).and_modify(|it| *it = it.join(buffer)).or_insert(buffer);
    }
    let mut out: Vec<Buffer> = joined.into_values().map(|it| whole_loops(program, it)).collect();
    out.sort_by_key(|it| (it.first, it.start));
    out
}
