//! Give equal views one spelling: fold chains of `reshape` and of `slice`, drop those that change nothing, cancel `neg`.
//!
//! Before / After: see snapshots/passes/canonicalize/basic.
//! Requires: nothing.  Refuses when: never; a chain whose links have other readers is folded too, the links stay for those.
//! Numerics: preserves (views move no element; −(−x) is x).
//! Why: later patterns meet one form, and the planner sees one alias in place of a chain.

use waste_ir::{Module, Op, OpId, UnaryKind, ValueId};

use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::rewrite::{Attempt, Edit, Matcher, Miss, rewrite};

/// See the module.
#[derive(Debug)]
pub struct Canonicalize;

impl Pass for Canonicalize {
    const NAME: &'static str = "canonicalize";
    const NUMERICS: Numerics = Numerics::Preserves;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        rewrite(module, cx, simplify)
    }
}

fn simplify(m: &Matcher<'_>, at: OpId) -> Attempt {
    let data = &m.graph.ops[at];
    let folded = match data.op {
        Op::Reshape { cols } => reshape(m, data.operand(0), cols),
        Op::Slice { start, len } => slice(m, data.operand(0), start, len),
        Op::Unary { kind: UnaryKind::Neg } => {
            return cancel_neg(m, data.operand(0)).map(Edit::alias).ok_or(Miss::Other);
        }
        _ => return Err(Miss::Other),
    };
    match folded {
        Folded::To(value) => Ok(Edit::alias(value)),
        Folded::View(_, source) if source == data.operand(0) => Err(Miss::Other),
        Folded::View(op, source) => Ok(Edit::replace(at, op, &[Some(source)])),
    }
}

/// What a view amounts to.
enum Folded {
    /// All of a value.
    To(ValueId),
    /// This view of a value that is itself no such view.
    View(Op, ValueId),
}

fn reshape(m: &Matcher<'_>, x: ValueId, cols: u32) -> Folded {
    let mut source = m.resolve(x);
    while let Some((_, data)) = m.def(source)
        && matches!(data.op, Op::Reshape { .. })
    {
        source = m.resolve(data.operand(0));
    }
    if m.graph.ty(source).shape.cols() == Some(cols) {
        Folded::To(source)
    } else {
        Folded::View(Op::Reshape { cols }, source)
    }
}

fn slice(m: &Matcher<'_>, x: ValueId, start: u32, len: u32) -> Folded {
    let (mut source, mut start) = (m.resolve(x), start);
    while let Some((_, data)) = m.def(source)
        && let Op::Slice { start: outer, .. } = data.op
    {
        source = m.resolve(data.operand(0));
        start += outer;
    }
    if start == 0 && m.graph.ty(source).shape.cols() == Some(len) {
        Folded::To(source)
    } else {
        Folded::View(Op::Slice { start, len }, source)
    }
}

fn cancel_neg(m: &Matcher<'_>, x: ValueId) -> Option<ValueId> {
    let (_, data) = m.def(m.resolve(x))?;
    matches!(data.op, Op::Unary { kind: UnaryKind::Neg }).then(|| m.resolve(data.operand(0)))
}
