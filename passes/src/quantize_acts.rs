//! Put a `quant_act` before every linear over integer weights: phase canonical becomes legal.
//!
//! Before / After: see snapshots/passes/quantize-acts/basic.
//! Requires: phase canonical.  Refuses when: never; with `--math f32` only the phase changes.
//! Numerics: preserves (the evaluator computes `quant_act` as the identity; what the kernels do is numerics §2).
//! Why: integer kernels read fixed-point activations. One `quant_act` a reader here; `cse` makes it one an input.

use smallvec::smallvec;
use waste_ir::{Module, Op, OpId, Phase};
use waste_plan::{DType, Math};

use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::raise_canonical::raise;
use crate::rewrite::{Arg, Attempt, Edit, Matcher, Miss, NewOp, rewrite};

/// See the module.
#[derive(Debug)]
pub struct QuantizeActs;

impl Pass for QuantizeActs {
    const NAME: &'static str = "quantize-acts";
    const NUMERICS: Numerics = Numerics::Preserves;
    const MANDATORY: bool = true;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let math = cx.math;
        let quantized = match math.act_dtype() {
            Some(_) => rewrite(module, cx, |m, op| quantize(m, op, math))?,
            None => Changed::No,
        };
        Ok(quantized.or(raise(module, Phase::Legal)))
    }
}

fn quantize(m: &Matcher<'_>, at: OpId, math: Math) -> Attempt {
    let data = &m.graph.ops[at];
    if !matches!(data.op, Op::Linear { .. } | Op::LinearGlu { .. } | Op::HeadLinear {}) {
        return Err(Miss::Other);
    }
    let (x, w) = (data.operand(0), data.operand(1));
    if m.graph.ty(x).dtype != DType::F32 || !m.graph.ty(w).dtype.is_integer_weight() {
        return Err(Miss::Other);
    }
    let quant = NewOp { op: Op::QuantAct { math }, operands: smallvec![Some(Arg::Old(x))] };
    let mut reader =
        NewOp { op: data.op.clone(), operands: data.operands.iter().map(|it| it.map(Arg::Old)).collect() };
    reader.operands[0] = Some(Arg::New(at, 0));
    Ok(Edit { ops: smallvec![quant, reader], results: smallvec![Arg::New(at, 1)] })
}
