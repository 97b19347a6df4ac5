//! `--profile`: one more repetition with a clock at every step, in a session of its own.
//!
//! With the clock every step begins at a barrier, so the sum is above the time of a plain repetition.

use serde_json::{Value, json};
use waste::report::classes::{Class, Measured, classes, table};
use waste::report::cost::{CallShape, program_for};
use waste::report::roofline::Roofs;
use waste::report::units::float;
use waste_plan::schema::Plan;
use waste_runtime::{LoadedPlan, Session, SessionOptions};

use super::{Run, Setup, Test};
use crate::cli::error::CliError;

/// The classes of one program.
pub(super) struct Profiled {
    program: String,
    calls: usize,
    /// Tokens of all calls.
    tokens: u64,
    classes: Vec<Class>,
    /// Nanoseconds of each step, all calls together.
    nanos: Vec<u64>,
}

/// Runs `test` once to warm up and once with the clock; a result for each program that ran.
pub(super) fn measure(
    loaded: &LoadedPlan,
    setup: &Setup,
    test: Test,
    chunk: u32,
) -> Result<Vec<Profiled>, CliError> {
    let options = SessionOptions { profile: true, ..setup.options.clone() };
    let mut session = Session::open(loaded, &options)?;
    let mut run = Run::new(&mut session, test, chunk)?;
    run.once()?;
    let before = nanos(run.session);
    run.once()?;
    let after = nanos(run.session);
    let plan = loaded.plan();
    let of = |(at, (before, after)): (usize, (&Vec<u64>, &Vec<u64>))| {
        let spent: Vec<u64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
        of_program(plan, at, &run.calls, &spent)
    };
    Ok(before.iter().zip(&after).enumerate().filter_map(of).collect())
}

/// Nanoseconds of each step of each program so far.
fn nanos(session: &Session) -> Vec<Vec<u64>> {
    let programs = session.plan().programs.len();
    session.profile().map_or_else(Vec::new, |it| (0..programs).map(|at| it.nanos(at)).collect())
}

/// The classes of program `at`; `None` if none of the calls was its.
fn of_program(plan: &Plan, at: usize, calls: &[CallShape], nanos: &[u64]) -> Option<Profiled> {
    let is_its = |it: &&CallShape| program_for(plan, it.tokens, it.want) == Some(at);
    let calls: Vec<CallShape> = calls.iter().filter(is_its).copied().collect();
    let program = &plan.programs[at];
    (!calls.is_empty()).then(|| Profiled {
        program: program.name.clone(),
        calls: calls.len(),
        tokens: calls.iter().map(|it| u64::from(it.tokens)).sum(),
        classes: classes(plan, Measured { program, calls: &calls, nanos }),
        nanos: nanos.to_vec(),
    })
}

impl Profiled {
    /// A heading, a table, and the roofline where there is one; `roof` is the probe's bytes a second.
    pub(super) fn markdown(&self, roof: Option<f64>, roofs: Option<Roofs>) -> String {
        let heading = format!("{}, {} calls", self.program, self.calls);
        let classes = table(&self.classes, self.calls, roof.unwrap_or(f64::INFINITY)).markdown();
        let roofline = roofs.map(|it| self.roofline(it)).unwrap_or_default();
        format!("{heading}\n\n{classes}{roofline}")
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
        let class = |it: &Class| {
            let least = roofs.map(|roofs| roofs.nanos(&it.cost));
            json!({
                "op": it.name,
                "steps": it.steps,
                "weight_bytes": it.cost.weights,
                "state_bytes": it.cost.states,
                "other_bytes": it.cost.others,
                "flops": it.cost.flops,
                "ns": it.nanos,
                "least_ns": least.map(|it| it.0),
                "bound": least.map(|it| it.1.name()),
            })
        };
        let classes: Vec<Value> = self.classes.iter().map(class).collect();
        json!({
            "program": self.program,
            "calls": self.calls,
            "possible_ts": roofs.map(|it| self.possible(it)),
            "classes": classes,
            "step_ns": self.nanos,
        })
    }
}
