//! `waste run`: compiles a model, or finds its plan in the cache, and continues prompts with it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use waste::cache::{Key, PlanCache};
use waste::compile::{CompileOptions, Compiled, compile};
use waste::embedded;
use waste::formats::{ModelFiles, shown};
use waste_runtime::LoadedPlan;

use super::args::{LimitArgs, ShapeArgs};
use super::cx::Cx;
use super::error::CliError;
use super::exec::{self, GenerateArgs};
use super::open;

/// Arguments of `waste run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// A model's folder, .gguf, .safetensors or index, or org/repo[:quant] in the local Hugging Face cache
    #[arg(value_name = "MODEL", default_value = embedded::NAME)]
    model: PathBuf,
    /// A text to continue, as -p
    #[arg(id = "text", value_name = "PROMPT")]
    prompt: Option<String>,
    #[command(flatten)]
    generate: GenerateArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    keep: KeepArgs,
}

/// Where plans of models are kept between calls.
#[derive(Args, Debug)]
pub(crate) struct KeepArgs {
    /// Where compiled plans are kept [default: the user's cache folder]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Compile anew and keep nothing
    #[arg(long, conflicts_with = "cache")]
    no_cache: bool,
}

pub(crate) fn run(args: &RunArgs, cx: &Cx) -> Result<(), CliError> {
    let start = Instant::now();
    if open::is_plan(&args.model) {
        let name = args.model.display();
        return Err(CliError::Input(format!("{name}: a plan is compiled already: use 'waste exec'")));
    }
    args.generate.check_outputs()?;
    check_order(args)?;
    let mut prompts = args.generate.prompts.clone();
    prompts.prompt.splice(0..0, args.prompt.clone());
    if prompts.is_empty() && args.model == Path::new(embedded::NAME) {
        prompts.prompt.push(embedded::PROMPT.to_owned());
    }
    let given = prompts.given()?;
    let rows = u32::try_from(given.len()).unwrap_or(u32::MAX).min(MOST_ROWS);
    let options = args.shape.options(&args.limits, rows);
    let cached = || cached(&args.model, &args.keep, args.generate.quiet, &options, cx);
    let found = cached()?;
    open::note_training(found.loaded.plan(), args.generate.quiet, cx);
    let execute =
        |loaded: &LoadedPlan| exec::execute(loaded, &given, &args.generate, &args.limits, start, cx);
    match (execute(&found.loaded), found.path) {
        // Checksums are compared before the first token, so nothing was printed yet.
        (Err(err), Some(path)) if err.is_damaged_weight() => {
            cx.note(&format!("waste: note: {err}: compiled anew"));
            std::fs::remove_file(&path).map_err(|err| CliError::io(&path, &err))?;
            execute(&cached()?.loaded)
        }
        (outcome, _) => outcome,
    }
}

/// Refuses a text where the model should stand.
fn check_order(args: &RunArgs) -> Result<(), CliError> {
    let name = args.model.to_string_lossy();
    if args.prompt.is_some() || args.model.exists() || !name.contains(char::is_whitespace) {
        return Ok(());
    }
    let (text, own) = (shown(&name), embedded::NAME);
    Err(CliError::Usage(format!(
        "'{text}' is no model: MODEL stands before PROMPT, as in waste run {own} '{text}'"
    )))
}

/// A plan and its file in the cache; `None` where it was compiled in memory.
pub(crate) struct Found {
    pub(crate) loaded: LoadedPlan,
    path: Option<PathBuf>,
}

/// Rows side by side by default; further prompts take their turn.
const MOST_ROWS: u32 = 8;

/// The plan from the cache, or compiled into it; compiled in memory where there is no cache.
///
/// # Errors
/// Those of reading, compiling and loading; a cache that cannot be written is only noted.
pub(crate) fn cached(
    model: &Path,
    args: &KeepArgs,
    quiet: bool,
    options: &CompileOptions,
    cx: &Cx,
) -> Result<Found, CliError> {
    let files = open::open_model(model, cx)?;
    let folder = args.cache.clone().or_else(|| cx.env.plan_cache()).filter(|_| !args.no_cache);
    let Some(folder) = folder else {
        return in_memory(&compile(&files, options, &mut |_| {})?, quiet, cx);
    };
    let cache = PlanCache::new(folder);
    let key = Key::new(&files, options)?;
    let found = cache.find(&key, &files, &*cx.progress("comparing", quiet));
    if let Some(path) = found
        && let Ok(loaded) = LoadedPlan::open(&path)
    {
        return Ok(Found { loaded, path: Some(path) });
    }
    let compiled = compile(&files, options, &mut |_| {})?;
    match store(&cache, &key, &files, &compiled, quiet, cx) {
        Ok(path) => Ok(Found { loaded: LoadedPlan::open(&path)?, path: Some(path) }),
        Err(err) => {
            cx.note(&format!("waste: note: the plan is not kept: {err}"));
            in_memory(&compiled, quiet, cx)
        }
    }
}

fn store(
    cache: &PlanCache,
    key: &Key,
    files: &ModelFiles,
    compiled: &Compiled,
    quiet: bool,
    cx: &Cx,
) -> Result<PathBuf, CliError> {
    let path = cache.place(key)?;
    compiled.write(&path, true, &*cx.progress("packing", quiet))?;
    cache.record(key, files, &*cx.progress("hashing", quiet))?;
    Ok(path)
}

fn in_memory(compiled: &Compiled, quiet: bool, cx: &Cx) -> Result<Found, CliError> {
    Ok(Found { loaded: compiled.load(&*cx.progress("packing", quiet))?, path: None })
}
