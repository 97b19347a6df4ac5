//! Fuse `quant_act` into the op that produces its operand: `rms_norm`, `layer_norm` or `linear_glu` write the quantised form themselves.
//!
//! Before / After: see snapshots/passes/fuse-quant/basic.
//! Requires: phase legal, after cse.  Refuses when: the f32 result has other readers; the producer is outside the region.
//! Numerics: preserves (the same values are quantised).
//! Why: saves one arena buffer of f32 [m, n] and a pass over it; one quantised x for all its readers.

use waste_ir::{Module, Op, OpId};
use waste_plan::Math;

use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::rewrite::{Attempt, Edit, Matcher, Miss, rewrite};

/// See the module.
#[derive(Debug)]
pub struct FuseQuant;

impl Pass for FuseQuant {
    const NAME: &'static str = "fuse-quant";
    const NUMERICS: Numerics = Numerics::Preserves;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        rewrite(module, cx, fuse)
    }
}

fn fuse(m: &Matcher<'_>, at: OpId) -> Attempt {
    let data = &m.graph.ops[at];
    let Op::QuantAct { math } = data.op else { return Err(Miss::Other) };
    let x = data.operand(0);
    let (op, producer) = m.def(x).ok_or(Miss::Other)?;
    let fused = quantizing(&producer.op, math).ok_or(Miss::Other)?;
    m.may_absorb(op, x, at)?;
    Ok(Edit::replace(at, fused, &producer.operands))
}

/// The op that also quantises its result, if there is one.
fn quantizing(op: &Op, math: Math) -> Option<Op> {
    let quant = Some(math);
    match *op {
        Op::RmsNorm { eps, quant: None } => Some(Op::RmsNorm { eps, quant }),
        Op::LayerNorm { eps, quant: None } => Some(Op::LayerNorm { eps, quant }),
        Op::LinearGlu { act, quant: None, beta, linear } => Some(Op::LinearGlu { act, quant, beta, linear }),
        _ => None,
    }
}
