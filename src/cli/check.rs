//! `waste check`: will this plan load here, how would it run, and is it what its graphs say.

use std::path::PathBuf;

use clap::Args;
use waste::formats::grouped;
use waste_codegen::check::check;
use waste_ir::{parse_module, verify};
use waste_runtime::{ExpertOptions, LoadedPlan, check_experts, needed_bytes_with};

use super::args::{LimitArgs, MachineArgs};
use super::cx::Cx;
use super::error::CliError;
use super::open;

/// Arguments of `waste check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The plan
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Differences listed; the rest is counted.
const MOST_SHOWN: usize = 20;

pub(crate) fn run(args: &CheckArgs, cx: &Cx) -> Result<(), CliError> {
    let name = args.plan.display();
    let loaded = open::open_plan(&args.plan)?;
    cx.print(&format!("{name}: structure is valid (version {})\n", loaded.plan().version))?;
    prove(&loaded, cx)?;
    if !args.machine.no_verify {
        loaded.verify_weights().map_err(|err| CliError::Difference(err.to_string()))?;
        cx.print(&format!("weights: {} checksums equal\n", loaded.plan().weights.len()))?;
    }
    check_files(args, &loaded, cx)?;
    let setup = open::setup(&loaded, &args.machine, &args.limits, cx)?;
    let needs = needed_bytes_with(loaded.plan(), setup.options.threads, setup.options.experts.slots);
    if let Some(limit) = setup.options.max_mem.filter(|it| *it < needs) {
        return Err(CliError::Memory(format!("needs {needs} bytes of memory, {limit} are allowed")));
    }
    cx.print(&format!(
        "runs here on {}; {}; {} bytes of memory\n",
        setup.backend(),
        setup.threads,
        grouped(needs)
    ))
}

/// Whether the experts' files are those of the plan; with `--verify` whether every record is whole.
fn check_files(args: &CheckArgs, loaded: &LoadedPlan, cx: &Cx) -> Result<(), CliError> {
    let stream = &args.machine.stream;
    let options =
        ExpertOptions { direct: !stream.buffered, verify: stream.verify, ..ExpertOptions::default() };
    let records = check_experts(loaded, &options).map_err(|err| CliError::Difference(err.to_string()))?;
    match (records, stream.verify) {
        (0, _) => Ok(()),
        (_, true) => cx.print(&format!("experts: {records} checksums equal\n")),
        (_, false) => cx.print(&format!("experts: the files of {records} are those of the plan\n")),
    }
}

/// Proves the plan from its own `ir` section.
fn prove(loaded: &LoadedPlan, cx: &Cx) -> Result<(), CliError> {
    if loaded.ir().is_empty() {
        return cx.print("not proved: the plan holds no graphs\n");
    }
    let mut module = parse_module(loaded.ir())
        .map_err(|err| CliError::Difference(format!("section 'ir' does not parse: {err}")))?;
    // A plan names its sources as seen from its own folder, the graphs as they were named at compile: which files they
    // are is told by length and hash.
    for (decl, source) in module.sources.values_mut().zip(&loaded.plan().sources) {
        decl.path.clone_from(&source.path);
    }
    let verified = verify(&module).map_err(|errors| {
        let first = errors.first().map_or_else(String::new, ToString::to_string);
        CliError::Difference(format!("section 'ir' does not verify: {first}"))
    })?;
    match check(&verified, loaded.plan()) {
        Ok(report) => {
            for it in &report.programs {
                cx.print(&format!("{}: {} steps and {} barriers proved\n", it.name, it.steps, it.barriers))?;
            }
            cx.print(&format!("peak {} bytes, as stated\n", grouped(report.peak)))
        }
        Err(errors) => {
            for err in errors.iter().take(MOST_SHOWN) {
                cx.print(&format!("{err}\n"))?;
            }
            Err(CliError::Difference(format!(
                "the plan is not what its graphs say; differences: {}",
                errors.len()
            )))
        }
    }
}
