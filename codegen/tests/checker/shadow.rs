//! The shadow executor: runs a plan's program in symbols and reports the first harm it sees.
//!
//! Memory is tagged unit by unit (four bytes): what it holds, and who touched it when. Three threads take the tiles in an
//! adversarial order; a barrier is the only thing that orders them, so a vector clock is the number of barriers passed, and
//! two accesses of the same unit race if they fall between the same barriers, on two threads, one of them writing.
//!
//! A recurrent state has two halves a row, of which one is accepted: reading takes that one, writing goes to the other.
//!
//! Harm is: outputs, states or guesses that differ from the graph's, a race, a write to an input, a weight or an accepted half, an index that is
//! none, an access outside the stated memory or its operand, a record that is not there, operands that no kernel takes, a tile
//! that cuts a group, or a step that does again what was done. It shares no code with the checker, nor with `validate` or the runtime.
//!
//! | file | has |
//! |---|---|
//! | `memory` | units and threads |
//! | `shadow_operands` | reading |
//! | `shadow_rules` | operands and tiles that kernels take |
//! | `shadow_loops` | windows over expert records |
//! | `targets`, `element` | what a tile makes of what |

use std::collections::HashMap;
use std::ops::Range;

use waste_plan::schema::{Operand, Place, Plan, Port, Program, Rows, State, StateKind, Step};

use super::element::element;
use super::ideal::{Call, Outcome, input_tag, state_width};
use super::kernels::{Family, Kernel, LINE, Operands, mix, name};
use super::memory::{Element, Memory, Now, THREADS, Unit, memory};
use super::of_step;
use super::shadow_loops::Windows;
use super::shadow_operands::ShadowOperands;
use super::targets::{Target, targets};

pub(super) struct Shadow<'p> {
    pub(super) plan: &'p Plan,
    pub(super) ideal: &'p Outcome,
    pub(super) call: Call,
    pub(super) scratch: Memory,
    pub(super) io: Memory,
    is_input: Vec<bool>,
    /// Vectors of caches; of recurrent states both halves of each row, each the columns that are computed apart.
    pub(super) states: Vec<Memory>,
    /// A hash of each weight.
    pub(super) weights: &'p [u64],
    /// What tags stand for.
    pub(super) numbers: HashMap<u64, u64>,
    pub(super) windows: Windows,
    pub(super) now: Now,
    /// The element that is being computed or written.
    pub(super) element: Element,
    /// Units that the current step gave another content.
    news: usize,
    pub(super) harm: Option<String>,
}

/// The first harm of running program `program`, whose graph leaves `ideal` behind. `order` varies who takes which tile.
/// `weights`: from [`weight_tags`].
pub(crate) fn harm(
    plan: &Plan,
    program: &Program,
    weights: &[u64],
    (call, ideal): (Call, &Outcome),
    order: u32,
) -> Option<String> {
    let mut shadow = Shadow::new(plan, weights, (call, ideal));
    let (mut at, mut fuel) = (0, 16 * program.steps.len());
    while let Some(step) = program.steps.get(at) {
        shadow.now.barriers += u32::from(step.barrier);
        let next = match step.kind.moves_experts() {
            true => shadow.moves(&program.steps, at, order),
            false => shadow.step(at, step, order),
        };
        fuel -= 1;
        if fuel == 0 {
            shadow.blame("a loop without an end");
        }
        if shadow.harm.is_some() {
            return shadow.harm.map(|it| format!("step #{at}: {it}"));
        }
        at = next;
    }
    shadow.compare();
    shadow.harm
}

/// Harm in the facts of the plan, before any step: things that lie over one another or outside their space.
pub(crate) fn misplaced(plan: &Plan) -> Option<String> {
    let port_bytes = |it: &Port| u64::from(it.rows) * u64::from(it.cols) * 4;
    let spaces = [
        (
            "weights",
            plan.memory.weights,
            plan.weights.iter().map(|it| (it.offset, it.bytes)).collect::<Vec<_>>(),
        ),
        ("states", plan.memory.states, plan.states.iter().map(|it| (it.offset, it.bytes)).collect()),
        ("ports", plan.memory.io, plan.ports.iter().map(|it| (it.offset, port_bytes(it))).collect()),
    ];
    for (what, end, ranges) in spaces {
        for (i, (a, n)) in ranges.iter().enumerate() {
            if a + n > end || ranges[..i].iter().any(|(b, m)| a < &(b + m) && b < &(a + n)) {
                return Some(format!("{what} overlap or leave their space"));
            }
        }
    }
    None
}

