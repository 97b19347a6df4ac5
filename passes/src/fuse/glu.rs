//! Fuse `glu` over two linears of one input into `linear_glu`.
//!
//! Before / After: see snapshots/passes/fuse-glu/basic.
//! Requires: phase canonical, before merge-linears.  Refuses when: gate or up has a second use, a bias or an epilogue; they read
//! different inputs, or are slices of one product; their weights differ in type, or are vector-quantised.
//! Numerics: preserves (same operations in the same order per element).
//! Why: saves two arena buffers of [m, ffn], a pass over them, and a pass over x.

use waste_ir::{Act, Module, Op, OpData, OpId, ValueId};

use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::rewrite::{Attempt, Edit, Matcher, Miss, demand, rewrite};

/// See the module.
#[derive(Debug)]
pub struct FuseGlu;

impl Pass for FuseGlu {
    const NAME: &'static str = "fuse-glu";
    const NUMERICS: Numerics = Numerics::Preserves;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        rewrite(module, cx, fuse)
    }
}

fn fuse(m: &Matcher<'_>, at: OpId) -> Attempt {
    let data = &m.graph.ops[at];
    let Op::Glu { act, beta, linear } = data.op else { return Err(Miss::Other) };
    let (gate, up) = (data.operand(0), data.operand(1));
    let (Some((gate_op, gate_data)), Some((up_op, up_data))) = (m.def(gate), m.def(up)) else {
        return Err(Miss::Other);
    };
    let by_tables = |it: &OpData| matches!(it.op, Op::LutApply {});
    demand(!by_tables(gate_data) && !by_tables(up_data), "gate or up is multiplied by lookup tables")?;
    let are_slices = matches!((&gate_data.op, &up_data.op), (Op::Slice { .. }, Op::Slice { .. }));
    demand(!are_slices, "gate and up are slices of one product")?;
    let (gate_w, up_w) = (matrix(gate_data)?, matrix(up_data)?);
    demand(gate_data.operand(0) == up_data.operand(0), "gate and up read different inputs")?;
    demand(m.graph.ty(gate_w) == m.graph.ty(up_w), "the weights of gate and up differ in type")?;
    let is_coded = m.graph.ty(gate_w).dtype.vq().is_some();
    demand(!is_coded, "the weights are vector-quantised: 'legalize-vq' did not run")?;
    demand(is_bare(gate_data) && is_bare(up_data), "gate or up has a bias or an epilogue")?;
    m.may_absorb(gate_op, gate, at)?;
    m.may_absorb(up_op, up, at)?;
    let operands = [Some(gate_data.operand(0)), Some(gate_w), Some(up_w)];
    Ok(Edit::replace(at, Op::LinearGlu { act, quant: None, beta, linear }, &operands))
}

/// The weight of a linear.
fn matrix(data: &OpData) -> Result<ValueId, Miss> {
    if matches!(data.op, Op::Linear { .. }) { Ok(data.operand(1)) } else { Err(Miss::Other) }
}

/// Whether a linear is a product and nothing else.
fn is_bare(data: &OpData) -> bool {
    matches!(data.op, Op::Linear { act: Act::None })
        && data.optional(2).is_none()
        && data.optional(3).is_none()
}
