//! From a model or plan argument to a loaded plan, and from there to a session.

use std::io::Read;
use std::path::Path;

use waste::compile::experts::CacheSizes;
use waste::compile::{CompileOptions, Compiled, compile};
use waste::embedded;
use waste::formats::container::Coding;
use waste::formats::{ModelFiles, shown};
use waste::text::{Tokenizer, TokenizerSpec};
use waste_ir::{Module, parse_module};
use waste_plan::schema::Plan;
use waste_runtime::sys::Machine;
use waste_runtime::{CpuFeatures, ExpertOptions, LoadedPlan, Session, SessionOptions, needed_bytes_with};

use super::args::{Backend, LimitArgs, MachineArgs, Size};
use super::cx::Cx;
use super::error::CliError;

/// Whether `path` is a plan file: by its first bytes, or by its name if it cannot be read.
pub(crate) fn is_plan(path: &Path) -> bool {
    let mut magic = [0; 4];
    if !path.is_file() {
        return has_plan_name(path);
    }
    let read = std::fs::File::open(path).and_then(|mut it| it.read_exact(&mut magic));
    match read {
        Ok(()) => magic == *b"WPLN" || has_plan_name(path),
        Err(_) => has_plan_name(path),
    }
}

fn has_plan_name(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == "wplan")
}

/// Opens the plan file `path`; a model is refused with what to do instead.
///
/// # Errors
/// If it is no plan, or a damaged one.
pub(crate) fn open_plan(path: &Path) -> Result<LoadedPlan, CliError> {
    refuse_model(path)?;
    Ok(LoadedPlan::open(path)?)
}

/// As [`open_plan`], without weights that the plan left in its model's files.
///
/// # Errors
/// As [`open_plan`].
pub(crate) fn look_at_plan(path: &Path) -> Result<LoadedPlan, CliError> {
    refuse_model(path)?;
    Ok(LoadedPlan::open_to_look(path)?)
}

fn refuse_model(path: &Path) -> Result<(), CliError> {
    if path.exists() && !is_plan(path) {
        let name = shown(&path.to_string_lossy());
        return Err(CliError::Input(format!(
            "{name}: not a plan: 'waste compile' makes one, 'waste run' does both"
        )));
    }
    Ok(())
}

/// Opens the files of a model; the embedded one is unpacked into the cache first, or where temporary files are.
///
/// # Errors
/// As [`ModelFiles::open`], or if the embedded model cannot be unpacked.
pub(crate) fn open_model(model: &Path, cx: &Cx) -> Result<ModelFiles, CliError> {
    if model == Path::new(embedded::NAME) && !model.exists() {
        let temporary = std::env::temp_dir().join("waste");
        let cache = cx.env.plan_cache().unwrap_or_else(|| temporary.clone());
        let unpacked = embedded::unpack(&cache).or_else(|err| embedded::unpack(&temporary).map_err(|_| err));
        let unpacked = unpacked.map_err(|source| {
            CliError::Input(format!(
                "{}: cannot unpack the model '{}': {source}",
                cache.display(),
                embedded::NAME
            ))
        })?;
        return Ok(ModelFiles::open(&unpacked, None)?);
    }
    Ok(ModelFiles::open(model, cx.env.hub().as_ref())?)
}

/// As [`open_model`], of a model whose weights need not be there; see [`ModelFiles::open_to_plan`].
///
/// # Errors
/// As [`ModelFiles::open_to_plan`], or if the embedded model cannot be unpacked.
pub(crate) fn open_model_to_plan(
    model: &Path,
    coding: Option<Coding>,
    cx: &Cx,
) -> Result<ModelFiles, CliError> {
    if model.exists() {
        return Ok(ModelFiles::open_to_plan(model, coding)?);
    }
    let files = open_model(model, cx)?;
    if coding.is_none() {
        return Ok(files);
    }
    Ok(ModelFiles::open_to_plan(files.folder(), coding)?)
}

/// Compiles a model, without packing its weights.
///
/// # Errors
/// As [`compile`].
pub(crate) fn compile_model(model: &Path, options: &CompileOptions, cx: &Cx) -> Result<Compiled, CliError> {
    Ok(compile(&open_model(model, cx)?, options, &mut |_| {})?)
}

/// The final graphs that a plan was made of, with its sources as the plan names them.
///
/// # Errors
/// If it holds none, or they do not parse.
pub(crate) fn graphs(loaded: &LoadedPlan) -> Result<Module, CliError> {
    if loaded.ir().is_empty() {
        return Err(CliError::Input("the plan holds no graphs".into()));
    }
    let mut module = parse_module(loaded.ir())
        .map_err(|err| CliError::Input(format!("section 'ir' of the plan does not parse: {err}")))?;
    for (decl, source) in module.sources.values_mut().zip(&loaded.plan().sources) {
        decl.path.clone_from(&source.path);
    }
    Ok(module)
}

