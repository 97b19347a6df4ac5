//! `waste exec`: continues prompts with a compiled plan.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use waste::formats::hex;
use waste::generate::{Generation, Prompt, Rules, StopReason, TextRow, generate};
use waste::report::{lifetimes, trace};
use waste::text::Tokenizer;
use waste_plan::schema::Plan;
use waste_runtime::{LoadedPlan, Session, Trace, needed_bytes_with};

use super::args::{Form, LimitArgs, MachineArgs, SamplingArgs};
use super::cx::Cx;
use super::error::CliError;
use super::files::check_output;
use super::learn::LearnArgs;
use super::open;
use super::outcome::Outcome;
use super::prompts::{Given, PromptArgs};

/// Arguments of `waste exec`.
#[derive(Args, Debug)]
pub(crate) struct ExecArgs {
    /// The plan
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    #[command(flatten)]
    generate: GenerateArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// What `exec` and `run` share.
#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) prompts: PromptArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// Continue the session in FILE, if there is one, with the prompt, and save it there
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
    #[command(flatten)]
    learn: LearnArgs,
    /// Print the SHA-256 of the logits that tokens were chosen from, a line for each prompt
    #[arg(long)]
    hash: bool,
    /// Write what each thread did and when to FILE, for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Overwrite bytes whose value is dead, and fail by name where a step reads them: slow, to find faults of plans
    #[arg(long)]
    poison: bool,
    /// The form of the result
    #[arg(short = 'o', long = "output", value_name = "FORM", value_enum, default_value = "text")]
    form: Form,
    /// Print results and errors only
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
}

impl GenerateArgs {
    /// Refuses files that could not be written in the end.
    ///
    /// # Errors
    /// If there is no folder for one.
    pub(crate) fn check_outputs(&self) -> Result<(), CliError> {
        let learned = self.learn.output();
        self.session
            .as_deref()
            .into_iter()
            .chain(self.trace.as_deref())
            .chain(learned)
            .try_for_each(check_output)
    }
}

pub(crate) fn run(args: &ExecArgs, cx: &Cx) -> Result<(), CliError> {
    let start = Instant::now();
    args.generate.check_outputs()?;
    let given = args.generate.prompts.given()?;
    let loaded = open::open_plan(&args.plan)?;
    execute(&loaded, &given, &args.generate, &args.limits, start, cx)
}

