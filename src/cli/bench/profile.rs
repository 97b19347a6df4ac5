//! `--profile`: one more repetition with a clock at every step, in a session of its own.
//!
//! With the clock every step begins at a barrier, so the sum is above the time of a plain repetition.

use serde_json::{Value, json};
use waste::report::classes::{Class, Measured, classes, table};
use waste::report::cost::{CallShape, Cost, program_for};
use waste::report::ops::{self, Op, ops};
use waste::report::roofline::{Bound, Roofs};
use waste::report::units::float;
use waste_plan::schema::Plan;
use waste_runtime::{LoadedPlan, Session, SessionOptions};

use super::{Run, Setup, Test};
use crate::cli::cx::Cx;
use crate::cli::error::CliError;

/// How finely a profile is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Detail {
    /// By class of op.
    Classes,
    /// By class, and each op.
    Ops,
}

/// What one program came to.
pub(super) struct Profiled {
    program: String,
    calls: usize,
    /// Tokens of all calls.
    tokens: u64,
    ops: Vec<Op>,
    classes: Vec<Class>,
    detail: Detail,
}

/// Runs `test` once to warm up and once with the clock; a result for each program that ran.
pub(super) fn measure(
    loaded: &LoadedPlan,
    setup: &Setup,
    test: Test,
    chunk: u32,
    detail: Detail,
    cx: &Cx,
) -> Result<Vec<Profiled>, CliError> {
    let options = SessionOptions { profile: true, ..setup.options.clone() };
    let mut session = Session::open(loaded, &options)?;
    cx.interrupt.cancels(session.cancel_flag())?;
    let mut run = Run::new(&mut session, test, chunk)?;
    run.once()?;
    let before = nanos(run.session);
    run.once()?;
    let after = nanos(run.session);
    let plan = loaded.plan();
    let of = |(at, (before, after)): (usize, (&Vec<u64>, &Vec<u64>))| {
        let spent: Vec<u64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
        of_program(plan, at, &run.calls, &spent, detail)
    };
    Ok(before.iter().zip(&after).enumerate().filter_map(of).collect())
}

/// Nanoseconds of each step of each program so far.
fn nanos(session: &Session) -> Vec<Vec<u64>> {
    let programs = session.plan().programs.len();
    session.profile().map_or_else(Vec::new, |it| (0..programs).map(|at| it.nanos(at)).collect())
}

/// What program `at` came to; `None` if none of the calls was its.
fn of_program(
    plan: &Plan,
    at: usize,
    calls: &[CallShape],
    nanos: &[u64],
    detail: Detail,
) -> Option<Profiled> {
    let is_its = |it: &&CallShape| program_for(plan, it.tokens, it.want) == Some(at);
    let calls: Vec<CallShape> = calls.iter().filter(is_its).copied().collect();
    let program = &plan.programs[at];
    let ops = ops(plan, Measured { program, calls: &calls, nanos });
    (!calls.is_empty()).then(|| Profiled {
        program: program.name.clone(),
        calls: calls.len(),
        tokens: calls.iter().map(|it| u64::from(it.tokens)).sum(),
        classes: classes(&ops),
        ops,
        detail,
    })
}

impl Profiled {
    /// A heading, a table, the roofline where there is one, and the ops where they are asked for; `roof` is the probe's bytes a second.
    pub(super) fn markdown(&self, roof: Option<f64>, roofs: Option<Roofs>) -> String {
        let heading = format!("{}, {} calls", self.program, self.calls);
        let classes = table(&self.classes, self.calls, roof.unwrap_or(f64::INFINITY)).markdown();
        let roofline = roofs.map(|it| self.roofline(it)).unwrap_or_default();
        let ops = match self.detail {
            Detail::Classes => String::new(),
            Detail::Ops => format!("\n{}", ops::table(&self.ops, roofs, self.calls).markdown()),
        };
        format!("{heading}\n\n{classes}{roofline}{ops}")
    }

    /// Tokens a second if every op ran at its roof.
    fn possible(&self, roofs: Roofs) -> f64 {
        float(self.tokens) * 1e9 / roofs.total(&self.classes).max(1e-9)
    }

    fn roofline(&self, roofs: Roofs) -> String {
        let table = roofs.table(&self.classes, self.calls).markdown();
        let (gb, gflop, possible) = (roofs.bytes / 1e9, roofs.flops / 1e9, self.possible(roofs));
        format!(
            "\nat best {possible:.1} tokens/s on this machine ({gb:.2} GB/s, {gflop:.1} GFLOP/s, both measured):\n\n{table}"
        )
    }

    pub(super) fn json(&self, roofs: Option<Roofs>) -> Value {
        let costs = |it: &Cost, nanos: u64, least: Option<(f64, Bound)>| {
            json!({
                "weight_bytes": it.weights,
                "state_bytes": it.states,
                "other_bytes": it.others,
                "flops": it.flops,
                "ns": nanos,
                "least_ns": least.map(|it| it.0),
                "bound": least.map(|it| it.1.name()),
            })
        };
        let class = |it: &Class| {
            let mut value = costs(&it.cost, it.nanos, roofs.map(|roofs| roofs.class_nanos(it)));
            value["op"] = json!(it.name);
            value["steps"] = json!(it.each.len());
            value
        };
        let op = |it: &Op| {
            let mut value = costs(&it.cost, it.nanos, roofs.map(|roofs| roofs.nanos(&it.cost)));
            value["step"] = json!(it.step);
            value["op"] = json!(it.class);
            value["shape"] = json!(it.shape);
            value["tensor"] = json!(it.tensor);
            value
        };
        let mut value = json!({
            "program": self.program,
            "calls": self.calls,
            "possible_ts": roofs.map(|it| self.possible(it)),
            "classes": self.classes.iter().map(class).collect::<Vec<_>>(),
            "step_ns": self.ops.iter().map(|it| it.nanos).collect::<Vec<_>>(),
        });
        if self.detail == Detail::Ops {
            value["ops"] = self.ops.iter().map(op).collect();
        }
        value
    }
}
