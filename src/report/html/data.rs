//! What the page knows of a plan, as JSON. Every number is the plan's own, or follows from it.
//!
//! A step is an array, so that equal layers fold to templates of a few lines:
//!
//! | index | holds |
//! |---:|---|
//! | 0, 1 | kernel family, op class |
//! | 2 | attributes: name, value, name, value … |
//! | 3, 4 | 1 where a barrier stands before it; 1 inside a loop over experts |
//! | 5, 6 | rows and columns of a tile |
//! | 7 | op of the final graph |
//! | 8 – 11 | of the stated call: bytes of weights, of states, of others; operations |
//! | 12 | reads: space, offset or index, element type, rows, columns, bytes from row to row, steps back to the writer (0: none) |
//! | 13 | writes: the same; then the number of the value (−1: none), bytes at the largest call, first and last live step seen from here |
//!
//! A write that begins no buffer (a state, the caller's array, a result in place) has bytes 0.

use serde_json::{Value, json};
use waste_ir::{Graph, OpId, ValueNames, parse_module};
use waste_plan::ids::EntityRef;
use waste_plan::schema::{Operand, PEAK_THREADS, Place, Plan, Program, Rows, State, Step, StepKind, Weight};

use super::fold;
use crate::report::buffers::{Buffer, buffers, writers};
use crate::report::classes::class_name;
use crate::report::cost::{CallShape, step_cost};
use crate::report::layers::{Layer, layers};
use crate::report::missed;
use crate::report::passes::{Missed, PassLine, comments, read};

/// Everything but the profile.
pub(super) fn plan(plan: &Plan, ir: &str) -> Value {
    let module = parse_module(ir).ok();
    let graph = |program: &Program| module.as_ref().and_then(|it| it.graph(&program.name));
    let programs: Vec<Value> = plan.programs.iter().map(|it| program(plan, it, graph(it))).collect();
    let (model, options, memory) = (&plan.model, &plan.options, &plan.memory);
    json!({
        "producer": plan.producer,
        "target": plan.target,
        "model": {
            "name": model.name, "arch": model.arch, "params": model.params, "vocab": model.vocab,
            "ctx": model.ctx_trained, "bytes": model.source_bytes,
        },
        "options": {
            "ctx": options.ctx, "batch": options.batch, "chunk": options.chunk, "want": options.want,
            "kv": options.kv.name(), "math": options.math.name(), "passes": options.passes,
        },
        "memory": {
            "weights": memory.weights, "states": memory.states, "scratch": memory.scratch, "io": memory.io,
            "thread": memory.thread, "threads": PEAK_THREADS, "text": memory.text, "experts": memory.experts,
            "slots": memory.expert_slots, "bound": memory.scratch_lower_bound, "placement": memory.placement,
            "peak": memory.peak(),
        },
        "weights": listed(plan.weights.iter().map(weight)),
        "states": listed(plan.states.iter().map(state)),
        "ports": plan.ports.iter().map(|it| json!([it.name.name(), it.dtype.name(), it.rows, it.cols, it.offset])).collect::<Value>(),
        "passes": passes(ir, plan.programs.len()),
        "programs": programs,
    })
}

/// The call that predictions are about: a prompt as long as the program takes, or one token in a half full context.
pub(super) fn call(plan: &Plan, program: &Program) -> CallShape {
    let (tokens, want) = (program.tokens, program.want.min(1));
    match program.name.as_str() {
        "decode" => CallShape { tokens: 1, want: 1, past: plan.options.ctx / 2 },
        _ => CallShape { tokens, want, past: 0 },
    }
}

/// Each pass: name, rewrites, and refusals as reason, count, first place, what would have to change.
fn passes(ir: &str, graphs: usize) -> Value {
    let missed = |pass: &str, it: &Missed| {
        let cost = missed::price(pass, it, graphs);
        json!([it.reason, it.count, it.first, cost, missed::change(&it.reason)])
    };
    let pass = |it: &PassLine| {
        json!([it.name, it.rewrites, it.missed.iter().map(|m| missed(&it.name, m)).collect::<Value>()])
    };
    read(comments(ir)).iter().map(pass).collect()
}

/// Values folded, and the group of each in order.
fn listed(values: impl Iterator<Item = Value>) -> Value {
    let (groups, places) = fold::group(values.collect());
    let order: Value = places.iter().map(|it| it.0).collect();
    json!({ "groups": groups.iter().map(fold::Group::json).collect::<Value>(), "order": order })
}

/// A name cut at its dots, what is a number as a number: names of equal layers differ in numbers only.
fn pieces(name: &str) -> Value {
    let piece = |it: &str| match it.parse::<u32>() {
        Ok(number) if number.to_string() == it => json!(number),
        _ => json!(it),
    };
    name.split('.').map(piece).collect()
}

fn weight(it: &Weight) -> Value {
    let shape = if it.bank > 1 { json!([it.bank, it.rows, it.cols]) } else { json!([it.rows, it.cols]) };
    json!([pieces(&it.name), it.dtype.name(), it.packing.name(), shape, it.bytes, it.offset])
}

fn state(it: &State) -> Value {
    json!([pieces(&it.name), it.kind.name(), it.dtype.name(), it.shape, it.bytes, it.offset])
}

