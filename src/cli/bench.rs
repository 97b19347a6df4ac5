//! `waste bench`: tokens a second, in the terms of llama-bench, beside what this machine's memory allows.
//!
//! Each test warms its exact shape once, then runs so often from the same history. The roof is this machine's own reading
//! speed over a working set of the same size, measured right after the test with the same threads.
//!
//! Deliberately absent: several sequences at once.

mod compare;
mod process;
mod profile;
mod record;
mod test;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use waste::report::cost::{CallShape, Cost, call_cost, program_for};
use waste::report::probe::Probe;
use waste::report::roofline::Roofs;
use waste_plan::schema::Plan;
use waste_runtime::sys::{self, Machine};
use waste_runtime::{LoadedPlan, RuntimeError, Session, Token, peak_flops};

use super::args::{Backend, Cpus, LimitArgs, MachineArgs, ShapeArgs, StreamArgs, TargetArg};
use super::cx::Cx;
use super::error::CliError;
use super::open::{self, Setup};
use profile::{Detail, Profiled};
use record::{Record, TableForm};
pub(super) use test::random_ids;
use test::{Test, tests};

/// How long the probe reads.
const PROBE_TIME: Duration = Duration::from_millis(250);

/// Arguments of `waste bench`.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    target: TargetArg,
    /// Tokens of a prompt, a list; 0 for no such test
    #[arg(short = 'p', long, value_name = "N,…", value_delimiter = ',', default_value = "512")]
    n_prompt: Vec<u32>,
    /// Tokens to generate, a list; 0 for no such test
    #[arg(short = 'n', long, value_name = "N,…", value_delimiter = ',', default_value = "128")]
    n_gen: Vec<u32>,
    /// Tokens of history before each test, a list
    #[arg(short = 'd', long, value_name = "N,…", value_delimiter = ',', default_value = "0")]
    n_depth: Vec<u32>,
    /// Measurements of each test
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Numbers of threads, a list [default: what affinity, cpuset and quota allow]
    #[arg(short = 't', long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    threads: Vec<u32>,
    /// Processors to run on, such as 0-3,8
    #[arg(long, value_name = "LIST")]
    cpus: Option<Cpus>,
    /// cpu, or its best tier to use: cpu:portable, cpu:avx2, cpu:avx512, cpu:vnni, cpu:amx; on Arm cpu:neon, cpu:dotprod, cpu:i8mm
    #[arg(long, value_name = "BACKEND")]
    backend: Option<Backend>,
    /// Do not compare the weights' checksums before the first token
    #[arg(long)]
    no_verify: bool,
    #[command(flatten)]
    stream: StreamArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Also print where the time goes, by class of op: predicted bytes and operations, measured time, and the least time possible;
    /// --profile=ops prints the same of each op
    #[arg(long, value_name = "DETAIL", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "classes")]
    profile: Option<Detail>,
    /// Run another program in turn with this one, each in fresh processes, and print ratios: a shell command that prints what
    /// llama-bench -o json prints; of any other the wall time counts
    #[arg(long, value_name = "CMD", conflicts_with = "profile")]
    compare: Option<String>,
    /// Rounds of --compare: this, the other, the other, this
    #[arg(long, value_name = "N", default_value_t = 5, requires = "compare", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Most seconds of one process of --compare: it is ended then, and the comparison with it
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, requires = "compare", value_parser = clap::value_parser!(u32).range(1..))]
    compare_timeout: u32,
    /// Write every observation of --compare to FILE, as JSON
    #[arg(long, value_name = "FILE", requires = "compare")]
    observations: Option<PathBuf>,
    /// The form of the result
    #[arg(short = 'o', long = "output", value_name = "FORM", value_enum, default_value = "md")]
    form: TableForm,
}

pub(crate) fn run(args: &BenchArgs, cx: &Cx) -> Result<(), CliError> {
    if let Some(other) = &args.compare {
        return compare::run(args, other, cx);
    }
    let tests = tests(&args.n_prompt, &args.n_gen, &args.n_depth)?;
    let most = tests.iter().map(Test::positions).max().unwrap_or(1);
    let options = args.shape.options(&args.limits, 1);
    let loaded = open::load(&args.target.target, options, Some(most), cx)?;
    let ctx = loaded.plan().options.ctx;
    if let Some(test) = tests.iter().find(|it| ctx < it.positions()) {
        return Err(CliError::Usage(format!(
            "{test} needs {} positions, the plan has {ctx}",
            test.positions()
        )));
    }
    let threads: Vec<Option<u32>> =
        if args.threads.is_empty() { vec![None] } else { args.threads.iter().copied().map(Some).collect() };
    if cfg!(debug_assertions) {
        cx.note("waste: note: this is a development build: measure with --release");
    }
    let mut records = Vec::new();
    for count in threads {
        let machine = args.machine(count);
        for test in &tests {
            let record = bench(args, &loaded, &machine, *test, cx)?;
            if args.form == TableForm::Jsonl {
                cx.print(&record.json_line())?;
            }
            records.push(record);
        }
    }
    cx.print(&record::print(&records, args.form))
}

