//! Fuse an activation, then a residual sum, into the `linear` that produces its operand: y = act(x · wᵀ + bias) + residual.
//!
//! Before / After: see snapshots/passes/fuse-epilogue/basic.
//! Requires: phase canonical.  Refuses when: the product has a second use; the function is no epilogue; the linear has one already.
//! Numerics: preserves (same operations in the same order per element; a sum of two terms commutes exactly).
//! Why: saves one arena buffer of [m, n] and a pass over it for each.

use waste_ir::{Act, Module, Op, OpData, OpId, ValueId};

use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::rewrite::{Attempt, Edit, Matcher, Miss, demand, rewrite};

/// See the module.
#[derive(Debug)]
pub struct FuseEpilogue;

impl Pass for FuseEpilogue {
    const NAME: &'static str = "fuse-epilogue";
    const NUMERICS: Numerics = Numerics::Preserves;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let activated = rewrite(module, cx, fuse_act)?;
        Ok(activated.or(rewrite(module, cx, fuse_residual)?))
    }
}

fn fuse_act(m: &Matcher<'_>, at: OpId) -> Attempt {
    let data = &m.graph.ops[at];
    let Op::Unary { kind } = data.op else { return Err(Miss::Other) };
    let product = data.operand(0);
    let (op, linear, act) = linear(m, product).ok_or(Miss::Other)?;
    demand(act == Act::None, "the linear has an activation already")?;
    demand(linear.optional(3).is_none(), "the linear has a residual already")?;
    let act = kind.as_act().ok_or(Miss::Near("the function is no epilogue of a linear"))?;
    m.may_absorb(op, product, at)?;
    Ok(Edit::replace(at, Op::Linear { act }, &linear.operands))
}

/// Of two linears the one on the right is taken, which front ends compute last.
fn fuse_residual(m: &Matcher<'_>, at: OpId) -> Attempt {
    let data = &m.graph.ops[at];
    let Op::Add {} = data.op else { return Err(Miss::Other) };
    let (lhs, rhs) = (data.operand(0), data.operand(1));
    absorb_residual(m, at, rhs, lhs).or_else(|missed| match absorb_residual(m, at, lhs, rhs) {
        Err(Miss::Other) => Err(missed),
        taken => taken,
    })
}

fn absorb_residual(m: &Matcher<'_>, at: OpId, product: ValueId, residual: ValueId) -> Attempt {
    let (op, linear, act) = linear(m, product).ok_or(Miss::Other)?;
    demand(linear.optional(3).is_none(), "the linear has a residual already")?;
    m.may_absorb(op, product, at)?;
    let mut operands = linear.operands.clone();
    operands[3] = Some(residual);
    Ok(Edit::replace(at, Op::Linear { act }, &operands))
}

fn linear<'a>(m: &Matcher<'a>, value: ValueId) -> Option<(OpId, &'a OpData, Act)> {
    let (op, data) = m.def(value)?;
    match data.op {
        Op::Linear { act } => Some((op, data, act)),
        _ => None,
    }
}
