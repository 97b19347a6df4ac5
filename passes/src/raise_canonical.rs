//! Open the graphs to fused ops: phase imported becomes canonical.
//!
//! Before / After: see snapshots/passes/raise-canonical/basic.
//! Requires: nothing.  Refuses when: never.
//! Numerics: preserves (no op changes).
//! Why: a front end must not fuse, so the verifier forbids fused ops up to here and allows them from here on.

use waste_ir::{Module, Phase};

use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};

/// See the module.
#[derive(Debug)]
pub struct RaiseCanonical;

impl Pass for RaiseCanonical {
    const NAME: &'static str = "raise-canonical";
    const NUMERICS: Numerics = Numerics::Preserves;
    const MANDATORY: bool = true;

    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        Ok(raise(module, Phase::Canonical))
    }
}

/// Brings every graph at least to `phase`.
pub(crate) fn raise(module: &mut Module, phase: Phase) -> Changed {
    let mut changed = Changed::No;
    for graph in module.graphs.values_mut().filter(|it| it.phase < phase) {
        graph.phase = phase;
        changed = Changed::Yes;
    }
    changed
}
