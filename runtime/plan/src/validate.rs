//! Structural bounds on a plan: what every load checks before a byte of it is used.
//!
//! Invariants: after [`validate`] succeeds
//! - every id is in range and every operand lies inside its space at the largest T and R;
//! - no space holds two things on the same byte: weights, states and ports are disjoint, and aligned to 64 bytes;
//! - every port is there, with room for every program;
//! - each step's operands have the number, dtypes and shapes that its kind takes, no step writes a weight or an input, and
//!   a result lies over an operand only where the kind allows it;
//! - indices that a kernel follows (token, row, position, wanted token) come from the caller's ports, never from memory
//!   that a plan can leave unset; only expert numbers come from scratch, and the executor bounds those as it follows them.
//!
//! So a hostile plan gets an error, never a fault. Deliberately absent: whether the plan computes the model (`codegen::check`).

mod experts;
mod family;
mod space;
mod step;
mod tile;

use std::fmt;

use crate::schema::{Part, Plan, PortName, Program, StateKind, VERSION, Weight};
use crate::{DType, Packing};

/// Most steps of all programs together.
pub const MAX_STEPS: usize = 1 << 18;
/// Most weights, states or sources.
pub const MAX_ENTITIES: usize = 1 << 20;
/// Most tokens or wanted rows of one call, and most positions of a row.
pub const MAX_TOKENS: u32 = 1 << 24;
/// Most bytes of one space.
pub const MAX_SPACE: u64 = 1 << 56;
/// Errors after which validation stops looking.
const MAX_ERRORS: usize = 64;
/// Offsets of weights, states and ports are multiples of this many bytes.
const ALIGN: u64 = 64;

/// What is wrong with a plan, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct ValidateError {
    /// The entity at fault.
    pub at: At,
    /// A sentence with found and expected.
    pub what: String,
}

/// An entity of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The plan as a whole.
    Plan,
    /// A source by index.
    Source(usize),
    /// A bank by index.
    Bank(usize),
    /// A weight by index.
    Weight(usize),
    /// A state by index.
    State(usize),
    /// A port by index.
    Port(usize),
    /// A program by index.
    Program(usize),
    /// A step of a program, both by index.
    Step {
        /// The program.
        program: usize,
        /// The step in it.
        step: usize,
    },
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan => f.write_str("plan"),
            Self::Source(i) => write!(f, "source {i}"),
            Self::Bank(i) => write!(f, "bank {i}"),
            Self::Weight(i) => write!(f, "weight {i}"),
            Self::State(i) => write!(f, "state {i}"),
            Self::Port(i) => write!(f, "port {i}"),
            Self::Program(i) => write!(f, "program {i}"),
            Self::Step { program, step } => write!(f, "program {program} step {step}"),
        }
    }
}

/// Checks the structure of `plan`; see the module for what then holds.
///
/// # Errors
/// All errors in plan order, at most 64; one a step.
pub fn validate(plan: &Plan) -> Result<(), Vec<ValidateError>> {
    let mut report = Report { errors: Vec::new() };
    counts(plan, &mut report);
    if report.errors.is_empty() {
        options(plan, &mut report);
        sources(plan, &mut report);
        experts::banks(plan, &mut report);
        weights(plan, &mut report);
        states(plan, &mut report);
        ports(plan, &mut report);
        programs(plan, &mut report);
    }
    if report.errors.is_empty() { Ok(()) } else { Err(report.errors) }
}

/// A check of one entity: nothing, or the sentence.
type Checked = Result<(), String>;

struct Report {
    errors: Vec<ValidateError>,
}

impl Report {
    fn add(&mut self, at: At, what: String) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(ValidateError { at, what });
        }
    }

    fn check(&mut self, at: At, checked: Checked) {
        if let Err(what) = checked {
            self.add(at, what);
        }
    }

    fn is_full(&self) -> bool {
        self.errors.len() >= MAX_ERRORS
    }
}

/// `what` unless `holds`; the sentence is only made when it is needed.
fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}

