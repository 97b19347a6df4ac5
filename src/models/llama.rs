//! The Llama family: Llama 2 and 3, Mistral without a window, SmolLM2, Qwen2 (biases), Qwen3 (q/k norm); and with routed experts
//! Mixtral (Jiang et al. 2024), OLMoE (Muennighoff et al. 2024, q/k norm over all heads) and Qwen3-MoE.
//!
//! Each layer, with x the residual stream (Touvron et al. 2023; transformers 5, `modeling_llama.py`):
//!
//! ```text
//! h = rms_norm(x);  q, k, v = h·Wqᵀ, h·Wkᵀ, h·Wvᵀ (+ biases);  Qwen3: q, k = rms_norm of each head
//! x = x + attention(rope(q), rope(k), v)·Woᵀ
//! h = rms_norm(x);  x = x + (act(h·Wgateᵀ) ∘ h·Wupᵀ)·Wdownᵀ
//! ```
//!
//! then a final norm and the head. Rows of q and k lie differently in the two formats: Hugging Face's rotate halves of a
//! head, GGUF's `llama` adjacent pairs (its converter permutes them), GGUF's `qwen2` and `qwen3` halves again.

mod config;
mod experts;
mod names;

use waste_ir::{Built, GraphBuilder, Module, ValueId, WeightId};

use crate::formats::ModelFiles;

use super::ffn::GatedAct;
use super::moe::Moe;
use super::program::{self, Body, Cache};
use super::weights::{Linear, Weights};
use super::{ImportOptions, Result};
use config::{Config, QkNorm};

/// Which model of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Mixtral,
    Olmoe,
    Qwen3Moe,
}

/// Lowers a model of the family.
pub(super) fn import(files: &ModelFiles, variant: Variant, opts: &ImportOptions) -> Result<Module> {
    let config = Config::read(files, variant, opts.ctx)?;
    let mut weights = Weights::new(files);
    let model = Model::take(&mut weights, &config)?;
    let mut module = weights.finish(|name| config.is_harmless(name))?;
    module.info = config.info.clone();
    let caches = program::add_caches(&mut module, opts, config.n_layers, config.kv_heads, config.head_dim)?;
    program::add_programs(&mut module, opts, files.meta().file(), |cx| model.logits(cx, &config, &caches))?;
    Ok(module)
}

/// Positions that the model was trained for.
pub(super) fn trained_ctx(files: &ModelFiles, variant: Variant) -> Result<u32> {
    config::trained_ctx(files, variant)
}

/// The weights of a model.
struct Model {
    embed: WeightId,
    layers: Vec<Layer>,
    final_norm: WeightId,
    head: WeightId,
    /// Divisors of the rotary frequencies.
    factors: Option<WeightId>,
}

struct Layer {
    attn_norm: WeightId,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    qk_norm: Option<[WeightId; 2]>,
    ffn_norm: WeightId,
    ffn: FeedForward,
}

enum FeedForward {
    Dense { gate: Linear, up: Linear, down: Linear },
    Experts(Moe),
}

impl Model {
    fn take(weights: &mut Weights<'_>, c: &Config) -> Result<Self> {
        let names = c.names;
        let embed = weights.matrix(names.embed, c.info.vocab, c.hidden)?;
        let layers = (0..c.n_layers).map(|i| Layer::take(weights, c, i)).collect::<Result<_>>()?;
        let final_norm = weights.vector(names.final_norm, c.hidden)?;
        let head = if c.is_tied { embed } else { weights.matrix(names.head, c.info.vocab, c.hidden)? };
        let factors = if names.has_factors && weights.has(names::FACTORS) {
            Some(weights.vector(names::FACTORS, c.rope.dims / 2)?)
        } else {
            None
        };
        Ok(Self { embed, layers, final_norm, head, factors })
    }

    fn logits(&self, cx: &mut Body<'_>, c: &Config, caches: &[Cache]) -> Built {
        let embed = cx.b.weight(self.embed);
        let mut x = cx.b.embed(cx.token, embed)?;
        let factors = self.factors.map(|it| cx.b.weight(it));
        let angles = cx.b.rope_angles(cx.pos, factors, c.rope.dims, c.rope.base, c.rope.scaling)?;
        for (layer, cache) in self.layers.iter().zip(caches) {
            x = layer.attention(cx, c, *cache, x, angles)?;
            x = layer.feed_forward(cx, c, x)?;
        }
        let x = cx.wanted(x)?;
        let x = norm(&mut cx.b, x, self.final_norm, c.eps)?;
        let head = cx.b.weight(self.head);
        cx.b.linear(x, head)
    }
}

