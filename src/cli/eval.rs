//! `waste eval`: how probable a model finds a text, and the logits of given tokens.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use waste::report::kl::Divergence;
use waste::report::likelihood::{Estimate, Likelihood, Windows};
use waste::report::npy::{NpyReader, NpyWriter};
use waste_plan::file::write_whole;
use waste_plan::schema::Plan;
use waste_runtime::{LoadedPlan, RuntimeError, Session, Token};

use super::args::{Form, LimitArgs, MachineArgs, ShapeArgs, TargetArg, parse_ids};
use super::cx::Cx;
use super::error::CliError;
use super::files::{check_output, read_text};
use super::open;

/// Ids of a window where nothing else is asked for.
const DEFAULT_WINDOW: u32 = 512;

/// Rows of logits of one step: enough for matrix kernels, and 64 rows of a large vocabulary are still small.
const CHUNK: u32 = 64;

/// Arguments of `waste eval`.
#[derive(Args, Debug)]
#[command(after_help = "\
The protocol: windows of N ids that do not overlap, an empty state for each window, no BOS. Every id of a window predicts
the next one; the last target of a window is the next one's first id. A last, short window is left out, unless it is the
only one. Bytes of the scored ids = bytes of the text × scored ids ÷ all ids. Log-probabilities are computed in 64 bits;
standard errors take targets as independent.")]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    target: TargetArg,
    /// The text, - for stdin: prints perplexity and bits per byte
    #[arg(
        short = 'f',
        long,
        value_name = "FILE",
        required_unless_present_any = ["tokens", "logits", "kl"],
        conflicts_with = "tokens"
    )]
    file: Option<PathBuf>,
    /// Ids of a window [default: 512, at most the context]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// A file of token ids, separated by spaces, commas or lines
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Where to write the logits of every token, as a NumPy array of f32, tokens × vocabulary
    #[arg(long, value_name = "OUT.npy", requires = "tokens", conflicts_with = "file")]
    logits: Option<PathBuf>,
    /// Logits of the same tokens by another model, as --logits writes them: prints how far the predictions are from those
    #[arg(long, value_name = "BASE.npy", requires = "tokens", conflicts_with_all = ["logits", "file"])]
    kl: Option<PathBuf>,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// The form of the result
    #[arg(short = 'o', long = "output", value_name = "FORM", value_enum, default_value = "text")]
    form: Form,
    /// Show no progress
    #[arg(short = 'q', long)]
    quiet: bool,
}

pub(crate) fn run(args: &EvalArgs, cx: &Cx) -> Result<(), CliError> {
    args.logits.iter().try_for_each(|it| check_output(it))?;
    match (&args.tokens, &args.logits, &args.kl, &args.file) {
        (Some(tokens), Some(logits), _, _) => write_logits(args, tokens, logits, cx),
        (Some(tokens), None, Some(base), _) => divergence(args, tokens, base, cx),
        (_, _, _, Some(file)) => score_text(args, file, cx),
        _ => Err(CliError::Usage("give a text with -f, or --tokens with --logits or --kl".into())),
    }
}

/// The plan, compiled so that every token of a step has its row of logits.
fn load(args: &EvalArgs, positions: Option<u32>, cx: &Cx) -> Result<LoadedPlan, CliError> {
    let mut options = args.shape.options(&args.limits, 1);
    let chunk = args.limits.chunk.unwrap_or(CHUNK);
    options.chunk = Some(chunk);
    options.want = Some(chunk);
    open::load(&args.target.target, options, positions, cx)
}

/// `--tokens`: every position's logits, written as they come.
fn write_logits(args: &EvalArgs, tokens: &Path, out: &Path, cx: &Cx) -> Result<(), CliError> {
    let (ids, positions) = read_ids(tokens)?;
    let loaded = load(args, Some(positions), cx)?;
    let (mut session, _) = open::session(&loaded, &args.machine, &args.limits, cx)?;
    let io = |err: std::io::Error| CliError::io(out, &err);

    let cols = loaded.plan().model.vocab as usize;
    let progress = cx.progress("logits", args.quiet);
    let row_bytes = cols as u64 * 4;
    let mut failed = Ok(());
    let written = write_whole(out, |file| {
        let mut npy = NpyWriter::new(file, u64::from(positions), cols)?;
        failed = for_each_row(&mut session, &ids, |at, logits| {
            progress.update((at as u64 + 1) * row_bytes, u64::from(positions) * row_bytes);
            npy.row(logits).map_err(io)
        });
        // Missing rows are an error too, so that nothing takes the name of the file.
        npy.finish().map(|_| ())
    });
    failed?;
    Ok(written?)
}