fn counts(plan: &Plan, report: &mut Report) {
    let most = |name: &str, found: usize, most: usize| {
        ensure(found <= most, || format!("{found} {name}, at most {most}"))
    };
    let steps = plan.programs.iter().fold(0usize, |sum, it| sum.saturating_add(it.steps.len()));
    let version = ensure(plan.version == VERSION, || {
        format!("schema version {}, this build reads {VERSION}", plan.version)
    });
    report.check(At::Plan, version);
    report.check(At::Plan, most("sources", plan.sources.len(), MAX_ENTITIES));
    report.check(At::Plan, most("weights", plan.weights.len(), MAX_ENTITIES));
    report.check(At::Plan, most("banks", plan.banks.len(), MAX_ENTITIES));
    report.check(At::Plan, most("states", plan.states.len(), MAX_ENTITIES));
    report.check(At::Plan, most("ports", plan.ports.len(), PortName::ALL.len()));
    report.check(At::Plan, most("programs", plan.programs.len(), 16));
    report.check(At::Plan, most("steps", steps, MAX_STEPS));
}

fn options(plan: &Plan, report: &mut Report) {
    let it = &plan.options;
    for (name, n) in [("ctx", it.ctx), ("batch", it.batch), ("chunk", it.chunk), ("want", it.want)] {
        let bounded =
            ensure((1..=MAX_TOKENS).contains(&n), || format!("{name} = {n}, expected 1 … {MAX_TOKENS}"));
        report.check(At::Plan, bounded);
    }
    let kv = ensure(is_cache_dtype(it.kv), || format!("caches of {}, expected f32 or f16", it.kv.name()));
    report.check(At::Plan, kv);
    let memory = &plan.memory;
    let spaces = [
        ("weights", memory.weights),
        ("states", memory.states),
        ("scratch", memory.scratch),
        ("io", memory.io),
        ("thread", memory.thread),
        ("text", memory.text),
        ("experts", memory.experts),
    ];
    for (name, bytes) in spaces {
        let bounded =
            ensure(bytes <= MAX_SPACE, || format!("{name} memory of {bytes} bytes, at most {MAX_SPACE}"));
        report.check(At::Plan, bounded);
    }
    let largest = |it: &Program| it.steps.iter().map(|step| step.thread_bytes(it.tokens, it.want)).max();
    let thread = plan.programs.iter().filter_map(largest).max().unwrap_or(0);
    let enough = ensure(memory.thread >= thread, || {
        format!("thread memory of {} bytes, the largest tile needs {thread}", memory.thread)
    });
    report.check(At::Plan, enough);
    let bound = ensure(memory.scratch_lower_bound <= memory.scratch, || {
        format!(
            "scratch of {} bytes is less than its lower bound {}",
            memory.scratch, memory.scratch_lower_bound
        )
    });
    report.check(At::Plan, bound);
}

const fn is_cache_dtype(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16)
}

fn sources(plan: &Plan, report: &mut Report) {
    for (i, source) in plan.sources.iter().enumerate() {
        let hash = &source.header_sha256;
        let is_hex = hash.len() == 64 && hash.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'));
        report.check(
            At::Source(i),
            ensure(is_hex, || format!("header_sha256 '{hash}' is not 64 lower-case hex digits")),
        );
    }
}

fn weights(plan: &Plan, report: &mut Report) {
    for i in 0..plan.weights.len() {
        report.check(At::Weight(i), weight(plan, i));
    }
    let ranges = plan.weights.iter().map(|it| (it.offset, it.bytes));
    space::disjoint(ranges, plan.memory.weights, At::Weight, report);
}

/// The size of a weight in its layout, and where its parts lie in their sources.
fn weight(plan: &Plan, i: usize) -> Checked {
    let it = &plan.weights[i];
    let dtype = it.dtype.name();
    if let Some(records) = it.records {
        return experts::weight(plan, it, records);
    }
    ensure(it.dtype.is_float() || it.dtype.is_integer_weight(), || format!("{dtype} holds no weights"))?;
    for (name, n) in [("rows", it.rows), ("cols", it.cols)] {
        ensure((1..=u64::from(u32::MAX)).contains(&n), || format!("{name} = {n}, expected 1 … 2^32 − 1"))?;
    }
    ensure(it.bank >= 1, || "a bank of no matrices".into())?;
    let bank = u64::from(it.bank);
    let unit = if it.dtype.grouped().is_some() { 32 } else { it.dtype.block().map_or(1, |it| it.elems) };
    ensure(it.cols.is_multiple_of(unit.into()), || format!("{} columns are no blocks of {dtype}", it.cols))?;
    let matrix = if it.packing == Packing::Plain {
        it.dtype.row_bytes(it.cols).and_then(|row| it.rows.checked_mul(row))
    } else {
        let is_books = it.packing == Packing::Columns && it.dtype == DType::F32;
        ensure(is_books || Packing::of(it.dtype) == Some(it.packing), || {
            format!("{dtype} packed as {}", it.packing.name())
        })?;
        it.packing.bytes(it.rows, it.cols)
    };
    let expected = matrix.and_then(|it| it.checked_mul(bank));
    ensure(expected == Some(it.bytes), || {
        format!(
            "{} bytes, but {bank} × {} × {} of {dtype} as {} take {expected:?}",
            it.bytes,
            it.rows,
            it.cols,
            it.packing.name()
        )
    })?;
    parts(plan, it)
}

