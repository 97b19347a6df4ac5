//! The order of the passes, with the reason for each place, and the manager that runs them.
//!
//! Invariants
//! - [`pipeline`] is the only place that knows the order; its printed form is a snapshot;
//! - mandatory passes always run, and no budget of rewrites binds them;
//! - in debug builds and on request the module is verified before the first pass and after each.
//!
//! Deliberately absent: registration, passes that run passes, and repetition until nothing changes.

use std::fmt;
use std::time::Instant;

use bumpalo::Bump;
use waste_ir::{Module, verify};
use waste_plan::{Math, Tables};

use crate::canonicalize::Canonicalize;
use crate::cse::Cse;
use crate::dce::{Dce, n_ops};
use crate::flatten_experts::FlattenExperts;
use crate::fuse::{FuseConvAct, FuseEpilogue, FuseGlu, FuseQuant};
use crate::hoist_lut::HoistLut;
use crate::legalize_vq::LegalizeVq;
use crate::lookahead::LookaheadExperts;
use crate::merge_linears::MergeLinears;
use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::quantize_acts::QuantizeActs;
use crate::raise_canonical::RaiseCanonical;
use crate::report::{PassReport, PipelineReport, TableBuilds};
use crate::select_layout::SelectLayout;
use crate::sink_lut::SinkLut;

/// Which passes run, and how.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    /// The arithmetic of linears over integer weights.
    pub math: Math,
    /// The arithmetic of the lookup tables of vector-quantised weights.
    pub tables: Tables,
    /// Experts that a layer guesses for the next one; 0: `lookahead-experts` does not run.
    pub lookahead: u32,
    /// Exactly these optional passes, by name; all of them if `None`.
    pub only: Option<Vec<String>>,
    /// Not these optional passes, by name.
    pub disabled: Vec<String>,
    /// At most so many rewrites by optional passes together: to bisect a miscompile.
    pub rewrite_limit: Option<u32>,
    /// Verify after each pass in release builds too.
    pub verify: bool,
}

/// A place in the pipeline.
pub struct Entry {
    /// The pass there.
    pub name: &'static str,
    /// What it does to the evaluator's outputs.
    pub numerics: Numerics,
    /// Whether it cannot be disabled.
    pub mandatory: bool,
    /// Why it stands there.
    pub why: &'static str,
    run: Box<RunPass>,
}

type RunPass = dyn Fn(&mut Module, &mut PassCx<'_>) -> Result<Changed, PassError>;

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("name", &self.name).field("why", &self.why).finish_non_exhaustive()
    }
}

impl Entry {
    /// `pass` stands at this place because of `why`.
    fn new<P: Pass + 'static>(pass: P, why: &'static str) -> Self {
        let run = Box::new(move |module: &mut Module, cx: &mut PassCx<'_>| pass.run(module, cx));
        Self { name: P::NAME, numerics: P::NUMERICS, mandatory: P::MANDATORY, why, run }
    }

    /// Runs the pass.
    ///
    /// # Errors
    /// What the pass reports.
    pub fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        (self.run)(module, cx)
    }
}

/// Every pass in order, each with the reason for its place; `lookahead`: what `lookahead-experts` guesses.
fn all_entries(lookahead: u32) -> Vec<Entry> {
    vec![
        Entry::new(RaiseCanonical, "first: fused ops are forbidden before it"),
        Entry::new(Canonicalize, "before all patterns: they match one spelling of views"),
        Entry::new(Cse, "before fusions: two equal producers would look like a second use of their operand"),
        Entry::new(Dce, "before fusions: a dead reader would look like a second use"),
        Entry::new(LegalizeVq, "before fuse-glu: gate and up by tables are no linears that it could take"),
        Entry::new(FuseGlu, "before merge-linears: merged, gate and up would be slices and no longer match"),
        Entry::new(MergeLinears, "before fuse-epilogue: a linear with an epilogue is not merged"),
        Entry::new(
            FuseEpilogue,
            "after merge-linears; before quantize-acts, so that it sees f32 linears only",
        ),
        Entry::new(FuseConvAct, "after canonicalize: nothing lies between a convolution and its activation"),
        Entry::new(QuantizeActs, "after merge-linears: one reader of x, one quant_act"),
        Entry::new(
            HoistLut,
            "after legalize-vq and quantize-acts, which put into regions what does not depend on the expert",
        ),
        Entry::new(Cse, "after hoist-lut: readers of one x share one quant_act, and equal tables are one"),
        Entry::new(FuseQuant, "after the second cse: a producer is fused only with its sole reader"),
        Entry::new(FlattenExperts, "after all fusions, which see an expert's body as it was written"),
        Entry::new(
            LookaheadExperts { experts: lookahead },
            "after flatten-experts and all fusions: a second reader of a router's input would hinder them",
        ),
        Entry::new(
            SinkLut,
            "after lookahead-experts, which looks at the tables' readers; it undoes hoist-lut where many tokens share an expert",
        ),
        Entry::new(SelectLayout, "last: it packs the weights that are left"),
    ]
}

