//! The parser: one function a kind of line.

use super::ParseError;
use super::kind;
use super::lex::{Line, Parsed};
use crate::schema::{
    Bank, Memory, Model, Operand, Options, Part, Place, Plan, Port, PortName, Program, Records, Rows, Source,
    State, StateKind, Step, Tile, Weight,
};
use crate::{DType, LowRank, Math, Packing};

/// Errors after which the parser stops.
const MAX_ERRORS: usize = 64;

/// Reads a whole text.
pub(super) fn plan(text: &str) -> Result<Plan, Vec<ParseError>> {
    let mut draft = Draft::default();
    let mut errors = Vec::new();
    let mut n_lines = 0;
    for (i, text) in text.lines().enumerate() {
        n_lines = i + 1;
        let read = Line::new(text, n_lines).and_then(|mut line| {
            if line.is_done() {
                return Ok(());
            }
            draft.line(&mut line)?;
            line.done()
        });
        errors.extend(read.err());
        if errors.len() >= MAX_ERRORS {
            return Err(errors);
        }
    }
    if errors.is_empty() {
        let missing =
            |name| vec![ParseError { line: n_lines + 1, column: 1, message: format!("no line '{name}'") }];
        return draft.finish().map_err(missing);
    }
    Err(errors)
}

/// What the lines so far have said.
#[derive(Default)]
struct Draft {
    head: Option<(u32, String, String)>,
    model: Option<Model>,
    options: Option<Options>,
    passes: Option<Vec<String>>,
    stop_ids: Option<Vec<u32>>,
    memory: Option<Memory>,
    sources: Vec<Source>,
    banks: Vec<Bank>,
    weights: Vec<Weight>,
    states: Vec<State>,
    ports: Vec<Port>,
    programs: Vec<Program>,
    next: Next,
}

/// The number that the next entity of each kind must have.
#[derive(Default)]
struct Next {
    source: u32,
    bank: u32,
    weight: u32,
    state: u32,
    step: u32,
}

impl Draft {
    fn line(&mut self, line: &mut Line<'_>) -> Parsed<()> {
        if line.takes('#') {
            return self.step(line);
        }
        let word = line.word()?;
        match word {
            "plan" => once(&mut self.head, head(line)?, line),
            "model" => once(&mut self.model, model(line)?, line),
            "options" => once(&mut self.options, options(line)?, line),
            "passes" => once(&mut self.passes, line.list(Line::quoted)?, line),
            "stop" => once(&mut self.stop_ids, line.list(Line::int)?, line),
            "memory" => once(&mut self.memory, memory(line)?, line),
            "source" => {
                line.mark('@')?;
                counted(line, &mut self.next.source, |line| line.int())?;
                self.sources.push(source(line)?);
                Ok(())
            }
            "bank" => {
                counted(line, &mut self.next.bank, |line| line.id("b"))?;
                self.banks.push(bank(line)?);
                Ok(())
            }
            "weight" => {
                counted(line, &mut self.next.weight, |line| line.id("w"))?;
                self.weights.push(weight(line)?);
                Ok(())
            }
            "state" => {
                counted(line, &mut self.next.state, |line| line.id("st"))?;
                self.states.push(state(line)?);
                Ok(())
            }
            "port" => {
                self.ports.push(port(line)?);
                Ok(())
            }
            "program" => {
                let name = line.quoted()?;
                let (tokens, want) = (line.int_of("tokens")?, line.int_of("want")?);
                self.next.step = 0;
                self.programs.push(Program { name, tokens, want, steps: Vec::new() });
                Ok(())
            }
            _ => Err(line.error_before(format!("'{word}' begins no line of a plan"))),
        }
    }

    fn step(&mut self, line: &mut Line<'_>) -> Parsed<()> {
        let Some(program) = self.programs.last_mut() else {
            return Err(line.error_before("a step before the first 'program'"));
        };
        counted(line, &mut self.next.step, |line| line.int())?;
        program.steps.push(step(line)?);
        Ok(())
    }

    /// The plan, or the name of the first line that is missing.
    fn finish(self) -> Result<Plan, &'static str> {
        let (version, producer, target) = self.head.ok_or("plan")?;
        let options = self.options.ok_or("options")?;
        Ok(Plan {
            version,
            producer,
            target,
            model: self.model.ok_or("model")?,
            options: Options { passes: self.passes.ok_or("passes")?, ..options },
            sources: self.sources,
            banks: self.banks,
            weights: self.weights,
            states: self.states,
            ports: self.ports,
            memory: self.memory.ok_or("memory")?,
            programs: self.programs,
            stop_ids: self.stop_ids.ok_or("stop")?,
        })
    }
}

fn once<T>(slot: &mut Option<T>, value: T, line: &Line<'_>) -> Parsed<()> {
    if slot.is_some() {
        return Err(line.error("this line was there before"));
    }
    *slot = Some(value);
    Ok(())
}

