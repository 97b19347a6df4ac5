//! The configuration of a Llama-like model, from config.json or GGUF keys, and the names of its tensors.

use waste_ir::{Act, ModelInfo, RopeStyle};

use crate::formats::{Format, FormatError, Meta, ModelFiles};

use super::names::{GGUF, HF, MIXTRAL, Names};
use super::{Variant, experts};
use crate::models::Result;
use crate::models::keys::{self, activation, columns, epsilon, get_positive, positive};
use crate::models::moe::MoeConfig;
use crate::models::rope::Rope;

/// What the graphs are built from.
pub(super) struct Config {
    pub(super) info: ModelInfo,
    pub(super) n_layers: u32,
    pub(super) hidden: u32,
    pub(super) ffn: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    /// Columns of q: heads · `head_dim`.
    pub(super) q_cols: u32,
    /// Columns of k and v.
    pub(super) kv_cols: u32,
    pub(super) eps: f32,
    pub(super) act: Act,
    pub(super) rope: Rope,
    pub(super) qkv_bias: bool,
    pub(super) out_bias: bool,
    pub(super) ffn_bias: bool,
    pub(super) qk_norm: QkNorm,
    /// Routed experts, and which layers have them.
    pub(super) moe: Option<MoeConfig>,
    pub(super) is_moe: Vec<bool>,
    /// Whether the head is the embedding.
    pub(super) is_tied: bool,
    pub(super) names: &'static Names,
}

/// Norms of q and k before they turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QkNorm {
    None,
    /// Each head by itself.
    Heads,
    /// All heads at once.
    Whole,
}

impl Variant {
    /// Of the norms, where a configuration is silent.
    const fn default_eps(self) -> f64 {
        match self {
            Self::Mixtral | Self::Olmoe => 1e-5,
            Self::Llama | Self::Mistral | Self::Qwen2 | Self::Qwen3 | Self::Qwen3Moe => 1e-6,
        }
    }

    const fn qk_norm(self) -> QkNorm {
        match self {
            Self::Llama | Self::Mistral | Self::Mixtral | Self::Qwen2 => QkNorm::None,
            Self::Qwen3 | Self::Qwen3Moe => QkNorm::Heads,
            Self::Olmoe => QkNorm::Whole,
        }
    }

    /// The name in configurations and before GGUF keys.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Mixtral => "mixtral",
            Self::Olmoe => "olmoe",
            Self::Qwen3Moe => "qwen3moe",
        }
    }
}

/// Positions that the model was trained for.
pub(super) fn trained_ctx(files: &ModelFiles, variant: Variant) -> Result<u32> {
    let meta = files.meta();
    Ok(match files.format() {
        Format::Safetensors | Format::Container => positive(meta, "max_position_embeddings")?,
        Format::Gguf => positive(meta, &format!("{}.context_length", variant.name()))?,
    })
}

impl Config {
    /// Reads the configuration, for contexts of `ctx` positions.
    pub(super) fn read(files: &ModelFiles, variant: Variant, ctx: u32) -> Result<Self> {
        let mut config = match files.format() {
            Format::Safetensors | Format::Container => Self::from_json(files, variant, ctx)?,
            Format::Gguf => Self::from_gguf(files, variant)?,
        };
        config.info.arch = variant.name().to_owned();
        config.info.ctx_trained = trained_ctx(files, variant)?;
        Ok(config)
    }

    /// Whether the tensor `name`, which was not taken, may be left out.
    pub(super) fn is_harmless(&self, name: &str) -> bool {
        // A tied model's file may repeat the embedding under the head's name.
        self.names.harmless.iter().any(|it| name.ends_with(it)) || self.is_tied && name == self.names.head
    }

    fn from_json(files: &ModelFiles, variant: Variant, ctx: u32) -> Result<Self> {
        let meta = files.meta();
        let heads = positive(meta, "num_attention_heads")?;
        let kv_heads = get_positive(meta, "num_key_value_heads")?.unwrap_or(heads);
        let hidden = positive(meta, "hidden_size")?;
        let head_dim = match get_positive(meta, "head_dim")? {
            Some(it) => it,
            None => share(meta, "num_attention_heads", heads, hidden)?,
        };
        let all_biases = meta.get_bool("attention_bias")?.unwrap_or(false);
        let is_tied = match meta.get_bool("tie_word_embeddings")? {
            Some(it) => it,
            None => files.get_tensor(HF.head)?.is_none(),
        };
        refuse_window(meta, ctx)?;
        let n_layers = keys::layers(files, "num_hidden_layers")?;
        let moe = experts::from_config(meta, variant)?;
        let config = Self {
            info: ModelInfo {
                name: folder_name(files),
                vocab: positive(meta, "vocab_size")?,
                ..ModelInfo::default()
            },
            n_layers,
            hidden,
            ffn: positive(meta, "intermediate_size")?,
            kv_heads,
            head_dim,
            q_cols: columns(meta, "num_attention_heads", heads, head_dim)?,
            kv_cols: columns(meta, "num_key_value_heads", kv_heads, head_dim)?,
            eps: epsilon(meta, "rms_norm_eps", Some(variant.default_eps()))?,
            act: activation(meta, "hidden_act", Act::Silu)?,
            rope: Rope::from_config(meta, head_dim)?,
            qkv_bias: all_biases || variant == Variant::Qwen2,
            out_bias: all_biases,
            ffn_bias: meta.get_bool("mlp_bias")?.unwrap_or(false),
            qk_norm: variant.qk_norm(),
            is_moe: experts::layers(meta, variant, n_layers, moe.is_some())?,
            moe,
            is_tied,
            names: if variant == Variant::Mixtral { &MIXTRAL } else { &HF },
        };
        meta.ignore("max_position_embeddings");
        keys::refuse_unknown(meta)?;
        Ok(config)
    }

