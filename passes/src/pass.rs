//! What a pass is: the trait, the context it works in, and how it fails.
//!
//! Invariants
//! - a pass keeps nothing between runs: what it needs comes from the module and the context;
//! - nothing allocated in [`PassCx::scratch`] survives the pass.

use bumpalo::Bump;
use waste_ir::{BuildError, Module};
use waste_plan::{Math, Tables};

use crate::report::NearMiss;

/// Whether a pass changed the module.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The printed form differs.
    Yes,
    /// The module is as it was.
    No,
}

impl Changed {
    /// `Yes` if `changed`.
    pub const fn from_bool(changed: bool) -> Self {
        if changed { Self::Yes } else { Self::No }
    }

    /// Whether either changed something.
    pub const fn or(self, other: Self) -> Self {
        Self::from_bool(self.is_yes() || other.is_yes())
    }

    /// Whether this is `Yes`.
    #[must_use]
    pub const fn is_yes(self) -> bool {
        matches!(self, Self::Yes)
    }
}

/// What a pass does to the results of the evaluator (numerics §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// The same operations in the same order per element: the evaluator's outputs keep their bits.
    Preserves,
    /// Sums are taken in another order: outputs agree to 1e-12.
    Reassociates,
}

impl Numerics {
    /// The word in the printed pipeline.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Preserves => "preserves",
            Self::Reassociates => "reassociates",
        }
    }
}

/// A step of the pipeline: module in, module out.
pub trait Pass {
    /// Kebab-case; the command line, the case folder and the snapshot folder use it.
    const NAME: &'static str;
    /// What it does to the evaluator's outputs.
    const NUMERICS: Numerics;
    /// Whether the pipeline is incomplete without it.
    const MANDATORY: bool = false;

    /// Changes `module`, or leaves it whole and says why not.
    ///
    /// # Errors
    /// [`PassError::Emit`] if the pass emits an op that does not type: a defect of the pass.
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError>;
}

/// Why passes could not be chosen or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// A name that no pass has.
    #[error("unknown pass '{name}'; the nearest is '{nearest}'")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The pass with the most similar name.
        nearest: &'static str,
    },
    /// A pass that must run was disabled.
    #[error("pass '{name}' is mandatory and cannot be disabled")]
    Mandatory {
        /// The pass.
        name: &'static str,
    },
    /// Internal: a pass emitted an op that does not type.
    #[error("pass '{pass}' emitted an ill-typed op")]
    Emit {
        /// The pass.
        pass: &'static str,
        /// The op and what is wrong with it.
        source: BuildError,
    },
    /// Internal, or an invalid module given to the pipeline: the verifier objects.
    #[error("after '{pass}' the module does not verify: {}", errors.join("; "))]
    Invalid {
        /// The pass that ran last; `import` if none did.
        pass: &'static str,
        /// Every objection, in order.
        errors: Vec<String>,
    },
}

/// What a pass may use: options, scratch memory, and the report it writes.
#[derive(Debug)]
pub struct PassCx<'a> {
    /// The arithmetic of linears over integer weights.
    pub math: Math,
    /// The arithmetic of lookup tables.
    pub tables: Tables,
    /// Memory that is gone after the pass.
    pub scratch: &'a Bump,
    pass: &'static str,
    budget: Option<u32>,
    rewrites: u32,
    near_misses: Vec<NearMiss>,
}

impl<'a> PassCx<'a> {
    /// The context of one run of pass `pass`; `budget` bounds its rewrites.
    #[must_use]
    pub const fn new(
        pass: &'static str,
        (math, tables): (Math, Tables),
        scratch: &'a Bump,
        budget: Option<u32>,
    ) -> Self {
        Self { math, tables, scratch, pass, budget, rewrites: 0, near_misses: Vec::new() }
    }

    /// The name of the pass.
    #[must_use]
    pub const fn pass(&self) -> &'static str {
        self.pass
    }

    /// Rewrites so far.
    #[must_use]
    pub const fn rewrites(&self) -> u32 {
        self.rewrites
    }

    /// Counts one rewrite, or answers `false` if the budget is spent and it must not happen.
    #[must_use]
    pub fn permit(&mut self) -> bool {
        if self.budget.is_some_and(|it| self.rewrites >= it) {
            return false;
        }
        self.rewrites += 1;
        true
    }

    /// Records that the pass almost applied; `at` prints the place and is asked once a reason.
    pub fn near_miss(&mut self, reason: &'static str, at: impl FnOnce() -> String) {
        match self.near_misses.iter_mut().find(|it| it.reason == reason) {
            Some(known) => known.count += 1,
            None => {
                let first = at();
                tracing::debug!(pass = self.pass, reason, at = first, "near miss");
                self.near_misses.push(NearMiss { reason, count: 1, first });
            }
        }
    }

    /// The near misses so far, by first occurrence.
    #[must_use]
    pub fn near_misses(&self) -> &[NearMiss] {
        &self.near_misses
    }

    /// Wraps an op that did not type.
    pub(crate) const fn emit_error(&self, source: BuildError) -> PassError {
        PassError::Emit { pass: self.pass, source }
    }
}
