//! `waste compile`: a model, or IR text, to a plan file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use waste::compile::{CompileOptions, Compiled, compile, compile_text};
use waste::embedded;
use waste::formats::grouped;
use waste_ir::print_module;
use waste_passes::pipeline::find;
use waste_passes::{Event, PassError, PipelineOptions, pipeline};
use waste_plan::schema::Plan;

use super::args::{LimitArgs, ShapeArgs};
use super::cx::Cx;
use super::error::CliError;
use super::files::{check_output, read_text};
use super::open;

/// Arguments of `waste compile`.
#[derive(Args, Debug)]
pub(crate) struct CompileArgs {
    /// A model's folder, .gguf, .safetensors or index, org/repo[:quant] in the local Hugging Face cache, or - for IR text
    /// from stdin
    #[arg(value_name = "MODEL", default_value = embedded::NAME)]
    model: PathBuf,
    /// The plan file to write; without it, all but the weights is done and nothing is written
    #[arg(short = 'o', long = "output", value_name = "PLAN")]
    output: Option<PathBuf>,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Put the packed weights into the plan (the default)
    #[arg(long, overrides_with = "no_embed")]
    embed: bool,
    /// Leave the weights in the model's files, to be packed at each load
    #[arg(long)]
    no_embed: bool,
    /// Print the graphs after this pass to stderr; repeatable
    #[arg(long, value_name = "PASS", alias = "mlir-print-ir-after")]
    print_ir_after: Vec<String>,
    /// Print the graphs after every pass
    #[arg(long, alias = "mlir-print-ir-after-all")]
    print_ir_after_all: bool,
    /// Print the graphs after every pass that changed them
    #[arg(long, alias = "mlir-print-ir-after-change")]
    print_ir_after_change: bool,
    /// Print the time of each stage and pass to stderr
    #[arg(long, alias = "mlir-timing")]
    timing: bool,
    /// Print errors only
    #[arg(short = 'q', long)]
    quiet: bool,
}

pub(crate) fn run(args: &CompileArgs, cx: &Cx) -> Result<(), CliError> {
    let options = args.shape.options(&args.limits, 1);
    check_pass_names(args, &options)?;
    args.output.iter().try_for_each(|it| check_output(it))?;
    let mut observer = |event: &Event<'_>| {
        if is_shown(args, event) {
            let changed = if event.changed.is_yes() { "" } else { " (no change)" };
            cx.note(&format!("; after {}{changed}\n{}", event.pass, print_module(event.module)));
        }
    };
    let compiled = compile_any(&args.model, &options, &mut observer, cx)?;
    if cfg!(debug_assertions) {
        self_check(&compiled)?;
    }
    if args.timing {
        cx.note(&timing_table(&compiled));
    }
    open::note_training(&compiled.plan, args.quiet, cx);
    let Some(path) = &args.output else {
        if !args.quiet {
            cx.note(&summary(&compiled.plan));
            cx.note("nothing written: no -o PLAN");
        }
        return Ok(());
    };
    let plan = compiled.write(path, !args.no_embed, &*cx.progress("packing", args.quiet))?;
    if !args.quiet {
        cx.note(&format!("{}: {}", path.display(), summary(&plan)));
    }
    Ok(())
}

/// Compiles a model, or IR text from stdin, whose sources are then relative to the working folder.
fn compile_any(
    model: &Path,
    options: &CompileOptions,
    observer: &mut dyn FnMut(&Event<'_>),
    cx: &Cx,
) -> Result<Compiled, CliError> {
    if model.as_os_str() == "-" {
        return Ok(compile_text("stdin", &read_text(model)?, Path::new("."), options, observer)?);
    }
    if open::is_plan(model) {
        let name = model.display();
        return Err(CliError::Input(format!("{name}: a plan is compiled already")));
    }
    Ok(compile(&open::open_model(model, cx)?, options, observer)?)
}

/// Refuses unknown names before any work.
fn check_pass_names(args: &CompileArgs, options: &CompileOptions) -> Result<(), CliError> {
    let every = PipelineOptions {
        math: options.math,
        tables: options.tables,
        lookahead: 1,
        only: None,
        disabled: Vec::new(),
        rewrite_limit: None,
        verify: false,
    };
    let usage = |err: PassError| CliError::Usage(err.to_string());
    let entries = pipeline(&every).map_err(usage)?;
    for name in &args.print_ir_after {
        find(&entries, name).map_err(usage)?;
    }
    let chosen = PipelineOptions { only: options.only.clone(), disabled: options.disabled.clone(), ..every };
    pipeline(&chosen).map(|_| ()).map_err(usage)
}

fn is_shown(args: &CompileArgs, event: &Event<'_>) -> bool {
    args.print_ir_after_all
        || (args.print_ir_after_change && event.changed.is_yes())
        || args.print_ir_after.iter().any(|it| it == event.pass)
}

/// In debug builds every plan is proved against its graphs before it is written.
fn self_check(compiled: &Compiled) -> Result<(), CliError> {
    let verified = waste::compile::verified(&compiled.module)?;
    waste_codegen::check::check(&verified, &compiled.plan).map(|_| ()).map_err(|errors| {
        let first = errors.first().map_or_else(String::new, ToString::to_string);
        CliError::Difference(format!(
            "the plan is not what the graphs say: {first} ({} in all)",
            errors.len()
        ))
    })
}

/// What was made, in a line.
fn summary(plan: &Plan) -> String {
    let (memory, options) = (&plan.memory, &plan.options);
    format!(
        "{} ({}), ctx {}, batch {}, chunk {}; weights {} bytes, peak {} bytes, arena ÷ lower bound {:.2}",
        plan.model.name,
        plan.model.arch,
        options.ctx,
        options.batch,
        options.chunk,
        grouped(memory.weights),
        grouped(memory.peak()),
        super::plan::arena_ratio(memory),
    )
}

fn timing_table(compiled: &Compiled) -> String {
    let ms = |it: Duration| it.as_secs_f64() * 1e3;
    let mut out = format!("{:<16} {:>9}\n", "stage", "ms");
    for (name, time) in &compiled.timings {
        out.push_str(&format!("{name:<16} {:>9.3}\n", ms(*time)));
    }
    let total: Duration = compiled.timings.iter().map(|it| it.1).sum();
    out.push_str(&format!("{:<16} {:>9.3}\n\n", "all", ms(total)));
    out.push_str(&compiled.report.table(true));
    out.trim_end().to_owned()
}
