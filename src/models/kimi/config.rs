//! The configuration of a Kimi model from config.json. Numbers of layers in its lists count from 1.

use waste_ir::{ModelInfo, Scoring};

use crate::formats::{Format, FormatError, Meta, ModelFiles, shown};

use crate::models::Result;
use crate::models::ffn::GatedAct;
use crate::models::kda::KdaConfig;
use crate::models::keys::{self, epsilon, get_positive, positive};
use crate::models::mla::MlaConfig;
use crate::models::moe::MoeConfig;
use crate::models::rope::Rope;

/// The eps of the norms of latents: the default of the reference's class, which gives none of its own.
const LATENT_EPS: f32 = 1e-6;
/// The eps of the lengths of q and k: that of the reference's kernels.
const L2_EPS: f32 = 1e-6;
/// As [`L2_EPS`], of the engine whose containers these are; there norms of latents have the eps of all others.
const CONTAINER_L2_EPS: f32 = 1e-12;
/// Positions where a container does not say: it needs no such key.
const CONTAINER_CTX: u32 = 4096;

type Res<T> = std::result::Result<T, FormatError>;

/// What the graphs are built from.
pub(super) struct Config {
    pub(super) info: ModelInfo,
    pub(super) n_layers: u32,
    pub(super) hidden: u32,
    /// Columns between the matrices of a dense feed-forward.
    pub(super) ffn: u32,
    pub(super) eps: f32,
    pub(super) act: GatedAct,
    /// Whether the head is the embedding.
    pub(super) is_tied: bool,
    pub(super) kda: Option<KdaConfig>,
    /// Which layers have delta attention.
    is_kda: Vec<bool>,
    pub(super) mla: MlaConfig,
    pub(super) moe: Option<MoeConfig>,
    /// Layers before the first with experts.
    first_moe: u32,
    /// Layers of a block, if the model mixes with earlier ones.
    pub(super) res_block: Option<u32>,
}

/// Positions that the model was trained for.
pub(super) fn trained_ctx(files: &ModelFiles) -> Result<u32> {
    let meta = files.meta();
    for key in ["max_position_embeddings", "model_max_length"] {
        if let Some(ctx) = get_positive(meta, key)? {
            return Ok(ctx);
        }
    }
    if files.format() == Format::Container {
        return Ok(CONTAINER_CTX);
    }
    Err(meta.missing("max_position_embeddings").into())
}

impl Config {
    /// Delta attention of layer `i`, if it has it.
    pub(super) fn kda_of(&self, i: u32) -> Option<&KdaConfig> {
        self.kda.as_ref().filter(|_| self.is_kda[i as usize])
    }

    /// Experts of layer `i`, if it has any.
    pub(super) fn moe_of(&self, i: u32) -> Option<&MoeConfig> {
        self.moe.as_ref().filter(|_| i >= self.first_moe)
    }

    /// Whether layer `i` is the first of a block.
    pub(super) fn begins_block(&self, i: u32) -> bool {
        self.res_block.is_some_and(|it| i.is_multiple_of(it))
    }

    /// Whether the tensor `name`, which was not taken, may be left out: the head of a tied model, or how the first layer would mix.
    pub(super) fn is_harmless(&self, name: &str) -> bool {
        self.is_tied && name == super::HEAD
            || self.res_block.is_some() && name.starts_with("model.layers.0.self_attention_res_")
    }