/// Entities are numbered in order; after a wrong number, or a line that is wrong otherwise, counting goes on from there.
fn counted(line: &mut Line<'_>, next: &mut u32, read: impl Fn(&mut Line<'_>) -> Parsed<u32>) -> Parsed<()> {
    let found = read(line)?;
    let expected = std::mem::replace(next, found.saturating_add(1));
    if found == expected {
        Ok(())
    } else {
        Err(line.error_before(format!("number {found}, expected {expected}")))
    }
}

fn head(line: &mut Line<'_>) -> Parsed<(u32, String, String)> {
    let version = line.int()?;
    line.key("producer")?;
    let producer = line.quoted()?;
    line.key("target")?;
    Ok((version, producer, line.quoted()?))
}

fn model(line: &mut Line<'_>) -> Parsed<Model> {
    let name = line.quoted()?;
    line.key("arch")?;
    Ok(Model {
        name,
        arch: line.quoted()?,
        ctx_trained: line.int_of("ctx")?,
        vocab: line.int_of("vocab")?,
        params: line.int_of("params")?,
        source_bytes: line.int_of("bytes")?,
    })
}

/// The options, whose passes have a line of their own.
fn options(line: &mut Line<'_>) -> Parsed<Options> {
    let ctx = line.int_of("ctx")?;
    let batch = line.int_of("batch")?;
    let chunk = line.int_of("chunk")?;
    let want = line.int_of("want")?;
    line.key("kv")?;
    let kv = kind::dtype(line)?;
    line.key("math")?;
    let math = line.named("arithmetic", Math::from_name)?;
    let lookahead = if line.takes_word("lookahead") { line.int()? } else { 0 };
    Ok(Options { ctx, batch, chunk, want, kv, math, lookahead, passes: Vec::new() })
}

fn memory(line: &mut Line<'_>) -> Parsed<Memory> {
    let mut memory = Memory {
        weights: line.int_of("weights")?,
        states: line.int_of("states")?,
        scratch: line.int_of("scratch")?,
        io: line.int_of("io")?,
        thread: line.int_of("thread")?,
        text: line.int_of("text")?,
        ..Memory::default()
    };
    if line.takes_word("experts") {
        memory.experts = line.int()?;
        memory.expert_slots = line.int_of("slots")?;
    }
    memory.scratch_lower_bound = line.int_of("lower_bound")?;
    line.key("placement")?;
    Ok(Memory { placement: line.quoted()?, ..memory })
}

fn source(line: &mut Line<'_>) -> Parsed<Source> {
    let path = line.quoted()?;
    let bytes = line.int_of("bytes")?;
    line.key("sha256")?;
    Ok(Source { path, bytes, header_sha256: line.quoted()? })
}

fn weight(line: &mut Line<'_>) -> Parsed<Weight> {
    let name = line.quoted()?;
    let dtype = kind::dtype(line)?;
    let (bank, rows, cols) = weight_dims(line)?;
    let packing = line.named("packing", Packing::from_name)?;
    line.key("at")?;
    let offset = line.int()?;
    let bytes = line.int_of("bytes")?;
    let crc32c = line.int_of("crc")?;
    line.mark('=')?;
    let records = line.begins("b").then(|| records(line)).transpose()?;
    let mut parts = Vec::new();
    while !line.is_done() {
        if !parts.is_empty() {
            line.mark(',')?;
        }
        parts.push(part(line)?);
    }
    Ok(Weight { name, dtype, bank, rows, cols, packing, bytes, offset, crc32c, parts, records })
}

fn bank(line: &mut Line<'_>) -> Parsed<Bank> {
    let (layer, codebooks) = (line.int_of("layer")?, line.int_of("codebooks")?);
    line.mark('=')?;
    line.mark('@')?;
    let source = line.int()?;
    let offset = bracketed(line)?;
    let (experts, bytes) = (line.int_of("experts")?, line.int_of("bytes")?);
    Ok(Bank { layer, source, offset, bytes, experts, codebooks })
}

/// `b0[indices, scales]`.
fn records(line: &mut Line<'_>) -> Parsed<Records> {
    let bank = line.id("b")?;
    let [indices, scales] = dims(line)?;
    Ok(Records { bank, indices, scales })
}

/// `[rows, cols]`, or `[bank, rows, cols]`.
fn weight_dims(line: &mut Line<'_>) -> Parsed<(u32, u64, u64)> {
    let dims: Vec<u64> = line.list(Line::int)?;
    match *dims {
        [rows, cols] => Ok((1, rows, cols)),
        [bank, rows, cols] => {
            let bank = u32::try_from(bank).map_err(|_| line.error_before(format!("a bank of {bank}")))?;
            Ok((bank, rows, cols))
        }
        _ => Err(line.error_before(format!("{} dimensions, expected 2 or 3", dims.len()))),
    }
}

