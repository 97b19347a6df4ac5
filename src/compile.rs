//! From a model's files to a plan: import, passes, planning, packing.
//!
//! The one place that knows all stages. Each is a function of the stage before; a stage's text is what `waste dump` shows.
//! Nothing here decides what runs: front ends, passes and the planner do.

pub mod experts;
mod weights;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use waste_codegen::PlanRequest;
use waste_ir::Module;
use waste_ir::verify::{Verified, VerifyError, verify};
use waste_passes::{Event, PipelineOptions, PipelineReport};
use waste_plan::file::{FileError, PlanWriter, WeightsAt};
use waste_plan::schema::{Options, Plan, StateKind};
use waste_plan::validate::{ValidateError, validate};
use waste_plan::{DType, Math, Tables};
use waste_runtime::weights::WeightBuffer;
use waste_runtime::{LoadedPlan, RuntimeError};

use crate::formats::{Adapter, FormatError, ModelFiles, Source};
use crate::models::{
    ImportOptions, ModelError, adapter_decl, import, merge_adapters, source_decls, trained_ctx,
};
use crate::progress::Progress;
use crate::text::{TextError, TokenizerSpec, stop_ids};

impl CompileOptions {
    /// One sequence, chunks of 256 tokens, f32 caches, fixed24 arithmetic, all passes: what the command line defaults to.
    #[must_use]
    pub const fn usual() -> Self {
        Self {
            ctx: None,
            batch: 1,
            chunk: None,
            want: None,
            kv: DType::F32,
            math: Math::Fixed24,
            only: None,
            disabled: Vec::new(),
            rewrite_limit: None,
            tables: Tables::Fixed24,
            lookahead: 0,
            expert_slots: None,
            max_mem: None,
            lora: Vec::new(),
        }
    }
}

/// Positions by default, where the model was trained for more: a model that claims a million starts small.
pub const DEFAULT_CTX: u32 = 4096;

/// Tokens of a prefill step by default.
pub const DEFAULT_CHUNK: u32 = 256;

/// What to compile for.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// Positions of each row; `None`: the smaller of [`DEFAULT_CTX`] and what the model was trained for.
    pub ctx: Option<u32>,
    /// Sequences side by side.
    pub batch: u32,
    /// Most tokens of one prefill step; `None`: [`DEFAULT_CHUNK`].
    pub chunk: Option<u32>,
    /// Most rows of logits of one step; `None`: `batch`.
    pub want: Option<u32>,
    /// Element type of the caches.
    pub kv: DType,
    /// Arithmetic of linears over integer weights.
    pub math: Math,
    /// Exactly these optional passes; all if `None`.
    pub only: Option<Vec<String>>,
    /// Not these optional passes.
    pub disabled: Vec<String>,
    /// At most so many rewrites by optional passes.
    pub rewrite_limit: Option<u32>,
    /// Arithmetic of the lookup tables of vector-quantised experts.
    pub tables: Tables,
    /// Experts that each layer of `decode` guesses for the next one, so that they are read ahead of their router; 0: none.
    pub lookahead: u32,
    /// Records that the expert cache holds; `None`: what the planner recommends.
    pub expert_slots: Option<u64>,
    /// Refuse a plan that needs more bytes than this with one thread; a cache of experts may be smaller than planned.
    pub max_mem: Option<u64>,
    /// Folders of LoRA adapters, merged in this order.
    pub lora: Vec<PathBuf>,
}

