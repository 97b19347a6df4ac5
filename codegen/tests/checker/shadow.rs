//! The shadow executor: runs a plan's program in symbols and reports the first harm it sees.
//!
//! Memory is tagged unit by unit (four bytes): what it holds, and who touched it when. Three threads take the tiles in an
//! adversarial order; a barrier is the only thing that orders them, so a vector clock is the number of barriers passed, and
//! two accesses of the same unit race if they fall between the same barriers, on two threads, one of them writing.
//!
//! Harm is: outputs or states that differ from the graph's, a race, a write to an input or weight, an index that is none, an access
//! outside the stated memory or its operand, operands that no kernel takes, a tile that cuts a group, or a step that does again what was done. It shares no code with the checker, nor with `validate`.

use std::collections::HashMap;

use waste_plan::schema::{Operand, Place, Plan, Port, Program, Rows, Step};

use super::ideal::{Call, Outcome, input_tag};
use super::kernels::{Family, Kernel, Operands, element, mix, name};

/// Threads of the shadow.
pub(crate) const THREADS: usize = 3;

#[derive(Clone, Copy)]
struct Unit {
    tag: u64,
    /// Barriers passed when it was last written, and by which thread.
    written: (u32, usize),
    /// Barriers passed when each thread last read it.
    read: [u32; THREADS],
    /// The step that last read it, and the element of the result that it did so for.
    reader: Element,
}

/// A step (from 1) and an element of its result; heads of a rotation count as one element.
type Element = (usize, u64, u64);

type Memory = Vec<Unit>;

struct Shadow<'p> {
    plan: &'p Plan,
    call: Call,
    scratch: Memory,
    io: Memory,
    is_input: Vec<bool>,
    caches: Vec<Memory>,
    /// A hash of each weight.
    weights: &'p [u64],
    /// What the tags of inputs stand for.
    numbers: HashMap<u64, u64>,
    barriers: u32,
    thread: usize,
    /// The element that is being computed or written.
    element: Element,
    /// Units that the current step gave another content.
    news: usize,
    harm: Option<String>,
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
    let mut shadow = Shadow::new(plan, weights, call);
    for (i, step) in program.steps.iter().enumerate() {
        shadow.barriers += u32::from(step.barrier);
        shadow.step(i, step, order);
        if shadow.harm.is_some() {
            return shadow.harm.map(|it| format!("step #{i}: {it}"));
        }
    }
    shadow.compare(ideal);
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

fn fresh(tag: u64) -> Unit {
    Unit { tag, written: (0, 0), read: [0; THREADS], reader: (0, 0, 0) }
}

fn memory(bytes: u64, what: &str) -> Memory {
    (0..bytes / 4).map(|i| fresh(mix(name(what), i))).collect()
}

