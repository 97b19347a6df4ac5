//! Builder methods of the ops that hybrid models bring.

use waste_plan::{Tables, VqCode};

use super::{Built, GraphBuilder};
use crate::attrs::Act;
use crate::graph::ValueId;
use crate::ops::Op;

/// One method an op: see [`Op`] for shapes, formulas and sources. All fail if the operands do not fit.
#[allow(clippy::missing_errors_doc, reason = "one rule for all: the operands do not fit the op")]
impl GraphBuilder<'_> {
    /// See [`Op::HeadLinear`].
    pub fn head_linear(&mut self, x: ValueId, bank: ValueId) -> Built {
        self.one(Op::HeadLinear {}, &[x, bank])
    }
    /// See [`Op::HeadLinearT`].
    pub fn head_linear_t(&mut self, x: ValueId, bank: ValueId) -> Built {
        self.one(Op::HeadLinearT {}, &[x, bank])
    }
    /// See [`Op::LutBuild`].
    pub fn lut_build(&mut self, x: ValueId, books: ValueId, code: VqCode, tables: Tables) -> Built {
        self.one(Op::LutBuild { code, tables }, &[x, books])
    }
    /// See [`Op::LutApply`].
    pub fn lut_apply(&mut self, lut: ValueId, w: ValueId) -> Built {
        self.one(Op::LutApply {}, &[lut, w])
    }
    /// See [`Op::Concat`].
    pub fn concat(&mut self, lhs: ValueId, rhs: ValueId) -> Built {
        self.one(Op::Concat {}, &[lhs, rhs])
    }
    /// See [`Op::L2Norm`].
    pub fn l2_norm(&mut self, x: ValueId, dim: u32, eps: f32, scale: f32) -> Built {
        self.one(Op::L2Norm { dim, eps, scale }, &[x])
    }
    /// See [`Op::GatedRmsNorm`].
    pub fn gated_rms_norm(&mut self, x: ValueId, gate: ValueId, w: ValueId, eps: f32) -> Built {
        self.one(Op::GatedRmsNorm { eps }, &[x, gate, w])
    }
    /// See [`Op::AttnResMix`]; without `blocks` y is x.
    pub fn attn_res_mix(
        &mut self,
        x: ValueId,
        (norm, proj): (ValueId, ValueId),
        blocks: Option<ValueId>,
        eps: f32,
    ) -> Built {
        let slots = [Some(x), Some(norm), Some(proj), blocks];
        let id = self.push(Op::AttnResMix { eps }, &slots, None)?;
        Ok(self.graph.ops[id].results[0])
    }
    /// See [`Op::LatentAttention`].
    pub fn latent_attention(
        &mut self,
        (q, q_rope): (ValueId, Option<ValueId>),
        cache: ValueId,
        (row, pos): (ValueId, ValueId),
        scale: f32,
    ) -> Built {
        let slots = [Some(q), Some(cache), Some(row), Some(pos), q_rope];
        let id = self.push(Op::LatentAttention { scale }, &slots, None)?;
        Ok(self.graph.ops[id].results[0])
    }
    /// See [`Op::ShortConv`], without activation; returns (y, next ring).
    pub fn short_conv(
        &mut self,
        ring: ValueId,
        x: ValueId,
        w: ValueId,
        (row, pos): (ValueId, ValueId),
    ) -> Built<(ValueId, ValueId)> {
        self.two(Op::ShortConv { act: Act::None }, &[ring, x, w, row, pos].map(Some))
    }
    /// See [`Op::KdaGate`].
    pub fn kda_gate(&mut self, z: ValueId, a_log: ValueId, dt_bias: ValueId, lower_bound: f32) -> Built {
        self.one(Op::KdaGate { lower_bound }, &[z, a_log, dt_bias])
    }
    /// See [`Op::KdaStep`]; `inputs` are q, k, v, decay and beta. Returns (o, next s).
    pub fn kda_step(
        &mut self,
        s: ValueId,
        inputs: [ValueId; 5],
        (row, pos): (ValueId, ValueId),
    ) -> Built<(ValueId, ValueId)> {
        let [q, k, v, decay, beta] = inputs;
        self.two(Op::KdaStep {}, &[s, q, k, v, decay, beta, row, pos].map(Some))
    }
}
