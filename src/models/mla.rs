//! Latent attention in its absorbed form (DeepSeek-V2 report 2024, §2.1; transformers 5, `modeling_deepseek_v3.py`).
//!
//! ```text
//! c | r = x·Wkvaᵀ;  c = rms_norm(c);  r rotated;  cache: c | r, shared by all heads
//! q = x·Wqᵀ, or rms_norm(x·Wqaᵀ)·Wqbᵀ;  per head q_nope | q_rope, q_rope rotated
//! per head: o = latent_attention(q_nope·Wk, q_rope)·Wvᵀ,  Wk | Wv being the head's rows of Wkvb
//! y = o·Woᵀ, before that ∘ sigmoid(x·Wgᵀ) (Kimi K3)
//! ```
//!
//! Without rotation (NoPE) r and `q_rope` take part as they are. Pairs of neighbours turn together; turning halves of permuted rows,
//! as transformers does, gives the same scores.

use waste_ir::{
    Built, Dim, Module, RopeStyle, StateDecl, StateId, StateKind, TensorType, UnaryKind, ValueId, WeightId,
};

use super::program::{Body, cache_positions};
use super::rope::Rope;
use super::weights::Weights;
use super::{ImportOptions, Result};

/// Sizes and constants of all such layers of a model.
#[derive(Clone, Debug)]
pub(super) struct MlaConfig {
    pub(super) heads: u32,
    /// Columns of q between its two matrices, if it has two.
    pub(super) q_latents: Option<u32>,
    /// Columns of c.
    pub(super) latents: u32,
    pub(super) nope_dim: u32,
    /// Columns of r; may be 0.
    pub(super) rope_dim: u32,
    pub(super) value_dim: u32,
    pub(super) has_gate: bool,
    /// How r and q turn; `None` for NoPE.
    pub(super) rope: Option<Rope>,
    /// Of the softmax: 1 / sqrt(columns of a query), times what YaRN adds.
    pub(super) scale: f32,
    /// Of the norms of the latents.
    pub(super) eps: f32,
}

impl MlaConfig {
    /// Columns of a head's query.
    pub(super) const fn query_dim(&self) -> u32 {
        self.nope_dim + self.rope_dim
    }
}

/// The weights of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mla {
    q: Query,
    kv_a: WeightId,
    kv_norm: WeightId,
    /// Banks over the heads.
    keys: WeightId,
    values: WeightId,
    gate: Option<WeightId>,
    out: WeightId,
}

#[derive(Clone, Copy, Debug)]
enum Query {
    Direct(WeightId),
    Latent { a: WeightId, norm: WeightId, b: WeightId },
}

/// Declares `latent.N: kv[batch, S, 1, latents + rope_dim]`.
pub(super) fn add_cache(
    module: &mut Module,
    opts: &ImportOptions,
    layer: u32,
    c: &MlaConfig,
) -> Result<StateId> {
    let dims = [opts.batch, cache_positions(opts)?, 1, c.latents + c.rope_dim].map(Dim::Const);
    let (name, ty) = (format!("latent.{layer}"), TensorType::new(opts.kv, &dims));
    Ok(module.states.push(StateDecl { name, ty, kind: StateKind::Keys }))
}

impl Mla {
    /// The tensors `{name}.*` of a layer.
    pub(super) fn take(weights: &mut Weights<'_>, name: &str, c: &MlaConfig, hidden: u32) -> Result<Self> {
        let weight = |part: &str| format!("{name}.{part}.weight");
        let (q_cols, value_cols) = (c.heads * c.query_dim(), c.heads * c.value_dim);
        let q = match c.q_latents {
            None => Query::Direct(weights.matrix(&weight("q_proj"), q_cols, hidden)?),
            Some(latents) => Query::Latent {
                a: weights.matrix(&weight("q_a_proj"), latents, hidden)?,
                norm: weights.vector(&weight("q_a_layernorm"), latents)?,
                b: weights.matrix(&weight("q_b_proj"), q_cols, latents)?,
            },
        };
        let kv_b = format!("{name}.kv_b_proj");
        let [keys, values] = weights.head_banks(&kv_b, c.heads, [c.nope_dim, c.value_dim], c.latents)?;
        Ok(Self {
            q,
            kv_a: weights.matrix(&weight("kv_a_proj_with_mqa"), c.latents + c.rope_dim, hidden)?,
            kv_norm: weights.vector(&weight("kv_a_layernorm"), c.latents)?,
            keys,
            values,
            gate: c.has_gate.then(|| weights.matrix(&weight("g_proj"), value_cols, hidden)).transpose()?,
            out: weights.matrix(&weight("o_proj"), hidden, value_cols)?,
        })
    }

    /// x: `f32[T, hidden]`, angles: `f32[T, rope_dim]` if the model rotates.
    pub(super) fn of(
        &self,
        cx: &mut Body<'_>,
        cache: StateId,
        x: ValueId,
        angles: Option<ValueId>,
        c: &MlaConfig,
    ) -> Built {
        let cache = self.cached(cx, cache, x, angles, c)?;
        let mut q = self.query(cx, x, c)?;
        if let Some(angles) = angles {
            q = cx.b.rope_from(q, angles, c.query_dim(), RopeStyle::Pair, c.nope_dim)?;
        }
        let q = cx.b.reshape(q, c.query_dim())?;
        let q_nope = cx.b.slice(q, 0, c.nope_dim)?;
        let q_rope = match c.rope_dim {
            0 => None,
            dim => Some(cx.b.slice(q, c.nope_dim, dim)?),
        };
        let (keys, values, places) = (cx.b.weight(self.keys), cx.b.weight(self.values), cx.places());
        let absorbed = cx.b.head_linear_t(q_nope, keys)?;
        let context = cx.b.latent_attention((absorbed, q_rope), cache, places, c.scale)?;
        let o = cx.b.head_linear(context, values)?;
        let mut o = cx.b.reshape(o, c.heads * c.value_dim)?;
        if let Some(gate) = self.gate {
            let gate = cx.apply(x, gate)?;
            let gate = cx.b.unary(gate, UnaryKind::Sigmoid)?;
            o = cx.b.mul(o, gate)?;
        }
        cx.apply(o, self.out)
    }

    /// The cache with c | r of this call appended.
    fn cached(
        &self,
        cx: &mut Body<'_>,
        cache: StateId,
        x: ValueId,
        angles: Option<ValueId>,
        c: &MlaConfig,
    ) -> Built {
        let mut both = cx.apply(x, self.kv_a)?;
        if let Some(angles) = angles {
            both = cx.b.rope_from(both, angles, c.latents + c.rope_dim, RopeStyle::Pair, c.latents)?;
        }
        let latents = cx.b.slice(both, 0, c.latents)?;
        let norm = cx.b.weight(self.kv_norm);
        let mut entry = cx.b.rms_norm(latents, norm, c.eps)?;
        if c.rope_dim > 0 {
            let rotated = cx.b.slice(both, c.latents, c.rope_dim)?;
            entry = cx.b.concat(entry, rotated)?;
        }
        cx.append(cache, entry)
    }

    fn query(&self, cx: &mut Body<'_>, x: ValueId, c: &MlaConfig) -> Built {
        match self.q {
            Query::Direct(w) => cx.apply(x, w),
            Query::Latent { a, norm, b } => {
                let h = cx.apply(x, a)?;
                let norm = cx.b.weight(norm);
                let h = cx.b.rms_norm(h, norm, c.eps)?;
                cx.apply(h, b)
            }
        }
    }
}
