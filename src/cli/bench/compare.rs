//! `--compare`: this program and another one in turn, each in fresh processes.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::json;
use waste::report::compare::{
    Observation, RESAMPLES, RUNS, Side, left_out, records, row_json, rows, rows_json, schedule, table,
};
use waste_plan::file::write_whole;

use super::process::{self, Ended, Failed};
use super::{BenchArgs, TableForm};
use crate::cli::cx::Cx;
use crate::cli::error::CliError;
use crate::cli::files::check_output;

/// Flags, each with a value, that the processes of A do not get.
const OWN_FLAGS: [&str; 6] =
    ["--compare", "--compare-timeout", "--observations", "--rounds", "--output", "-o"];

/// Runs `other` and this program as [`schedule`] says, and prints the ratios.
pub(super) fn run(args: &BenchArgs, other: &str, cx: &Cx) -> Result<(), CliError> {
    if args.threads.len() > 1 {
        return Err(CliError::Usage("--compare measures one number of threads".into()));
    }
    if other.trim().is_empty() {
        return Err(CliError::Usage("--compare needs a command".into()));
    }
    args.observations.iter().try_for_each(|it| check_output(it))?;
    let program = std::env::current_exe().map_err(|err| CliError::Input(format!("this program: {err}")))?;
    let mut own = own_args(std::env::args_os().skip(1));
    own.extend(["-o", "jsonl"].map(OsString::from));
    let steps: Vec<_> = schedule(args.rounds).collect();
    let interrupt = Arc::new(AtomicBool::new(false));
    cx.interrupt.cancels(Arc::clone(&interrupt))?;
    let limit = Duration::from_secs(args.compare_timeout.into());
    let progress = cx.progress("comparing", false);
    let mut observations: Vec<Observation> = Vec::new();
    for (round, side) in &steps {
        let mut command = match side {
            Side::A => {
                let mut command = Command::new(&program);
                command.args(&own);
                command
            }
            Side::B => shell(other),
        };
        let name = if *side == Side::A { "this program" } else { other };
        let ended = process::run(&mut command, limit, &interrupt).map_err(|err| match err {
            Failed::Io(err) => CliError::Input(format!("{name}: {err}")),
            Failed::Late => CliError::Input(format!(
                "{name}: ended after {} seconds: --compare-timeout allows more",
                limit.as_secs()
            )),
            Failed::Interrupted => CliError::Interrupted,
        })?;
        observations.push(observed(&ended, *round, *side, name)?);
        progress.update(observations.len() as u64, steps.len() as u64);
    }
    drop(progress);
    let rows = rows(&observations);
    match left_out(&observations).as_slice() {
        [] => {}
        tests if rows.iter().all(|it| it.test == RUNS) => cx.note(&format!(
            "waste: note: {} was not reported by both programs: whole runs are compared, loading included",
            tests.join(", ")
        )),
        tests => cx.note(&format!("waste: note: left out, as not both report it: {}", tests.join(", "))),
    }
    if let Some(path) = &args.observations {
        let shown = |it: &OsString| it.to_string_lossy().into_owned();
        let a: Vec<String> = [program.as_os_str().to_owned()].iter().chain(&own).map(shown).collect();
        let value = json!({
            "method": format!("fresh processes in the order ABBA; bootstrap over pairs, {RESAMPLES} samples, percentiles"),
            "a": a,
            "b": other,
            "observations": observations.iter().map(Observation::json).collect::<Vec<_>>(),
            "results": rows_json(&rows),
        });
        write(path, &format!("{value:#}\n"))?;
    }
    match args.form {
        TableForm::Md => {
            cx.print(&format!("A is this program, B is: {other}\n\n{}", table(&rows).markdown()))
        }
        TableForm::Csv => cx.print(&table(&rows).csv()),
        TableForm::Json => cx.print(&format!("{}\n", rows_json(&rows))),
        TableForm::Jsonl => rows.iter().try_for_each(|it| cx.print(&format!("{}\n", row_json(it)))),
    }
}

fn write(path: &Path, text: &str) -> Result<(), CliError> {
    use std::io::Write as _;
    Ok(write_whole(path, |file| file.write_all(text.as_bytes()))?)
}

/// The arguments of this process but for those of the comparison.
fn own_args(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut args = args.peekable();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        if OWN_FLAGS.contains(&text.as_ref()) {
            args.next();
            continue;
        }
        let is_joined = |flag: &str| {
            let value = text.strip_prefix(flag);
            // `--flag=value`, `-ovalue`.
            value.is_some_and(|it| it.starts_with('=') || (flag.len() == 2 && !it.is_empty()))
        };
        if !OWN_FLAGS.iter().any(|it| is_joined(it)) {
            kept.push(arg);
        }
    }
    kept
}

/// `line` as the system's shell takes it.
fn shell(line: &str) -> Command {
    let (program, flag) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    let mut command = Command::new(program);
    command.arg(flag).arg(line);
    command
}

/// What a process that ran to its end reported; `name` is that of the program.
fn observed(done: &Ended, round: Option<u32>, side: Side, name: &str) -> Result<Observation, CliError> {
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let last = said.lines().last().unwrap_or_default();
        let message = format!("{name}: {}: {}", done.status, waste::formats::shown(last));
        // What this program says of itself is said in its terms.
        return Err(match (side, done.status.code()) {
            (Side::A, Some(2)) => CliError::Usage(message),
            (Side::A, Some(4)) => CliError::Memory(message),
            _ => CliError::Input(message),
        });
    }
    let records = records(&String::from_utf8_lossy(&done.stdout));
    Ok(Observation { round, side, seconds: done.seconds, records })
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_processes_of_a_get_everything_but_the_comparison() {
        let given = [
            "bench",
            "m.gguf",
            "--compare",
            "x -y",
            "-p",
            "8",
            "--rounds=3",
            "--compare-timeout",
            "9",
            "-ojson",
            "-o",
            "md",
            "-t",
            "1",
        ];
        let kept = own_args(given.iter().map(OsString::from));
        assert_eq!(kept, ["bench", "m.gguf", "-p", "8", "-t", "1"]);
    }
}
