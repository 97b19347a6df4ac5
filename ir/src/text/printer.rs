//! A module to text.
//!
//! Printing never fails and never panics, also on graphs that the verifier would refuse, so that errors can show what they are
//! about: an id out of range prints as `?` and its number.

use std::fmt::{self, Display, Write};

use waste_plan::ids::{EntityRef, SecondaryMap};

use super::MAX_DEPTH;
use super::lexer::is_word;
use crate::graph::{
    Def, Graph, Module, OpData, OpId, Output, SourceDecl, SourceId, StateDecl, Steps, ValueId, WeightDecl,
    WeightId, WeightInit,
};
use crate::types::SymDecl;
use waste_plan::LowRank;

/// The text of a whole module, ending in a line break.
#[must_use]
pub fn print_module(module: &Module) -> String {
    let mut out = String::new();
    let info = &module.info;
    let (name, arch) = (Quoted(&info.name), Name(&info.arch));
    line(
        &mut out,
        0,
        format_args!("module {name} arch={arch} ctx={} vocab={} {{", info.ctx_trained, info.vocab),
    );
    for (id, source) in module.sources.iter() {
        line(&mut out, 1, format_args!("{}", print_source(id.index(), source)));
    }
    for sym in module.syms.values() {
        line(&mut out, 1, format_args!("{}", print_sym(sym)));
    }
    for weight in module.weights.values() {
        line(&mut out, 1, format_args!("{}", print_weight(module, weight)));
    }
    for state in module.states.values() {
        line(&mut out, 1, format_args!("{}", print_state(module, state)));
    }
    for graph in module.graphs.values() {
        Printer { module, graph, names: &ValueNames::of(graph) }.graph(&mut out, 1);
    }
    line(&mut out, 0, format_args!("}}"));
    out
}

/// The text of one graph, as [`print_module`] shows it but not indented.
#[must_use]
pub fn print_graph(module: &Module, graph: &Graph) -> String {
    let mut out = String::new();
    Printer { module, graph, names: &ValueNames::of(graph) }.graph(&mut out, 0);
    out
}

/// One op on one line, without its region. `names` is [`ValueNames::of`] the graph.
#[must_use]
pub fn print_op(module: &Module, graph: &Graph, names: &ValueNames, op: OpId) -> String {
    match graph.ops.get(op) {
        Some(data) => Printer { module, graph, names }.op(data),
        None => format!("?{op}"),
    }
}

/// The printed number of each result and region argument of a graph.
#[derive(Debug, Clone)]
pub struct ValueNames {
    numbers: SecondaryMap<ValueId, Option<u32>>,
    next: u32,
}

impl ValueNames {
    /// Numbers the values of `graph` in print order: the arguments and ops of a region before the results of its owner.
    #[must_use]
    pub fn of(graph: &Graph) -> Self {
        let mut names = Self { numbers: SecondaryMap::new(None), next: 0 };
        let mut seen = SecondaryMap::new(false);
        names.order(graph, &graph.order, &mut seen);
        names
    }

    fn order(&mut self, graph: &Graph, order: &[OpId], seen: &mut SecondaryMap<OpId, bool>) {
        for &id in order {
            let Some(op) = graph.ops.get(id).filter(|_| !std::mem::replace(&mut seen[id], true)) else {
                continue;
            };
            if let Some(region) = op.region.and_then(|it| graph.regions.get(it)) {
                self.assign(graph, &region.args);
                self.order(graph, &region.order, seen);
            }
            self.assign(graph, &op.results);
        }
    }

    fn assign(&mut self, graph: &Graph, values: &[ValueId]) {
        for &value in values {
            if graph.values.get(value).is_some() && self.numbers[value].is_none() {
                self.numbers[value] = Some(self.next);
                self.next += 1;
            }
        }
    }

    /// The printed number of `value`, if it is a result or a region's argument.
    #[must_use]
    pub fn number(&self, value: ValueId) -> Option<u32> {
        self.numbers[value]
    }

    /// How `value` is written as an operand.
    #[must_use]
    pub fn name(&self, module: &Module, graph: &Graph, value: ValueId) -> String {
        let Some(data) = graph.values.get(value) else { return format!("?{value}") };
        match data.def {
            Def::Op(..) | Def::Arg(..) => match self.numbers[value] {
                Some(number) => format!("v{number}"),
                None => format!("?{value}"),
            },
            Def::Input(_) => Name(&data.name).to_string(),
            Def::Weight(id) => match module.weights.get(id) {
                Some(weight) => format!("w{}", Quoted(&weight.name)),
                None => format!("?{id}"),
            },
            Def::State(id) => match module.states.get(id) {
                Some(state) => format!("@{}", Name(&state.name)),
                None => format!("?{id}"),
            },
        }
    }
}