    /// `has_head`: whether the model has the tensor of a head of its own.
    pub(super) fn from_json(files: &ModelFiles, has_head: bool) -> Result<Self> {
        let meta = files.meta();
        let folder = files.folder().file_name().map(|it| it.to_string_lossy().into_owned());
        let n_layers = positive(meta, "num_hidden_layers")?;
        let is_kda = delta_layers(meta, n_layers)?;
        let is_tied = meta.get_bool("tie_word_embeddings")?.unwrap_or(!has_head);
        let heads = positive(meta, "num_attention_heads")?;
        if let Some(kv_heads) = get_positive(meta, "num_key_value_heads")?.filter(|it| *it != heads) {
            let reason = format!("{kv_heads}, but latents are shared by all {heads} heads");
            return Err(meta.refuse("num_key_value_heads", reason).into());
        }
        let moe = experts(meta)?;
        let eps = epsilon(meta, "rms_norm_eps", Some(1e-5))?;
        let (latent_eps, l2_eps) = match files.format() {
            Format::Container => (eps, CONTAINER_L2_EPS),
            Format::Gguf | Format::Safetensors => (LATENT_EPS, L2_EPS),
        };
        let config = Self {
            info: ModelInfo {
                name: folder.unwrap_or_else(|| "model".to_owned()),
                arch: "kimi_linear".to_owned(),
                ctx_trained: trained_ctx(files)?,
                vocab: positive(meta, "vocab_size")?,
            },
            n_layers,
            hidden: positive(meta, "hidden_size")?,
            ffn: positive(meta, "intermediate_size")?,
            eps,
            act: GatedAct::from_config(meta)?,
            is_tied,
            kda: if is_kda.contains(&true) {
                Some(delta(meta, l2_eps)?)
            } else {
                ignore_all(meta, "linear_attn_config.");
                None
            },
            is_kda,
            mla: latent(meta, heads, latent_eps)?,
            first_moe: first_moe(meta, n_layers, moe.is_some())?,
            moe,
            res_block: meta.get_u32("attn_res_block_size")?.filter(|it| *it > 0),
        };
        // Left over from other families: delta and latent attention have widths of their own.
        for key in ["head_dim", "model_max_length"] {
            meta.ignore(key);
        }
        keys::refuse_unknown(meta)?;
        Ok(config)
    }
}

/// For each layer, whether it has delta attention. Both lists must agree, if both are there.
fn delta_layers(meta: &Meta, n_layers: u32) -> Res<Vec<bool>> {
    const KDA: &str = "linear_attn_config.kda_layers";
    const FULL: &str = "linear_attn_config.full_attn_layers";
    let mut is_kda = vec![false; n_layers as usize];
    let kda = meta.get_ints::<u32>(KDA)?.unwrap_or_default();
    for &layer in &kda {
        let at = layer.checked_sub(1).and_then(|it| is_kda.get_mut(it as usize));
        match at {
            Some(it) if !*it => *it = true,
            _ => {
                return Err(
                    meta.refuse(KDA, format!("layer {layer} of 1 to {n_layers} is out of range or twice"))
                );
            }
        }
    }
    let full = meta.get_ints::<u32>(FULL)?;
    let both = full.iter().flatten().find(|it| kda.contains(it));
    if let Some(layer) = both {
        return Err(meta.refuse(FULL, format!("layer {layer} is in '{KDA}' too")));
    }
    if let Some(neither) =
        (1..=n_layers).find(|it| !kda.contains(it) && full.as_ref().is_some_and(|full| !full.contains(it)))
    {
        return Err(meta.refuse(FULL, format!("layer {neither} is in neither list")));
    }
    Ok(is_kda)
}

fn delta(meta: &Meta, l2_eps: f32) -> Res<KdaConfig> {
    let key = |name: &str| format!("linear_attn_config.{name}");
    let (heads, head_dim) = (positive(meta, &key("num_heads"))?, positive(meta, &key("head_dim"))?);
    let taps = get_positive(meta, &key("short_conv_kernel_size"))?.unwrap_or(4);
    if taps < 2 {
        return Err(meta.refuse(&key("short_conv_kernel_size"), format!("{taps}, expected at least 2")));
    }
    let lower_bound = meta.get_f64(&key("gate_lower_bound"))?.unwrap_or(0.0);
    if lower_bound > 0.0 {
        return Err(meta.refuse(&key("gate_lower_bound"), format!("{lower_bound}, expected at most 0")));
    }
    Ok(KdaConfig {
        heads,
        head_dim,
        cols: columns(meta, &key("num_heads"), heads, head_dim)?,
        taps,
        has_full_gate: meta.get_bool(&key("use_full_rank_gate"))?.unwrap_or(false),
        #[expect(clippy::cast_possible_truncation, reason = "kernels take f32")]
        lower_bound: lower_bound as f32,
        l2_eps,
    })
}