/// `--kl`: how far the predictions at every position are from the base's, whose logits are read as they are needed.
fn divergence(args: &EvalArgs, tokens: &Path, base: &Path, cx: &Cx) -> Result<(), CliError> {
    let (ids, positions) = read_ids(tokens)?;
    let loaded = load(args, Some(positions), cx)?;
    let io = |err: std::io::Error| CliError::io(base, &err);
    let file = File::open(base).map_err(io)?;
    let vocab = loaded.plan().model.vocab as usize;
    let mut rows = NpyReader::new(BufReader::new(file), u64::from(positions), vocab).map_err(io)?;
    let (mut session, setup) = open::session(&loaded, &args.machine, &args.limits, cx)?;
    let progress = cx.progress("comparing", args.quiet);
    let mut divergence = Divergence::default();
    for_each_row(&mut session, &ids, |at, logits| {
        progress.update(at as u64 + 1, u64::from(positions));
        let row = rows.next_row().map_err(io)?.expect("as many rows as ids");
        divergence.add(row, logits).map_err(|err| CliError::Input(format!("{}: {err}", base.display())))
    })?;
    drop(progress);
    if args.form == Form::Json {
        return cx.print(&divergence_json(&divergence));
    }
    cx.print(&divergence_text(&divergence))?;
    if !args.quiet {
        cx.note(&format!("{positions} positions; {}; {}", setup.backend(), setup.threads));
    }
    Ok(())
}

fn divergence_text(it: &Divergence) -> String {
    let (mean, top1, top10, (most, at)) = (it.mean(), it.top1(), it.top10(), it.most());
    format!(
        "KL = {:.6} ± {:.6} nats, at most {most:.6} (position {at})\ntop-1 agreement = {:.2} ± {:.2} %\ntop-10 agreement = {:.2} ± {:.2} %\n",
        mean.value,
        mean.error,
        100.0 * top1.value,
        100.0 * top1.error,
        100.0 * top10.value,
        100.0 * top10.error,
    )
}

fn divergence_json(it: &Divergence) -> String {
    let (mean, top1, top10, (most, at)) = (it.mean(), it.top1(), it.top10(), it.most());
    let value = json!({
        "positions": it.rows(),
        "kl": mean.value,
        "kl_error": mean.error,
        "kl_max": most,
        "kl_max_position": at,
        "top1": top1.value,
        "top1_error": top1.error,
        "top10": top10.value,
        "top10_error": top10.error,
    });
    format!("{value}\n")
}

/// The ids in a file, and how many there are.
fn read_ids(path: &Path) -> Result<(Vec<u32>, u32), CliError> {
    let name = path.display();
    let ids = parse_ids(&read_text(path)?).map_err(|err| CliError::Input(format!("{name}: {err}")))?;
    let n = u32::try_from(ids.len()).map_err(|_| CliError::Input(format!("{name}: too many ids")))?;
    Ok((ids, n))
}

/// `-f`: perplexity and bits per byte.
fn score_text(args: &EvalArgs, file: &Path, cx: &Cx) -> Result<(), CliError> {
    let text = read_text(file)?;
    let loaded = load(args, args.window, cx)?;
    let no_tokenizer = || CliError::Input(format!("{}: has no tokenizer", args.target.target.display()));
    let ids = open::tokenizer(&loaded)?.ok_or_else(no_tokenizer)?.encode_bare(&text)?;
    let windows = windows(&ids, args.window, loaded.plan())?;
    let nothing = || CliError::Input(format!("{}: nothing to predict in {} ids", file.display(), ids.len()));
    let windows = windows.ok_or_else(nothing)?;
    let (mut session, setup) = open::session(&loaded, &args.machine, &args.limits, cx)?;

    let progress = cx.progress("scoring", args.quiet);
    let started = Instant::now();
    let mut likelihood = Likelihood::default();
    let window = windows.window as usize;
    for inputs in (0..windows.scored()).step_by(window) {
        let from = usize::try_from(inputs).expect("an index of `ids`");
        let targets = &ids[from + 1..=from + window];
        session.clear(0);
        for_each_row(&mut session, &ids[from..from + window], |at, logits| {
            likelihood.add(logits, targets[at]);
            Ok(())
        })?;
        progress.update(text.len() as u64 * likelihood.targets() / windows.ids, text.len() as u64);
    }
    drop(progress);
    let report = Report { likelihood, windows, bytes: text.len() as u64, time: started.elapsed() };
    if args.form == Form::Json {
        return cx.print(&report.json());
    }
    cx.print(&report.text())?;
    if !args.quiet {
        cx.note(&format!("{}; {}; {}", report.pace(), setup.backend(), setup.threads));
    }
    Ok(())
}