fn print_source(index: usize, source: &SourceDecl) -> String {
    let hash = &source.header_sha256;
    let bare = !hash.is_empty() && hash.bytes().all(|it| it.is_ascii_alphanumeric());
    let hash = if bare { hash.clone() } else { Quoted(hash).to_string() };
    format!("source @{index} {} bytes={} header=sha256:{hash}", Quoted(&source.path), source.bytes)
}

pub(crate) fn print_sym(sym: &SymDecl) -> String {
    format!("sym {} in {}..={}", Name(&sym.name), sym.lo, sym.hi)
}

pub(crate) fn print_state(module: &Module, state: &StateDecl) -> String {
    let ty = state.ty.display(&module.syms);
    format!("state @{}: {ty} {}", Name(&state.name), state.kind.name())
}

pub(crate) fn print_weight(module: &Module, weight: &WeightDecl) -> String {
    let ty = weight.ty.display(&module.syms);
    let name = |it: &WeightId| match module.weights.get(*it) {
        Some(weight) => Quoted(&weight.name).to_string(),
        None => format!("?{it}"),
    };
    let init = match &weight.init {
        WeightInit::Stored { source, offset, stored } => {
            format!("{} {source}+{offset:#x}", stored.name())
        }
        WeightInit::Transposed { source, offset, stored } => {
            format!("transpose {} {source}+{offset:#x}", stored.name())
        }
        WeightInit::Concat(parts) => format!("concat {}", join(parts.iter().map(name))),
        WeightInit::Bank { stored, parts } => format!("bank {} {}", stored.name(), join(runs(parts))),
        WeightInit::Grouped { source, stored, codes, scales } => {
            format!("grouped {} {source}+{} scales {}", stored.name(), steps(*codes), steps(*scales))
        }
        WeightInit::Merged { base, terms } => {
            format!("merge {}{}", name(base), terms.iter().map(print_term).collect::<String>())
        }
        WeightInit::Records { source, first, stride, indices, scales } => {
            format!("records {source}+{first:#x} += {stride:#x} indices {indices:#x} scales {scales:#x}")
        }
    };
    let books = weight.books.map_or_else(String::new, |it| format!(" books {}", name(&it)));
    let packing = weight.packing.map_or_else(String::new, |it| format!(" as {}", it.name()));
    format!("weight {}: {ty} = {init}{books}{packing}", Quoted(&weight.name))
}

/// ` + f32 a @1+0x400 b 0x800 rank 4 scale 2.0`.
fn print_term(it: &LowRank<SourceId>) -> String {
    let LowRank { source, stored, a, b, rank, scale } = it;
    format!(" + {} a {source}+{a:#x} b {b:#x} rank {rank} scale {scale:?}", stored.name())
}

/// `0x900 += 0x40`, or `0x900` without steps.
fn steps(it: Steps) -> String {
    let step = if it.step == 0 { String::new() } else { format!(" += {:#x}", it.step) };
    format!("{:#x}{step}", it.first)
}

/// The matrices of a bank as arithmetic progressions: `@0+0x100 += 0x40 * 8`, or alone where fewer than three are in step.
fn runs(mut parts: &[(SourceId, u64)]) -> impl Iterator<Item = String> + '_ {
    std::iter::from_fn(move || {
        let &[(source, offset), ref rest @ ..] = parts else { return None };
        let step =
            rest.first().filter(|it| it.0 == source).and_then(|it| it.1.checked_sub(offset)).unwrap_or(0);
        let in_step = |pair: &&[(SourceId, u64)]| {
            pair[0].0 == pair[1].0 && pair[0].1.checked_add(step) == Some(pair[1].1)
        };
        let len = 1 + parts.windows(2).take_while(in_step).count();
        let is_run = step != 0 && len > 2;
        parts = &parts[if is_run { len } else { 1 }..];
        let run = if is_run { format!(" += {step:#x} * {len}") } else { String::new() };
        Some(format!("{source}+{offset:#x}{run}"))
    })
}

/// `graph @decode(token: i32[T]) phase=imported`.
pub(crate) fn print_graph_header(module: &Module, graph: &Graph) -> String {
    let inputs = graph.inputs.iter().map(|it| match graph.values.get(*it) {
        Some(input) => format!("{}: {}", Name(&input.name), input.ty.display(&module.syms)),
        None => format!("?{it}"),
    });
    format!("graph @{}({}) phase={}", Name(&graph.name), join(inputs), graph.phase.name())
}

