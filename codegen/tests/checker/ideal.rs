//! The graph over ideal memory: every value apart, nothing ever overwritten.

use std::collections::HashMap;

use waste_ir::{Def, Dim, Graph, Module, Op, OpId, StateKind, TensorType, ValueId, WeightId, WeightInit};
use waste_plan::ids::EntityRef;

use super::element::element;
use super::kernels::{Family, LINE, Operands, mix, name};
use super::of_op;
use super::targets::targets;

/// Tokens and wanted rows of one call, and what the caller passes in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) tokens: u64,
    pub(crate) want: u64,
    /// Sequences that the tokens are spread over.
    pub(crate) rows: u64,
    /// Position of the first token of row 0; at 0 the row begins in this call.
    pub(crate) start: u64,
}

impl Call {
    /// The number that the caller puts at element `i` of input `port`.
    pub(crate) fn input(&self, port: &str, i: u64) -> u64 {
        let row = i * self.rows / self.tokens;
        let first = (row * self.tokens).div_ceil(self.rows);
        match port {
            "token" => (7 * i + 3) % 11,
            "row" => row,
            "pos" => self.start + 3 * row + i - first,
            // Between them the calls of a test want every token.
            _ if self.start == 0 => i,
            _ => (5 * i + self.tokens - 1) % self.tokens,
        }
    }

    /// Which half of row `row`'s recurrent states is accepted.
    pub(crate) const fn half(&self, row: u64) -> u64 {
        (row + self.tokens) % 2
    }
}

/// What a program leaves behind: rows of each output port, vectors of each cache and columns of each recurrent state, all as hashes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) outputs: Vec<(String, Vec<Vec<u64>>)>,
    pub(crate) states: Vec<(String, Vec<u64>)>,
    /// The ids that each hint names, by the index of its op.
    pub(crate) guesses: HashMap<u32, Matrix>,
}

/// The hash of element `i` of an input.
pub(crate) fn input_tag(port: &str, i: u64) -> u64 {
    mix(name(port), i)
}

pub(crate) type Matrix = Vec<Vec<u64>>;

struct Ideal<'a> {
    module: &'a Module,
    graph: &'a Graph,
    call: Call,
    values: HashMap<ValueId, Matrix>,
    caches: HashMap<ValueId, Vec<u64>>,
    guesses: HashMap<u32, Matrix>,
    /// A hash of each weight.
    weights: Vec<u64>,
    numbers: HashMap<u64, u64>,
}

/// Elements of a row of a recurrent state, as both executors cut it: channels of a ring, columns of the heads' matrices.
pub(crate) const fn state_width(shape: [u32; 4]) -> u64 {
    shape[1] as u64 * shape[3] as u64
}

/// Runs `graph`.
pub(crate) fn run(module: &Module, graph: &Graph, call: Call) -> Outcome {
    let weights = module.weights.keys().map(|it| weight_tag(module, it)).collect();
    let (values, caches, guesses, numbers) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
    let mut ideal = Ideal { module, graph, call, values, caches, guesses, weights, numbers };
    for value in &graph.inputs {
        let port = &graph.values[*value].name;
        let n = ideal.rows(graph.ty(*value).shape.dims()[0]);
        ideal.values.insert(*value, (0..n).map(|i| vec![input_tag(port, i)]).collect());
        ideal.numbers.extend((0..n).map(|i| (input_tag(port, i), call.input(port, i))));
    }
    for (value, data) in graph.values.iter() {
        if let Def::State(id) = data.def {
            let decl = &module.states[id];
            let [b, s, heads, _] = dims(&decl.ty);
            let n = match decl.kind {
                StateKind::Recurrent => u64::from(b) * state_width(dims(&decl.ty)),
                StateKind::Keys | StateKind::Values => u64::from(b) * u64::from(s) * u64::from(heads),
            };
            ideal.caches.insert(value, (0..n).map(|i| mix(name(&decl.name), i)).collect());
        }
    }
    for op in &graph.order {
        ideal.op(*op);
    }
    ideal.outcome()
}

/// The dimensions of a state.
fn dims(ty: &TensorType) -> [u32; 4] {
    let dims: Vec<u32> = ty.shape.dims().iter().map(|it| it.known().unwrap()).collect();
    dims.try_into().expect("states have four dimensions")
}

/// A hash of what a weight is: everything but where it lies.
fn weight_tag(module: &Module, id: WeightId) -> u64 {
    let decl = &module.weights[id];
    let dims: Vec<u32> = decl.ty.shape.dims().iter().map(|it| it.known().unwrap()).collect();
    let (bank, rows, cols) = match dims[..] {
        [n] => (1, 1, n),
        [n, k] => (1, n, k),
        [bank, n, k] => (bank, n, k),
        _ => unreachable!("weights have at most three dimensions"),
    };
    let packing = decl.packing.map_or("none", waste_plan::Packing::name);
    let mut text = format!("{} {} {bank} {rows} {cols} {packing}", decl.name, decl.ty.dtype.name());
    add_parts(module, id, &mut text);
    name(&text)
}