impl Layer {
    fn take(weights: &mut Weights<'_>, c: &Config, idx: u32) -> Result<Self> {
        let names = c.names;
        let name = |part: &str| format!("{}{idx}.{part}", names.layer);
        let weight = |part: &str| format!("{}{idx}.{part}.weight", names.layer);
        let (hidden, ffn, q_cols, kv_cols) = (c.hidden, c.ffn, c.q_cols, c.kv_cols);
        let norm_cols = match c.qk_norm {
            QkNorm::None => None,
            QkNorm::Heads => Some([c.head_dim; 2]),
            QkNorm::Whole => Some([q_cols, kv_cols]),
        };
        let qk_norm = match norm_cols {
            Some([q, k]) => {
                let q_norm = weights.vector(&weight(names.q_norm), q)?;
                Some([q_norm, weights.vector(&weight(names.k_norm), k)?])
            }
            None => None,
        };
        let ffn = match c.moe.as_ref().filter(|_| c.is_moe[idx as usize]) {
            Some(moe) => FeedForward::Experts(Moe::take(weights, &name(""), &names.moe, moe, hidden)?),
            None => FeedForward::Dense {
                gate: weights.linear(&name(names.gate), ffn, hidden, c.ffn_bias)?,
                up: weights.linear(&name(names.up), ffn, hidden, c.ffn_bias)?,
                down: weights.linear(&name(names.down), hidden, ffn, c.ffn_bias)?,
            },
        };
        Ok(Self {
            attn_norm: weights.vector(&weight(names.attn_norm), hidden)?,
            q: weights.linear(&name(names.q), q_cols, hidden, c.qkv_bias)?,
            k: weights.linear(&name(names.k), kv_cols, hidden, c.qkv_bias)?,
            v: weights.linear(&name(names.v), kv_cols, hidden, c.qkv_bias)?,
            o: weights.linear(&name(names.o), hidden, q_cols, c.out_bias)?,
            qk_norm,
            ffn_norm: weights.vector(&weight(names.ffn_norm), hidden)?,
            ffn,
        })
    }

    fn attention(&self, cx: &mut Body<'_>, c: &Config, cache: Cache, x: ValueId, angles: ValueId) -> Built {
        let h = norm(&mut cx.b, x, self.attn_norm, c.eps)?;
        let mut q = cx.linear(h, self.q)?;
        let mut k = cx.linear(h, self.k)?;
        let v = cx.linear(h, self.v)?;
        if let Some([q_norm, k_norm]) = self.qk_norm {
            (q, k) = match c.qk_norm {
                QkNorm::Whole => (norm(&mut cx.b, q, q_norm, c.eps)?, norm(&mut cx.b, k, k_norm, c.eps)?),
                QkNorm::None | QkNorm::Heads => (
                    head_norm(&mut cx.b, q, q_norm, c.head_dim, c.q_cols, c.eps)?,
                    head_norm(&mut cx.b, k, k_norm, c.head_dim, c.kv_cols, c.eps)?,
                ),
            };
        }
        let q = cx.b.rope(q, angles, c.head_dim, c.rope.style)?;
        let k = cx.b.rope(k, angles, c.head_dim, c.rope.style)?;
        let y = cx.attend(cache, [q, k, v], c.head_dim)?;
        let y = cx.linear(y, self.o)?;
        cx.b.add(x, y)
    }

    fn feed_forward(&self, cx: &mut Body<'_>, c: &Config, x: ValueId) -> Built {
        let h = norm(&mut cx.b, x, self.ffn_norm, c.eps)?;
        let y = match &self.ffn {
            FeedForward::Dense { gate, up, down } => {
                let (gate, up) = (cx.linear(h, *gate)?, cx.linear(h, *up)?);
                let h = cx.b.glu(gate, up, c.act)?;
                cx.linear(h, *down)?
            }
            FeedForward::Experts(moe) => {
                let c_moe = c.moe.as_ref().expect("the configuration that made the layer");
                moe.of(cx, h, c_moe, GatedAct::Gate(c.act), c.eps)?
            }
        };
        cx.b.add(x, y)
    }
}

fn norm(b: &mut GraphBuilder<'_>, x: ValueId, w: WeightId, eps: f32) -> Built {
    let w = b.weight(w);
    b.rms_norm(x, w, eps)
}

/// The norm of each head by itself: x: `f32[T, cols]`, w: `f32[head_dim]`.
fn head_norm(b: &mut GraphBuilder<'_>, x: ValueId, w: WeightId, head_dim: u32, cols: u32, eps: f32) -> Built {
    let heads = b.reshape(x, head_dim)?;
    let heads = norm(b, heads, w, eps)?;
    b.reshape(heads, cols)
}