/// Output `i` of a graph, as in its `return` line.
pub(crate) fn print_output(module: &Module, graph: &Graph, names: &ValueNames, i: usize) -> String {
    Printer { module, graph, names }.output(&graph.outputs[i])
}

/// A graph being printed.
struct Printer<'a> {
    module: &'a Module,
    graph: &'a Graph,
    names: &'a ValueNames,
}

impl Printer<'_> {
    fn graph(&self, out: &mut String, depth: usize) {
        line(out, depth, format_args!("{} {{", print_graph_header(self.module, self.graph)));
        self.ops(out, depth + 1, &self.graph.order);
        let outputs = join(self.graph.outputs.iter().map(|it| self.output(it)));
        let space = if outputs.is_empty() { "" } else { " " };
        line(out, depth + 1, format_args!("return{space}{outputs}"));
        line(out, depth, format_args!("}}"));
    }

    fn output(&self, output: &Output) -> String {
        let (at, name) = match output.name.strip_prefix('@') {
            Some(state) => ("@", state),
            None => ("", output.name.as_str()),
        };
        format!("{at}{}: {}", Name(name), self.value(output.value))
    }

    fn ops(&self, out: &mut String, depth: usize, order: &[OpId]) {
        if depth > MAX_DEPTH + 3 {
            return line(out, depth, format_args!("?"));
        }
        for &id in order {
            let Some(op) = self.graph.ops.get(id) else {
                line(out, depth, format_args!("?{id}"));
                continue;
            };
            let Some(region) = op.region.and_then(|it| self.graph.regions.get(it)) else {
                line(out, depth, format_args!("{}", self.op(op)));
                continue;
            };
            line(out, depth, format_args!("{} {{", self.op(op)));
            let args = region.args.iter().map(|it| format!("{}: {}", self.value(*it), self.ty(*it)));
            line(out, depth + 1, format_args!("^({})", join(args)));
            self.ops(out, depth + 1, &region.order);
            line(
                out,
                depth + 1,
                format_args!("yield {}", join(region.yields.iter().map(|it| self.value(*it)))),
            );
            line(out, depth, format_args!("}}"));
        }
    }

    fn op(&self, op: &OpData) -> String {
        let names = op.op.operand_names();
        let operands = op.operands.iter().enumerate().filter_map(|(i, value)| {
            let value = self.value((*value)?);
            Some(match names.get(i).and_then(|it| it.strip_suffix('?')) {
                Some(name) => format!("{name}={value}"),
                None => value,
            })
        });
        let attrs = op.op.attrs();
        let attrs = match attrs.is_empty() {
            true => String::new(),
            false => format!(" {{{}}}", join(attrs.iter().map(|(name, value)| format!("{name}={value}")))),
        };
        let results = join(op.results.iter().map(|it| self.value(*it)));
        let types = join(op.results.iter().map(|it| self.ty(*it)));
        let made = if op.results.is_empty() { String::new() } else { format!("{results}: {types} = ") };
        format!("{made}{} {}{attrs}", op.op.name(), join(operands))
    }

    fn value(&self, value: ValueId) -> String {
        self.names.name(self.module, self.graph, value)
    }

    fn ty(&self, value: ValueId) -> String {
        let ty = self.graph.values.get(value).map(|it| it.ty.display(&self.module.syms).to_string());
        ty.unwrap_or_else(|| "?".to_owned())
    }
}

fn line(out: &mut String, depth: usize, text: fmt::Arguments<'_>) {
    writeln!(out, "{:1$}{text}", "", 2 * depth).expect("a string takes all that is written");
}

fn join(items: impl Iterator<Item = String>) -> String {
    let mut out = String::new();
    for (i, item) in items.enumerate() {
        out.push_str(if i > 0 { ", " } else { "" });
        out.push_str(&item);
    }
    out
}

/// A name: bare if it is a word, else quoted.
#[derive(Debug)]
pub(crate) struct Name<'a>(pub(crate) &'a str);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_word(self.0) { f.write_str(self.0) } else { Quoted(self.0).fmt(f) }
    }
}

/// A quoted string with escapes.
#[derive(Debug)]
struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        if !self.0.contains(|c: char| c == '"' || c == '\\' || c.is_control()) {
            f.write_str(self.0)?;
            return f.write_char('"');
        }
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                _ if c.is_control() => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                _ => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}