fn add_parts(module: &Module, id: WeightId, text: &mut String) {
    let decl = &module.weights[id];
    let dims = decl.ty.shape.dims();
    let (source, offset, stored, transposed) = match &decl.init {
        WeightInit::Bank { stored, parts } => {
            let rows = dims[1].known().unwrap();
            for (source, offset) in parts {
                text.push_str(&format!(" {} {offset} {} {rows} false", source.index(), stored.name()));
            }
            return;
        }
        WeightInit::Records { source, first, stride, indices, scales } => {
            return text.push_str(&format!(" {} {first} {stride} {indices} {scales}", source.index()));
        }
        WeightInit::Grouped { .. } | WeightInit::Merged { .. } => {
            unreachable!("the suite has no codes apart from their scales, and no adapters")
        }
        WeightInit::Concat(parts) => return parts.iter().for_each(|it| add_parts(module, *it, text)),
        WeightInit::Stored { source, offset, stored } => (source, offset, stored, false),
        WeightInit::Transposed { source, offset, stored } => (source, offset, stored, true),
    };
    let rows: u32 = dims[..(dims.len() - 1).max(1)].iter().map(|it| it.known().unwrap()).product();
    text.push_str(&format!(" {} {offset} {} {rows} {transposed}", source.index(), stored.name()));
}

impl Ideal<'_> {
    fn rows(&self, dim: Dim) -> u64 {
        let tokens = self.graph.input("token").map(|it| self.graph.ty(it).shape.dims()[0]);
        match (dim, tokens) {
            (Dim::Const(n), _) => u64::from(n),
            (Dim::Scaled { sym, mul }, Some(Dim::Scaled { sym: t, .. })) if sym == t => {
                u64::from(mul) * self.call.tokens
            }
            (Dim::Scaled { mul, .. }, _) => u64::from(mul) * self.call.want,
        }
    }

    /// Rows and elements of a value: ids are one column, vectors of known length one row.
    fn size(&self, value: ValueId) -> (u64, u64) {
        let ty = self.graph.ty(value);
        let (rows, cols) = match *ty.shape.dims() {
            [Dim::Const(n)] => (1, n),
            [dim] => (self.rows(dim), 1),
            _ => (self.rows(ty.shape.dims()[0]), ty.shape.cols().unwrap()),
        };
        (rows, ty.dtype.row_bytes(cols.into()).unwrap() / 4)
    }

    fn op(&mut self, op: OpId) {
        let data = &self.graph.ops[op];
        let next_state = data.op.next_state();
        let reads: Vec<ValueId> = data.uses().skip(usize::from(next_state.is_some())).collect();
        match data.op {
            Op::Slice { start, len } => {
                let cut = |row: &Vec<u64>| row[start as usize..(start + len) as usize].to_vec();
                let rows = self.values[&reads[0]].iter().map(cut).collect();
                self.values.insert(data.results[0], rows);
                return;
            }
            Op::Reshape { cols } => {
                let flat = self.values[&reads[0]].concat();
                self.values
                    .insert(data.results[0], flat.chunks(cols as usize).map(<[u64]>::to_vec).collect());
                return;
            }
            Op::ExpertHint {} => {
                let id = u32::try_from(op.index()).unwrap();
                self.guesses.insert(id, self.values[&reads[0]].clone());
                return;
            }
            _ => {}
        }
        let kernel = of_op::kernel(self.graph, data).unwrap();
        for (index, result) in data.results.iter().enumerate() {
            if next_state == Some(index) {
                self.caches.insert(*result, self.caches[&data.operand(0)].clone());
            } else {
                let (rows, units) = self.size(*result);
                let row = vec![0; usize::try_from(units).unwrap()];
                self.values.insert(*result, vec![row; usize::try_from(rows).unwrap()]);
            }
        }
        let (rows, units) = match data.op {
            Op::KvAppend {} => (self.call.tokens, dims(self.graph.ty(data.operand(0)))[2].into()),
            _ => self.size(data.results[0]),
        };
        let state = next_state.map(|_| data.operand(0));
        let (rows, cols) = kernel.extent(rows, units);
        // Tiles of one row each, but where tokens follow each other.
        let step = if kernel.family.is_recurrent() { rows } else { 1 };
        let is_once = kernel.family == Family::Sort;
        let mut made = Vec::new();
        let mut x = IdealOperands { ideal: self, reads, state };
        for row in (0..if is_once { 1 } else { rows }).step_by(usize::try_from(step).unwrap()) {
            for it in targets(&kernel, &mut x, row..row + step, &(0..cols)) {
                made.push((it, element(&kernel, &mut x, it)));
            }
        }
        for (it, tag) in made {
            let result = data.results[it.result];
            let (row, col) = (usize::try_from(it.row).unwrap(), usize::try_from(it.col).unwrap());
            match (next_state == Some(it.result), &data.op) {
                (true, Op::KvAppend {}) => {
                    let [_, s, heads, _] = dims(self.graph.ty(result)).map(u64::from);
                    let place = |port| self.call.input(port, it.row);
                    let at = (place("row") * s + place("pos")) * heads + it.col;
                    self.caches.get_mut(&result).unwrap()[usize::try_from(at).unwrap()] = tag;
                }
                (true, _) => {
                    let width = usize::try_from(state_width(dims(self.graph.ty(result)))).unwrap();
                    self.caches.get_mut(&result).unwrap()[row * width + col] = tag;
                }
                (false, Op::LutBuild { .. }) => {
                    let n = usize::try_from(LINE).unwrap();
                    let line = &mut self.values.get_mut(&result).unwrap()[row][col * n..(col + 1) * n];
                    line.iter_mut().zip(0..).for_each(|(unit, i)| *unit = mix(tag, i));
                }
                (false, _) => self.values.get_mut(&result).unwrap()[row][col] = tag,
            }
        }
    }

    fn outcome(&self) -> Outcome {
        let (mut outputs, mut states) = (Vec::new(), Vec::new());
        for output in &self.graph.outputs {
            match output.name.strip_prefix('@') {
                Some(_) => {
                    let id = self.graph.state(output.value).unwrap();
                    states.push((self.module.states[id].name.clone(), self.caches[&output.value].clone()));
                }
                None => outputs.push((output.name.clone(), self.values[&output.value].clone())),
            }
        }
        Outcome { outputs, states, guesses: self.guesses.clone() }
    }
}

