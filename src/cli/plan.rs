//! `waste plan`: every byte by kind, the floor, the peak, and how good the placement is.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use waste::compile::compile;
use waste::compile::experts::CacheSizes;
use waste::formats::container::{Coding, TrunkFormat, VqCode};
use waste::formats::grouped;
use waste::report::budget::{self, Trace};
use waste_plan::schema::{Memory, PEAK_THREADS, Plan};
use waste_runtime::{needed_bytes, needed_bytes_with};

use super::args::{Form, LimitArgs, ShapeArgs, TargetArg};
use super::convert::{parse_code, parse_trunk};
use super::cx::Cx;
use super::error::CliError;
use super::files::read_text;
use super::open;

/// Arguments of `waste plan`.
#[derive(Args, Debug)]
#[command(after_help = "\
    Nothing of a model's weights is read, and they need not be there: the manifest of a container is enough, or a config.json \
    of a model with routed experts, which is planned as the container that 'waste convert' would make of it.")]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    target: TargetArg,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Plan the checkpoint as 'waste convert' would store its routed experts: vq3r, vq2r or vq4p
    #[arg(long, value_name = "CODE", value_parser = parse_code)]
    experts: Option<VqCode>,
    /// As --experts, of all other matrices: q8g, q4g, q3g or f32
    #[arg(long, value_name = "FORMAT", value_parser = parse_trunk)]
    trunk: Option<TrunkFormat>,
    /// What the disk with the experts reads, in GB/s: adds the pace that it allows
    #[arg(long, value_name = "GB/S", value_parser = positive_float)]
    nvme: Option<f64>,
    /// Routings of real tokens, a JSON object a line, to predict hit rates from
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The form of the result
    #[arg(short = 'o', long = "output", value_name = "FORM", value_enum, default_value = "text")]
    form: Form,
}

fn positive_float(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|it| it.is_finite() && *it > 0.0);
    number.ok_or_else(|| "expected a number above 0".to_owned())
}

impl PlanArgs {
    /// How the checkpoint is to be converted, if that is asked for.
    fn coding(&self) -> Option<Coding> {
        if self.experts.is_none() && self.trunk.is_none() {
            return None;
        }
        let usual = Coding::default();
        Some(Coding {
            experts: self.experts.unwrap_or(usual.experts),
            trunk: self.trunk.unwrap_or(usual.trunk),
        })
    }
}

pub(crate) fn run(args: &PlanArgs, cx: &Cx) -> Result<(), CliError> {
    let target = &args.target.target;
    let options = args.shape.options(&args.limits, 1);
    let plan = if open::is_plan(target) {
        open::look_at_plan_as(target, &options)?.plan().clone()
    } else {
        let files = open::open_model_to_plan(target, args.coding(), cx)?;
        compile(&files, &options, &mut |_| {})?.plan
    };
    let least = CacheSizes::of(&plan)
        .map(|it| args.limits.expert_cache.map_or(it.floor, |asked| u64::from(asked).min(it.all)));
    let needs = needed_bytes_with(&plan, 1, least);
    if let Some(limit) = args.limits.max_mem.map(|it| it.0).filter(|it| *it < needs) {
        return Err(CliError::Memory(format!("needs {needs} bytes of memory, {limit} are allowed")));
    }
    let trace = args.trace.as_ref().map(|path| {
        let parsed = Trace::parse(&read_text(path)?);
        parsed.map_err(|err| CliError::Input(format!("{}: {err}", path.display())))
    });
    let sizes = budget::sizes(&plan, trace.transpose()?.as_ref());
    if args.form == Form::Json {
        return cx.print(&as_json(&plan, &sizes, args.nvme));
    }
    let mut text = as_text(&plan);
    if !sizes.is_empty() {
        let from = if args.trace.is_some() {
            "hits as the trace has them"
        } else {
            "experts chosen evenly, the worst case"
        };
        let table = budget::table(&sizes, args.nvme).markdown();
        write!(text, "\nwhat a cache of experts buys, {from}:\n\n{table}").expect("writing to a string");
    }
    cx.print(&text)
}

/// Scratch in bytes ÷ the most bytes live at one step; 1 where nothing is live.
#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
pub(super) fn arena_ratio(memory: &Memory) -> f64 {
    if memory.scratch == 0 { 1.0 } else { memory.scratch as f64 / memory.scratch_lower_bound.max(1) as f64 }
}

/// The least memory that any placement could do with, with one thread.
fn floor(plan: &Plan) -> u64 {
    let experts = CacheSizes::of(plan).map(|it| it.floor);
    needed_bytes_with(plan, 1, experts)
        .saturating_sub(plan.memory.scratch)
        .saturating_add(plan.memory.scratch_lower_bound)
}