/// Continues `given` with `loaded`, streaming text to stdout; `start` is when the command began.
///
/// # Errors
/// If prompts or flags do not fit the plan, memory is short, or a step fails.
pub(crate) fn execute(
    loaded: &LoadedPlan,
    given: &[Given],
    args: &GenerateArgs,
    limits: &LimitArgs,
    start: Instant,
    cx: &Cx,
) -> Result<(), CliError> {
    let tokenizer = open::tokenizer(loaded)?;
    if tokenizer.is_none() && !args.sampling.stop.is_empty() {
        return Err(CliError::Input("the model has no tokenizer: --stop compares text".into()));
    }
    let sampling = args.sampling.options();
    let mut prompts: Vec<Prompt> =
        given.iter().map(|it| it.prompt(tokenizer.as_ref(), sampling)).collect::<Result<_, _>>()?;
    let (mut session, setup) = open::session(loaded, &args.machine, limits, cx)?;
    if let Some(path) = &args.session {
        resume(&mut session, &mut prompts, tokenizer.as_ref().and_then(Tokenizer::bos), path)?;
    }
    if args.poison {
        let deaths = lifetimes::deaths(&open::graphs(loaded)?, loaded.plan()).map_err(CliError::Input)?;
        session.poison(deaths);
    }
    if args.trace.is_some() {
        let needs = needed_bytes_with(loaded.plan(), session.threads(), setup.options.experts.slots);
        let needs = needs.saturating_add(Trace::bytes(session.threads(), MOST_SLICES));
        if let Some(limit) = setup.options.max_mem.filter(|it| *it < needs) {
            return Err(CliError::Memory(format!(
                "needs {needs} bytes of memory with --trace, {limit} are allowed"
            )));
        }
        session.start_trace(MOST_SLICES);
    }
    let learning = args.learn.begin(&mut session, loaded)?;
    let load_time = start.elapsed();
    let experts_before = session.expert_counters();

    let rules = Rules { hash: args.hash, ..rules(loaded.plan(), tokenizer.as_ref(), &args.sampling, limits) };
    let is_live = args.form == Form::Text;
    let mut texts = Texts::new(tokenizer.as_ref(), &args.sampling.stop, prompts.len(), is_live.then_some(cx));
    let generation = generate(&mut session, &prompts, &rules, &mut |row, id| texts.push(row, id))?;
    // A reader of the texts that went away costs neither the session nor the trace.
    let texts = texts.finish();
    if let Some(path) = &args.session {
        let ids = [&prompts[0].ids[..], &generation.rows[0].ids[..]].concat();
        session.save(0, &ids, path)?;
    }
    learning.iter().try_for_each(|it| it.end(&session))?;

    if let Some(path) = &args.trace {
        write_trace(&session, path, cx)?;
    }
    let texts = texts?;

    let outcome = Outcome {
        plan: loaded.plan(),
        prompts: &prompts,
        texts: &texts,
        generation: &generation,
        counters: session.counters(),
        experts: session.expert_counters().zip(experts_before).map(|(now, before)| now.since(&before)),
        learning: learning.as_ref(),
        setup: &setup,
        seed: sampling.seed,
        load_time,
    };
    if args.form == Form::Json {
        cx.print(&outcome.json())?;
    } else {
        print_hashes(&generation, cx);
    }
    if !args.quiet {
        outcome.summary().iter().for_each(|it| cx.note(it));
    }
    if generation.is_interrupted { Err(CliError::Interrupted) } else { Ok(()) }
}

/// Slices of a thread that a trace holds: some hundred tokens of a model with thirty layers.
const MOST_SLICES: usize = 1 << 18;

/// Writes the recorded timeline, and says so if it is not whole.
fn write_trace(session: &Session, path: &Path, cx: &Cx) -> Result<(), CliError> {
    let Some(recorded) = session.trace() else { return Ok(()) };
    let file = File::create(path).map_err(|err| CliError::io(path, &err))?;
    let mut out = BufWriter::new(file);
    let written = trace::write(session.plan(), recorded, &mut out).and_then(|()| out.flush());
    written.map_err(|err| CliError::io(path, &err))?;
    if recorded.lost() > 0 {
        let kept = MOST_SLICES;
        cx.note(&format!("waste: note: {}: holds the first {kept} slices of each thread", path.display()));
    }
    Ok(())
}

/// Puts what `path` holds before the only prompt, which then begins no text; nothing if there is no such file yet.
fn resume(
    session: &mut Session,
    prompts: &mut [Prompt],
    bos: Option<u32>,
    path: &Path,
) -> Result<(), CliError> {
    let [prompt] = prompts else {
        return Err(CliError::Usage(format!(
            "--session holds one sequence, {} prompts are given",
            prompts.len()
        )));
    };
    if !path.exists() {
        return Ok(());
    }
    let (mut ids, note) = session.restore_with(0, path)?;
    if !note.is_empty() {
        let name = path.display();
        return Err(CliError::Input(format!(
            "{name}: holds a conversation, which 'waste chat --session' continues"
        )));
    }
    let begins = usize::from(bos.is_some() && prompt.ids.first().copied() == bos);
    ids.extend_from_slice(&prompt.ids[begins..]);
    prompt.history = session.len(0) as usize;
    prompt.ids = ids;
    Ok(())
}

