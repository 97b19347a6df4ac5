//! Kimi delta attention (Kimi Linear technical report 2025, §4; transformers 5, `modeling_kimi_linear.py`).
//!
//! ```text
//! q, k, v = silu(short_conv(x·Wᵀ)) each;  q = q/|q| · d^-1/2;  k = k/|k|, per head
//! decay = kda_gate(x·Wfaᵀ·Wfbᵀ);  beta = sigmoid(x·Wbᵀ)
//! o = kda_step(q, k, v, decay, beta);  y = (rms_norm(o) ∘ sigmoid(gate))·Woᵀ,  gate = x·Wgaᵀ·Wgbᵀ, or x·Wgᵀ
//! ```
//!
//! States of a layer: the matrix of each head, and the last inputs of each convolution.

use waste_ir::{Built, Dim, Module, StateDecl, StateId, StateKind, TensorType, UnaryKind, ValueId, WeightId};
use waste_plan::DType;

use super::program::Body;
use super::weights::Weights;
use super::{ImportOptions, Result};

/// Sizes and constants of all such layers of a model.
#[derive(Clone, Debug)]
pub(super) struct KdaConfig {
    pub(super) heads: u32,
    pub(super) head_dim: u32,
    /// heads · `head_dim`.
    pub(super) cols: u32,
    /// Taps of a convolution, at least 2.
    pub(super) taps: u32,
    /// Whether the output gate is one matrix (Kimi K3), not a product of two.
    pub(super) has_full_gate: bool,
    /// The least log decay, below 0; 0 where it has no bound.
    pub(super) lower_bound: f32,
    /// What keeps the length of q and k from 0.
    pub(super) l2_eps: f32,
}

/// The weights of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kda {
    /// q, k, v: the projection and its convolution.
    qkv: [(WeightId, WeightId); 3],
    decay: [WeightId; 2],
    a_log: WeightId,
    dt_bias: WeightId,
    beta: WeightId,
    gate: Gate,
    norm: WeightId,
    out: WeightId,
}

#[derive(Clone, Copy, Debug)]
enum Gate {
    Full(WeightId),
    LowRank([WeightId; 2]),
}

/// The states of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct KdaStates {
    rings: [StateId; 3],
    matrix: StateId,
}

impl KdaStates {
    /// Declares `ring_q.N`, `ring_k.N`, `ring_v.N: f32[batch, 1, taps − 1, cols]` and `delta.N: f32[batch, heads, d, d]`.
    pub(super) fn add(module: &mut Module, opts: &ImportOptions, layer: u32, c: &KdaConfig) -> Self {
        let mut add = |name: String, dims: [u32; 4]| {
            let ty = TensorType::new(DType::F32, &dims.map(Dim::Const));
            module.states.push(StateDecl { name, ty, kind: StateKind::Recurrent })
        };
        let ring = [opts.batch, 1, c.taps - 1, c.cols];
        Self {
            rings: ["q", "k", "v"].map(|it| add(format!("ring_{it}.{layer}"), ring)),
            matrix: add(format!("delta.{layer}"), [opts.batch, c.heads, c.head_dim, c.head_dim]),
        }
    }
}

impl Kda {
    /// The tensors `{name}.*` of a layer.
    pub(super) fn take(weights: &mut Weights<'_>, name: &str, c: &KdaConfig, hidden: u32) -> Result<Self> {
        let (cols, head_dim) = (c.cols, c.head_dim);
        let weight = |part: &str| format!("{name}.{part}.weight");
        let mut qkv = Vec::new();
        for part in ["q", "k", "v"] {
            let w = weights.matrix(&weight(&format!("{part}_proj")), cols, hidden)?;
            let conv = weight(&format!("{part}_conv1d"));
            qkv.push((w, weights.reshaped(&conv, &[cols, 1, c.taps], &[cols, c.taps])?));
        }
        let mut low_rank = |part: &str| -> Result<[WeightId; 2]> {
            let a = weights.matrix(&weight(&format!("{part}_a_proj")), head_dim, hidden)?;
            Ok([a, weights.matrix(&weight(&format!("{part}_b_proj")), cols, head_dim)?])
        };
        Ok(Self {
            qkv: [qkv[0], qkv[1], qkv[2]],
            decay: low_rank("f")?,
            gate: if c.has_full_gate {
                Gate::Full(weights.matrix(&weight("g_proj"), cols, hidden)?)
            } else {
                Gate::LowRank(low_rank("g")?)
            },
            a_log: weights.flat(&format!("{name}.A_log"), c.heads, head_dim)?,
            dt_bias: weights.flat(&format!("{name}.dt_bias"), cols, cols)?,
            beta: weights.matrix(&weight("b_proj"), c.heads, hidden)?,
            norm: weights.vector(&weight("o_norm"), head_dim)?,
            out: weights.matrix(&weight("o_proj"), hidden, cols)?,
        })
    }

    /// x: `f32[T, hidden]`; `eps` is that of the output norm.
    pub(super) fn of(
        &self,
        cx: &mut Body<'_>,
        states: KdaStates,
        x: ValueId,
        c: &KdaConfig,
        eps: f32,
    ) -> Built {
        let [q, k, v] = self.mixed(cx, states, x)?;
        #[expect(clippy::cast_possible_truncation, reason = "kernels take f32")]
        let scale = (1.0 / f64::from(c.head_dim).sqrt()) as f32;
        let q = cx.b.l2_norm(q, c.head_dim, c.l2_eps, scale)?;
        let k = cx.b.l2_norm(k, c.head_dim, c.l2_eps, 1.0)?;
        let z = self.low_rank(cx, x, self.decay)?;
        let (a_log, dt_bias) = (cx.b.weight(self.a_log), cx.b.weight(self.dt_bias));
        let decay = cx.b.kda_gate(z, a_log, dt_bias, c.lower_bound)?;
        let beta = cx.apply(x, self.beta)?;
        let beta = cx.b.unary(beta, UnaryKind::Sigmoid)?;
        let (s, places) = (cx.state(states.matrix), cx.places());
        let (o, next) = cx.b.kda_step(s, [q, k, v, decay, beta], places)?;
        cx.replace(states.matrix, next);
        let gate = match self.gate {
            Gate::Full(w) => cx.apply(x, w)?,
            Gate::LowRank(ws) => self.low_rank(cx, x, ws)?,
        };
        let norm = cx.b.weight(self.norm);
        let o = cx.b.gated_rms_norm(o, gate, norm, eps)?;
        cx.apply(o, self.out)
    }

    /// q, k and v after projection, convolution and activation.
    fn mixed(&self, cx: &mut Body<'_>, states: KdaStates, x: ValueId) -> Built<[ValueId; 3]> {
        let mut out = [x; 3];
        for (out, ((w, conv), ring)) in out.iter_mut().zip(self.qkv.into_iter().zip(states.rings)) {
            let y = cx.apply(x, w)?;
            let (old, conv, places) = (cx.state(ring), cx.b.weight(conv), cx.places());
            let (y, next) = cx.b.short_conv(old, y, conv, places)?;
            cx.replace(ring, next);
            *out = cx.b.unary(y, UnaryKind::Silu)?;
        }
        Ok(out)
    }

    fn low_rank(&self, cx: &mut Body<'_>, x: ValueId, [a, b]: [WeightId; 2]) -> Built {
        let h = cx.apply(x, a)?;
        cx.apply(h, b)
    }
}
