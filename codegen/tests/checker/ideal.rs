//! The graph over ideal memory: every value apart, nothing ever overwritten.

use std::collections::HashMap;

use waste_ir::{Def, Dim, Graph, Module, Op, ValueId, WeightId, WeightInit};
use waste_plan::ids::EntityRef;

use super::kernels::{Kernel, Operands, element, mix, name};

/// Tokens and wanted rows of one call, and what the caller passes in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) tokens: u64,
    pub(crate) want: u64,
    /// Sequences that the tokens are spread over.
    pub(crate) rows: u64,
}

impl Call {
    /// The number that the caller puts at element `i` of input `port`.
    pub(crate) fn input(&self, port: &str, i: u64) -> u64 {
        let row = i * self.rows / self.tokens;
        let first = (row * self.tokens).div_ceil(self.rows);
        match port {
            "token" => (7 * i + 3) % 11,
            "row" => row,
            "pos" => 2 + 3 * row + i - first,
            _ => (5 * i + self.tokens - 1) % self.tokens,
        }
    }
}

/// What a program leaves behind: rows of each output port, vectors of each state, all as hashes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) outputs: Vec<(String, Vec<Vec<u64>>)>,
    pub(crate) states: Vec<(String, Vec<u64>)>,
}

/// The hash of element `i` of an input.
pub(crate) fn input_tag(port: &str, i: u64) -> u64 {
    mix(name(port), i)
}

type Rows = Vec<Vec<u64>>;

struct Ideal<'a> {
    module: &'a Module,
    graph: &'a Graph,
    call: Call,
    values: HashMap<ValueId, Rows>,
    caches: HashMap<ValueId, Vec<u64>>,
    /// A hash of each weight.
    weights: Vec<u64>,
}

/// Runs `graph`.
pub(crate) fn run(module: &Module, graph: &Graph, call: Call) -> Outcome {
    let weights = module.weights.keys().map(|it| weight_tag(module, it)).collect();
    let mut ideal = Ideal { module, graph, call, values: HashMap::new(), caches: HashMap::new(), weights };
    for value in &graph.inputs {
        let port = &graph.values[*value].name;
        let n = ideal.rows(graph.ty(*value).shape.dims()[0]);
        ideal.values.insert(*value, (0..n).map(|i| vec![input_tag(port, i)]).collect());
    }
    for (value, data) in graph.values.iter() {
        if let Def::State(id) = data.def {
            let decl = &module.states[id];
            let [b, s, heads, _] =
                decl.ty.shape.dims().iter().map(|it| it.known().unwrap()).collect::<Vec<_>>()[..]
            else {
                unreachable!("states have four dimensions")
            };
            let n = u64::from(b) * u64::from(s) * u64::from(heads);
            ideal.caches.insert(value, (0..n).map(|i| mix(name(&decl.name), i)).collect());
        }
    }
    for op in &graph.order {
        ideal.op(*op);
    }
    ideal.outcome()
}

/// A hash of what a weight is: everything but where it lies.
fn weight_tag(module: &Module, id: WeightId) -> u64 {
    let decl = &module.weights[id];
    let dims: Vec<u32> = decl.ty.shape.dims().iter().map(|it| it.known().unwrap()).collect();
    let (rows, cols) = if let [n, k] = dims[..] { (n, k) } else { (1, dims[0]) };
    let packing = decl.packing.map_or("none", waste_plan::Packing::name);
    let mut text = format!("{} {} {rows} {cols} {packing}", decl.name, decl.ty.dtype.name());
    add_parts(module, id, &mut text);
    name(&text)
}

