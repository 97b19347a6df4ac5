//! Kimi-Linear (Kimi Linear technical report 2025; transformers 5, `modeling_kimi_linear.py`) and what Kimi K3 adds to it.
//!
//! Each layer, with x the residual stream:
//!
//! ```text
//! h = rms_norm(x);  x = x + (delta attention or latent attention)(h)
//! h = rms_norm(x);  x = x + (gated feed-forward or routed experts)(h)
//! ```
//!
//! then a final norm and the head. Kimi K3 attends to the residuals of earlier blocks of layers as well (AttnRes): before each half
//! of a layer and at the end, x is mixed with them (`attn_res_mix`). At the first layer of each block the stream so far becomes one more of
//! them, and the stream begins anew with what the layer adds.
//!
//! The `rope` dimensions of a model without rotation (`mla_use_nope`) take part as they are.

mod config;

use waste_ir::{Built, Module, StateId, ValueId, WeightId};

use crate::formats::ModelFiles;

use super::ffn::Ffn;
use super::kda::{Kda, KdaStates};
use super::mla::{self, Mla};
use super::moe::{Moe, MoeNames};
use super::program::{self, Body};
use super::weights::Weights;
use super::{ImportOptions, Result};
use config::Config;

/// Lowers a model of the family.
pub(super) fn import(files: &ModelFiles, opts: &ImportOptions) -> Result<Module> {
    let mut weights = Weights::new(files);
    let config = Config::from_json(files, weights.has(HEAD))?;
    let model = Model::take(&mut weights, &config)?;
    let mut module = weights.finish(|name| config.is_harmless(name))?;
    module.info = config.info.clone();
    let states = States::add(&mut module, opts, &config)?;
    program::add_programs(&mut module, opts, files.meta().file(), |cx| model.logits(cx, &config, &states))?;
    Ok(module)
}

/// Positions that the model was trained for.
pub(super) fn trained_ctx(files: &ModelFiles) -> Result<u32> {
    config::trained_ctx(files)
}

const HEAD: &str = "lm_head.weight";

const EXPERTS: MoeNames = MoeNames {
    router: "gate.weight",
    bias: "gate.e_score_correction_bias",
    experts: "experts.",
    gate: "w1.weight",
    up: "w3.weight",
    down: "w2.weight",
    shared: "shared_experts",
    latent_in: "routed_expert_down_proj.weight",
    latent_out: "routed_expert_up_proj.weight",
    latent_norm: "routed_expert_norm.weight",
};

/// The weights of a model.
struct Model {
    embed: WeightId,
    layers: Vec<Layer>,
    final_mix: Option<Mix>,
    final_norm: WeightId,
    head: WeightId,
}

struct Layer {
    attn_mix: Option<Mix>,
    attn_norm: WeightId,
    attn: Attention,
    ffn_mix: Option<Mix>,
    ffn_norm: WeightId,
    ffn: FeedForward,
}

enum Attention {
    Delta(Kda),
    Latent(Mla),
}

enum FeedForward {
    Dense(Ffn),
    Experts(Moe),
}

/// The weights of one mixing with earlier blocks.
#[derive(Clone, Copy)]
struct Mix {
    norm: WeightId,
    proj: WeightId,
}

/// The state of each layer.
struct States(Vec<LayerState>);

#[derive(Clone, Copy)]
enum LayerState {
    Delta(KdaStates),
    Latent(StateId),
}

impl States {
    fn add(module: &mut Module, opts: &ImportOptions, c: &Config) -> Result<Self> {
        let layer = |i: u32| match c.kda_of(i) {
            Some(kda) => Ok(LayerState::Delta(KdaStates::add(module, opts, i, kda))),
            None => Ok(LayerState::Latent(mla::add_cache(module, opts, i, &c.mla)?)),
        };
        (0..c.n_layers).map(layer).collect::<Result<_>>().map(Self)
    }
}

/// The stream of residuals, and the blocks that it left behind.
struct Stream {
    x: ValueId,
    blocks: Option<ValueId>,
}

impl Model {
    fn take(weights: &mut Weights<'_>, c: &Config) -> Result<Self> {
        let embed = weights.matrix("model.embed_tokens.weight", c.info.vocab, c.hidden)?;
        let layers = (0..c.n_layers).map(|i| Layer::take(weights, c, i)).collect::<Result<_>>()?;
        Ok(Self {
            embed,
            layers,
            final_mix: Mix::take(weights, c, "model.output_attn_res")?,
            final_norm: weights.vector("model.norm.weight", c.hidden)?,
            head: if c.is_tied { embed } else { weights.matrix(HEAD, c.info.vocab, c.hidden)? },
        })
    }

