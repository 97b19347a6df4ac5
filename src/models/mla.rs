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

use crate::formats::{FormatError, Meta};

use super::keys::{self, positive};
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

/// The eps of the norms of latents: the default of the references' classes, which give none of their own.
pub(super) const LATENT_EPS: f32 = 1e-6;

impl MlaConfig {
    /// From config.json; `is_fixed` says that nothing turns.
    pub(super) fn from_config(
        meta: &Meta,
        heads: u32,
        is_fixed: bool,
    ) -> std::result::Result<Self, FormatError> {
        let rope_dim = meta.get_u32("qk_rope_head_dim")?.unwrap_or(0);
        let mut config = Self {
            heads,
            q_latents: meta.get_u32("q_lora_rank")?.filter(|it| *it > 0),
            latents: positive(meta, "kv_lora_rank")?,
            nope_dim: positive(meta, "qk_nope_head_dim")?,
            rope_dim,
            value_dim: positive(meta, "v_head_dim")?,
            has_gate: meta.get_bool("mla_use_output_gate")?.unwrap_or(false),
            rope: None,
            scale: 0.0,
            eps: LATENT_EPS,
        };
        config.check(meta, "num_attention_heads")?;
        let mut sharper = 1.0;
        if is_fixed || rope_dim == 0 {
            // What a model without rotation says about it changes nothing.
            keys::ignore_all(meta, "rope_");
        } else {
            let (rope, by_yarn) = Rope::latent(meta, rope_dim)?;
            (config.rope, sharper) = (Some(rope), by_yarn);
        }
        config.sharpen(sharper);
        Ok(config)
    }

    /// Refuses sizes whose products are more than 32 bits hold; `heads` is the key that counts heads.
    pub(super) fn check(&self, meta: &Meta, heads: &str) -> std::result::Result<(), FormatError> {
        let sums = [self.nope_dim.checked_add(self.rope_dim), self.latents.checked_add(self.rope_dim)];
        let [Some(query_dim), Some(_)] = sums else {
            return Err(meta.refuse(heads, "the columns of a head are more than 32 bits hold"));
        };
        keys::columns(meta, heads, self.heads, query_dim)?;
        keys::columns(meta, heads, self.heads, self.value_dim).map(|_| ())
    }

    /// Sets the scale of the softmax to `sharper` / sqrt(columns of a query).
    pub(super) fn sharpen(&mut self, sharper: f64) {
        #[expect(clippy::cast_possible_truncation, reason = "kernels take f32")]
        let scale = (sharper / f64::from(self.query_dim()).sqrt()) as f32;
        self.scale = scale;
    }

    /// Columns of a head's query.
    pub(super) const fn query_dim(&self) -> u32 {
        self.nope_dim + self.rope_dim
    }
}

/// How a format names the tensors of a layer, after the layer's own name and without `.weight`.
#[derive(Clone, Copy, Debug)]
pub(super) struct MlaNames {
    pub(super) q: &'static str,
    pub(super) q_a: &'static str,
    pub(super) q_norm: &'static str,
    pub(super) q_b: &'static str,
    pub(super) kv_a: &'static str,
    pub(super) kv_norm: &'static str,
    pub(super) kv_b: &'static str,
    /// Each head's columns of Wk and rows of Wv, where a format splits `kv_b`.
    pub(super) split: Option<[&'static str; 2]>,
    pub(super) gate: &'static str,
    pub(super) out: &'static str,
}

/// The names in checkpoints.
pub(super) const HF: MlaNames = MlaNames {
    q: "self_attn.q_proj",
    q_a: "self_attn.q_a_proj",
    q_norm: "self_attn.q_a_layernorm",
    q_b: "self_attn.q_b_proj",
    kv_a: "self_attn.kv_a_proj_with_mqa",
    kv_norm: "self_attn.kv_a_layernorm",
    kv_b: "self_attn.kv_b_proj",
    split: None,
    gate: "self_attn.g_proj",
    out: "self_attn.o_proj",
};

/// The weights of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mla {
    q: Query,
    kv_a: WeightId,
    kv_norm: WeightId,
    keys: Keys,
    /// A bank over the heads.
    values: WeightId,
    gate: Option<WeightId>,
    out: WeightId,
}

#[derive(Clone, Copy, Debug)]
enum Query {
    Direct(WeightId),
    Latent { a: WeightId, norm: WeightId, b: WeightId },
}

/// Wk of all heads, a bank.
#[derive(Clone, Copy, Debug)]
enum Keys {
    /// `[nope_dim, latents]` each.
    Rows(WeightId),
    /// `[latents, nope_dim]` each.
    Columns(WeightId),
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
    /// The tensors `{layer}{name}.weight` of `names`.
    pub(super) fn take(
        weights: &mut Weights<'_>,
        layer: &str,
        names: &MlaNames,
        c: &MlaConfig,
        hidden: u32,
    ) -> Result<Self> {
        let weight = |part: &str| format!("{layer}{part}.weight");
        let (q_cols, value_cols) = (c.heads * c.query_dim(), c.heads * c.value_dim);
        let q = match c.q_latents {
            None => Query::Direct(weights.matrix(&weight(names.q), q_cols, hidden)?),
            Some(latents) => Query::Latent {
                a: weights.matrix(&weight(names.q_a), latents, hidden)?,
                norm: weights.vector(&weight(names.q_norm), latents)?,
                b: weights.matrix(&weight(names.q_b), q_cols, latents)?,
            },
        };
        let (keys, values) = match names.split.filter(|it| weights.has(&weight(it[0]))) {
            Some([k, v]) => (
                Keys::Columns(weights.stacked(&weight(k), [c.heads, c.latents, c.nope_dim])?),
                weights.stacked(&weight(v), [c.heads, c.value_dim, c.latents])?,
            ),
            None => {
                let kv_b = format!("{layer}{}", names.kv_b);
                let rows = [c.nope_dim, c.value_dim];
                let [keys, values] = weights.head_banks(&kv_b, c.heads, rows, c.latents)?;
                (Keys::Rows(keys), values)
            }
        };
        Ok(Self {
            q,
            kv_a: weights.matrix(&weight(names.kv_a), c.latents + c.rope_dim, hidden)?,
            kv_norm: weights.vector(&weight(names.kv_norm), c.latents)?,
            keys,
            values,
            gate: c.has_gate.then(|| weights.matrix(&weight(names.gate), value_cols, hidden)).transpose()?,
            out: weights.matrix(&weight(names.out), hidden, value_cols)?,
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
        let absorbed = match self.keys {
            Keys::Rows(bank) => {
                let bank = cx.b.weight(bank);
                cx.b.head_linear_t(q_nope, bank)?
            }
            Keys::Columns(bank) => {
                let bank = cx.b.weight(bank);
                cx.b.head_linear(q_nope, bank)?
            }
        };
        let (values, places) = (cx.b.weight(self.values), cx.places());
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
