//! `waste bisect`: the first op of a plan that computes something else than its graph says, or the first layers that compute something
//! else than a reference's hidden states say.

mod hidden;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use waste::compile::experts::CacheSizes;
use waste::compile::verified;
use waste::formats::{Adapter, Source};
use waste::models::{adapter_decl, source_decls};
use waste::report::bisect::{Errors, Mode, OpError, is_over, larger, tolerance};
use waste::report::cost::program_for;
use waste_ir::interp::{CallValues, Inputs, Interp, decode_matrix, decode_weight};
use waste_ir::{Module, SourceDecl, SourceId};
use waste_plan::DType;
use waste_plan::ids::EntityRef;
use waste_plan::schema::{Place, Plan, PortName};
use waste_runtime::sys::Machine;
use waste_runtime::{LoadedPlan, RuntimeError, Session, Token};

use super::args::{Form, LimitArgs, MachineArgs, parse_ids};
use super::bench::random_ids;
use super::cx::Cx;
use super::error::CliError;
use super::files::read_text;
use super::open;

/// Arguments of `waste bisect`.
#[derive(Args, Debug)]
#[command(after_help = "\
Against MODEL the reference is the plan's own final graphs, evaluated in 64 bits on the weights of MODEL. Each op runs on the \
reference's inputs, so that its error is its own; a second run on the plan's own values shows what becomes of all errors together.

Against FILE.npz the reference is another program, which wrote (numpy.savez) arrays of these names:
  ids          the T token ids, from position 0
  hidden.0     floats T x h: what the first layer reads
  hidden.K     floats T x h: what layer K-1 hands on, for K from 1 to the number of layers L
  hidden.(L+1) floats T x h: the final norm; transformers gives it as the last of its hidden states, in place of hidden.L
  logits       floats T x vocabulary
Any of the states and the logits may be missing. The steps between two stated ones run on the reference's state; caches and \
recurrent states are the plan's own, made of the reference's states. An error is the largest of any token's row; of hidden.(L+1) and \
logits the last row of each call is compared. Other arrays are named and not compared.")]
pub(crate) struct BisectArgs {
    /// The plan
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// The model that the plan was compiled from, or a reference's hidden states
    #[arg(long, value_name = "MODEL|FILE.npz")]
    against: PathBuf,
    /// An adapter that was merged into it; repeatable, in the order of compiling
    #[arg(long, value_name = "DIR")]
    lora: Vec<PathBuf>,
    /// A file of token ids, separated by spaces, commas or lines [default: 8 random ones]
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// The largest relative error that an op may have [default: what the plan's arithmetic keeps]
    #[arg(long, value_name = "E", value_parser = parse_tolerance)]
    tolerance: Option<f64>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// The form of the result
    #[arg(short = 'o', long = "output", value_name = "FORM", value_enum, default_value = "text")]
    form: Form,
}

/// Tokens where none are given.
const DEFAULT_TOKENS: u32 = 8;

fn parse_tolerance(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|it| it.is_finite() && *it >= 0.0);
    number.ok_or_else(|| "expected a number from 0, such as 1e-5".to_owned())
}

pub(crate) fn run(args: &BisectArgs, cx: &Cx) -> Result<(), CliError> {
    let loaded = open::open_plan(&args.plan)?;
    let plan = loaded.plan();
    let steps = plan.programs.iter().flat_map(|it| &it.steps);
    let usual = tolerance(plan.options.math, plan.options.kv == DType::F16, steps);
    let tolerance = args.tolerance.unwrap_or(usual);
    if args.against.extension().is_some_and(|it| it == "npz") {
        return hidden::run(args, &loaded, tolerance, cx);
    }
    let module = open::graphs(&loaded)?;
    let errors = errors(args, &loaded, &module, cx)?;
    let report = Report { plan, errors: &errors, tolerance };
    match args.form {
        Form::Text => cx.print(&report.text())?,
        Form::Json => cx.print(&report.json())?,
    }
    match errors.first_over(report.tolerance) {
        None => Ok(()),
        Some(it) => {
            let (name, error) = (report.name(it), it.own);
            let over = errors.0.iter().filter(|it| is_over(it.own, report.tolerance)).count();
            Err(CliError::Difference(format!(
                "{name}: relative error {error:.2e}, {:.0e} is allowed; ops over it: {over}",
                report.tolerance
            )))
        }
    }
}

/// Both runs, call by call, so that no more than the values of one call are kept.
fn errors(args: &BisectArgs, loaded: &LoadedPlan, module: &Module, cx: &Cx) -> Result<Errors, CliError> {
    let ids = ids(args, loaded.plan())?;
    let calls = calls(loaded.plan(), &ids, args.limits.chunk)?;
    let (mut own, together) = sessions(args, loaded, cx)?;
    let mut together = Some(together);
    let mut errors = Errors::default();
    for_each_call(module, args, loaded.plan(), &calls, cx, |call, values| {
        let graph = module.graph(&call.program).ok_or_else(|| no_graph(&call.program))?;
        let want = [u32::try_from(call.tokens.len() - 1).expect("tokens of a call")];
        own.step_seen(&call.tokens, &want, &mut |it| errors.see(it, graph, values, Mode::Own))?;
        let Some(session) = &mut together else { return Ok(()) };
        let done =
            session.step_seen(&call.tokens, &want, &mut |it| errors.see(it, graph, values, Mode::Together));
        match done {
            // What is not finite was seen; nothing follows from it.
            Err(RuntimeError::NotFinite { .. }) => together = None,
            done => done?,
        }
        Ok(())
    })?;
    Ok(errors)
}

