//! A recorded run as a timeline for Perfetto or any reader of Chrome's trace events.
//!
//! One track a thread with a slice a step; counters for the bytes live in scratch (the plan's numbers, as thread 0 walks it) and for the
//! bytes of experts read from disk. Times are microseconds since the recording began.

use std::io::{self, Write};

use serde_json::{Value, json};
use waste_plan::schema::{Plan, Step};
use waste_runtime::{Slice, Trace};

use super::buffers::live_bytes;
use super::classes::class_name;
use super::layers::{Layer, layers};

/// What is said about a step, the same in every call.
struct About {
    name: &'static str,
    kernel: String,
    layer: Value,
    /// Barriers up to this step: steps of one interval may overlap in time.
    interval: usize,
    live: u64,
}

/// Writes the events of `trace`, a recording of a session with `plan`.
///
/// # Errors
/// If `out` cannot be written.
pub fn write(plan: &Plan, trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let about: Vec<Vec<About>> = (0..plan.programs.len()).map(|it| about(plan, it)).collect();
    let mut events = Events { out, is_first: true };
    events.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    events
        .push(&json!({ "ph": "M", "pid": 1, "name": "process_name", "args": { "name": plan.model.name } }))?;
    for thread in 0..trace.threads() {
        let name = format!("thread {thread}");
        events.push(
            &json!({ "ph": "M", "pid": 1, "tid": thread, "name": "thread_name", "args": { "name": name } }),
        )?;
        for slice in trace.slices(thread) {
            let program = &plan.programs[slice.program as usize].name;
            let step = &about[slice.program as usize][slice.step as usize];
            events.push(&event(thread, &slice, program, step))?;
            if thread == 0 {
                events.push(&counter("scratch", slice.start, step.live))?;
            }
            if let Some(bytes) = slice.disk {
                events.push(&counter("disk", slice.end, bytes))?;
            }
        }
    }
    events.out.write_all(b"\n]}\n")
}

fn about(plan: &Plan, program: usize) -> Vec<About> {
    let program = &plan.programs[program];
    let mut interval = 0;
    let about = |((step, layer), live): ((&Step, Layer), u64)| {
        interval += usize::from(step.barrier);
        let layer = match layer {
            Layer::Begin => json!("begin"),
            Layer::Number(n) => json!(n),
            Layer::End => json!("end"),
        };
        About { name: step.kind.name(), kernel: class_name(plan, step), layer, interval, live }
    };
    program.steps.iter().zip(layers(plan, program)).zip(live_bytes(program)).map(about).collect()
}

fn event(thread: usize, slice: &Slice, program: &str, about: &About) -> Value {
    json!({
        "ph": "X",
        "pid": 1,
        "tid": thread,
        "name": about.name,
        "cat": program,
        "ts": micros(slice.start),
        "dur": micros(slice.end.saturating_sub(slice.start)),
        "args": {
            "call": slice.call,
            "step": slice.step,
            "kernel": about.kernel,
            "layer": about.layer,
            "interval": about.interval,
            "tiles": slice.tiles,
        },
    })
}

fn counter(name: &str, nanos: u64, bytes: u64) -> Value {
    json!({ "ph": "C", "pid": 1, "name": name, "ts": micros(nanos), "args": { "bytes": bytes } })
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a run are below 2^53")]
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

/// Events, one a line.
struct Events<'a> {
    out: &'a mut dyn Write,
    is_first: bool,
}

impl Events<'_> {
    fn push(&mut self, event: &Value) -> io::Result<()> {
        let comma = if std::mem::replace(&mut self.is_first, false) { "" } else { ",\n" };
        write!(self.out, "{comma}{event}")
    }
}
