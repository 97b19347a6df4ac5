//! GPT-2 (Radford et al. 2019; transformers 5, `modeling_gpt2.py`).
//!
//! ```text
//! x = wte[token] + wpe[pos]
//! h = layer_norm(x);  q | k | v = h·Wattn + b;  x = x + attention(q, k, v)·Wproj + b
//! h = layer_norm(x);  x = x + act(h·Wfc + b)·Wproj + b
//! ```
//!
//! then a final norm and the head, which is the embedding. Hugging Face stores the four matrices of a layer as `Conv1D`,
//! `[in, out]`; GGUF's converter transposes them. Names come with and without `transformer.`.
//!
//! Positions are learned, so a context beyond them does not exist and is refused.

use waste_ir::{Act, Built, GraphBuilder, ModelInfo, Module, ValueId, WeightId};

use crate::formats::{Format, ModelFiles};

use super::keys::{self, activation, epsilon, get_positive, positive, refuse_true, unary};
use super::program::{self, Body, Cache};
use super::weights::{Linear, Weights};
use super::{ImportOptions, Result, refused};

/// Lowers a GPT-2.
pub(super) fn import(files: &ModelFiles, opts: &ImportOptions) -> Result<Module> {
    let config = match files.format() {
        Format::Safetensors | Format::Container => Config::from_json(files)?,
        Format::Gguf => Config::from_gguf(files)?,
    };
    let trained = config.info.ctx_trained;
    if opts.ctx > trained {
        return Err(refused(
            "ctx",
            opts.ctx,
            format!("the model has learned {trained} positions, no more exist"),
        ));
    }
    let mut weights = Weights::new(files);
    let model = Model::take(&mut weights, &config)?;
    let mut module = weights.finish(|name| config.is_harmless(name))?;
    module.info = config.info.clone();
    let caches = program::add_caches(&mut module, opts, config.n_layers, config.heads, config.head_dim)?;
    program::add_programs(&mut module, opts, files.meta().file(), |cx| model.logits(cx, &config, &caches))?;
    Ok(module)
}

/// Positions that the model has learned.
pub(super) fn trained_ctx(files: &ModelFiles) -> Result<u32> {
    let key = match files.format() {
        Format::Safetensors | Format::Container => "n_positions",
        Format::Gguf => "gpt2.context_length",
    };
    Ok(positive(files.meta(), key)?)
}

/// What the graphs are built from.
struct Config {
    info: ModelInfo,
    n_layers: u32,
    hidden: u32,
    ffn: u32,
    heads: u32,
    head_dim: u32,
    eps: f32,
    act: Act,
    is_tied: bool,
    names: &'static Names,
    /// Before every name but the head's: `transformer.` or nothing.
    prefix: &'static str,
}

/// How a format names the tensors.
struct Names {
    /// Before the number of the layer.
    layer: &'static str,
    embed: &'static str,
    positions: &'static str,
    final_norm: &'static str,
    head: &'static str,
    attn_norm: &'static str,
    qkv: &'static str,
    attn_out: &'static str,
    ffn_norm: &'static str,
    up: &'static str,
    down: &'static str,
    /// Whether matrices are stored `[in, out]`.
    is_transposed: bool,
}

const HF: Names = Names {
    layer: "h.",
    embed: "wte.weight",
    positions: "wpe.weight",
    final_norm: "ln_f",
    head: "lm_head.weight",
    attn_norm: "ln_1",
    qkv: "attn.c_attn",
    attn_out: "attn.c_proj",
    ffn_norm: "ln_2",
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    is_transposed: true,
};

const GGUF: Names = Names {
    layer: "blk.",
    embed: "token_embd.weight",
    positions: "position_embd.weight",
    final_norm: "output_norm",
    head: "output.weight",
    attn_norm: "attn_norm",
    qkv: "attn_qkv",
    attn_out: "attn_output",
    ffn_norm: "ffn_norm",
    up: "ffn_up",
    down: "ffn_down",
    is_transposed: false,
};

