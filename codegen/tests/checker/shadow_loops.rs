//! Loops over expert records in the shadow: what is there, who let it go, and which pairs a window covers.
//!
//! A cache may hold any number of records, so the order of tiles also says how many experts a window takes.

use std::collections::HashMap;
use std::ops::Range;

use waste_plan::schema::{Step, StepKind};

use super::ideal::Matrix;
use super::kernels::{Kernel, Operands};
use super::memory::{Now, THREADS, Unit};
use super::shadow::Shadow;
use super::shadow_operands::ShadowOperands;

/// Windows of one run.
pub(super) struct Windows {
    /// Bank of the open window, and its experts.
    open: Option<(u32, Vec<u64>)>,
    groups: Range<u64>,
    pairs: Range<u64>,
    has_more: bool,
    /// The range that the one thread at a window sets and all read.
    range: Unit,
    /// Counters of tiles of the steps of a loop, which begin anew with each window.
    claims: Unit,
    /// By bank and expert: 1 where a record is there.
    records: HashMap<(u32, u64), Unit>,
}

impl Windows {
    pub(super) fn new() -> Self {
        let (range, claims) = (Unit::fresh(0), Unit::fresh(0));
        Self {
            open: None,
            groups: 0..0,
            pairs: 0..0,
            has_more: false,
            range,
            claims,
            records: HashMap::new(),
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

fn is_release(it: &Step, of: u32) -> bool {
    matches!(it.kind, StepKind::ExpertRelease { body, .. } if body == of)
}

fn is_window(it: &Step, of: u32) -> bool {
    matches!(it.kind, StepKind::ExpertWindow { body, .. } if body == of)
}

impl Shadow<'_> {
    /// Rows that a step in a loop works on, of `rows`.
    pub(super) fn covered(&mut self, kernel: &Kernel, rows: u64) -> Range<u64> {
        if !self.windows.is_open() {
            self.blame("works on a window that is not there");
        }
        // Every thread asks how many tiles there are.
        for thread in 0..THREADS {
            let now = Now { thread, ..self.now };
            let harm = self.windows.range.read(now).or_else(|| self.windows.claims.read(now));
            self.note_harm(harm);
        }
        let range = if kernel.family.is_by_expert() { &self.windows.groups } else { &self.windows.pairs };
        range.start.min(rows)..range.end.min(rows)
    }

    /// The matrix of expert `expert`, if weight `id` lies in records.
    pub(super) fn read_record(&mut self, id: u32, expert: u64) {
        let Some(at) = self.plan.weights.get(id as usize).and_then(|it| it.records) else { return };
        match self.windows.records.get_mut(&(at.bank, expert)).filter(|it| it.tag == 1) {
            Some(record) => {
                let harm = record.read(self.now);
                self.note_harm(harm);
            }
            None => self.blame("reads a record that is not there"),
        }
    }

    /// Prefetches, opens a window or lets it go; returns the step that follows.
    pub(super) fn moves(&mut self, steps: &[Step], index: usize, order: u32) -> usize {
        let step = &steps[index];
        self.now.thread = (index / THREADS.pow(order)) % THREADS;
        if step.reads.len() != 1 || !step.writes.is_empty() {
            self.blame("moves records by more than one operand");
            return index + 1;
        }
        let (StepKind::ExpertPrefetch { bank, .. }
        | StepKind::ExpertWindow { bank, .. }
        | StepKind::ExpertRelease { bank, .. }) = step.kind
        else {
            unreachable!("called for steps that move records")
        };
        let Some(experts) = self.plan.banks.get(bank as usize).map(|it| u64::from(it.experts)) else {
            self.blame("no such bank");
            return index + 1;
        };
        let is_ids = matches!(step.kind, StepKind::ExpertPrefetch { .. });
        let size = if is_ids { (self.call.tokens, 0) } else { (1, 2 * (experts + 1)) };
        self.has_size(&step.reads[0], size, "read 0");
        match step.kind {
            StepKind::ExpertPrefetch { speculative, .. } => {
                let ids = self.announced(step);
                // A guess of others changes no result, but it is not what the graph says.
                if speculative && self.ideal.guesses.get(&step.op) != Some(&ids) {
                    self.blame("guesses others than the graph");
                }
                index + 1
            }
            StepKind::ExpertWindow { bank, body } => {
                if !steps.get(index + body as usize).is_some_and(|it| is_release(it, body)) {
                    self.blame("counts the tiles of another step anew");
                }
                // One expert at a time, two, or all of them.
                self.open_window(bank, step, [1, 2, u64::MAX, 1][order as usize % 4]);
                index + 1
            }
            StepKind::ExpertRelease { bank, body } => {
                self.release(bank, step);
                let window = index.checked_sub(body as usize).filter(|it| is_window(&steps[*it], body));
                if window.is_none() {
                    self.blame("goes back to what is no window");
                }
                window.filter(|_| self.windows.has_more).unwrap_or(index + 1)
            }
            _ => unreachable!("called for steps that move records"),
        }
    }

    /// Tags of the ids that a step announces, each of which must be an index.
    fn announced(&mut self, step: &Step) -> Matrix {
        let mut x = ShadowOperands { shadow: self, step, memo: HashMap::new() };
        let (rows, cols) = (x.rows(0), x.cols(0));
        let mut tag = |row, col| {
            x.number(0, row, col);
            x.shadow.read(&step.reads[0], row, col)
        };
        (0..rows).map(|row| (0..cols).map(|col| tag(row, col)).collect()).collect()
    }

    /// Experts that have pairs, each with its first, and the end.
    fn groups(&mut self, step: &Step) -> Vec<(u64, u64)> {
        let mut x = ShadowOperands { shadow: self, step, memo: HashMap::new() };
        let n = x.cols(0);
        let numbers: Vec<u64> = (0..n).map(|col| x.number(0, 0, col)).collect();
        let all: Vec<(u64, u64)> = numbers.chunks_exact(2).map(|it| (it[0], it[1])).collect();
        let end = all.last().map_or(0, |it| it.0);
        let n = all.iter().take_while(|it| it.0 < end).count();
        all.into_iter().take(n + 1).collect()
    }

    fn open_window(&mut self, bank: u32, step: &Step, most: u64) {
        let groups = self.groups(step);
        if self.harm.is_some() {
            return;
        }
        if self.windows.is_open() {
            return self.blame("a window in a window");
        }
        let it = &mut self.windows;
        let first = if it.has_more { it.groups.end } else { 0 };
        let all = groups.len() as u64 - 1;
        let last = first.saturating_add(most).min(all);
        let pair = |at: u64| groups[usize::try_from(at).unwrap()].1;
        let experts: Vec<u64> = (first..last).map(|at| groups[usize::try_from(at).unwrap()].0).collect();
        (it.groups, it.pairs, it.has_more) = (first..last, pair(first.min(all))..pair(last), last < all);
        let mut harm = it.range.write(last, self.now);
        for expert in &experts {
            let record = it.records.entry((bank, *expert)).or_insert(Unit::fresh(0));
            harm = harm.or(record.write(1, self.now));
        }
        it.open = Some((bank, experts));
        self.note_harm(harm);
    }

    fn release(&mut self, bank: u32, step: &Step) {
        let groups = self.groups(step);
        if self.harm.is_some() {
            return;
        }
        let it = &mut self.windows;
        let range = it.groups.clone();
        let named =
            range.map(|at| usize::try_from(at).unwrap()).filter_map(|at| groups.get(at)).map(|it| it.0);
        let named: Vec<u64> = named.collect();
        if it.open.take() != Some((bank, named.clone())) {
            return self.blame("lets go what no window holds");
        }
        let mut harm = None;
        for expert in named {
            if let Some(record) = it.records.get_mut(&(bank, expert)) {
                harm = harm.or(record.write(0, self.now));
            }
        }
        // All threads ask whether experts are left; where they are, tiles are counted anew.
        for thread in 0..THREADS {
            harm = harm.or(it.range.read(Now { thread, ..self.now }));
        }
        if it.has_more {
            harm = harm.or(it.claims.write(0, self.now));
        }
        self.note_harm(harm);
    }
}