impl<'p> Shadow<'p> {
    fn new(plan: &'p Plan, weights: &'p [u64], call: Call) -> Self {
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
                    io[at] = fresh(tag);
                    numbers.insert(tag, call.input(port.name.name(), i));
                }
            }
        }
        let cache = |it: &waste_plan::schema::State| {
            let n: u64 = it.shape[..3].iter().map(|it| u64::from(*it)).product();
            (0..n).map(|i| fresh(mix(name(&it.name), i))).collect()
        };
        Self {
            plan,
            call,
            scratch: memory(plan.memory.scratch, "unset scratch"),
            io,
            is_input,
            caches: plan.states.iter().map(cache).collect(),
            weights,
            numbers,
            barriers: 1,
            thread: 0,
            element: (0, 0, 0),
            news: 0,
            harm: None,
        }
    }

    fn blame(&mut self, what: impl Into<String>) {
        self.harm.get_or_insert_with(|| what.into());
    }

    fn rows(&self, rows: Rows) -> u64 {
        match rows {
            Rows::Fixed(n) => u64::from(n),
            Rows::Tokens(n) => u64::from(n) * self.call.tokens,
            Rows::Want(n) => u64::from(n) * self.call.want,
        }
    }

    fn step(&mut self, index: usize, step: &Step, order: u32) {
        let [y] = &step.writes[..] else { return self.blame("not one result") };
        let kernel = Kernel::of_step(&step.kind, y);
        let is_append = kernel.family == Family::Append;
        let (rows, cols) = match (is_append, y.place) {
            (true, Place::State(id)) => match self.plan.states.get(id as usize) {
                Some(state) => (self.call.tokens, u64::from(state.shape[2])),
                None => return self.blame("no such state"),
            },
            (false, Place::Scratch(_) | Place::Io(_)) => (self.rows(y.rows), units(y)),
            _ => return self.blame("writes where it may not"),
        };
        let unit = if y.dtype.fx().is_some() { 128 } else { 16 };
        let is_whole = step.tile.cols >= y.cols || is_append;
        let cuts_columns = matches!(kernel.family, Family::Product | Family::Attention);
        if !is_whole && !cuts_columns {
            return self.blame("a step of whole rows cut across them: each tile would do all of the row");
        }
        if !is_whole && kernel.family == Family::Product && !step.tile.cols.is_multiple_of(unit) {
            return self.blame("tiles that cut a group or a line of lanes");
        }
        // Quantised rows and reductions are never cut.
        let is_cut = y.dtype.fx().is_none() && !is_append && u64::from(y.cols) == cols;
        let tile_cols = if is_cut { u64::from(step.tile.cols).max(1) } else { cols.max(1) };
        let tile_rows = u64::from(step.tile.rows).max(1);
        let mut tile = 0;
        self.news = 0;
        self.element.0 = index + 1;
        self.shapes(step, y, &kernel);
        for row in (0..rows).step_by(usize::try_from(tile_rows).unwrap()) {
            for col in (0..cols).step_by(usize::try_from(tile_cols).unwrap()) {
                let digit = index / THREADS.pow(order);
                self.thread = (digit + tile) % THREADS;
                tile += 1;
                let ends = (rows.min(row + tile_rows), cols.min(col + tile_cols));
                self.tile(step, &kernel, y, (row..ends.0, col..ends.1));
                if self.harm.is_some() {
                    return;
                }
            }
        }
        if self.news == 0 {
            self.blame("does again what was done");
        }
    }

    /// Reads all that a tile depends on, then writes it.
    fn tile(
        &mut self,
        step: &Step,
        kernel: &Kernel,
        y: &Operand,
        (rows, cols): (std::ops::Range<u64>, std::ops::Range<u64>),
    ) {
        let mut results = Vec::new();
        let group = if kernel.family == Family::Rope { kernel.head } else { 1 };
        for row in rows {
            let mut x = ShadowOperands { shadow: self, step, memo: HashMap::new() };
            for col in cols.clone() {
                x.shadow.element = (x.shadow.element.0, row, col / group);
                let target = match y.place {
                    Place::State(_) => (x.number(1, row), x.number(2, row)),
                    Place::Scratch(_) | Place::Io(_) | Place::Weight(_) => (0, 0),
                };
                results.push((row, col, target, element(kernel, &mut x, row, col)));
            }
        }
        for (row, col, (sequence, pos), tag) in results {
            self.element = (self.element.0, row, col / group);
            match y.place {
                Place::State(id) => {
                    if let Some(at) = self.vector(id, sequence, pos, col) {
                        self.news += usize::from(self.caches[id as usize][at].tag != tag);
                        touch_write(
                            &mut self.caches[id as usize][at],
                            tag,
                            self.barriers,
                            self.thread,
                            &mut self.harm,
                        );
                    }
                }
                Place::Scratch(_) | Place::Io(_) | Place::Weight(_) => self.write(y, row, col, tag),
            }
        }
    }

    /// Index of a unit of an operand in its space, which must be scratch or io.
    fn unit(&mut self, it: &Operand, row: u64, col: u64) -> Option<usize> {
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
        touch_write(unit, tag, self.barriers, self.thread, &mut self.harm);
    }

    fn read(&mut self, x: &Operand, row: u64, col: u64) -> u64 {
        let Some(at) = self.unit(x, row, col) else { return 0 };
        let unit = if matches!(x.place, Place::Io(_)) { &mut self.io[at] } else { &mut self.scratch[at] };
        unit.reader = self.element;
        touch_read(unit, self.barriers, self.thread, &mut self.harm)
    }

    /// Kernels take operands of equal rows, and of equal columns where they work element by element.
    fn shapes(&mut self, step: &Step, y: &Operand, kernel: &Kernel) {
        let is_append = kernel.family == Family::Append;
        let rows = if is_append { self.call.tokens } else { self.rows(y.rows) };
        for (slot, x) in step.reads.iter().enumerate() {
            if matches!(x.place, Place::Weight(_) | Place::State(_)) {
                continue;
            }
            let rows = if kernel.family == Family::Select && slot == 0 { self.call.tokens } else { rows };
            let is_same_width = match kernel.family {
                Family::Elementwise | Family::Select | Family::Rope => {
                    x.cols == y.cols || (slot == 1 && kernel.is_indexed())
                }
                Family::Product => slot == 0 || x.cols == y.cols,
                Family::Embed | Family::Angles => x.cols == 1,
                Family::Append if slot == 0 => u64::from(x.cols) == u64::from(y.cols) * self.heads_of(y),
                Family::Append | Family::Attention => slot == 0 || x.cols == 1,
                Family::Row => true,
            };
            let row_bytes = x.dtype.row_bytes(x.cols.into()).unwrap_or(u64::MAX);
            if self.rows(x.rows) != rows || !is_same_width || x.stride < row_bytes {
                self.blame(format!("read {slot} has rows or columns that the kernel does not take"));
            }
        }
    }

    /// Heads of the cache that an operand is.
    fn heads_of(&self, it: &Operand) -> u64 {
        match it.place {
            Place::State(id) => self.plan.states.get(id as usize).map_or(1, |it| it.shape[2].into()),
            Place::Scratch(_) | Place::Io(_) | Place::Weight(_) => 1,
        }
    }

    /// Index of a cached vector.
    fn vector(&mut self, id: u32, row: u64, pos: u64, head: u64) -> Option<usize> {
        let shape = self.plan.states.get(id as usize).map(|it| it.shape.map(u64::from));
        let at = shape.filter(|it| row < it[0] && pos < it[1] && head < it[2]);
        let at = at.and_then(|it| usize::try_from((row * it[1] + pos) * it[2] + head).ok());
        if at.is_none() {
            self.blame("a vector outside its cache");
        }
        at
    }

    /// Outputs are where the ports say, states hold what they should.
    fn compare(&mut self, ideal: &Outcome) {
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
            let found = at.map(|it| self.caches[it].iter().map(|it| it.tag).collect::<Vec<_>>());
            if found.as_ref() != Some(vectors) {
                return self.blame(format!("state '{name}' is not what the graph leaves"));
            }
        }
    }
}