/// Opens the plan file `path` for a verb that takes models too, and so has the flags of the compiler.
///
/// # Errors
/// As [`open_plan`]; if a flag asks for another size than the plan was compiled for: it could only be ignored.
pub(crate) fn open_plan_as(path: &Path, options: &CompileOptions) -> Result<LoadedPlan, CliError> {
    let loaded = open_plan(path)?;
    refuse_options(path, loaded.plan(), options)?;
    Ok(loaded)
}

/// As [`open_plan_as`] and [`look_at_plan`].
///
/// # Errors
/// As [`open_plan_as`].
pub(crate) fn look_at_plan_as(path: &Path, options: &CompileOptions) -> Result<LoadedPlan, CliError> {
    let loaded = look_at_plan(path)?;
    refuse_options(path, loaded.plan(), options)?;
    Ok(loaded)
}

/// Refuses what was decided when the plan at `path` was compiled, where it is asked for by more than its default.
fn refuse_options(path: &Path, plan: &Plan, options: &CompileOptions) -> Result<(), CliError> {
    let (has, usual) = (&plan.options, CompileOptions::usual());
    let name = path.display();
    let batch = Some(options.batch).filter(|it| *it != usual.batch);
    let sizes = [("--ctx", options.ctx, has.ctx), ("--batch", batch, has.batch)];
    let is_other = |it: &(&str, Option<u32>, u32)| it.1.is_some_and(|asked| asked != it.2);
    if let Some((flag, Some(asked), has)) = sizes.into_iter().find(is_other) {
        return Err(CliError::Usage(format!("{flag} {asked}: {name} was compiled for {has}; compile anew")));
    }
    let flag = if !options.lora.is_empty() {
        "--lora"
    } else if options.math != has.math && options.math != usual.math {
        "--math"
    } else if options.kv != has.kv && options.kv != usual.kv {
        "--kv"
    } else if options.lookahead != has.lookahead && options.lookahead != usual.lookahead {
        "--lookahead"
    } else if options.tables != usual.tables {
        "--tables"
    } else if options.rewrite_limit.is_some() {
        "--rewrite-limit"
    } else if options.only.is_some() || !options.disabled.is_empty() {
        "--passes and --disable-pass"
    } else {
        return Ok(());
    };
    Err(CliError::Usage(format!("{flag}: {name} is compiled already; compile its model anew")))
}

/// Says of a plan if it has more positions than its model was trained for.
pub(crate) fn note_training(plan: &Plan, quiet: bool, cx: &Cx) {
    let (ctx, trained) = (plan.options.ctx, plan.model.ctx_trained);
    if ctx > trained && trained > 0 && !quiet {
        cx.note(&format!(
            "waste: note: {ctx} positions, the model was trained for {trained}: text may degrade beyond those"
        ));
    }
}

/// A plan file opened, or a model compiled and packed in memory, for `positions` where no context is asked for.
///
/// # Errors
/// Those of reading and of compiling; of a plan, if a flag asks for what it is not.
pub(crate) fn load(
    target: &Path,
    mut options: CompileOptions,
    positions: Option<u32>,
    cx: &Cx,
) -> Result<LoadedPlan, CliError> {
    if is_plan(target) {
        return open_plan_as(target, &options);
    }
    options.ctx = options.ctx.or(positions);
    let compiled = compile_model(target, &options, cx)?;
    Ok(compiled.load(&*cx.progress("packing", false))?)
}

/// The tokenizer in a plan; `None` if its model had none.
///
/// # Errors
/// If it is damaged.
pub(crate) fn tokenizer(loaded: &LoadedPlan) -> Result<Option<Tokenizer>, CliError> {
    if loaded.text().is_empty() {
        return Ok(None);
    }
    Ok(Some(TokenizerSpec::from_section(loaded.text())?.build()?))
}

/// Threads, where they run, and the best tier of kernels.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// What the session is opened with.
    pub(crate) options: SessionOptions,
    /// Threads and which limit set them, for people.
    pub(crate) threads: String,
}

impl Setup {
    /// The tier in use: `cpu:avx2`.
    pub(crate) fn backend(&self) -> String {
        format!("cpu:{}", self.options.cpu.best().name())
    }
}

/// Settles flags, variables and what the machine has; refuses more memory than there is.
///
/// # Errors
/// If a variable's value makes no sense, or `loaded` needs more memory than `max_mem` or the machine has.
pub(crate) fn setup(
    loaded: &LoadedPlan,
    args: &MachineArgs,
    limits: &LimitArgs,
    cx: &Cx,
) -> Result<Setup, CliError> {
    let machine = Machine::detect();
    let (threads, cpus, said) = threads(&machine, args, cx)?;
    let cpu = tier(args, cx)?;
    let slots = expert_slots(loaded.plan(), threads, limits, machine.usable_ram());
    let needs = needed_bytes_with(loaded.plan(), threads, slots);
    if let Some(ram) = machine.usable_ram().filter(|it| *it < needs) {
        let message = format!("needs {needs} bytes of memory, this machine allows {ram}");
        return Err(CliError::Memory(message));
    }
    let options = SessionOptions {
        threads,
        cpus,
        cpu,
        max_mem: limits.max_mem.map(|it| it.0),
        verify: !args.no_verify,
        check_finite: args.check_finite,
        profile: false,
        experts: ExpertOptions {
            slots,
            readers: usize::from(args.stream.read_threads),
            direct: !args.stream.buffered,
            verify: args.stream.verify,
            exclusive: args.stream.exclusive_open,
        },
    };
    Ok(Setup { options, threads: said })
}