fn as_json(plan: &Plan, sizes: &[budget::Size], nvme: Option<f64>) -> String {
    let memory = &plan.memory;
    let sizes: Vec<serde_json::Value> = sizes
        .iter()
        .map(|it| {
            json!({
                "slots": it.slots,
                "cache_bytes": it.bytes,
                "needed_bytes": it.total,
                "hit_rate": it.hit_rate,
                "read_bytes_a_token": it.read_bytes,
                "tokens_per_second": nvme.map(|nvme| it.tokens_per_second(nvme)).filter(|it| it.is_finite()),
            })
        })
        .collect();
    let value = json!({
        "model": plan.model.name,
        "arch": plan.model.arch,
        "ctx": plan.options.ctx,
        "batch": plan.options.batch,
        "chunk": plan.options.chunk,
        "weights_bytes": memory.weights,
        "states_bytes": memory.states,
        "scratch_bytes": memory.scratch,
        "scratch_lower_bound_bytes": memory.scratch_lower_bound,
        "io_bytes": memory.io,
        "thread_bytes": memory.thread,
        "text_bytes": memory.text,
        "experts_bytes": memory.experts,
        "expert_slots": memory.expert_slots,
        "expert_caches": sizes,
        "floor_bytes": floor(plan),
        "peak_bytes": memory.peak(),
        "arena_ratio": arena_ratio(memory),
        "placement": memory.placement,
    });
    format!("{value}\n")
}

fn as_text(plan: &Plan) -> String {
    let (memory, options) = (&plan.memory, &plan.options);
    let mut out = format!(
        "{} ({}), {} parameters\nctx {}, batch {}, chunk {}, kv {}, math {}\n\n",
        plan.model.name,
        plan.model.arch,
        grouped(plan.model.params),
        options.ctx,
        options.batch,
        options.chunk,
        options.kv.name(),
        options.math.name(),
    );
    let mut line = |name: &str, bytes: u64, note: &str| {
        let row = format!("{name:<22} {:>18} {note}", grouped(bytes));
        writeln!(out, "{}", row.trim_end()).expect("writing to a string");
    };
    line("weights", memory.weights, "");
    for (layout, (count, bytes)) in by_layout(plan) {
        line(&format!("  {layout}"), bytes, &format!("in {count}"));
    }
    line("states", memory.states, &format!("in {}", plan.states.len()));
    line("scratch", memory.scratch, &format!("placed by {}", memory.placement));
    line("io", memory.io, "");
    line("text", memory.text, "");
    if memory.expert_slots > 0 {
        line("expert cache", memory.experts, &format!("{} records", grouped(memory.expert_slots)));
    }
    if let Some(it) = CacheSizes::of(plan) {
        let records = |n: u64| (n.saturating_mul(it.slot_bytes), grouped(n));
        let ((bytes, n), (all, count)) = (records(it.working_set), records(it.all));
        line("  working set", bytes, &format!("{n} records: the experts of a token in all layers"));
        line("  all experts", all, &format!("{count} records"));
    }
    line("each thread", memory.thread, "");
    line("floor, 1 thread", floor(plan), "no placement can do with less");
    line("needed, 1 thread", needed_bytes(plan, 1), "");
    line("peak", memory.peak(), &format!("stated, with {PEAK_THREADS} threads"));
    writeln!(out, "\narena ÷ lower bound {:.2}", arena_ratio(memory)).expect("writing to a string");
    for program in &plan.programs {
        let barriers = program.steps.iter().filter(|it| it.barrier).count();
        writeln!(
            out,
            "{:<8} {:>5} steps, {barriers:>5} barriers, at most {} tokens and {} rows of logits",
            program.name,
            program.steps.len(),
            program.tokens,
            program.want,
        )
        .expect("writing to a string");
    }
    out
}

/// Count and bytes of weights by element type and layout.
fn by_layout(plan: &Plan) -> BTreeMap<String, (usize, u64)> {
    let mut sums: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for weight in &plan.weights {
        let sum = sums.entry(format!("{} {}", weight.dtype.name(), weight.packing.name())).or_default();
        *sum = (sum.0 + 1, sum.1 + weight.bytes);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_of_scratch_to_its_bound() {
        let memory =
            |scratch, scratch_lower_bound| Memory { scratch, scratch_lower_bound, ..Memory::default() };
        assert_eq!(arena_ratio(&memory(300, 200)).to_bits(), 1.5f64.to_bits());
        assert_eq!(arena_ratio(&memory(0, 0)).to_bits(), 1.0f64.to_bits());
    }
}