    fn from_gguf(files: &ModelFiles, variant: Variant) -> Result<Self> {
        let (meta, arch) = (files.meta(), variant.name());
        let key = |name: &str| format!("{arch}.{name}");
        let heads = positive(meta, &key("attention.head_count"))?;
        let kv_heads = get_positive(meta, &key("attention.head_count_kv"))?.unwrap_or(heads);
        let hidden = positive(meta, &key("embedding_length"))?;
        let head_dim = match get_positive(meta, &key("attention.key_length"))? {
            Some(it) => it,
            None => share(meta, &key("attention.head_count"), heads, hidden)?,
        };
        let value_dim = get_positive(meta, &key("attention.value_length"))?.unwrap_or(head_dim);
        if value_dim != head_dim {
            let reason = format!("{value_dim}, but keys have {head_dim}: only equal lengths are supported");
            return Err(meta.refuse(&key("attention.value_length"), reason).into());
        }
        let style = if variant == Variant::Llama { RopeStyle::Pair } else { RopeStyle::Half };
        let has = |name: &str| files.get_tensor(name).map(|it| it.is_some());
        let vocab = match get_positive(meta, &key("vocab_size"))? {
            Some(it) => it,
            None => rows_of_embedding(files)?,
        };
        let n_layers = keys::layers(files, &key("block_count"))?;
        let moe = experts::from_gguf(meta, variant)?;
        let name = meta.get_str("general.name")?.map_or_else(|| folder_name(files), str::to_owned);
        let config = Self {
            info: ModelInfo { name, vocab, ..ModelInfo::default() },
            n_layers,
            hidden,
            ffn: positive(meta, &key("feed_forward_length"))?,
            kv_heads,
            head_dim,
            q_cols: columns(meta, &key("attention.head_count"), heads, head_dim)?,
            kv_cols: columns(meta, &key("attention.head_count_kv"), kv_heads, head_dim)?,
            eps: epsilon(meta, &key("attention.layer_norm_rms_epsilon"), None)?,
            act: Act::Silu,
            rope: Rope::from_gguf(meta, arch, head_dim, style)?,
            qkv_bias: variant == Variant::Qwen2 || has("blk.0.attn_q.bias")?,
            out_bias: has("blk.0.attn_output.bias")?,
            ffn_bias: has("blk.0.ffn_up.bias")?,
            qk_norm: variant.qk_norm(),
            is_moe: vec![moe.is_some(); n_layers as usize],
            moe,
            is_tied: !has(GGUF.head)?,
            names: &GGUF,
        };
        meta.ignore(&key("context_length"));
        keys::refuse_unknown_gguf(meta, arch)?;
        Ok(config)
    }
}

/// Refuses a sliding window that a context of `ctx` positions would feel.
fn refuse_window(meta: &Meta, ctx: u32) -> Result<()> {
    let kinds = meta.get_strs("layer_types")?.unwrap_or_default();
    if let Some(kind) = kinds.iter().find(|it| !matches!(**it, "full_attention" | "sliding_attention")) {
        let reason = format!("'{}' is not supported (full_attention is)", crate::formats::shown(kind));
        return Err(meta.refuse("layer_types", reason).into());
    }
    let window = meta.get_u32("sliding_window")?;
    // Qwen's configurations carry a window and a switch; the others have no switch.
    let is_used = meta.get_bool("use_sliding_window")?.unwrap_or(true);
    match window {
        Some(window) if is_used && window < ctx => {
            let reason = format!(
                "a window of {window} positions is not supported for a context of {ctx} (a context up to {window} is)"
            );
            Err(meta.refuse("sliding_window", reason).into())
        }
        None if kinds.contains(&"sliding_attention") => Err(meta.missing("sliding_window").into()),
        Some(_) | None => Ok(()),
    }
}

fn rows_of_embedding(files: &ModelFiles) -> Result<u32> {
    let info = files.tensor(GGUF.embed)?;
    let rows = info.shape.first().and_then(|it| u32::try_from(*it).ok());
    Ok(rows.ok_or_else(|| files.meta().missing("vocab_size"))?)
}

fn folder_name(files: &ModelFiles) -> String {
    let name = files.folder().file_name().map(|it| it.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "model".to_owned())
}

/// `total` shared by `n` heads.
fn share(meta: &Meta, key: &str, n: u32, total: u32) -> std::result::Result<u32, FormatError> {
    if total.is_multiple_of(n) {
        return Ok(total / n);
    }
    Err(meta.refuse(key, format!("{n} heads do not divide {total} elements")))
}
