//! `waste dump`: the text of any stage; what it prints of a graph parses back.

use std::path::PathBuf;

use clap::Args;
use waste::compile::{CompileOptions, compile, import_module};
use waste::report::passes::{comments, read};
use waste::report::{html, missed};
use waste_ir::{Module, parse_module, print_module};
use waste_passes::Event;
use waste_runtime::LoadedPlan;

use super::args::{LimitArgs, SizeArgs, TargetArg};
use super::cx::Cx;
use super::dot;
use super::error::CliError;
use super::files::read_text;
use super::open;

/// Arguments of `waste dump`.
#[derive(Args, Debug)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    target: TargetArg,
    /// import, the name of a pass, final or plan [default: import of a model, final of a plan]
    #[arg(long, value_name = "STAGE")]
    stage: Option<String>,
    /// As a graph for Graphviz
    #[arg(long)]
    dot: bool,
    /// What each pass did and almost did, instead of the graphs
    #[arg(long, conflicts_with_all = ["dot", "stage"])]
    passes: bool,
    /// One page for a browser: graph, memory map, barriers and costs of the plan
    #[arg(long, conflicts_with_all = ["dot", "stage", "passes"])]
    html: bool,
    /// Times to show beside the predictions: what 'waste bench --profile -o json' wrote
    #[arg(long, value_name = "FILE", requires = "html")]
    profile: Option<PathBuf>,
    #[command(flatten)]
    sizes: SizeArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// What a stage looks like.
enum Shown {
    Module(Box<Module>),
    Text(String),
}

pub(crate) fn run(args: &DumpArgs, cx: &Cx) -> Result<(), CliError> {
    let (target, options) = (&args.target.target, args.sizes.options(&args.limits, 1));
    if args.html {
        return cx.print(&page(args, &options, cx)?);
    }
    let shown = match (open::is_plan(target), args.passes) {
        (true, true) => {
            let loaded = open::look_at_plan_as(target, &options)?;
            Shown::Text(pass_report(loaded.ir(), loaded.plan().programs.len()))
        }
        (true, false) => of_plan(&open::look_at_plan_as(target, &options)?, stage(args, "final"))?,
        (false, true) => {
            let compiled = open::compile_model(target, &options, cx)?;
            Shown::Text(pass_report(&compiled.ir, compiled.plan.programs.len()))
        }
        (false, false) => of_model(args, stage(args, "import"), cx)?,
    };
    match shown {
        Shown::Module(module) if args.dot => cx.print(&dot::print(&module)),
        Shown::Module(module) => cx.print(&print_module(&module)),
        Shown::Text(_) if args.dot => Err(CliError::Usage("--dot is for graphs, not for plans".into())),
        Shown::Text(text) => cx.print(&text),
    }
}

/// The page of the plan, with the profile if there is one.
fn page(args: &DumpArgs, options: &CompileOptions, cx: &Cx) -> Result<String, CliError> {
    let target = &args.target.target;
    let profile = args.profile.as_deref().map(read_text).transpose()?;
    let page = if open::is_plan(target) {
        let loaded = open::look_at_plan_as(target, options)?;
        html::page(loaded.plan(), loaded.ir(), profile.as_deref())
    } else {
        let compiled = open::compile_model(target, options, cx)?;
        html::page(&compiled.plan, &compiled.ir, profile.as_deref())
    };
    let name = args.profile.as_deref().unwrap_or(target).display();
    page.map_err(|err| CliError::Input(format!("{name}: {err}")))
}

fn stage<'a>(args: &'a DumpArgs, default: &'a str) -> &'a str {
    args.stage.as_deref().unwrap_or(default)
}

fn of_plan(loaded: &LoadedPlan, stage: &str) -> Result<Shown, CliError> {
    match stage {
        "plan" => Ok(Shown::Text(waste_plan::text::print(loaded.plan()))),
        "final" if loaded.ir().is_empty() => Err(CliError::Input("the plan holds no graphs".into())),
        "final" => {
            let module = parse_module(loaded.ir());
            let module =
                module.map_err(|err| CliError::Input(format!("section 'ir' does not parse: {err}")))?;
            Ok(Shown::Module(Box::new(module)))
        }
        other => Err(CliError::Usage(format!("a plan holds the stages 'final' and 'plan', not '{other}'"))),
    }
}

/// The table of the passes as the `ir` section has it, and what was missed.
fn pass_report(ir: &str, graphs: usize) -> String {
    let lines = comments(ir);
    if lines.is_empty() {
        return "the plan holds no report\n".to_owned();
    }
    let table: String = lines.iter().map(|it| format!("{it}\n")).collect();
    format!("{table}\n{}", missed::report(&read(lines), graphs))
}

fn of_model(args: &DumpArgs, stage: &str, cx: &Cx) -> Result<Shown, CliError> {
    let files = open::open_model(&args.target.target, cx)?;
    let options = args.sizes.options(&args.limits, 1);
    if stage == "import" {
        return Ok(Shown::Module(Box::new(import_module(&files, &options)?)));
    }
    let mut after = None;
    let mut names = vec!["import", "final", "plan"];
    let compiled = compile(&files, &options, &mut |event: &Event<'_>| {
        names.push(event.pass);
        if event.pass == stage {
            after = Some(event.module.clone());
        }
    })?;
    match (stage, after) {
        ("plan", _) => Ok(Shown::Text(waste_plan::text::print(&compiled.plan))),
        ("final", _) => Ok(Shown::Module(Box::new(compiled.module))),
        (_, Some(module)) => Ok(Shown::Module(Box::new(module))),
        (_, None) => {
            names.dedup();
            Err(CliError::Usage(format!("no stage '{stage}'; there are {}", names.join(", "))))
        }
    }
}