    fn logits(&self, cx: &mut Body<'_>, c: &Config, states: &States) -> Built {
        let embed = cx.b.weight(self.embed);
        let x = cx.b.embed(cx.token, embed)?;
        let angles = match c.mla.rope {
            Some(rope) => Some(cx.b.rope_angles(cx.pos, None, rope.dims, rope.base, rope.scaling)?),
            None => None,
        };
        let mut stream = Stream { x, blocks: None };
        for (i, (layer, state)) in (0..).zip(self.layers.iter().zip(&states.0)) {
            layer.of(cx, c, &mut stream, c.begins_block(i), *state, angles)?;
        }
        stream.x = cx.wanted(stream.x)?;
        if let Some(blocks) = stream.blocks {
            stream.blocks = Some(cx.wanted(blocks)?);
        }
        let x = stream.mixed(cx, self.final_mix, c)?;
        let norm = cx.b.weight(self.final_norm);
        let x = cx.b.rms_norm(x, norm, c.eps)?;
        cx.apply(x, self.head)
    }
}

impl Layer {
    fn take(weights: &mut Weights<'_>, c: &Config, i: u32) -> Result<Self> {
        let name = |part: &str| format!("model.layers.{i}.{part}");
        let attn = match c.kda_of(i) {
            Some(kda) => Attention::Delta(Kda::take(weights, &name("self_attn"), kda, c.hidden)?),
            None => Attention::Latent(Mla::take(weights, &name("self_attn"), &c.mla, c.hidden)?),
        };
        let ffn = match c.moe_of(i) {
            Some(moe) => {
                FeedForward::Experts(Moe::take(weights, &name("block_sparse_moe."), &EXPERTS, moe, c.hidden)?)
            }
            None => FeedForward::Dense(Ffn::take(weights, &name("mlp"), c.hidden, c.ffn)?),
        };
        Ok(Self {
            // The first layer has nothing to mix with.
            attn_mix: if i == 0 { None } else { Mix::take(weights, c, &name("self_attention_res"))? },
            attn_norm: weights.vector(&name("input_layernorm.weight"), c.hidden)?,
            attn,
            ffn_mix: Mix::take(weights, c, &name("mlp_res"))?,
            ffn_norm: weights.vector(&name("post_attention_layernorm.weight"), c.hidden)?,
            ffn,
        })
    }

    fn of(
        &self,
        cx: &mut Body<'_>,
        c: &Config,
        stream: &mut Stream,
        begins_block: bool,
        state: LayerState,
        angles: Option<ValueId>,
    ) -> Built<()> {
        let x = stream.mixed(cx, self.attn_mix, c)?;
        let norm = cx.b.weight(self.attn_norm);
        let h = cx.b.rms_norm(x, norm, c.eps)?;
        let y = match (&self.attn, state) {
            (Attention::Delta(kda), LayerState::Delta(states)) => {
                let c_kda = c.kda.as_ref().expect("the configuration that made the layer");
                kda.of(cx, states, h, c_kda, c.eps)?
            }
            (Attention::Latent(mla), LayerState::Latent(cache)) => mla.of(cx, cache, h, angles, &c.mla)?,
            _ => unreachable!("weights and states come from one configuration"),
        };
        stream.add(cx, y, begins_block)?;
        let x = stream.mixed(cx, self.ffn_mix, c)?;
        let norm = cx.b.weight(self.ffn_norm);
        let h = cx.b.rms_norm(x, norm, c.eps)?;
        let y = match &self.ffn {
            FeedForward::Dense(ffn) => ffn.of(cx, h, c.act)?,
            FeedForward::Experts(moe) => {
                let c_moe = c.moe.as_ref().expect("the configuration that made the layer");
                moe.of(cx, h, c_moe, c.act, c.eps)?
            }
        };
        stream.add(cx, y, false)
    }
}

impl Mix {
    /// `{name}_norm.weight` and `{name}_proj.weight`, if the model mixes.
    fn take(weights: &mut Weights<'_>, c: &Config, name: &str) -> Result<Option<Self>> {
        if c.res_block.is_none() {
            return Ok(None);
        }
        let norm = weights.vector(&format!("{name}_norm.weight"), c.hidden)?;
        let proj = weights.flat(&format!("{name}_proj.weight"), c.hidden, c.hidden)?;
        Ok(Some(Self { norm, proj }))
    }
}

impl Stream {
    /// The stream mixed with the blocks, where there are any.
    fn mixed(&self, cx: &mut Body<'_>, mix: Option<Mix>, c: &Config) -> Built {
        let (Some(mix), Some(blocks)) = (mix, self.blocks) else { return Ok(self.x) };
        let weights = (cx.b.weight(mix.norm), cx.b.weight(mix.proj));
        cx.b.attn_res_mix(self.x, weights, Some(blocks), c.eps)
    }

    /// Adds `y`; at the beginning of a block the stream becomes a block before that, and begins anew with `y`.
    fn add(&mut self, cx: &mut Body<'_>, y: ValueId, begins_block: bool) -> Built<()> {
        if !begins_block {
            self.x = cx.b.add(self.x, y)?;
            return Ok(());
        }
        self.blocks = Some(match self.blocks {
            Some(blocks) => cx.b.concat(blocks, self.x)?,
            None => self.x,
        });
        self.x = y;
        Ok(())
    }
}