/// A session that runs on the reference's values, and one that runs on its own.
fn sessions(args: &BisectArgs, loaded: &LoadedPlan, cx: &Cx) -> Result<(Session, Session), CliError> {
    let mut setup = open::setup(loaded, &args.machine, &args.limits, cx)?;
    // All experts fit, and without readers a window waits for all it wants: each loop over experts is one turn, seen whole.
    setup.options.experts.slots = CacheSizes::of(loaded.plan()).map(|it| it.all);
    setup.options.experts.readers = 0;
    let open = || {
        let session = Session::open(loaded, &setup.options)?;
        cx.interrupt.cancels(session.cancel_flag())?;
        Ok::<_, CliError>(session)
    };
    Ok((open()?, open()?))
}

fn no_graph(name: &str) -> CliError {
    CliError::Input(format!("the plan's graphs have no '{name}'"))
}

fn ids(args: &BisectArgs, plan: &Plan) -> Result<Vec<u32>, CliError> {
    let ids = match &args.tokens {
        Some(path) => {
            let name = path.display();
            parse_ids(&read_text(path)?).map_err(|err| CliError::Input(format!("{name}: {err}")))?
        }
        None => random_ids(DEFAULT_TOKENS.min(plan.options.ctx), plan.model.vocab)
            .iter()
            .map(|it| it.id)
            .collect(),
    };
    match ids.iter().find(|it| plan.model.vocab <= **it) {
        Some(id) => Err(CliError::Input(format!("token {id} of a vocabulary of {}", plan.model.vocab))),
        None if plan.options.ctx as usize >= ids.len() => Ok(ids),
        None => {
            Err(CliError::Usage(format!("{} tokens do not fit a context of {}", ids.len(), plan.options.ctx)))
        }
    }
}

/// One call, of row 0.
struct CallOf {
    program: String,
    tokens: Vec<Token>,
    past: usize,
}

/// Chunks of all tokens but the last, which comes alone: so that both programs run.
fn calls(plan: &Plan, ids: &[u32], chunk: Option<u32>) -> Result<Vec<CallOf>, CliError> {
    let chunk = chunk.unwrap_or(plan.options.chunk).min(plan.options.chunk).max(1) as usize;
    let (first, last) = ids.split_at(ids.len() - 1);
    let mut past = 0;
    let of = |ids: &[u32]| {
        let n = u32::try_from(ids.len()).map_err(|_| CliError::Input("too many tokens".into()))?;
        let program = program_for(plan, n, 1)
            .ok_or_else(|| CliError::Input(format!("the plan takes no call of {n} tokens")))?;
        let tokens = ids.iter().map(|id| Token { row: 0, id: *id }).collect();
        past += ids.len();
        Ok(CallOf { program: plan.programs[program].name.clone(), tokens, past: past - ids.len() })
    };
    first.chunks(chunk).chain([last]).map(of).collect()
}

/// `f` of each call and its values, by the evaluator on the weights of the model and its adapters.
fn for_each_call(
    module: &Module,
    args: &BisectArgs,
    plan: &Plan,
    calls: &[CallOf],
    cx: &Cx,
    mut f: impl FnMut(&CallOf, &CallValues) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let files = open::open_model(&args.against, cx)?;
    let adapters: Vec<Adapter> = args.lora.iter().map(|it| Adapter::open(it)).collect::<Result<_, _>>()?;
    let sources: Vec<&Source> = files.sources().iter().chain(adapters.iter().map(Adapter::source)).collect();
    let decls = source_decls(&files).into_iter().chain(adapters.iter().map(adapter_decl));
    check_sources(&decls.collect::<Vec<_>>(), plan, &args.against)?;
    let read = |source: SourceId, offset: u64, len: u64| {
        let bytes = sources.get(source.index()).map_or(&[][..], |it| it.bytes());
        let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
        let range = range.and_then(|(at, len)| Some(at..at.checked_add(len)?));
        let found = range.and_then(|it| bytes.get(it)).map(<[u8]>::to_vec);
        found.ok_or_else(|| format!("{len} bytes at {offset} are outside of its file"))
    };
    let weights = |id| decode_weight(module, id, &read);
    let matrices = |id, e| decode_matrix(module, id, e, &read);
    let elements = Machine::detect().usable_ram().map_or(usize::MAX, kept_elements);
    let mut interp = Interp::new(verified(module)?, &weights).with_matrices(&matrices).keeping(elements);
    for call in calls {
        let number = |n: usize| i32::try_from(n).expect("positions are below 2^31");
        let n = call.tokens.len();
        let ids: Vec<i32> = call.tokens.iter().map(|it| number(it.id as usize)).collect();
        let pos: Vec<i32> = (call.past..call.past + n).map(number).collect();
        let inputs = Inputs::tokens(&ids, &vec![0; n], &pos, &[number(n - 1)]);
        let values = interp.run_all(&call.program, &inputs);
        f(call, &values.map_err(|err| CliError::Input(format!("the reference: {err}")))?)?;
    }
    Ok(())
}