fn part(line: &mut Line<'_>) -> Parsed<Part> {
    line.mark('@')?;
    let source = line.int()?;
    let offset = bracketed(line)?;
    let scales = if line.takes('+') { Some(bracketed(line)?) } else { None };
    line.mark(':')?;
    let stored = kind::dtype(line)?;
    let rows = bracketed(line)?;
    let transposed = line.takes('^');
    if transposed {
        line.key("T")?;
    }
    let mut terms = Vec::new();
    while line.takes('+') {
        terms.push(term(line)?);
    }
    Ok(Part { source, offset, scales, stored, rows, transposed, terms })
}

/// `@1[a][b]:f32[rank] scale 2.0`.
fn term(line: &mut Line<'_>) -> Parsed<LowRank> {
    line.mark('@')?;
    let source = line.int()?;
    let (a, b) = (bracketed(line)?, bracketed(line)?);
    line.mark(':')?;
    let stored = kind::dtype(line)?;
    line.mark('[')?;
    let rank = line.int()?;
    line.mark(']')?;
    line.key("scale")?;
    Ok(LowRank { source, stored, a, b, rank, scale: line.float()? })
}

fn state(line: &mut Line<'_>) -> Parsed<State> {
    let name = line.quoted()?;
    let kind = line.named("kind of state", StateKind::from_name)?;
    let dtype = kind::dtype(line)?;
    let shape = dims(line)?;
    line.key("at")?;
    Ok(State { name, dtype, kind, shape, offset: line.int()?, bytes: line.int_of("bytes")? })
}

fn port(line: &mut Line<'_>) -> Parsed<Port> {
    let name = line.named("port", PortName::from_name)?;
    let dtype = kind::dtype(line)?;
    let [rows, cols] = dims(line)?;
    line.key("at")?;
    Ok(Port { name, dtype, rows, cols, offset: line.int()? })
}

fn step(line: &mut Line<'_>) -> Parsed<Step> {
    let barrier = line.takes('|');
    let window = line.takes('~');
    let writes = operands(line)?;
    line.mark('=')?;
    let name = line.word()?;
    let reads = operands(line)?;
    let kind = kind::parse(name, line)?;
    line.key("tile")?;
    let text = line.digits()?;
    let tile = text
        .split_once('x')
        .and_then(|(rows, cols)| Some(Tile { rows: rows.parse().ok()?, cols: cols.parse().ok()? }));
    let tile =
        tile.ok_or_else(|| line.error_before(format!("'{text}' is no tile, expected rows x columns")))?;
    Ok(Step { kind, reads, writes, tile, barrier, window, op: line.int_of("op")? })
}

/// Operands up to the next word that begins none.
fn operands(line: &mut Line<'_>) -> Parsed<Vec<Operand>> {
    let mut out = Vec::new();
    while out.is_empty() || line.takes(',') {
        if out.is_empty() && !line.begins_operand() {
            break;
        }
        out.push(operand(line)?);
    }
    Ok(out)
}

fn operand(line: &mut Line<'_>) -> Parsed<Operand> {
    let place = if line.takes_word("s") {
        Place::Scratch(bracketed(line)?)
    } else if line.takes_word("io") {
        Place::Io(bracketed(line)?)
    } else if line.begins("st") {
        Place::State(line.id("st")?)
    } else {
        Place::Weight(line.id("w")?)
    };
    line.mark(':')?;
    let dtype: DType = kind::dtype(line)?;
    line.mark('[')?;
    let rows = rows(line)?;
    line.mark(',')?;
    let cols = line.int()?;
    line.mark(']')?;
    let stride = if line.takes('/') { line.int()? } else { 0 };
    Ok(Operand { place, dtype, rows, cols, stride })
}

fn rows(line: &mut Line<'_>) -> Parsed<Rows> {
    if line.takes_word("T") {
        return Ok(Rows::Tokens(1));
    }
    if line.takes_word("R") {
        return Ok(Rows::Want(1));
    }
    let n = line.int()?;
    if !line.takes('*') {
        return Ok(Rows::Fixed(n));
    }
    if line.takes_word("T") {
        return Ok(Rows::Tokens(n));
    }
    line.key("R")?;
    Ok(Rows::Want(n))
}

fn bracketed(line: &mut Line<'_>) -> Parsed<u64> {
    line.mark('[')?;
    let value = line.int()?;
    line.mark(']')?;
    Ok(value)
}

/// `[a,b,…]` of exactly N whole numbers.
fn dims<T: TryFrom<u64>, const N: usize>(line: &mut Line<'_>) -> Parsed<[T; N]> {
    let dims = line.list(Line::int)?;
    let found = dims.len();
    dims.try_into().map_err(|_| line.error_before(format!("{found} dimensions, expected {N}")))
}