impl BenchArgs {
    fn machine(&self, threads: Option<u32>) -> MachineArgs {
        MachineArgs {
            threads,
            cpus: self.cpus.clone(),
            backend: self.backend,
            no_verify: self.no_verify,
            check_finite: false,
            stream: self.stream.clone(),
        }
    }
}

/// What one test came to.
struct Measured {
    test: Test,
    nanos: Vec<u64>,
    /// Predicted, of one repetition.
    cost: Cost,
    /// The most bytes resident since the session was opened.
    peak: Option<u64>,
    /// Bytes a second of the probe; `None` if there was no memory for it.
    roof: Option<f64>,
    /// Operations a second at best; `None` if nothing asked for it.
    peak_flops: Option<f64>,
}

impl Measured {
    /// Both roofs, if both were measured.
    fn roofs(&self) -> Option<Roofs> {
        Some(Roofs { bytes: self.roof?, flops: self.peak_flops? })
    }
}

/// Measures one test in a session of its own.
fn bench(
    args: &BenchArgs,
    loaded: &LoadedPlan,
    machine: &MachineArgs,
    test: Test,
    cx: &Cx,
) -> Result<Record, CliError> {
    let chunk = chunk(loaded.plan(), &args.limits);
    let has_peak = sys::reset_peak_rss();
    let (mut session, setup) = open::session(loaded, machine, &args.limits, cx)?;
    let mut run = Run::new(&mut session, test, chunk)?;
    run.once()?;
    let nanos = (0..args.repetitions).map(|_| run.once()).collect::<Result<_, _>>()?;
    let peak = if has_peak { sys::peak_rss() } else { None };
    drop(session);

    let calls = test.calls(chunk);
    let roof = roof(loaded.plan(), &calls, &setup);
    let cost = calls.iter().fold(Cost::default(), |mut sum, it| {
        sum += cost_of(loaded.plan(), *it);
        sum
    });
    let at = &setup.options;
    let peak_flops = args.profile.map(|_| peak_flops(at.cpu, at.threads, &at.cpus, PROBE_TIME));
    let measured = Measured { test, nanos, cost, peak, roof, peak_flops };
    let profile = match args.profile {
        Some(detail) => profile::measure(loaded, &setup, test, chunk, detail, cx)?,
        None => Vec::new(),
    };
    Ok(Record::new(loaded.plan(), &args.target.target, &setup, chunk, measured, profile))
}

/// Tokens of a prefill step: what is asked for, at most what the plan takes.
fn chunk(plan: &Plan, limits: &LimitArgs) -> u32 {
    limits.chunk.map_or(plan.options.chunk, |it| it.min(plan.options.chunk))
}

fn cost_of(plan: &Plan, call: CallShape) -> Cost {
    let program = program_for(plan, call.tokens, call.want);
    program.map_or_else(Cost::default, |at| call_cost(plan, &plan.programs[at], call))
}

/// The probe over what the last call must read.
fn roof(plan: &Plan, calls: &[CallShape], setup: &Setup) -> Option<f64> {
    let bytes = cost_of(plan, *calls.last()?).memory();
    let available = Machine::detect().available.unwrap_or(u64::MAX);
    (bytes < available)
        .then(|| Probe::new(bytes, setup.options.threads, &setup.options.cpus).measure(PROBE_TIME))
}

/// Repetitions of one test on one session.
struct Run<'a> {
    session: &'a mut Session,
    test: Test,
    chunk: u32,
    calls: Vec<CallShape>,
    tokens: Vec<Token>,
}

impl<'a> Run<'a> {
    /// Reads the history before the test.
    fn new(session: &'a mut Session, test: Test, chunk: u32) -> Result<Self, CliError> {
        let tokens = random_ids(test.positions(), session.plan().model.vocab);
        let mut run = Self { session, test, chunk, calls: test.calls(chunk), tokens };
        run.history()?;
        Ok(run)
    }

    /// Brings the session to the history that the test begins with.
    fn history(&mut self) -> Result<(), CliError> {
        self.session.clear(0);
        let history = Test { depth: 0, prompt: self.test.depth, gen_tokens: 0 };
        history.calls(self.chunk).into_iter().try_for_each(|it| self.call(it))
    }

    /// Runs the test once from its history; nanoseconds.
    fn once(&mut self) -> Result<u64, CliError> {
        if self.session.truncate(0, self.test.depth).is_err() {
            // A recurrent state cannot go back: it is made again, outside the clock.
            self.history()?;
        }
        let started = Instant::now();
        for index in 0..self.calls.len() {
            self.call(self.calls[index])?;
        }
        Ok(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn call(&mut self, call: CallShape) -> Result<(), CliError> {
        let (from, n) = (call.past as usize, call.tokens as usize);
        let last = [call.tokens.saturating_sub(1)];
        let want = &last[..call.want as usize];
        self.session.step(&self.tokens[from..from + n], want).map_err(|err| match err {
            RuntimeError::Cancelled => CliError::Interrupted,
            err => err.into(),
        })
    }
}