/// The parts lie in their sources and make the whole weight. Parts of a vector are its elements: their rows count those,
/// or 1 for a vector that is one stored row.
fn parts(plan: &Plan, it: &Weight) -> Checked {
    let dtype = it.dtype.name();
    let is_one_row = it.rows == 1 && it.parts.len() == 1 && it.parts[0].rows == 1;
    let is_vector = it.rows == 1 && it.bank == 1 && !is_one_row;
    let mut sum = 0u64;
    for part in &it.parts {
        let source = plan.sources.get(part.source as usize);
        let source = source.ok_or_else(|| format!("source {} of {}", part.source, plan.sources.len()))?;
        let stored = part.stored.name();
        let is_apart = part.stored.grouped().is_some();
        let is_widened = it.dtype == DType::F32 && (part.stored.is_float() || is_apart);
        ensure(part.stored == it.dtype || is_widened, || format!("{stored} stored for a weight of {dtype}"))?;
        ensure(!part.transposed || part.stored.is_float(), || format!("a transposed part of {stored}"))?;
        let (rows, cols) = if is_vector { (1, part.rows) } else { (part.rows, it.cols) };
        let lies_inside = |row: Option<u64>, at: u64| {
            let end = row.and_then(|it| it.checked_mul(rows)?.checked_add(at));
            ensure(end.is_some_and(|end| end <= source.bytes), || {
                format!("{rows} × {cols} of {stored} at byte {at} leave a source of {} bytes", source.bytes)
            })
        };
        match (part.stored.grouped(), part.scales) {
            (None, None) => lies_inside(part.stored.row_bytes(cols), part.offset)?,
            (Some(layout), Some(scales)) if !is_vector => {
                lies_inside(layout.row_bytes(cols), part.offset)?;
                lies_inside(Some(layout.scale_bytes(cols)), scales)?;
            }
            (None, Some(_)) => return Err(format!("{stored} has no scales apart")),
            (Some(_), _) => return Err(format!("a part of {stored} must be a matrix with scales apart")),
        }
        terms(plan, it, part, is_vector)?;
        sum = sum.saturating_add(part.rows);
    }
    let (what, whole) =
        if is_vector { ("elements", it.cols) } else { ("rows", it.rows.saturating_mul(u64::from(it.bank))) };
    ensure(sum == whole, || format!("the parts have {sum} {what}, the weight {whole}"))
}

/// Terms are added to rows of float matrices of f32, and their factors lie in their sources.
fn terms(plan: &Plan, it: &Weight, part: &Part, is_vector: bool) -> Checked {
    for term in &part.terms {
        let is_possible = it.dtype == DType::F32 && part.stored.is_float() && !is_vector;
        ensure(is_possible && term.is_sound(), || {
            let (stored, rank, scale) = (term.stored.name(), term.rank, term.scale);
            format!("a term of {stored} of rank {rank}, times {scale}, added to {}", part.stored.name())
        })?;
        let source = plan.sources.get(term.source as usize);
        let source = source.ok_or_else(|| format!("source {} of {}", term.source, plan.sources.len()))?;
        let ends = [(term.a, term.a_bytes(it.cols)), (term.b, term.b_bytes(part.rows))];
        let is_inside = ends
            .iter()
            .all(|(at, len)| len.and_then(|len| len.checked_add(*at)).is_some_and(|end| end <= source.bytes));
        ensure(is_inside, || format!("a term of rank {} leaves its source", term.rank))?;
    }
    Ok(())
}

fn states(plan: &Plan, report: &mut Report) {
    for i in 0..plan.states.len() {
        report.check(At::State(i), state(plan, i));
    }
    let ranges = plan.states.iter().map(|it| (it.offset, it.bytes));
    space::disjoint(ranges, plan.memory.states, At::State, report);
}