/// Elements of weights that the evaluator keeps: a quarter of the memory, beside two sessions and the weight that is decoded.
fn kept_elements(usable_ram: u64) -> usize {
    usize::try_from(usable_ram / 4 / 8).unwrap_or(usize::MAX)
}

/// Whether the files are those that the plan was compiled from, by number, length and header.
fn check_sources(found: &[SourceDecl], plan: &Plan, model: &Path) -> Result<(), CliError> {
    let name = model.display();
    let mut pairs = found.iter().zip(&plan.sources);
    let other = pairs.find(|(found, expected)| found.header_sha256 != expected.header_sha256);
    let missing = plan.sources.get(found.len()..).unwrap_or_default();
    if let (None, Some(source)) = (&other, missing.first()) {
        let (count, path) = (missing.len(), &source.path);
        return Err(CliError::Input(format!(
            "{name}: the plan was compiled from {count} more: '{path}'; an adapter is given with --lora"
        )));
    }
    let found: Vec<u64> = found.iter().map(|it| it.bytes).collect();
    let expected: Vec<u64> = plan.sources.iter().map(|it| it.bytes).collect();
    if found == expected {
        return other.map_or(Ok(()), |(found, _)| {
            let message = format!("{}: the plan was compiled from another file of this length", found.path);
            Err(CliError::Input(message))
        });
    }
    Err(CliError::Input(format!(
        "{name}: files of {found:?} bytes, the plan was compiled from files of {expected:?}"
    )))
}

/// What was found, beside the plan.
struct Report<'a> {
    plan: &'a Plan,
    errors: &'a Errors,
    tolerance: f64,
}

impl Report<'_> {
    /// Program, step, kind, op, and the first weight that it reads.
    fn name(&self, it: &OpError) -> String {
        let program = self.plan.programs.iter().find(|program| program.name == it.program);
        let Some(step) = program.and_then(|program| program.steps.get(it.step)) else {
            return format!("{}: step {}", it.program, it.step);
        };
        let weight = step.reads.iter().find_map(|it| match it.place {
            Place::Weight(id) => self.plan.weights.get(id as usize),
            Place::Scratch(_) | Place::Io(_) | Place::State(_) => None,
        });
        let of = weight.map(|it| format!(" of '{}'", it.name)).unwrap_or_default();
        format!("{}: step {} ({}{of}, op {})", it.program, it.step, step.kind.name(), step.op)
    }

    /// The largest error of the logits on the plan's own values.
    fn logits(&self) -> f64 {
        let port =
            self.plan.ports.iter().find(|it| it.name == PortName::Logits).map(|it| Place::Io(it.offset));
        let is_logits = |it: &&OpError| {
            let program = self.plan.programs.iter().find(|program| program.name == it.program);
            let step = program.and_then(|program| program.steps.get(it.step));
            step.is_some_and(|it| it.writes.iter().any(|write| Some(write.place) == port))
        };
        self.errors.0.iter().filter(is_logits).map(|it| it.together).fold(0.0, larger)
    }

    /// How much larger the error of the logits is than the largest of any one op.
    fn amplification(&self) -> f64 {
        self.logits() / self.errors.largest().map_or(f64::NAN, |it| it.own)
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for it in self.errors.0.iter().filter(|it| is_over(it.own, self.tolerance)) {
            let _ = writeln!(out, "{}: own error {:.2e}", self.name(it), it.own);
        }
        let _ = writeln!(out, "ops compared: {}, tolerance {:.0e}", self.errors.0.len(), self.tolerance);
        if let Some(it) = self.errors.largest() {
            let _ = writeln!(out, "largest error of one op: {:.2e}, {}", it.own, self.name(it));
        }
        let _ = writeln!(
            out,
            "end to end: logits {:.2e}, {:.1} times the largest of one op",
            self.logits(),
            self.amplification()
        );
        out
    }

    fn json(&self) -> String {
        let op = |it: &OpError| {
            json!({
                "program": it.program,
                "step": it.step,
                "name": self.name(it),
                "own": it.own,
                "together": it.together,
            })
        };
        let ops: Vec<_> = self.errors.0.iter().map(op).collect();
        let first = self.errors.first_over(self.tolerance).map(op);
        let value = json!({
            "tolerance": self.tolerance,
            "first_over": first,
            "logits": self.logits(),
            "amplification": self.amplification(),
            "ops": ops,
        });
        format!("{value}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerances_are_numbers_from_zero() {
        assert_eq!(parse_tolerance("1e-5"), Ok(1e-5));
        for bad in ["-1", "nan", "inf", "x", ""] {
            assert!(parse_tolerance(bad).is_err(), "{bad}");
        }
    }
}