/// The accepted part of each row is what the graph begins with, the other half of it something older.
fn state_memory(it: &State, call: Call) -> Memory {
    let tag = |i: u64| Unit::fresh(mix(name(&it.name), i));
    let rows = u64::from(it.shape[0]);
    match it.kind {
        StateKind::Recurrent => {
            let width = state_width(it.shape);
            let stale = |i: u64| Unit::fresh(mix(name("stale"), mix(name(&it.name), i)));
            let half = |row: u64, half: u64| {
                let is_accepted = call.half(row) == half;
                (row * width..(row + 1) * width).map(move |i| if is_accepted { tag(i) } else { stale(i) })
            };
            (0..2 * rows).flat_map(|it| half(it / 2, it % 2)).collect()
        }
        StateKind::Keys | StateKind::Values => {
            (0..rows * u64::from(it.shape[1]) * u64::from(it.shape[2])).map(tag).collect()
        }
    }
}

impl<'p> Shadow<'p> {
    fn new(plan: &'p Plan, weights: &'p [u64], (call, ideal): (Call, &'p Outcome)) -> Self {
        let mut io = memory(plan.memory.io, "unset io");
        let mut is_input = vec![false; io.len()];
        let mut numbers = HashMap::new();
        for port in plan.ports.iter().filter(|it| it.name.is_input()) {
            let n = if port.name.name() == "want" { call.want } else { call.tokens };
            for i in 0..u64::from(port.rows) {
                let Some(at) = usize::try_from(port.offset / 4 + i).ok().filter(|it| *it < io.len()) else {
                    continue;
                };
                is_input[at] = true;
                if i < n {
                    let tag = input_tag(port.name.name(), i);
                    io[at] = Unit::fresh(tag);
                    numbers.insert(tag, call.input(port.name.name(), i));
                }
            }
        }
        Self {
            plan,
            ideal,
            call,
            scratch: memory(plan.memory.scratch, "unset scratch"),
            io,
            is_input,
            states: plan.states.iter().map(|it| state_memory(it, call)).collect(),
            weights,
            numbers,
            windows: Windows::new(),
            now: Now { barriers: 1, thread: 0 },
            element: (0, 0, 0),
            news: 0,
            harm: None,
        }
    }

    pub(super) fn blame(&mut self, what: impl Into<String>) {
        self.harm.get_or_insert_with(|| what.into());
    }

    pub(super) fn rows(&self, rows: Rows) -> u64 {
        match rows {
            Rows::Fixed(n) => u64::from(n),
            Rows::Tokens(n) => u64::from(n) * self.call.tokens,
            Rows::Want(n) => u64::from(n) * self.call.want,
        }
    }

    /// Carries out step `index`, which computes; returns the one that follows.
    fn step(&mut self, index: usize, step: &Step, order: u32) -> usize {
        self.element.0 = index + 1;
        if step.writes.is_empty() {
            self.blame("no result");
            return index + 1;
        }
        let kernel = of_step::kernel(step);
        self.rules(step, &kernel);
        let y = &step.writes[0];
        let (rows, units) = match kernel.family {
            Family::Append => (self.call.tokens, self.heads_of(y)),
            _ => (self.rows(y.rows), units(y)),
        };
        let (rows, cols) = kernel.extent(rows, units);
        let rows = if step.window { self.covered(&kernel, rows) } else { 0..rows };
        // Quantised rows and appended vectors are never cut.
        let is_cut = y.dtype.fx().is_none() && kernel.family != Family::Append;
        let tile_cols = match (is_cut, kernel.family) {
            (true, Family::Tables) => u64::from(step.tile.cols).div_ceil(256) * kernel.head,
            (true, _) => u64::from(step.tile.cols),
            (false, _) => cols,
        };
        let tile_rows = usize::try_from(step.tile.rows).unwrap().max(1);
        let tile_cols = usize::try_from(tile_cols).unwrap().max(1);
        self.news = 0;
        let is_empty = rows.is_empty();
        let mut tile = 0;
        for row in rows.clone().step_by(tile_rows) {
            for col in (0..cols).step_by(tile_cols) {
                let digit = index / THREADS.pow(order);
                self.now.thread = (digit + tile) % THREADS;
                tile += 1;
                let ends = (rows.end.min(row + tile_rows as u64), cols.min(col + tile_cols as u64));
                self.tile(step, &kernel, row..ends.0, &(col..ends.1));
                if self.harm.is_some() {
                    return index + 1;
                }
            }
        }
        if self.news == 0 && !is_empty {
            self.blame("does again what was done");
        }
        index + 1
    }

    /// Reads all that a tile depends on, then writes it.
    fn tile(&mut self, step: &Step, kernel: &Kernel, rows: Range<u64>, cols: &Range<u64>) {
        let mut results = Vec::new();
        let mut x = ShadowOperands { shadow: self, step, memo: HashMap::new() };
        let mut last_row = None;
        for it in targets(kernel, &mut x, rows, cols) {
            // Who reads a unit matters where the result may lie over it: there a row is read for itself alone.
            if !step.kind.in_place().is_empty() && last_row.replace(it.row) != Some(it.row) {
                x.memo.clear();
            }
            x.shadow.element = x.shadow.element_of(kernel, it);
            let place = match kernel.family {
                Family::Append => (x.number(1, it.row, 0), x.number(2, it.row, 0)),
                _ => (it.row, 0),
            };
            results.push((it, place, element(kernel, &mut x, it)));
            if x.shadow.harm.is_some() {
                return;
            }
        }
        for (it, place, tag) in results {
            self.element = self.element_of(kernel, it);
            let Some(y) = step.writes.get(it.result) else { return self.blame("too few results") };
            match y.place {
                Place::State(id) => self.write_state(id, place, it.col, tag),
                Place::Scratch(_) | Place::Io(_) | Place::Weight(_) if kernel.family == Family::Tables => {
                    (0..LINE).for_each(|i| self.write(y, it.row, it.col * LINE + i, mix(tag, i)));
                }
                Place::Scratch(_) | Place::Io(_) | Place::Weight(_) => self.write(y, it.row, it.col, tag),
            }
        }
    }

    fn element_of(&self, kernel: &Kernel, it: Target) -> Element {
        (self.element.0, it.row + ((it.result as u64) << 48), it.col / kernel.group())
    }

    /// Index of a unit of an operand in its space, which must be scratch or io.
    pub(super) fn unit(&mut self, it: &Operand, row: u64, col: u64) -> Option<usize> {
        let (Place::Scratch(offset) | Place::Io(offset)) = it.place else {
            self.blame("an operand that is no activation");
            return None;
        };
        if row >= self.rows(it.rows) || col >= units(it) {
            self.blame(format!("unit {col} of row {row} is outside its operand"));
        }
        let end = if matches!(it.place, Place::Io(_)) { self.io.len() } else { self.scratch.len() };
        let byte = row.checked_mul(it.stride).and_then(|it| it.checked_add(offset)?.checked_add(4 * col));
        let byte = byte.filter(|it| it.is_multiple_of(4)).and_then(|it| usize::try_from(it / 4).ok());
        let at = byte.filter(|it| *it < end);
        if at.is_none() {
            self.blame(format!("unit {col} of row {row} is outside memory or askew"));
        }
        at
    }

    fn write(&mut self, y: &Operand, row: u64, col: u64, tag: u64) {
        let Some(at) = self.unit(y, row, col) else { return };
        let is_io = matches!(y.place, Place::Io(_));
        if is_io && self.is_input[at] {
            return self.blame("writes an input");
        }
        let unit = if is_io { &mut self.io[at] } else { &mut self.scratch[at] };
        self.news += usize::from(unit.tag != tag);
        if unit.reader.0 == self.element.0 && unit.reader != self.element {
            self.harm
                .get_or_insert_with(|| "writes over what another element of the result is made of".into());
        }
        let harm = unit.write(tag, self.now);
        self.note_harm(harm);
    }

    /// A vector of a cache at a row and position, or an element of the half of a recurrent row that is not accepted.
    fn write_state(&mut self, id: u32, (row, pos): (u64, u64), col: u64, tag: u64) {
        let is_recurrent =
            self.plan.states.get(id as usize).is_some_and(|it| it.kind == StateKind::Recurrent);
        let at = match is_recurrent {
            true => self.recurrent(id, row, 1 - self.call.half(row), col),
            false => self.vector(id, row, pos, col),
        };
        if let Some(at) = at {
            let unit = &mut self.states[id as usize][at];
            self.news += usize::from(unit.tag != tag);
            let harm = unit.write(tag, self.now);
            self.note_harm(harm);
        }
    }

    pub(super) fn note_harm(&mut self, harm: Option<&'static str>) {
        if let Some(harm) = harm {
            self.blame(harm);
        }
    }

    /// Outputs are where the ports say, states hold what they should.
    fn compare(&mut self) {
        let ideal = self.ideal;
        if self.windows.is_open() {
            return self.blame("a window that stays open");
        }
        for (name, rows) in &ideal.outputs {
            let Some(port) = self.plan.ports.iter().find(|it| it.name.name() == name) else {
                return self.blame(format!("no port '{name}'"));
            };
            for (i, row) in rows.iter().enumerate() {
                let first = usize::try_from(port.offset).unwrap() / 4 + i * port.cols as usize;
                let found = self.io.get(first..first + row.len());
                if !found.is_some_and(|found| found.iter().map(|it| it.tag).eq(row.iter().copied())) {
                    return self.blame(format!("row {i} of '{name}' is not what the graph computes"));
                }
            }
        }
        for (name, vectors) in &ideal.states {
            let at = self.plan.states.iter().position(|it| it.name == *name);
            let found = at.map(|it| self.left_behind(it));
            if found.as_ref() != Some(vectors) {
                return self.blame(format!("state '{name}' is not what the graph leaves"));
            }
        }
        self.accepted_halves();
    }

    /// What a state holds for the next call: of a recurrent one the new halves of the rows that have tokens in this call.
    fn left_behind(&self, at: usize) -> Vec<u64> {
        let (it, memory) = (&self.plan.states[at], &self.states[at]);
        if it.kind != StateKind::Recurrent {
            return memory.iter().map(|it| it.tag).collect();
        }
        let width = usize::try_from(state_width(it.shape)).unwrap();
        let half =
            |row: u64| if row < self.call.rows { 1 - self.call.half(row) } else { self.call.half(row) };
        let halves = (0..u64::from(it.shape[0])).map(|row| usize::try_from(2 * row + half(row)).unwrap());
        halves.flat_map(|at| &memory[at * width..(at + 1) * width]).map(|it| it.tag).collect()
    }

    /// A call that fails must leave what was accepted as it was.
    fn accepted_halves(&mut self) {
        for (state, memory) in self.plan.states.iter().zip(&self.states) {
            let before = state_memory(state, self.call);
            let width = usize::try_from(state_width(state.shape)).unwrap();
            let rows = if state.kind == StateKind::Recurrent { u64::from(state.shape[0]) } else { 0 };
            for row in 0..rows {
                let at = usize::try_from(2 * row + self.call.half(row)).unwrap() * width;
                let same = memory[at..at + width].iter().map(|it| it.tag);
                if !same.eq(before[at..at + width].iter().map(|it| it.tag)) {
                    return self.blame(format!("writes the accepted half of '{}'", state.name));
                }
            }
        }
    }
}

/// Units of four bytes in a row.
pub(super) fn units(it: &Operand) -> u64 {
    it.dtype.row_bytes(u64::from(it.cols)).unwrap_or(0) / 4
}

/// A hash of what each weight is, in the words of the ideal executor.
pub(crate) fn weight_tags(plan: &Plan) -> Vec<u64> {
    let tag = |it: &waste_plan::schema::Weight| {
        let size = format!("{} {} {} {}", it.dtype.name(), it.bank, it.rows, it.cols);
        let mut text = format!("{} {size} {}", it.name, it.packing.name());
        for part in &it.parts {
            let (source, offset, stored) = (part.source, part.offset, part.stored.name());
            text.push_str(&format!(" {source} {offset} {stored} {} {}", part.rows, part.transposed));
            text.extend(part.terms.iter().map(|it| format!(" {it:?}")));
        }
        if let Some(at) = it.records {
            let bank = plan.banks.get(at.bank as usize).map(|it| (it.source, it.offset, it.bytes));
            let (source, first, stride) = bank.unwrap_or_default();
            text.push_str(&format!(" {source} {first} {stride} {} {}", at.indices, at.scales));
        }
        name(&text)
    };
    plan.weights.iter().map(tag).collect()
}