/// Records that the expert cache holds: as asked, or as many as `--max-mem` holds, or the largest of the sizes that serve well
/// within three quarters of the memory, and the smallest where none does. `None` for a plan without experts in files.
fn expert_slots(plan: &Plan, threads: usize, limits: &LimitArgs, ram: Option<u64>) -> Option<u64> {
    let sizes = CacheSizes::of(plan)?;
    if let Some(asked) = limits.expert_cache {
        return Some(u64::from(asked).min(sizes.all));
    }
    let fixed = needed_bytes_with(plan, threads, Some(0));
    if let Some(Size(limit)) = limits.max_mem {
        let fits = limit.saturating_sub(fixed) / sizes.slot_bytes.max(1);
        return Some(fits.clamp(sizes.floor, sizes.all));
    }
    let room = ram.map_or(u64::MAX, |it| it / 4 * 3).saturating_sub(fixed);
    Some(sizes.largest_in(room).unwrap_or(sizes.floor))
}

/// Opens a session on `loaded` that Ctrl-C cancels.
///
/// # Errors
/// Those of [`setup`] and [`Session::open`].
pub(crate) fn session(
    loaded: &LoadedPlan,
    args: &MachineArgs,
    limits: &LimitArgs,
    cx: &Cx,
) -> Result<(Session, Setup), CliError> {
    let setup = setup(loaded, args, limits, cx)?;
    let session = Session::open(loaded, &setup.options)?;
    cx.interrupt.cancels(session.cancel_flag())?;
    Ok((session, setup))
}

/// How many threads, on which processors, and the line that says so.
pub(crate) fn threads(
    machine: &Machine,
    args: &MachineArgs,
    cx: &Cx,
) -> Result<(usize, Vec<usize>, String), CliError> {
    let asked =
        match (args.threads, cx.env.threads()) {
            (Some(n), _) => Some(n as usize),
            (None, Some(text)) => {
                let count = text.parse::<usize>().ok().filter(|it| *it > 0);
                Some(count.ok_or_else(|| {
                    CliError::Usage(format!("WASTE_THREADS is '{text}', expected 1 or more"))
                })?)
            }
            (None, None) => None,
        };
    let default = machine.default_threads();
    let cpus = args.cpus.as_ref().map(|it| it.0.clone());
    let is_foreign = |id: &&usize| !machine.cpus.iter().any(|it| it.id == **id && it.is_allowed);
    if let Some(foreign) = cpus.iter().flatten().find(is_foreign).filter(|_| !machine.cpus.is_empty()) {
        return Err(CliError::Usage(format!("--cpus: this process may not run on processor {foreign}")));
    }
    let count = asked.unwrap_or_else(|| cpus.as_ref().map_or(default.count, Vec::len));
    if count > MAX_THREADS {
        return Err(CliError::Usage(format!("{count} threads, at most {MAX_THREADS} are possible")));
    }
    let said = match (asked, &cpus) {
        (None, None) => default.to_string(),
        (None, Some(_)) => format!("threads {count} (one a processor of --cpus)"),
        (Some(_), _) => format!("threads {count} (as asked)"),
    };
    let is_default = asked.is_none() && cpus.is_none();
    let cpus = cpus.unwrap_or_else(|| if is_default { default.cpus } else { Vec::new() });
    Ok((count, cpus, said))
}

/// More threads than any machine of today has processors.
const MAX_THREADS: usize = 1024;

/// What kernels may use: the tiers that are here, up to the one that is asked for.
pub(crate) fn tier(args: &MachineArgs, cx: &Cx) -> Result<CpuFeatures, CliError> {
    let from_env = |text: String| {
        text.parse::<Backend>().map_err(|err| CliError::Usage(format!("WASTE_BACKEND is '{text}': {err}")))
    };
    let backend = match args.backend {
        Some(backend) => Some(backend),
        None => cx.env.backend().map(from_env).transpose()?,
    };
    let here = CpuFeatures::detect();
    let Some(Backend(Some(asked))) = backend else { return Ok(here) };
    let cpu = here.capped(asked);
    if cpu.best() != asked {
        cx.note(&format!("waste: note: {} is not available here, using {}", asked.name(), cpu.best().name()));
    }
    Ok(cpu)
}