/// Why a model could not be compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// Its files cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Its configuration is not understood.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Its text files are not understood.
    #[error(transparent)]
    Text(#[from] TextError),
    /// IR text does not parse.
    #[error("{name}: {source}")]
    Parse {
        /// The text's name.
        name: String,
        /// Line, column, what was expected.
        source: waste_ir::text::ParseError,
    },
    /// A graph breaks a rule; the first of `errors` is shown.
    #[error("{}{}", .errors[0], more(.errors.len()))]
    Verify {
        /// All errors, in order.
        errors: Vec<VerifyError>,
    },
    /// A pass cannot be chosen or failed.
    #[error(transparent)]
    Pass(#[from] waste_passes::PassError),
    /// A graph cannot be planned.
    #[error(transparent)]
    Plan(#[from] waste_codegen::PlanError),
    /// The graphs ask for a plan that no runtime would load; the first of `errors` is shown.
    #[error("the plan would be refused: {}{}", .errors[0], more(.errors.len()))]
    Invalid {
        /// All errors, in order.
        errors: Vec<ValidateError>,
    },
    /// The plan is larger than allowed.
    #[error("needs {needs} bytes of memory, {limit} are allowed")]
    Memory {
        /// Bytes with one thread.
        needs: u64,
        /// The limit.
        limit: u64,
    },
    /// A source of IR text is not the file that the text was made from.
    #[error("{path}: {message}")]
    Source {
        /// The file.
        path: String,
        /// Found and expected.
        message: String,
    },
    /// The plan file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The plan cannot be loaded.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

fn more(n: usize) -> String {
    if n > 1 { format!(" (and {} more)", n - 1) } else { String::new() }
}

/// A compiled model: its plan without weights, and what is needed to pack them.
#[derive(Debug)]
pub struct Compiled {
    /// The plan; CRCs of weights are zero until they are packed.
    pub plan: Plan,
    /// The final graphs.
    pub module: Module,
    /// The `ir` section: the final graphs as text, and the pass report as comments.
    pub ir: String,
    /// The `text` section: the tokenizer; empty if the model has none.
    pub text: Vec<u8>,
    /// What each pass did.
    pub report: PipelineReport,
    /// Time of each stage.
    pub timings: Vec<(&'static str, Duration)>,
    sources: Vec<Source>,
}

/// Compiles the model in `files`.
///
/// # Errors
/// Any [`CompileError`] but those of reading IR text and of writing.
pub fn compile(
    files: &ModelFiles,
    options: &CompileOptions,
    observer: &mut dyn FnMut(&Event<'_>),
) -> Result<Compiled, CompileError> {
    let mut clock = Clock::default();
    let (module, sources) = import_with_adapters(files, options)?;
    refuse_lookahead(files, options)?;
    clock.lap("import");
    let tokenizer = TokenizerSpec::from_model(files)?;
    clock.lap("tokenizer");
    finish(module, Origin { files: Some(files), tokenizer, sources }, options, observer, clock)
}

/// The graphs of a model as its front end builds them, adapters merged: the stage `import`.
///
/// # Errors
/// As [`compile`].
pub fn import_module(files: &ModelFiles, options: &CompileOptions) -> Result<Module, CompileError> {
    Ok(import_with_adapters(files, options)?.0)
}

/// The graphs, and the files that their weights come from.
fn import_with_adapters(
    files: &ModelFiles,
    options: &CompileOptions,
) -> Result<(Module, Vec<Source>), CompileError> {
    let ctx = match options.ctx {
        Some(ctx) => ctx,
        None => trained_ctx(files)?.min(DEFAULT_CTX),
    };
    let want = options.want.unwrap_or(options.batch);
    // More tokens than all rows have positions cannot come at once.
    let chunk = options.chunk.unwrap_or(DEFAULT_CHUNK).min(ctx.saturating_mul(options.batch)).max(1);
    let mut module =
        import(files, &ImportOptions { ctx, batch: options.batch, chunk, want, kv: options.kv })?;
    let adapters: Vec<Adapter> = options.lora.iter().map(|it| Adapter::open(it)).collect::<Result<_, _>>()?;
    merge_adapters(&mut module, files.format(), &adapters)?;
    let sources = files.sources().iter().chain(adapters.iter().map(Adapter::source));
    Ok((module, sources.cloned().collect()))
}

/// Refuses guesses of experts that are not read from files of their own.
fn refuse_lookahead(files: &ModelFiles, options: &CompileOptions) -> Result<(), CompileError> {
    if options.lookahead == 0 || files.container().is_some() {
        return Ok(());
    }
    Err(ModelError::Option {
        option: "lookahead",
        value: options.lookahead.to_string(),
        reason: "nothing can be read ahead: only containers have experts in files of their own".into(),
    }
    .into())
}

/// Refuses adapters for graphs that are imported already.
fn refuse_adapters(options: &CompileOptions) -> Result<(), CompileError> {
    match options.lora.first() {
        None => Ok(()),
        Some(folder) => Err(ModelError::Option {
            option: "lora",
            value: folder.display().to_string(),
            reason: "adapters are merged into models, not into graphs".into(),
        }
        .into()),
    }
}

/// Compiles IR text, as `waste dump` prints it; paths of its sources are relative to `folder`.
/// The tokenizer is that of the first source, if it is a model's file.
///
/// # Errors
/// Any [`CompileError`] but those of writing.
pub fn compile_text(
    name: &str,
    text: &str,
    folder: &Path,
    options: &CompileOptions,
    observer: &mut dyn FnMut(&Event<'_>),
) -> Result<Compiled, CompileError> {
    refuse_adapters(options)?;
    let mut clock = Clock::default();
    let parse_error = |source| CompileError::Parse { name: name.to_owned(), source };
    let module = waste_ir::text::parse_module(text).map_err(parse_error)?;
    clock.lap("parse");
    let first = module.sources.values().next().map(|it| folder.join(&it.path));
    let files = first.and_then(|it| model_of(&it));
    let sources = open_sources(&module, folder, files.as_ref())?;
    let tokenizer = files.as_ref().map(TokenizerSpec::from_model).transpose()?.flatten();
    clock.lap("tokenizer");
    finish(module, Origin { files: files.as_ref(), tokenizer, sources }, options, observer, clock)
}

/// Compiles graphs that were built by hand; `sources` hold the bytes of `module.sources`, in order. No tokenizer.
///
/// # Errors
/// Any [`CompileError`] of passes and planning.
pub fn compile_module(
    module: Module,
    sources: Vec<Source>,
    options: &CompileOptions,
    observer: &mut dyn FnMut(&Event<'_>),
) -> Result<Compiled, CompileError> {
    refuse_adapters(options)?;
    finish(module, Origin { files: None, tokenizer: None, sources }, options, observer, Clock::default())
}

/// The model that the file at `path` belongs to: a model file itself, or one of a container's.
fn model_of(path: &Path) -> Option<ModelFiles> {
    ModelFiles::open(path, None).ok().or_else(|| {
        let container = ModelFiles::open(path.parent()?, None).ok()?;
        container.container().is_some().then_some(container)
    })
}

/// The hashes of the headers of a model's files, by where they are.
fn header_hashes(files: &ModelFiles) -> HashMap<PathBuf, String> {
    let paths = files.sources().iter().map(|it| it.path().canonicalize());
    let hashes = source_decls(files).into_iter().map(|it| it.header_sha256);
    paths.zip(hashes).filter_map(|(path, hash)| Some((path.ok()?, hash))).collect()
}

/// The hash of the adapter whose file is at `path`.
fn adapter_hash(path: &Path) -> Option<String> {
    let adapter = Adapter::open(path.parent()?).ok()?;
    (adapter.source().path() == path).then(|| adapter_decl(&adapter).header_sha256)
}

/// The sources of `module`, each with the header that it was made from; `files` are the model of the first.
fn open_sources(
    module: &Module,
    folder: &Path,
    files: Option<&ModelFiles>,
) -> Result<Vec<Source>, CompileError> {
    let known = files.map(header_hashes).unwrap_or_default();
    let open = |decl: &waste_ir::SourceDecl| {
        let path = folder.join(&decl.path);
        let source = Source::open(&path)?;
        let found = source.bytes().len() as u64;
        if found != decl.bytes {
            let message = format!("has {found} bytes, the text was made from {}", decl.bytes);
            return Err(CompileError::Source { path: path.display().to_string(), message });
        }
        // An adapter may lie in a folder that looks like a model's.
        let model_hash = || {
            let wanted = path.canonicalize().ok()?;
            known.get(&wanted).cloned().or_else(|| header_hashes(&model_of(&path)?).remove(&wanted))
        };
        let hash = adapter_hash(&path).or_else(model_hash);
        if let Some(hash) = hash.filter(|it| *it != decl.header_sha256) {
            let message =
                format!("has a header of SHA-256 {hash}, the text was made from {}", decl.header_sha256);
            return Err(CompileError::Source { path: path.display().to_string(), message });
        }
        Ok(source)
    };
    module.sources.values().map(open).collect()
}

/// What a module came from, beside its graphs.
struct Origin<'a> {
    files: Option<&'a ModelFiles>,
    tokenizer: Option<TokenizerSpec>,
    sources: Vec<Source>,
}

/// Passes, planning and the texts of the plan file.
fn finish(
    mut module: Module,
    origin: Origin<'_>,
    options: &CompileOptions,
    observer: &mut dyn FnMut(&Event<'_>),
    mut clock: Clock,
) -> Result<Compiled, CompileError> {
    let passes = PipelineOptions {
        math: options.math,
        only: options.only.clone(),
        disabled: options.disabled.clone(),
        rewrite_limit: options.rewrite_limit,
        tables: options.tables,
        lookahead: options.lookahead,
        verify: false,
    };
    let (params, source_bytes) = stored_size(&module);
    let report = waste_passes::run(&mut module, &passes, observer)?;
    clock.lap("passes");
    let verified = verified(&module)?;
    clock.lap("verify");
    let vocab = module.info.vocab;
    let text = origin.tokenizer.as_ref().map(TokenizerSpec::to_section).unwrap_or_default();
    let stop_ids = match (&origin.tokenizer, origin.files) {
        (Some(tokenizer), _) => tokenizer.stop_ids().to_vec(),
        (None, Some(files)) => stop_ids(files, vocab)?,
        (None, None) => Vec::new(),
    };
    let text_bytes = origin.tokenizer.map(TokenizerSpec::build).transpose()?.map_or(0, |it| it.heap_bytes());
    clock.lap("text");
    let request = PlanRequest {
        producer: concat!("waste ", env!("CARGO_PKG_VERSION")).to_owned(),
        options: plan_options(&module, options, &report),
        params,
        source_bytes,
        text_bytes,
        stop_ids,
        expert_slots: options.expert_slots,
    };
    let mut plan = waste_codegen::plan(&verified, &request)?;
    experts::name_banks(&mut plan, &origin.sources, origin.files.and_then(ModelFiles::container))?;
    clock.lap("plan");
    validate(&plan).map_err(|errors| CompileError::Invalid { errors })?;
    if let Some(limit) = options.max_mem {
        experts::fit(&mut plan, limit, options.expert_slots)?;
    }
    let ir = format!("{}{}", waste_ir::text::print_module(&module), as_comments(&report.table(false)));
    clock.lap("print");
    Ok(Compiled { plan, module, ir, text, report, timings: clock.laps, sources: origin.sources })
}

/// Proof that `module` obeys all rules.
///
/// # Errors
/// [`CompileError::Verify`] with every broken rule.
pub fn verified(module: &Module) -> Result<Verified<'_>, CompileError> {
    verify(module).map_err(|errors| CompileError::Verify { errors })
}

fn as_comments(text: &str) -> String {
    text.lines().map(|it| format!("; {it}").trim_end().to_owned() + "\n").collect()
}

/// Parameters and bytes of all stored tensors, each counted once.
fn stored_size(module: &Module) -> (u64, u64) {
    let stored = module.weights.values().filter(|it| it.init.parts().is_empty());
    stored.fold((0, 0), |(params, bytes), it| {
        let elems: u64 = it.ty.shape.dims().iter().map(|dim| dim.upper(&module.syms)).product();
        let dtype = match it.init {
            waste_ir::WeightInit::Stored { stored, .. }
            | waste_ir::WeightInit::Transposed { stored, .. }
            | waste_ir::WeightInit::Grouped { stored, .. }
            | waste_ir::WeightInit::Bank { stored, .. } => stored,
            waste_ir::WeightInit::Concat(_)
            | waste_ir::WeightInit::Merged { .. }
            | waste_ir::WeightInit::Records { .. } => it.ty.dtype,
        };
        let ty = waste_ir::TensorType { dtype, shape: it.ty.shape.clone() };
        (params + elems, bytes + module.upper_bytes(&ty).unwrap_or(0))
    })
}

/// The sizes that the graphs were built for: IR text may differ from the flags, and the graphs count.
fn plan_options(module: &Module, options: &CompileOptions, report: &PipelineReport) -> Options {
    let upper = |graph: &str, input: &str| {
        let graph = module.graph(graph)?;
        let dim = graph.ty(graph.input(input)?).shape.dims()[0];
        u32::try_from(dim.upper(&module.syms)).ok()
    };
    // A recurrent state has no positions.
    let state = module.states.values().find(|it| it.kind != StateKind::Recurrent);
    let positions = state.and_then(|it| it.ty.shape.dims().get(1)?.known());
    let ctx = options.ctx.unwrap_or_else(|| module.info.ctx_trained.min(DEFAULT_CTX));
    Options {
        ctx: positions.filter(|it| ctx.next_multiple_of(32) != *it).unwrap_or(ctx),
        batch: upper("decode", "token").unwrap_or(options.batch),
        chunk: upper("prefill", "token").or(options.chunk).unwrap_or(DEFAULT_CHUNK),
        want: upper("prefill", "want").unwrap_or(options.batch),
        kv: state.map_or(options.kv, |it| it.ty.dtype),
        math: options.math,
        lookahead: options.lookahead,
        passes: report.passes.iter().map(|it| it.name.to_owned()).collect(),
    }
}

impl Compiled {
    /// Writes the plan file at `path`: under a temporary name, synced, then renamed. Returns the plan as written.
    ///
    /// # Errors
    /// [`CompileError::File`], and [`CompileError::Format`] where stored weights are no numbers.
    pub fn write(&self, path: &Path, embed: bool, progress: &dyn Progress) -> Result<Plan, CompileError> {
        let mut plan = self.plan.clone();
        self.refuse_source(path)?;
        weights::check(&plan, &self.sources)?;
        self.relative_sources(&mut plan, path);
        if !embed {
            weights::checksums(&mut plan, &self.sources, progress);
            return Ok(PlanWriter::create(path, &plan, &self.ir, &self.text, WeightsAt::Outside)?.finish()?);
        }
        let mut writer = PlanWriter::create(path, &plan, &self.ir, &self.text, WeightsAt::Inside)?;
        weights::for_each_packed(&plan, &self.sources, progress, |index, bytes| writer.weight(index, bytes))?;
        Ok(writer.finish()?)
    }

    /// The plan with its weights packed in memory, ready for a session.
    ///
    /// # Errors
    /// [`CompileError::Runtime`], and [`CompileError::Format`] where stored weights are no numbers.
    pub fn load(&self, progress: &dyn Progress) -> Result<LoadedPlan, CompileError> {
        weights::check(&self.plan, &self.sources)?;
        let mut plan = self.plan.clone();
        let mut buffer = WeightBuffer::new(plan.memory.weights)?;
        weights::pack_all(&mut plan, &self.sources, progress, buffer.bytes_mut());
        Ok(LoadedPlan::from_parts(plan, buffer, &self.ir, &self.text)?)
    }

    /// A plan never takes the place of a file that its weights come from.
    fn refuse_source(&self, path: &Path) -> Result<(), CompileError> {
        let Ok(target) = path.canonicalize() else { return Ok(()) };
        let is_target = |it: &&Source| it.path().canonicalize().is_ok_and(|it| it == target);
        match self.sources.iter().find(is_target) {
            None => Ok(()),
            Some(source) => Err(CompileError::Source {
                path: source.name(),
                message: "holds weights of this model: write the plan elsewhere".into(),
            }),
        }
    }

    /// Paths of sources as seen from the plan's folder, where that is possible.
    fn relative_sources(&self, plan: &mut Plan, path: &Path) {
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Ok(folder) = folder.canonicalize() else { return };
        for source in &mut plan.sources {
            let Ok(full) = Path::new(&source.path).canonicalize() else { continue };
            let seen = full.strip_prefix(&folder).unwrap_or(&full);
            source.path = seen.to_string_lossy().into_owned();
        }
    }
}

/// Times the stages.
struct Clock {
    last: Instant,
    laps: Vec<(&'static str, Duration)>,
}

impl Default for Clock {
    fn default() -> Self {
        Self { last: Instant::now(), laps: Vec::new() }
    }
}

impl Clock {
    fn lap(&mut self, name: &'static str) {
        let now = Instant::now();
        self.laps.push((name, now - self.last));
        self.last = now;
    }
}