/// A state has room for every row that the options promise, a cache for every position too.
fn state(plan: &Plan, i: usize) -> Checked {
    let it = &plan.states[i];
    let [rows, positions, heads, d] = it.shape;
    ensure(rows == plan.options.batch, || format!("{rows} rows, the options say {}", plan.options.batch))?;
    if it.kind == StateKind::Recurrent {
        ensure(it.dtype == DType::F32, || format!("a recurrent state of {}", it.dtype.name()))?;
        ensure(it.shape.iter().all(|it| *it > 0), || format!("a recurrent state of {:?}", it.shape))?;
        let expected = it.shape.iter().try_fold(8u64, |n, it| n.checked_mul(u64::from(*it)));
        return ensure(expected == Some(it.bytes), || {
            format!("{} bytes, both halves of the shape take {expected:?}", it.bytes)
        });
    }
    ensure(is_cache_dtype(it.dtype), || format!("a cache of {}, expected f32 or f16", it.dtype.name()))?;
    ensure(positions.is_multiple_of(crate::schema::KV_TILE), || {
        format!("{positions} positions, expected a multiple of {}", crate::schema::KV_TILE)
    })?;
    ensure(positions >= plan.options.ctx, || {
        format!("{positions} positions, the options say {}", plan.options.ctx)
    })?;
    ensure(heads > 0 && d > 0, || format!("{heads} heads of {d}"))?;
    let elems = [positions, heads, d].iter().try_fold(u64::from(rows), |n, it| n.checked_mul(u64::from(*it)));
    let expected = elems.and_then(|n| it.dtype.row_bytes(n));
    ensure(expected == Some(it.bytes), || format!("{} bytes, the shape takes {expected:?}", it.bytes))
}

/// Every port once, as wide as the model and with room for every program.
fn ports(plan: &Plan, report: &mut Report) {
    let tokens = plan.programs.iter().map(|it| it.tokens).max().unwrap_or(0);
    let want = plan.programs.iter().map(|it| it.want).max().unwrap_or(0);
    for (i, port) in plan.ports.iter().enumerate() {
        let name = port.name.name();
        let (dtype, cols, rows) = match port.name {
            PortName::Token | PortName::Row | PortName::Pos => (DType::I32, 1, tokens),
            PortName::Want | PortName::Next | PortName::Finite => (DType::I32, 1, want),
            PortName::Logits => (DType::F32, plan.model.vocab, want),
        };
        let shape = ensure(port.dtype == dtype && port.cols == cols && cols > 0, || {
            format!("{name} is {}[_, {}], expected {}[_, {cols}]", port.dtype.name(), port.cols, dtype.name())
        });
        report.check(At::Port(i), shape);
        let room = ensure(port.rows >= rows.max(1), || {
            format!("{name} has {} rows, programs use {rows}", port.rows)
        });
        report.check(At::Port(i), room);
        let twice = plan.ports[..i].iter().any(|it| it.name == port.name);
        report.check(At::Port(i), ensure(!twice, || format!("{name} is declared twice")));
    }
    for name in PortName::ALL {
        let is_there = plan.ports.iter().any(|it| it.name == name);
        report.check(At::Plan, ensure(is_there, || format!("no port {}", name.name())));
    }
    let ranges = plan.ports.iter().map(|it| (it.offset, it.bytes()));
    space::disjoint(ranges, plan.memory.io, At::Port, report);
}

fn programs(plan: &Plan, report: &mut Report) {
    for (i, program) in plan.programs.iter().enumerate() {
        let at = At::Program(i);
        let twice = plan.programs[..i].iter().any(|it| it.name == program.name);
        report.check(at, ensure(!twice, || format!("'{}' is declared twice", program.name)));
        for (name, n) in [("tokens", program.tokens), ("want", program.want)] {
            report.check(
                at,
                ensure((1..=MAX_TOKENS).contains(&n), || format!("{name} = {n}, expected 1 … {MAX_TOKENS}")),
            );
        }
    }
    if !report.errors.is_empty() {
        // Sizes at the largest T and R mean nothing yet.
        return;
    }
    for (i, program) in plan.programs.iter().enumerate() {
        experts::loops(plan, i, program, report);
        for (j, it) in program.steps.iter().enumerate() {
            report.check(At::Step { program: i, step: j }, step::check(plan, program, it));
            if report.is_full() {
                return;
            }
        }
    }
}

#[cfg(test)]
#[path = "validate/tests.rs"]
mod tests;