impl Config {
    fn from_json(files: &ModelFiles) -> Result<Self> {
        let meta = files.meta();
        let (hidden, heads) = (positive(meta, "n_embd")?, positive(meta, "n_head")?);
        let ctx_trained = trained_ctx(files)?;
        if let Some(n_ctx) = meta.get_u32("n_ctx")?.filter(|it| *it != ctx_trained) {
            return Err(meta.refuse("n_ctx", format!("{n_ctx}, but 'n_positions' is {ctx_trained}")).into());
        }
        for key in ["scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"] {
            refuse_true(meta, key)?;
        }
        if meta.get_bool("scale_attn_weights")? == Some(false) {
            return Err(meta.refuse("scale_attn_weights", "false is not supported").into());
        }
        let config = Self {
            info: info(files, positive(meta, "vocab_size")?, ctx_trained)?,
            n_layers: positive(meta, "n_layer")?,
            hidden,
            ffn: ffn_width(files, "n_inner", hidden)?,
            heads,
            head_dim: head_dim(files, "n_head", hidden, heads)?,
            eps: epsilon(meta, "layer_norm_epsilon", Some(1e-5))?,
            act: activation(meta, "activation_function", Act::GeluTanh)?,
            is_tied: meta.get_bool("tie_word_embeddings")?.unwrap_or(true),
            names: &HF,
            prefix: if files.get_tensor("transformer.wte.weight")?.is_some() { "transformer." } else { "" },
        };
        keys::refuse_unknown(meta)?;
        Ok(config)
    }

    fn from_gguf(files: &ModelFiles) -> Result<Self> {
        let meta = files.meta();
        let key = |name: &str| format!("gpt2.{name}");
        let (hidden, heads) =
            (positive(meta, &key("embedding_length"))?, positive(meta, &key("attention.head_count"))?);
        let vocab = match get_positive(meta, &key("vocab_size"))? {
            Some(it) => it,
            None => {
                let rows = files.tensor(GGUF.embed)?.shape.first().copied();
                let rows = rows.and_then(|it| u32::try_from(it).ok());
                rows.ok_or_else(|| meta.missing(&key("vocab_size")))?
            }
        };
        let config = Self {
            info: info(files, vocab, trained_ctx(files)?)?,
            n_layers: positive(meta, &key("block_count"))?,
            hidden,
            ffn: ffn_width(files, &key("feed_forward_length"), hidden)?,
            heads,
            head_dim: head_dim(files, &key("attention.head_count"), hidden, heads)?,
            eps: epsilon(meta, &key("attention.layer_norm_epsilon"), None)?,
            act: Act::GeluTanh,
            is_tied: files.get_tensor(GGUF.head)?.is_none(),
            names: &GGUF,
            prefix: "",
        };
        keys::refuse_unknown_gguf(meta, "gpt2")?;
        Ok(config)
    }

    /// Whether the tensor `name`, which was not taken, may be left out: causal masks, or the head of a tied model.
    fn is_harmless(&self, name: &str) -> bool {
        self.names.is_transposed && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"))
            || self.is_tied && name == self.names.head
    }
}

fn info(files: &ModelFiles, vocab: u32, ctx_trained: u32) -> Result<ModelInfo> {
    let folder = files.folder().file_name().map(|it| it.to_string_lossy().into_owned());
    let name = files.meta().get_str("general.name")?.map(str::to_owned).or(folder);
    Ok(ModelInfo {
        name: name.unwrap_or_else(|| "model".to_owned()),
        arch: "gpt2".to_owned(),
        ctx_trained,
        vocab,
    })
}

fn ffn_width(files: &ModelFiles, key: &str, hidden: u32) -> Result<u32> {
    let meta = files.meta();
    let given = get_positive(meta, key)?.or_else(|| hidden.checked_mul(4));
    Ok(given.ok_or_else(|| meta.refuse("n_embd", format!("4 · {hidden} is more than 32 bits hold")))?)
}

fn head_dim(files: &ModelFiles, key: &str, hidden: u32, heads: u32) -> Result<u32> {
    if hidden.is_multiple_of(heads) {
        return Ok(hidden / heads);
    }
    Err(files.meta().refuse(key, format!("{heads} heads do not divide {hidden} elements")).into())
}

/// The weights of a model.
struct Model {
    embed: WeightId,
    positions: WeightId,
    layers: Vec<Layer>,
    final_norm: Norm,
    head: WeightId,
}

struct Layer {
    attn_norm: Norm,
    qkv: Linear,
    attn_out: Linear,
    ffn_norm: Norm,
    up: Linear,
    down: Linear,
}

#[derive(Clone, Copy)]
struct Norm {
    w: WeightId,
    b: WeightId,
}

