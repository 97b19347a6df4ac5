//! Make tables where an expert uses them: in programs of many tokens, once for the tokens of an expert instead of once a token.
//!
//! Before / After: see snapshots/passes/sink-lut/basic.
//! Requires: phase legal, after flatten-experts.  Refuses when: few tokens share an expert and the tables of all fit a cache.
//! Numerics: preserves (the same tables, made elsewhere).
//! Why: the hoisted tables of a chunk fit no cache (0.9 to 1.4 MB a token and matrix of Kimi-Linear and K3): reading one back from
//! memory costs more than making it, and as many as a chunk has pairs were most of a program's scratch. Made sixteen positions at a
//! time for the tokens of one expert they never leave the cache, and tokens become the lanes that one index serves.

use smallvec::smallvec;
use waste_ir::{Module, Op, OpData, OpId};

use crate::pass::{Changed, Numerics, Pass, PassCx, PassError};
use crate::rewrite::{Arg, Attempt, Edit, Matcher, Miss, NewOp, demand, rewrite};

/// Bytes of tables that stay in a cache from the step that makes them to the experts that read them.
const CACHED: u64 = 8 << 20;

/// Pairs of a token and an expert, for each expert, from which on sharing an index pays for making a table several times.
const SHARED: u64 = 4;

/// See the module.
#[derive(Debug)]
pub struct SinkLut;

impl Pass for SinkLut {
    const NAME: &'static str = "sink-lut";
    const NUMERICS: Numerics = Numerics::Preserves;

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        rewrite(module, cx, sink)
    }
}

fn sink(m: &Matcher<'_>, at: OpId) -> Attempt {
    let data = &m.graph.ops[at];
    let Op::ExpertLut { gather } = data.op else { return Err(Miss::Other) };
    let lut = data.operand(0);
    let build = m.graph.def_op(lut).ok_or(Miss::Other)?;
    let Op::LutBuild { code, tables } = build.op else { return Err(Miss::Other) };
    let pays = table_bytes(m, data) > CACHED || pairs_an_expert(m, data) >= SHARED;
    demand(pays, "the tables stay in a cache, and few tokens share an expert")?;
    let (x, books) = (build.operand(0), build.operand(1));
    let operands = [x, data.operand(1), data.operand(2), data.operand(3), books];
    let op = NewOp {
        op: Op::ExpertVq { code, tables, gather },
        operands: operands.iter().map(|it| Some(Arg::Old(*it))).collect(),
    };
    Ok(Edit { ops: smallvec![op], results: smallvec![Arg::New(at, 0)] })
}

/// Bytes of the tables that `data` reads, in the largest call.
fn table_bytes(m: &Matcher<'_>, data: &OpData) -> u64 {
    let ty = m.graph.ty(data.operand(0));
    let rows = ty.shape.dims()[0].upper(&m.module.syms);
    let row = ty.dtype.lut().zip(ty.shape.cols()).map_or(0, |(layout, k)| layout.slabs_bytes(k as usize));
    rows.saturating_mul(row as u64)
}

/// Pairs for each expert of the bank, in the largest call.
fn pairs_an_expert(m: &Matcher<'_>, data: &OpData) -> u64 {
    let pairs = m.graph.ty(data.operand(2)).shape.dims()[0].upper(&m.module.syms);
    let experts = m.graph.ty(data.operand(1)).shape.dims()[0].upper(&m.module.syms);
    pairs / experts.max(1)
}