fn latent(meta: &Meta, heads: u32, eps: f32) -> Res<MlaConfig> {
    let (nope_dim, value_dim) = (positive(meta, "qk_nope_head_dim")?, positive(meta, "v_head_dim")?);
    let (latents, rope_dim) =
        (positive(meta, "kv_lora_rank")?, meta.get_u32("qk_rope_head_dim")?.unwrap_or(0));
    let query_dim = nope_dim.checked_add(rope_dim);
    let query_dim = query_dim.ok_or_else(|| meta.refuse("qk_rope_head_dim", format!("{rope_dim}")))?;
    columns(meta, "num_attention_heads", heads, query_dim)?;
    columns(meta, "num_attention_heads", heads, value_dim)?;
    if latents.checked_add(rope_dim).is_none() {
        return Err(meta.refuse("kv_lora_rank", format!("{latents}")));
    }
    let is_fixed = meta.get_bool("mla_use_nope")?.unwrap_or(false) || rope_dim == 0;
    let (rope, sharper) = if is_fixed {
        // What a model without rotation says about it changes nothing.
        ignore_all(meta, "rope_");
        (None, 1.0)
    } else {
        let (rope, sharper) = Rope::latent(meta, rope_dim)?;
        (Some(rope), sharper)
    };
    Ok(MlaConfig {
        heads,
        q_latents: meta.get_u32("q_lora_rank")?.filter(|it| *it > 0),
        latents,
        nope_dim,
        rope_dim,
        value_dim,
        has_gate: meta.get_bool("mla_use_output_gate")?.unwrap_or(false),
        rope,
        #[expect(clippy::cast_possible_truncation, reason = "kernels take f32")]
        scale: (sharper / f64::from(query_dim).sqrt()) as f32,
        eps,
    })
}

fn experts(meta: &Meta) -> Res<Option<MoeConfig>> {
    let Some(n) = meta.get_u32("num_experts")?.filter(|it| *it > 0) else { return Ok(None) };
    let k = positive(meta, "num_experts_per_token")?;
    let groups = get_positive(meta, "num_expert_group")?.unwrap_or(1);
    let keep = get_positive(meta, "topk_group")?.unwrap_or(groups);
    if !n.is_multiple_of(groups) || keep > groups {
        return Err(meta.refuse("num_expert_group", format!("{keep} of {groups} groups of {n} experts")));
    }
    if groups > 1 && meta.get_bool("use_grouped_topk")? == Some(false) {
        return Err(meta.refuse("use_grouped_topk", format!("false, but there are {groups} groups")));
    }
    meta.ignore("use_grouped_topk");
    if k > n / groups * keep {
        return Err(meta.refuse("num_experts_per_token", format!("{k} of {} experts", n / groups * keep)));
    }
    let scoring = match meta.get_str("moe_router_activation_func")? {
        None | Some("sigmoid") => Scoring::Sigmoid,
        Some("softmax") => Scoring::Softmax,
        Some(other) => {
            let reason = format!("'{}' is not supported (sigmoid and softmax are)", shown(other));
            return Err(meta.refuse("moe_router_activation_func", reason));
        }
    };
    let width = positive(meta, "moe_intermediate_size")?;
    let shared_width = match meta.get_u32("num_shared_experts")?.unwrap_or(0) {
        0 => None,
        n => Some(columns(meta, "num_shared_experts", n, width)?),
    };
    let is_normed = meta.get_bool("latent_moe_use_norm")?.unwrap_or(false);
    let latent = meta.get_u32("routed_expert_hidden_size")?.filter(|it| *it > 0);
    Ok(Some(MoeConfig {
        experts: n,
        k,
        groups,
        keep,
        scoring,
        // One expert's weight stays its score.
        renorm: meta.get_bool("moe_renormalize")?.unwrap_or(true) && k > 1,
        scale: epsilon(meta, "routed_scaling_factor", Some(1.0))?,
        width,
        shared_width,
        latent: latent.map(|it| (it, is_normed)),
    }))
}

fn first_moe(meta: &Meta, n_layers: u32, has_experts: bool) -> Res<u32> {
    if let Some(freq) = meta.get_u32("moe_layer_freq")?.filter(|it| *it != 1) {
        return Err(meta.refuse("moe_layer_freq", format!("{freq}, expected 1")));
    }
    let first = meta.get_u32("first_k_dense_replace")?.unwrap_or(0);
    if first > n_layers {
        return Err(meta.refuse("first_k_dense_replace", format!("{first} of {n_layers} layers")));
    }
    Ok(if has_experts { first } else { n_layers })
}

/// Counts all keys that start with `prefix` as used: they are about what the model does not have.
fn ignore_all(meta: &Meta, prefix: &str) {
    meta.keys().filter(|it| it.starts_with(prefix)).for_each(|it| meta.ignore(it));
}

/// `n` times `each` columns.
fn columns(meta: &Meta, key: &str, n: u32, each: u32) -> Res<u32> {
    n.checked_mul(each).ok_or_else(|| meta.refuse(key, format!("{n} times {each} columns")))
}
