//! Remove what no output depends on: ops, and weights that only they read.
//!
//! Before / After: see snapshots/passes/dce/basic.
//! Requires: nothing.  Refuses when: never.
//! Numerics: preserves (no live op changes).
//! Why: a front end may build more than its outputs need; a dead weight would be packed into the plan.

use waste_ir::Module;

use crate::emit::rebuild;
use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::rewrite::Edits;

/// See the module.
#[derive(Debug)]
pub struct Dce;

impl Pass for Dce {
    const NAME: &'static str = "dce";
    const NUMERICS: Numerics = Numerics::Preserves;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let keep_all = vec![Edits::new(None); module.graphs.len()];
        let swept = rebuild(module, &keep_all, &[]).map_err(|it| cx.emit_error(it))?;
        let smaller = n_ops(&swept) < n_ops(module) || swept.weights.len() < module.weights.len();
        if !smaller || !cx.permit() {
            return Ok(Changed::No);
        }
        *module = swept;
        Ok(Changed::Yes)
    }
}

/// Ops in all graphs, those of regions included.
pub(crate) fn n_ops(module: &Module) -> usize {
    module.graphs.values().map(|it| it.ops.len()).sum()
}