fn add_parts(module: &Module, id: WeightId, text: &mut String) {
    let decl = &module.weights[id];
    let (source, offset, stored, transposed) = match &decl.init {
        WeightInit::Bank { .. } => unreachable!("the suite has no banks"),
        WeightInit::Concat(parts) => return parts.iter().for_each(|it| add_parts(module, *it, text)),
        WeightInit::Stored { source, offset, stored } => (source, offset, stored, false),
        WeightInit::Transposed { source, offset, stored } => (source, offset, stored, true),
    };
    let rows = decl.ty.shape.dims()[0].known().unwrap();
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

    fn op(&mut self, op: waste_ir::OpId) {
        let data = &self.graph.ops[op];
        let result = data.results[0];
        let reads: Vec<ValueId> = data.uses().skip(usize::from(matches!(data.op, Op::KvAppend {}))).collect();
        match data.op {
            Op::Slice { start, len } => {
                let cut = |row: &Vec<u64>| row[start as usize..(start + len) as usize].to_vec();
                let rows = self.values[&reads[0]].iter().map(cut).collect();
                self.values.insert(result, rows);
            }
            Op::Reshape { cols } => {
                let flat = self.values[&reads[0]].concat();
                self.values.insert(result, flat.chunks(cols as usize).map(<[u64]>::to_vec).collect());
            }
            Op::KvAppend {} => {
                let kernel = Kernel::of_op(self.graph, data).unwrap();
                let mut x = IdealOperands { ideal: self, reads };
                let mut cache = x.ideal.caches[&data.operand(0)].clone();
                let [_, s, heads, _] = x.dims(data.operand(0));
                for t in 0..x.ideal.call.tokens {
                    let at = x.number(1, t) * s + x.number(2, t);
                    for head in 0..heads {
                        cache[usize::try_from(at * heads + head).unwrap()] =
                            element(&kernel, &mut x, t, head);
                    }
                }
                self.caches.insert(result, cache);
            }
            _ => {
                let kernel = Kernel::of_op(self.graph, data).unwrap();
                let ty = self.graph.ty(result);
                let rows = self.rows(ty.shape.dims()[0]);
                let cols = if ty.shape.rank() == 1 { 1 } else { ty.shape.cols().unwrap() };
                let units = ty.dtype.row_bytes(cols.into()).unwrap() / 4;
                let mut x = IdealOperands { ideal: self, reads };
                let value = (0..rows)
                    .map(|row| (0..units).map(|col| element(&kernel, &mut x, row, col)).collect())
                    .collect();
                self.values.insert(result, value);
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
        Outcome { outputs, states }
    }
}

struct IdealOperands<'i, 'a> {
    ideal: &'i Ideal<'a>,
    reads: Vec<ValueId>,
}

impl IdealOperands<'_, '_> {
    fn dims(&self, value: ValueId) -> [u64; 4] {
        let dims: Vec<u64> =
            self.ideal.graph.ty(value).shape.dims().iter().map(|it| it.known().unwrap().into()).collect();
        dims.try_into().unwrap()
    }
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
    fn cols(&self, slot: usize) -> u64 {
        self.ideal.values.get(&self.reads[slot]).and_then(|it| it.first()).map_or(0, |it| it.len() as u64)
    }
    fn width(&self, slot: usize) -> u64 {
        let ty = self.ideal.graph.ty(self.reads[slot]);
        ty.shape.cols().unwrap_or(1).into()
    }
    fn number(&mut self, slot: usize, row: u64) -> u64 {
        self.ideal.call.input(&self.ideal.graph.values[self.reads[slot]].name, row)
    }
    fn cached(&mut self, slot: usize, row: u64, pos: u64, head: u64) -> u64 {
        let [_, s, heads, _] = self.dims(self.reads[slot]);
        let cache = &self.ideal.caches[&self.reads[slot]];
        (0..=pos)
            .fold(0, |hash, at| mix(hash, cache[usize::try_from((row * s + at) * heads + head).unwrap()]))
    }
    fn heads(&self, slot: usize) -> u64 {
        self.dims(self.reads[slot])[2]
    }
    fn len(&self) -> usize {
        self.reads.len()
    }
}
