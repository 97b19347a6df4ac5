//! The command line: one file a verb, each with its arguments and `run(&Args, &Cx) -> Result<(), CliError>`.
//!
//! | file | holds |
//! |---|---|
//! | `args` | arguments that verbs share |
//! | `cx` | stdout, stderr, environment, Ctrl-C |
//! | `error` | the one line and the exit code |
//! | `open` | from a model or plan argument to a loaded plan and a session |
//! | `prompts` | what is to be continued, from flags, files or stdin |
//! | the rest | one file a verb |
//!
//! Invariants: results to stdout, all else to stderr; `waste: …` in one line on failure.

mod args;
mod bench;
mod bisect;
mod chat;
mod check;
mod compile;
mod convert;
mod cx;
mod diff;
mod dot;
mod dump;
mod error;
mod eval;
mod exec;
mod files;
mod info;
mod learn;
mod open;
mod outcome;
mod plan;
mod prompts;
mod run;
mod storage;
mod tokenize;
mod verify;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use cx::Cx;
use error::CliError;

use crate::env::Env;

/// A compute-graph compiler and planned executor for large language models
#[derive(Parser, Debug)]
#[command(
    name = "waste",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
struct Cli {
    /// What to log to stderr, such as debug or waste_passes=trace
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Compile a model, or IR text, to a plan file
    Compile(compile::CompileArgs),
    /// Continue prompts with a compiled plan
    Exec(exec::ExecArgs),
    /// Compile a model, or find its plan in the cache, and continue prompts with it
    Run(run::RunArgs),
    /// Talk with a model, in its own chat template
    Chat(chat::ChatArgs),
    /// Print the graphs of a stage, or the plan, as text
    Dump(dump::DumpArgs),
    /// Compare two plans: bytes, steps, barriers, fusions, kernels
    Diff(diff::DiffArgs),
    /// Print every byte that a model or plan needs, by kind
    Plan(plan::PlanArgs),
    /// Check that a plan will load here and is what its graphs say
    Check(check::CheckArgs),
    /// Print the token ids of a text
    Tokenize(tokenize::TokenizeArgs),
    /// Measure tokens a second, beside what this machine's memory allows
    Bench(bench::BenchArgs),
    /// Find the first op of a plan that computes something else than its graph, or a reference, says
    Bisect(bisect::BisectArgs),
    /// Print how probable a model finds a text, or write the logits of tokens
    Eval(eval::EvalArgs),
    /// Make a container of a checkpoint: routed experts vector-quantised, the rest in groups of integers
    Convert(convert::ConvertArgs),
    /// Check that a container is whole, and how far it is from its checkpoint
    Verify(verify::VerifyArgs),
    /// Print the machine, the kernels in use, and which limit set the threads
    Info(info::InfoArgs),
}

impl Verb {
    fn run(&self, cx: &Cx) -> Result<(), CliError> {
        match self {
            Self::Compile(args) => compile::run(args, cx),
            Self::Exec(args) => exec::run(args, cx),
            Self::Run(args) => run::run(args, cx),
            Self::Chat(args) => chat::run(args, cx),
            Self::Dump(args) => dump::run(args, cx),
            Self::Diff(args) => diff::run(args, cx),
            Self::Plan(args) => plan::run(args, cx),
            Self::Check(args) => check::run(args, cx),
            Self::Tokenize(args) => tokenize::run(args, cx),
            Self::Bench(args) => bench::run(args, cx),
            Self::Bisect(args) => bisect::run(args, cx),
            Self::Eval(args) => eval::run(args, cx),
            Self::Convert(args) => convert::run(args, cx),
            Self::Verify(args) => verify::run(args, cx),
            Self::Info(args) => info::run(args, cx),
        }
    }
}

/// Parses the command line, runs the verb, says what went wrong.
pub(crate) fn main() -> ExitCode {
    let cx = Cx::new(Env::read());
    let outcome = parse(&cx).and_then(|cli| match cli {
        Some(cli) => start_log(&cli, &cx).and_then(|()| cli.verb.run(&cx)),
        None => Ok(()),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => err.report(),
    }
}

/// The parser of the command line. No flag is a number, so `-5` after a flag is its value, which it may refuse for what it is.
fn command() -> clap::Command {
    let takes_numbers = |it: clap::Arg| {
        let is_flag_with_value = !it.is_positional() && it.get_action().takes_values();
        if is_flag_with_value { it.allow_negative_numbers(true) } else { it }
    };
    Cli::command().mut_subcommands(|verb| verb.mut_args(takes_numbers))
}

/// The command line; `None` if it asked for help or the version, which is printed.
fn parse(cx: &Cx) -> Result<Option<Cli>, CliError> {
    let parsed = command().try_get_matches().and_then(|it| Cli::from_arg_matches(&it));
    let err = match parsed {
        Ok(cli) => return Ok(Some(cli)),
        Err(err) => err,
    };
    match err.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            cx.print(&err.render().to_string()).map(|()| None)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            cx.note(err.render().to_string().trim_end());
            Err(CliError::Usage("no verb given: see above".into()))
        }
        _ => Err(CliError::Usage(one_line(&err))),
    }
}

/// The first paragraph of a parser's message, with the nearest name if there is one.
fn one_line(err: &clap::Error) -> String {
    let text = err.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let first = first.trim().trim_start_matches("error: ");
    let words: Vec<&str> = first.split_whitespace().collect();
    let near = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue]
        .into_iter()
        .find_map(|kind| match err.get(kind)? {
            ContextValue::String(one) => Some(one.clone()),
            ContextValue::Strings(all) => all.last().cloned(),
            _ => None,
        });
    let hint = near.map(|it| format!(" (did you mean '{it}'?)")).unwrap_or_default();
    format!("{}{hint}", words.join(" "))
}

/// Logs to stderr what `--log` or `WASTE_LOG` names; nothing by default.
fn start_log(cli: &Cli, cx: &Cx) -> Result<(), CliError> {
    let Some(text) = cli.log.clone().or_else(|| cx.env.log()) else { return Ok(()) };
    let filter = tracing_subscriber::EnvFilter::try_new(&text)
        .map_err(|err| CliError::Usage(format!("log filter '{text}': {err}")))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        command().debug_assert();
    }

    #[test]
    fn a_negative_number_is_refused_for_what_it_is() {
        let line = |words: &[&str]| one_line(&command().try_get_matches_from(words).unwrap_err());
        for (flag, part) in [
            ("-n", "invalid value '-5' for '--max-tokens <N>': -5 is not in 0.."),
            ("--top-k", "invalid value '-5' for '--top-k <K>': expected a whole number from 0"),
            ("--threads", "invalid value '-5' for '--threads <N>': -5 is not in 1.."),
            ("--seed", "invalid value '-5' for '--seed <SEED>': expected a whole number from 0"),
        ] {
            let found = line(&["waste", "exec", "m.wplan", flag, "-5"]);
            assert!(found.starts_with(part), "{found}");
        }
    }

    #[test]
    fn an_unknown_verb_names_the_nearest() {
        let line = |words: &[&str]| one_line(&Cli::try_parse_from(words).unwrap_err());
        assert_eq!(line(&["waste", "exce"]), "unrecognized subcommand 'exce' (did you mean 'exec'?)");
        let unknown = line(&["waste", "exec", "m.wplan", "--tokns", "1"]);
        assert!(
            unknown.contains("'--tokns'") && unknown.ends_with("(did you mean '--tokens'?)"),
            "{unknown}"
        );
        assert!(!line(&["waste", "convert"]).contains('\n'));
    }
}
