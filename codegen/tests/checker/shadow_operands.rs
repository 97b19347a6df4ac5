//! Reading in the shadow: operands of a step, in its memory.

use std::collections::HashMap;

use waste_plan::schema::{Operand, Place, StateKind, Step};

use super::ideal::state_width;
use super::kernels::{Operands, mix};
use super::shadow::{Shadow, units};

impl Shadow<'_> {
    pub(super) fn read(&mut self, x: &Operand, row: u64, col: u64) -> u64 {
        let Some(at) = self.unit(x, row, col) else { return 0 };
        let unit = if matches!(x.place, Place::Io(_)) { &mut self.io[at] } else { &mut self.scratch[at] };
        unit.reader = self.element;
        let (tag, harm) = (unit.tag, unit.read(self.now));
        self.note_harm(harm);
        tag
    }

    /// Heads of the cache that an operand is.
    pub(super) fn heads_of(&self, it: &Operand) -> u64 {
        match it.place {
            Place::State(id) => self.plan.states.get(id as usize).map_or(1, |it| it.shape[2].into()),
            Place::Scratch(_) | Place::Io(_) | Place::Weight(_) => 1,
        }
    }

    /// Index of a cached vector.
    pub(super) fn vector(&mut self, id: u32, row: u64, pos: u64, head: u64) -> Option<usize> {
        let state = self.plan.states.get(id as usize).filter(|it| it.kind != StateKind::Recurrent);
        let shape = state.map(|it| it.shape.map(u64::from));
        let at = shape.filter(|it| row < it[0] && pos < it[1] && head < it[2]);
        let at = at.and_then(|it| usize::try_from((row * it[1] + pos) * it[2] + head).ok());
        if at.is_none() {
            self.blame("a vector outside its cache");
        }
        at
    }

    /// Index of an element of a half of a row of a recurrent state.
    pub(super) fn recurrent(&mut self, id: u32, row: u64, half: u64, col: u64) -> Option<usize> {
        let state = self.plan.states.get(id as usize).filter(|it| it.kind == StateKind::Recurrent);
        let size = state.map(|it| (u64::from(it.shape[0]), state_width(it.shape)));
        let at = size.filter(|(rows, width)| row < *rows && col < *width);
        let at = at.and_then(|(_, width)| usize::try_from((2 * row + half) * width + col).ok());
        if at.is_none() {
            self.blame("an element outside its state");
        }
        at
    }

    fn read_state(&mut self, id: u32, at: usize) -> u64 {
        let unit = &mut self.states[id as usize][at];
        let (tag, harm) = (unit.tag, unit.read(self.now));
        self.note_harm(harm);
        tag
    }
}

pub(super) struct ShadowOperands<'s, 'p> {
    pub(super) shadow: &'s mut Shadow<'p>,
    pub(super) step: &'s Step,
    pub(super) memo: HashMap<(usize, u64, u64, u64), u64>,
}

impl ShadowOperands<'_, '_> {
    fn operand(&mut self, slot: usize) -> Option<Operand> {
        let it = self.step.reads.get(slot).copied();
        if it.is_none() {
            self.shadow.blame("too few operands");
        }
        it
    }
}

impl Operands for ShadowOperands<'_, '_> {
    fn row(&mut self, slot: usize, row: u64, from: u64, to: u64) -> u64 {
        let Some(it) = self.operand(slot) else { return 0 };
        if let Place::Weight(id) = it.place {
            return self.shadow.weights.get(id as usize).copied().unwrap_or(0);
        }
        if let Some(hash) = self.memo.get(&(slot, row, from, to)) {
            return *hash;
        }
        let mut hash = 0;
        for col in from..to {
            hash = mix(hash, self.shadow.read(&it, row, col));
            if self.shadow.harm.is_some() {
                return 0;
            }
        }
        self.memo.insert((slot, row, from, to), hash);
        hash
    }
    fn matrix(&mut self, slot: usize, at: u64) -> u64 {
        let Some(Operand { place: Place::Weight(id), .. }) = self.operand(slot) else {
            self.shadow.blame("a bank that is none");
            return 0;
        };
        self.shadow.read_record(id, at);
        mix(self.shadow.weights.get(id as usize).copied().unwrap_or(0), at)
    }
    fn rows(&self, slot: usize) -> u64 {
        self.step.reads.get(slot).map_or(0, |it| self.shadow.rows(it.rows))
    }
    fn cols(&self, slot: usize) -> u64 {
        let it = self.step.reads.get(slot).filter(|it| !matches!(it.place, Place::Weight(_)));
        it.map_or(0, units)
    }
    fn width(&self, slot: usize) -> u64 {
        self.step.reads.get(slot).map_or(0, |it| it.cols.into())
    }
    fn number(&mut self, slot: usize, row: u64, col: u64) -> u64 {
        let Some(it) = self.operand(slot) else { return 0 };
        let tag = self.shadow.read(&it, row, col);
        let number = self.shadow.numbers.get(&tag).copied();
        if number.is_none() {
            self.shadow.blame("follows an index that is none");
        }
        number.unwrap_or(0)
    }
    fn note(&mut self, tag: u64, number: u64) {
        self.shadow.numbers.insert(tag, number);
    }
    fn cached(&mut self, slot: usize, row: u64, pos: u64, head: u64) -> u64 {
        let Some(Operand { place: Place::State(id), .. }) = self.operand(slot) else {
            self.shadow.blame("a cache that is none");
            return 0;
        };
        // Slots of activations and of caches differ, so the two kinds of keys do too.
        let key = (slot, row, pos, head);
        if let Some(hash) = self.memo.get(&key) {
            return *hash;
        }
        let mut hash = 0;
        for at in 0..=pos {
            let Some(at) = self.shadow.vector(id, row, at, head) else { return 0 };
            hash = mix(hash, self.shadow.read_state(id, at));
        }
        self.memo.insert(key, hash);
        hash
    }
    fn heads(&self, slot: usize) -> u64 {
        self.step.reads.get(slot).map_or(1, |it| self.shadow.heads_of(it))
    }
    fn accepted(&mut self, row: u64, col: u64) -> u64 {
        let Some(Operand { place: Place::State(id), .. }) = self.step.writes.last().copied() else {
            self.shadow.blame("a recurrence without a state");
            return 0;
        };
        let half = self.shadow.call.half(row);
        let Some(at) = self.shadow.recurrent(id, row, half, col) else { return 0 };
        self.shadow.read_state(id, at)
    }
    fn len(&self) -> usize {
        self.step.reads.len()
    }
}