/// The cut of a text: as asked, or at most the context; `None` if there is nothing to predict.
fn windows(ids: &[u32], asked: Option<u32>, plan: &Plan) -> Result<Option<Windows>, CliError> {
    let ctx = plan.options.ctx;
    let windows = Windows::new(ids.len() as u64, asked.unwrap_or_else(|| DEFAULT_WINDOW.min(ctx)));
    match windows.filter(|it| ctx < it.window) {
        Some(it) => {
            Err(CliError::Usage(format!("windows of {} ids do not fit a context of {ctx}", it.window)))
        }
        None => Ok(windows),
    }
}

/// Runs `ids` from where row 0 stands and hands out the logits of each, with its index.
fn for_each_row(
    session: &mut Session,
    ids: &[u32],
    mut f: impl FnMut(usize, &[f32]) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let options = &session.plan().options;
    let step = options.chunk.min(options.want).max(1) as usize;
    let want: Vec<u32> = (0..).take(step).collect();
    for (chunk, ids) in ids.chunks(step).enumerate() {
        let batch: Vec<Token> = ids.iter().map(|id| Token { row: 0, id: *id }).collect();
        session.step(&batch, &want[..ids.len()]).map_err(|err| match err {
            RuntimeError::Cancelled => CliError::Interrupted,
            err => err.into(),
        })?;
        for index in 0..ids.len() {
            f(chunk * step + index, session.logits(index))?;
        }
    }
    Ok(())
}

/// What came out for a text.
struct Report {
    likelihood: Likelihood,
    windows: Windows,
    bytes: u64,
    time: Duration,
}

impl Report {
    fn bits_per_byte(&self) -> Estimate {
        self.likelihood.bits_per_byte(self.bytes, self.windows.ids)
    }

    fn text(&self) -> String {
        let (perplexity, bits) = (self.likelihood.perplexity(), self.bits_per_byte());
        format!(
            "PPL = {:.4} ± {:.4}\nbits per byte = {:.6} ± {:.6}\n",
            perplexity.value, perplexity.error, bits.value, bits.error
        )
    }

    fn pace(&self) -> String {
        let Windows { ids, window, count } = self.windows;
        let (scored, seconds) = (self.windows.scored(), self.time.as_secs_f64());
        let rate = waste::report::units::float(scored) / seconds.max(1e-9);
        format!(
            "{scored} of {ids} ids scored in {count} windows of {window}; {seconds:.1} s, {rate:.1} ids/s"
        )
    }

    fn json(&self) -> String {
        let (nats, perplexity, bits) =
            (self.likelihood.nats(), self.likelihood.perplexity(), self.bits_per_byte());
        let value = json!({
            "perplexity": perplexity.value,
            "perplexity_error": perplexity.error,
            "nats_per_token": nats.value,
            "nats_per_token_error": nats.error,
            "bits_per_byte": bits.value,
            "bits_per_byte_error": bits.error,
            "bytes": self.bytes,
            "ids": self.windows.ids,
            "scored_ids": self.windows.scored(),
            "window": self.windows.window,
            "windows": self.windows.count,
            "seconds": self.time.as_secs_f64(),
        });
        format!("{value}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_states_values_with_errors() {
        let mut likelihood = Likelihood::default();
        (0..4).for_each(|_| likelihood.add(&[0.0; 8], 3));
        let windows = Windows { ids: 5, window: 4, count: 1 };
        let report = Report { likelihood, windows, bytes: 10, time: Duration::from_secs(2) };
        // Three bits an id, two bytes an id.
        assert_eq!(report.text(), "PPL = 8.0000 ± 0.0000\nbits per byte = 1.500000 ± 0.000000\n");
        assert_eq!(report.pace(), "4 of 5 ids scored in 1 windows of 4; 2.0 s, 2.0 ids/s");
    }
}
