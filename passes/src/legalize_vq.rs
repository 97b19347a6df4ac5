//! Multiply vector-quantised matrices by lookup tables: a `linear` over one becomes `lut_build` and `lut_apply`.
//!
//! Before / After: see snapshots/passes/legalize-vq/basic.
//! Requires: phase canonical.  Refuses when: the linear has a bias or an epilogue, which tables do not add.
//! Numerics: preserves (the evaluator keeps the input in place of its tables; what the kernels do is numerics §4).
//! Why: an index stream addresses sums of products that all rows share, so no expert is ever expanded to weights.
//!
//! Inside a region both ops stand where the linear stood; `hoist-lut` and `cse` find out what they share.

use smallvec::smallvec;
use waste_ir::{Act, Module, Op, OpId, ValueId, WeightId};
use waste_plan::Tables;

use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::rewrite::{Arg, Attempt, Edit, Matcher, Miss, NewOp, demand, rewrite};

/// See the module.
#[derive(Debug)]
pub struct LegalizeVq;

impl Pass for LegalizeVq {
    const NAME: &'static str = "legalize-vq";
    const NUMERICS: Numerics = Numerics::Preserves;
    const MANDATORY: bool = true;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let tables = cx.tables;
        rewrite(module, cx, |m, op| legalize(m, op, tables))
    }
}

fn legalize(m: &Matcher<'_>, at: OpId, tables: Tables) -> Attempt {
    let data = &m.graph.ops[at];
    let Op::Linear { act } = data.op else { return Err(Miss::Other) };
    let (x, w) = (data.operand(0), data.operand(1));
    let code = m.graph.ty(w).dtype.vq().ok_or(Miss::Other)?;
    let is_bare = act == Act::None && data.optional(2).is_none() && data.optional(3).is_none();
    demand(is_bare, "the linear has a bias or an epilogue, which tables do not add")?;
    let books = books(m, w).expect("verified: a vector-quantised matrix is of a bank with codebooks");
    let build =
        NewOp { op: Op::LutBuild { code, tables }, operands: smallvec![Some(Arg::Old(x)), Some(books)] };
    let apply = NewOp { op: Op::LutApply {}, operands: smallvec![Some(Arg::New(at, 0)), Some(Arg::Old(w))] };
    Ok(Edit { ops: smallvec![build, apply], results: smallvec![Arg::New(at, 1)] })
}

/// The codebooks of the bank that the matrix `w` is a part of.
fn books(m: &Matcher<'_>, w: ValueId) -> Option<Arg> {
    let bank: WeightId = match m.def(w) {
        Some((_, data)) if matches!(data.op, Op::BankSlice {}) => m.graph.weight(data.operand(0))?,
        _ => m.graph.weight(w)?,
    };
    m.module.weights[bank].books.map(Arg::Weight)
}