fn program(plan: &Plan, program: &Program, graph: Option<&Graph>) -> Value {
    let call = call(plan, program);
    let cx = Steps { plan, call, names: graph.map(|it| (it, ValueNames::of(it))), buffers: buffers(program) };
    let writers = writers(program);
    let mut runs: Vec<(Layer, usize, Vec<Value>)> = Vec::new();
    for (at, (step, layer)) in program.steps.iter().zip(layers(plan, program)).enumerate() {
        let step = cx.step(at, step, &writers[at]);
        match runs.last_mut() {
            Some(run) if run.0 == layer => run.2.push(step),
            _ => runs.push((layer, at, vec![step])),
        }
    }
    let label = |layer: Layer| match layer {
        Layer::Begin => json!("begin"),
        Layer::Number(n) => json!(n),
        Layer::End => json!("end"),
    };
    let heads: Vec<(Value, usize)> = runs.iter().map(|it| (label(it.0), it.1)).collect();
    let (groups, places) = fold::group(runs.into_iter().map(|it| Value::Array(it.2)).collect());
    let layers: Vec<Value> = heads
        .into_iter()
        .zip(places)
        .map(|((label, from), (group, at))| json!([label, from, group, at]))
        .collect();
    json!({
        "name": program.name,
        "tokens": program.tokens,
        "want": program.want,
        "steps": program.steps.len(),
        "call": [call.tokens, call.want, call.past],
        "layers": layers,
        "groups": groups.iter().map(fold::Group::json).collect::<Value>(),
    })
}

/// What it takes to describe the steps of one program.
struct Steps<'a> {
    plan: &'a Plan,
    call: CallShape,
    names: Option<(&'a Graph, ValueNames)>,
    buffers: Vec<Buffer>,
}

impl Steps<'_> {
    fn step(&self, at: usize, step: &Step, writers: &[Option<usize>]) -> Value {
        let cost = step_cost(self.plan, step, self.call);
        let read = |(it, writer): (&Operand, &Option<usize>)| {
            let mut res = operand(it);
            res.push(json!(writer.map_or(0, |it| at - it)));
            Value::Array(res)
        };
        let write = |(slot, it): (usize, &Operand)| {
            let mut res = operand(it);
            let buffer = self.buffers.iter().find(|it| (it.step, it.slot) == (at, slot));
            let (bytes, live) = buffer.map_or((0, at..=at), |it| (it.bytes, it.live.clone()));
            let fields =
                [self.value(step, slot), json!(bytes), from(*live.start(), at), from(*live.end(), at)];
            res.extend(fields);
            Value::Array(res)
        };
        json!([
            step.kind.name(),
            class_name(self.plan, step),
            attributes(&step.kind),
            u8::from(step.barrier),
            u8::from(step.window),
            step.tile.rows,
            step.tile.cols,
            step.op,
            cost.weights,
            cost.states,
            cost.others,
            cost.flops,
            step.reads.iter().zip(writers).map(read).collect::<Value>(),
            step.writes.iter().enumerate().map(write).collect::<Value>(),
        ])
    }

    /// The printed number of result `slot` of the step's op.
    fn value(&self, step: &Step, slot: usize) -> Value {
        let number = || {
            let (graph, names) = self.names.as_ref()?;
            let op = graph.ops.get(OpId::new(step.op as usize))?;
            names.number(*op.results.get(slot)?)
        };
        number().map_or(json!(-1), |it| json!(it))
    }
}

/// A step seen from another.
fn from(step: usize, here: usize) -> Value {
    let signed = |it: usize| i64::try_from(it).expect("a plan in memory has fewer steps");
    json!(signed(step) - signed(here))
}

fn operand(it: &Operand) -> Vec<Value> {
    let (space, at) = match it.place {
        Place::Scratch(offset) => ("s", offset),
        Place::Io(offset) => ("io", offset),
        Place::Weight(id) => ("w", u64::from(id)),
        Place::State(id) => ("st", u64::from(id)),
    };
    let rows = match it.rows {
        Rows::Fixed(n) => json!(n),
        Rows::Tokens(1) => json!("T"),
        Rows::Tokens(n) => json!(format!("{n}T")),
        Rows::Want(1) => json!("R"),
        Rows::Want(n) => json!(format!("{n}R")),
    };
    vec![json!(space), json!(at), json!(it.dtype.name()), rows, json!(it.cols), json!(it.stride)]
}

/// Attributes of a kind as names and values; long lists are counted.
fn attributes(kind: &StepKind) -> Value {
    // Through text, so that f32 keeps its shortest form.
    let text = serde_json::to_string(kind).expect("a step kind is plain data");
    let parsed: Value = serde_json::from_str(&text).expect("it was just printed");
    let mut out = Vec::new();
    if let Some(fields) = parsed.as_object().and_then(|it| it.values().next()).and_then(Value::as_object) {
        for (name, value) in fields {
            let value = match value {
                Value::Null | Value::Bool(false) => continue,
                Value::String(word) if word == "none" => continue,
                Value::Array(items) => json!(format!("{} numbers", items.len())),
                Value::Object(_) => json!(value.to_string().replace(['"', '{', '}'], "")),
                other => other.clone(),
            };
            out.extend([json!(name), value]);
        }
    }
    Value::Array(out)
}