fn touch_write(unit: &mut Unit, tag: u64, barriers: u32, thread: usize, harm: &mut Option<String>) {
    let (when, who) = unit.written;
    if when == barriers && who != thread {
        harm.get_or_insert_with(|| "two threads write the same bytes".into());
    }
    if (0..THREADS).any(|it| it != thread && unit.read[it] == barriers) {
        harm.get_or_insert_with(|| "writes what another thread is reading".into());
    }
    unit.tag = tag;
    unit.written = (barriers, thread);
}

fn touch_read(unit: &mut Unit, barriers: u32, thread: usize, harm: &mut Option<String>) -> u64 {
    let (when, who) = unit.written;
    if when == barriers && who != thread {
        harm.get_or_insert_with(|| "reads what another thread is writing".into());
    }
    unit.read[thread] = barriers;
    unit.tag
}

/// Units of four bytes in a row.
fn units(it: &Operand) -> u64 {
    it.dtype.row_bytes(u64::from(it.cols)).unwrap_or(0) / 4
}

struct ShadowOperands<'s, 'p> {
    shadow: &'s mut Shadow<'p>,
    step: &'s Step,
    memo: HashMap<(usize, u64, u64, u64), u64>,
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
        let hash = (from..to).fold(0, |hash, col| mix(hash, self.shadow.read(&it, row, col)));
        self.memo.insert((slot, row, from, to), hash);
        hash
    }
    fn cols(&self, slot: usize) -> u64 {
        let it = self.step.reads.get(slot).filter(|it| !matches!(it.place, Place::Weight(_)));
        it.map_or(0, units)
    }
    fn width(&self, slot: usize) -> u64 {
        self.step.reads.get(slot).map_or(0, |it| it.cols.into())
    }
    fn number(&mut self, slot: usize, row: u64) -> u64 {
        let Some(it) = self.operand(slot) else { return 0 };
        let tag = self.shadow.read(&it, row, 0);
        let number = self.shadow.numbers.get(&tag).copied();
        if number.is_none() {
            self.shadow.blame("follows an index that is none");
        }
        number.unwrap_or(0)
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
            let Shadow { caches, barriers, thread, harm, .. } = &mut *self.shadow;
            hash = mix(hash, touch_read(&mut caches[id as usize][at], *barriers, *thread, harm));
        }
        self.memo.insert(key, hash);
        hash
    }
    fn heads(&self, slot: usize) -> u64 {
        self.step.reads.get(slot).map_or(1, |it| self.shadow.heads_of(it))
    }
    fn len(&self) -> usize {
        self.step.reads.len()
    }
}

/// A hash of what each weight is, in the words of the ideal executor.
pub(crate) fn weight_tags(plan: &Plan) -> Vec<u64> {
    let tag = |it: &waste_plan::schema::Weight| {
        let mut text =
            format!("{} {} {} {} {}", it.name, it.dtype.name(), it.rows, it.cols, it.packing.name());
        for part in &it.parts {
            let (source, offset, stored) = (part.source, part.offset, part.stored.name());
            text.push_str(&format!(" {source} {offset} {stored} {} {}", part.rows, part.transposed));
        }
        name(&text)
    };
    plan.weights.iter().map(tag).collect()
}
