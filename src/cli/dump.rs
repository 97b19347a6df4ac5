//! `waste dump`: the text of any stage; what it prints of a graph parses back.

use clap::Args;
use waste::compile::{compile, import_module};
use waste_ir::{Module, parse_module, print_module};
use waste_passes::Event;
use waste_runtime::LoadedPlan;

use super::args::{LimitArgs, SizeArgs, TargetArg};
use super::cx::Cx;
use super::dot;
use super::error::CliError;
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
    let shown = match (open::is_plan(target), args.passes) {
        (true, true) => Shown::Text(pass_report(&open::open_plan_as(target, &options)?)),
        (true, false) => of_plan(&open::open_plan_as(target, &options)?, stage(args, "final"))?,
        (false, true) => Shown::Text(open::compile_model(target, &options, cx)?.report.table(false)),
        (false, false) => of_model(args, stage(args, "import"), cx)?,
    };
    match shown {
        Shown::Module(module) if args.dot => cx.print(&dot::print(&module)),
        Shown::Module(module) => cx.print(&print_module(&module)),
        Shown::Text(_) if args.dot => Err(CliError::Usage("--dot is for graphs, not for plans".into())),
        Shown::Text(text) => cx.print(&text),
    }
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

/// The comments at the end of the `ir` section.
fn pass_report(loaded: &LoadedPlan) -> String {
    let comment =
        |line: &str| line.strip_prefix(';').map(|it| it.strip_prefix(' ').unwrap_or(it).to_owned() + "\n");
    let mut lines: Vec<String> = loaded.ir().lines().rev().map_while(comment).collect();
    lines.reverse();
    lines.concat()
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