/// The passes that run under `options`, in order.
///
/// # Errors
/// [`PassError::Unknown`] for a name that no pass has, [`PassError::Mandatory`] if a mandatory pass is disabled.
pub fn pipeline(options: &PipelineOptions) -> Result<Vec<Entry>, PassError> {
    let mut entries = all_entries(options.lookahead);
    for name in options.only.iter().flatten() {
        find(&entries, name)?;
    }
    for name in &options.disabled {
        let entry = find(&entries, name)?;
        if entry.mandatory {
            return Err(PassError::Mandatory { name: entry.name });
        }
    }
    let chosen = |name: &str| options.only.as_ref().is_none_or(|it| it.iter().any(|it| it == name));
    let disabled = |name: &str| options.disabled.iter().any(|it| it == name);
    let is_on = |name: &str| name != LookaheadExperts::NAME || options.lookahead > 0;
    entries.retain(|it| it.mandatory || (is_on(it.name) && chosen(it.name) && !disabled(it.name)));
    Ok(entries)
}

/// The names of the optional passes, each once, in order.
#[must_use]
pub fn optional_passes() -> Vec<&'static str> {
    let mut names: Vec<&'static str> = Vec::new();
    for entry in all_entries(0).iter().filter(|it| !it.mandatory) {
        if !names.contains(&entry.name) {
            names.push(entry.name);
        }
    }
    names
}

/// The first place of pass `name` among `entries`.
///
/// # Errors
/// [`PassError::Unknown`], with the nearest name.
pub fn find<'a>(entries: &'a [Entry], name: &str) -> Result<&'a Entry, PassError> {
    entries.iter().find(|it| it.name == name).ok_or_else(|| PassError::Unknown {
        name: name.to_owned(),
        nearest: entries.iter().map(|it| it.name).min_by_key(|it| edit_distance(it, name)).unwrap_or("none"),
    })
}

/// One line a pass: name, whether it is mandatory, numerics, reason.
#[must_use]
pub fn print_pipeline(entries: &[Entry]) -> String {
    let line = |it: &Entry| {
        let kind = if it.mandatory { "mandatory" } else { "optional" };
        format!("{:<17} {kind:<10} {:<13} {}\n", it.name, it.numerics.name(), it.why)
    };
    entries.iter().map(line).collect()
}

/// What an observer sees after each pass.
#[derive(Debug)]
pub struct Event<'a> {
    /// The pass that ran.
    pub pass: &'static str,
    /// Whether it changed the module.
    pub changed: Changed,
    /// The module after it.
    pub module: &'a Module,
}

/// Runs the pipeline on `module` and calls `observer` after each pass.
///
/// # Errors
/// As [`pipeline`]; [`PassError::Invalid`] if the module, as given or after a pass, does not verify (checked in debug builds and by
/// `options.verify`); [`PassError::Emit`] on a defect of a pass. `module` is then as the last sound pass left it, or invalid as reported.
pub fn run(
    module: &mut Module,
    options: &PipelineOptions,
    observer: &mut dyn FnMut(&Event<'_>),
) -> Result<PipelineReport, PassError> {
    let entries = pipeline(options)?;
    let verifying = options.verify || cfg!(debug_assertions);
    if verifying {
        check(module, "import")?;
    }
    let mut report = PipelineReport::default();
    let mut budget = options.rewrite_limit;
    let mut scratch = Bump::new();
    for entry in &entries {
        let limit = if entry.mandatory { None } else { budget };
        let pass = run_entry(
            entry,
            module,
            PassCx::new(entry.name, (options.math, options.tables), &scratch, limit),
        )?;
        scratch.reset();
        if !entry.mandatory {
            budget = budget.map(|it| it - pass.rewrites);
        }
        if verifying {
            check(module, entry.name)?;
        }
        if entry.name == LegalizeVq::NAME {
            report.tables = TableBuilds::between(module, module);
        }
        observer(&Event { pass: entry.name, changed: pass.changed, module });
        report.passes.push(pass);
    }
    report.tables = report.tables.map(|it| it.until(module));
    Ok(report)
}

fn run_entry(entry: &Entry, module: &mut Module, mut cx: PassCx<'_>) -> Result<PassReport, PassError> {
    let ops_before = n_ops(module);
    let _span = tracing::debug_span!("pass", name = entry.name, ops_before).entered();
    let start = Instant::now();
    let changed = entry.run(module, &mut cx)?;
    let duration = start.elapsed();
    let ops_after = n_ops(module);
    tracing::debug!(ops_after, rewrites = cx.rewrites(), "done");
    let (rewrites, near_misses) = (cx.rewrites(), cx.near_misses().to_vec());
    Ok(PassReport { name: entry.name, changed, rewrites, ops_before, ops_after, near_misses, duration })
}

fn check(module: &Module, pass: &'static str) -> Result<(), PassError> {
    match verify(module) {
        Ok(_) => Ok(()),
        Err(errors) => {
            Err(PassError::Invalid { pass, errors: errors.iter().map(ToString::to_string).collect() })
        }
    }
}

/// Levenshtein's distance in characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