impl Model {
    fn take(weights: &mut Weights<'_>, c: &Config) -> Result<Self> {
        let name = |part: &str| format!("{}{part}", c.prefix);
        let embed = weights.matrix(&name(c.names.embed), c.info.vocab, c.hidden)?;
        let positions = weights.matrix(&name(c.names.positions), c.info.ctx_trained, c.hidden)?;
        let layers = (0..c.n_layers).map(|i| Layer::take(weights, c, i)).collect::<Result<_>>()?;
        let final_norm = Norm::take(weights, &name(c.names.final_norm), c)?;
        let head = if c.is_tied { embed } else { weights.matrix(c.names.head, c.info.vocab, c.hidden)? };
        Ok(Self { embed, positions, layers, final_norm, head })
    }

    fn logits(&self, cx: &mut Body<'_>, c: &Config, caches: &[Cache]) -> Built {
        let (embed, positions) = (cx.b.weight(self.embed), cx.b.weight(self.positions));
        let tokens = cx.b.embed(cx.token, embed)?;
        let places = cx.b.embed(cx.pos, positions)?;
        let mut x = cx.b.add(tokens, places)?;
        for (layer, cache) in self.layers.iter().zip(caches) {
            x = layer.attention(cx, c, *cache, x)?;
            x = layer.feed_forward(cx, c, x)?;
        }
        let x = cx.wanted(x)?;
        let x = self.final_norm.of(&mut cx.b, x, c)?;
        let head = cx.b.weight(self.head);
        cx.b.linear(x, head)
    }
}

impl Layer {
    fn take(weights: &mut Weights<'_>, c: &Config, idx: u32) -> Result<Self> {
        let name = |part: &str| format!("{}{}{idx}.{part}", c.prefix, c.names.layer);
        let Some(qkv_cols) = c.hidden.checked_mul(3) else {
            return Err(refused("n_embd", c.hidden, "3 times that is more than 32 bits hold"));
        };
        let mut linear = |part: &str, rows: u32, cols: u32| -> Result<Linear> {
            let name = name(part);
            if !c.names.is_transposed {
                return weights.linear(&name, rows, cols, true);
            }
            let w = weights.transposed(&format!("{name}.weight"), rows, cols)?;
            Ok(Linear { w, bias: Some(weights.vector(&format!("{name}.bias"), rows)?) })
        };
        let (qkv, attn_out) =
            (linear(c.names.qkv, qkv_cols, c.hidden)?, linear(c.names.attn_out, c.hidden, c.hidden)?);
        let (up, down) = (linear(c.names.up, c.ffn, c.hidden)?, linear(c.names.down, c.hidden, c.ffn)?);
        let attn_norm = Norm::take(weights, &name(c.names.attn_norm), c)?;
        let ffn_norm = Norm::take(weights, &name(c.names.ffn_norm), c)?;
        Ok(Self { attn_norm, qkv, attn_out, ffn_norm, up, down })
    }

    fn attention(&self, cx: &mut Body<'_>, c: &Config, cache: Cache, x: ValueId) -> Built {
        let h = self.attn_norm.of(&mut cx.b, x, c)?;
        let qkv = cx.linear(h, self.qkv)?;
        let q = cx.b.slice(qkv, 0, c.hidden)?;
        let k = cx.b.slice(qkv, c.hidden, c.hidden)?;
        let v = cx.b.slice(qkv, 2 * c.hidden, c.hidden)?;
        let y = cx.attend(cache, [q, k, v], c.head_dim)?;
        let y = cx.linear(y, self.attn_out)?;
        cx.b.add(x, y)
    }

    fn feed_forward(&self, cx: &mut Body<'_>, c: &Config, x: ValueId) -> Built {
        let h = self.ffn_norm.of(&mut cx.b, x, c)?;
        let mut h = cx.linear(h, self.up)?;
        if let Some(kind) = unary(c.act) {
            h = cx.b.unary(h, kind)?;
        }
        let y = cx.linear(h, self.down)?;
        cx.b.add(x, y)
    }
}

impl Norm {
    fn take(weights: &mut Weights<'_>, name: &str, c: &Config) -> Result<Self> {
        let w = weights.vector(&format!("{name}.weight"), c.hidden)?;
        Ok(Self { w, b: weights.vector(&format!("{name}.bias"), c.hidden)? })
    }

    fn of(self, b: &mut GraphBuilder<'_>, x: ValueId, c: &Config) -> Built {
        let (w, bias) = (b.weight(self.w), b.weight(self.b));
        b.layer_norm(x, w, Some(bias), c.eps)
    }
}