/// Which ids end a text, or may not be chosen.
pub(super) fn rules(
    plan: &Plan,
    tokenizer: Option<&Tokenizer>,
    args: &SamplingArgs,
    limits: &LimitArgs,
) -> Rules {
    let vocab = plan.model.vocab;
    let mut ends = plan.stop_ids.clone();
    ends.extend(tokenizer.map(Tokenizer::stop_ids).unwrap_or_default());
    ends.retain(|it| *it < vocab);
    ends.sort_unstable();
    ends.dedup();
    let (stop_ids, excluded) = if args.ignore_eos { (Vec::new(), ends) } else { (ends, Vec::new()) };
    Rules { stop_ids, excluded, chunk: limits.chunk, hash: false }
}

fn print_hashes(generation: &Generation, cx: &Cx) {
    for hash in generation.rows.iter().filter_map(|it| it.logits_sha256) {
        cx.note(&format!("logits sha256:{}", hex(&hash)));
    }
}

/// The texts of all rows: the first is printed as it comes, the others when all is done.
struct Texts<'a> {
    rows: Vec<OneText<'a>>,
    /// Where to print; `None`: nowhere.
    cx: Option<&'a Cx>,
    failed: Option<CliError>,
}

/// The text of a row so far.
struct OneText<'a> {
    /// `None`: there is no tokenizer, ids are the text.
    decoder: Option<TextRow<'a>>,
    text: String,
}

impl<'a> Texts<'a> {
    fn new(tokenizer: Option<&'a Tokenizer>, stops: &[String], n: usize, cx: Option<&'a Cx>) -> Self {
        let row =
            || OneText { decoder: tokenizer.map(|it| TextRow::new(it, stops.to_vec())), text: String::new() };
        Self { rows: std::iter::repeat_with(row).take(n).collect(), cx, failed: None }
    }

    fn push(&mut self, index: usize, id: u32) -> ControlFlow<()> {
        if self.failed.is_some() {
            return ControlFlow::Break(());
        }
        let (piece, flow) = self.rows[index].push(id);
        if index == 0 {
            self.print(&piece);
        }
        if self.failed.is_some() { ControlFlow::Break(()) } else { flow }
    }

    fn print(&mut self, piece: &str) {
        if let (Some(cx), false) = (self.cx, piece.is_empty()) {
            self.failed = cx.print(piece).err().or(self.failed.take());
        }
    }

    /// Prints what is left, and gives all texts.
    fn finish(mut self) -> Result<Vec<String>, CliError> {
        for index in 0..self.rows.len() {
            let rest = self.rows[index].finish();
            let row = &self.rows[index];
            let end = if row.text.ends_with('\n') { "" } else { "\n" };
            let piece = if index == 0 { format!("{rest}{end}") } else { format!("{}{end}", row.text) };
            self.print(&piece);
        }
        match self.failed {
            Some(err) => Err(err),
            None => Ok(self.rows.into_iter().map(|it| it.text).collect()),
        }
    }
}

impl OneText<'_> {
    fn push(&mut self, id: u32) -> (String, ControlFlow<()>) {
        let (piece, flow) = match &mut self.decoder {
            Some(decoder) => decoder.push(id),
            None if self.text.is_empty() => (id.to_string(), ControlFlow::Continue(())),
            None => (format!(" {id}"), ControlFlow::Continue(())),
        };
        self.text.push_str(&piece);
        (piece, flow)
    }

    fn finish(&mut self) -> String {
        let rest = self.decoder.as_mut().map(TextRow::finish).unwrap_or_default();
        self.text.push_str(&rest);
        rest
    }
}

/// Why rows ended, for people; nothing where all went as asked.
pub(super) fn stop_note(stop: StopReason, ctx: u32) -> Option<String> {
    match stop {
        StopReason::ContextFull => {
            Some(format!("the context of {ctx} positions is full (compile with a larger --ctx)"))
        }
        StopReason::Interrupted => Some("interrupted".to_owned()),
        StopReason::Budget | StopReason::StopId(_) | StopReason::Caller => None,
    }
}