struct IdealOperands<'i, 'a> {
    ideal: &'i mut Ideal<'a>,
    reads: Vec<ValueId>,
    /// The version of the state that the op replaces.
    state: Option<ValueId>,
}

impl Operands for IdealOperands<'_, '_> {
    fn row(&mut self, slot: usize, row: u64, from: u64, to: u64) -> u64 {
        if let Some(id) = self.ideal.graph.weight(self.reads[slot]) {
            return self.ideal.weights[id.index()];
        }
        let row = &self.ideal.values[&self.reads[slot]][usize::try_from(row).unwrap()];
        let units = &row[usize::try_from(from).unwrap()..usize::try_from(to).unwrap()];
        units.iter().fold(0, |hash, unit| mix(hash, *unit))
    }
    fn matrix(&mut self, slot: usize, at: u64) -> u64 {
        mix(self.row(slot, 0, 0, 0), at)
    }
    fn rows(&self, slot: usize) -> u64 {
        self.ideal.size(self.reads[slot]).0
    }
    fn cols(&self, slot: usize) -> u64 {
        self.ideal.values.get(&self.reads[slot]).and_then(|it| it.first()).map_or(0, |it| it.len() as u64)
    }
    fn width(&self, slot: usize) -> u64 {
        let ty = self.ideal.graph.ty(self.reads[slot]);
        ty.shape.cols().unwrap_or(1).into()
    }
    fn number(&mut self, slot: usize, row: u64, col: u64) -> u64 {
        let row = &self.ideal.values[&self.reads[slot]][usize::try_from(row).unwrap()];
        self.ideal.numbers[&row[usize::try_from(col).unwrap()]]
    }
    fn note(&mut self, tag: u64, number: u64) {
        self.ideal.numbers.insert(tag, number);
    }
    fn cached(&mut self, slot: usize, row: u64, pos: u64, head: u64) -> u64 {
        let [_, s, heads, _] = dims(self.ideal.graph.ty(self.reads[slot])).map(u64::from);
        let cache = &self.ideal.caches[&self.reads[slot]];
        (0..=pos)
            .fold(0, |hash, at| mix(hash, cache[usize::try_from((row * s + at) * heads + head).unwrap()]))
    }
    fn heads(&self, slot: usize) -> u64 {
        dims(self.ideal.graph.ty(self.reads[slot]))[2].into()
    }
    fn accepted(&mut self, row: u64, col: u64) -> u64 {
        let state = self.state.expect("a recurrence replaces a state");
        let width = state_width(dims(self.ideal.graph.ty(state)));
        self.ideal.caches[&state][usize::try_from(row * width + col).unwrap()]
    }
    fn len(&self) -> usize {
        self.reads.len()
    }
}
