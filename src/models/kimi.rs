//! Kimi-Linear (Kimi Linear technical report 2025; transformers 5, `modeling_kimi_linear.py`) and what Kimi K3 adds to it, from
//! config.json: a `hybrid` decoder. Numbers of layers in the lists of the configuration count from 1.
//!
//! The `rope` dimensions of a model without rotation (`mla_use_nope`) take part as they are.

use waste_ir::{ModelInfo, Module, Scoring};

use crate::formats::{Format, FormatError, Meta, ModelFiles};

use super::ffn::GatedAct;
use super::hybrid::{self, Config, Names};
use super::kda::KdaConfig;
use super::keys::{self, columns, epsilon, get_positive, positive};
use super::mla::{self, MlaConfig};
use super::moe::{ExpertNames, MoeConfig, MoeKeys, MoeNames};
use super::weights::has_tensor;
use super::{ImportOptions, Result};

/// Lowers a model of the family.
pub(super) fn import(files: &ModelFiles, opts: &ImportOptions) -> Result<Module> {
    hybrid::import(files, opts, &from_json(files)?)
}

const HF: Names = Names {
    embed: "model.embed_tokens.weight",
    final_norm: "model.norm.weight",
    head: "lm_head.weight",
    layer: "model.layers.",
    attn_norm: "input_layernorm.weight",
    mla: mla::HF,
    ffn_norm: "post_attention_layernorm.weight",
    ffn: ["mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"],
    moe: MoeNames {
        router: "block_sparse_moe.gate.weight",
        bias: Some("block_sparse_moe.gate.e_score_correction_bias"),
        experts: ExpertNames::Each {
            before: "block_sparse_moe.experts.",
            matrices: [".w1.weight", ".w3.weight", ".w2.weight"],
        },
        shared: [
            "block_sparse_moe.shared_experts.gate_proj.weight",
            "block_sparse_moe.shared_experts.up_proj.weight",
            "block_sparse_moe.shared_experts.down_proj.weight",
        ],
        latent: [
            "block_sparse_moe.routed_expert_down_proj.weight",
            "block_sparse_moe.routed_expert_up_proj.weight",
            "block_sparse_moe.routed_expert_norm.weight",
        ],
    },
};

/// The eps of the lengths of q and k: that of the reference's kernels.
const L2_EPS: f32 = 1e-6;
/// As [`L2_EPS`], of the engine whose containers these are; there norms of latents have the eps of all others.
const CONTAINER_L2_EPS: f32 = 1e-12;
/// Positions where a container does not say: it needs no such key.
const CONTAINER_CTX: u32 = 4096;

type Res<T> = std::result::Result<T, FormatError>;

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

fn from_json(files: &ModelFiles) -> Result<Config> {
    let meta = files.meta();
    let folder = files.folder().file_name().map(|it| it.to_string_lossy().into_owned());
    let n_layers = keys::layers(files, "num_hidden_layers")?;
    let is_kda = delta_layers(meta, n_layers)?;
    let is_tied = match meta.get_bool("tie_word_embeddings")? {
        Some(it) => it,
        None => !has_tensor(files, HF.head),
    };
    let heads = positive(meta, "num_attention_heads")?;
    if let Some(kv_heads) = get_positive(meta, "num_key_value_heads")?.filter(|it| *it != heads) {
        let reason = format!("{kv_heads}, but latents are shared by all {heads} heads");
        return Err(meta.refuse("num_key_value_heads", reason).into());
    }
    let moe = experts(meta)?;
    let is_fixed = meta.get_bool("mla_use_nope")?.unwrap_or(false);
    let res_block = meta.get_u32("attn_res_block_size")?.filter(|it| *it > 0);
    let eps = epsilon(meta, "rms_norm_eps", Some(1e-5))?;
    let mut mla = MlaConfig::from_config(meta, heads, is_fixed)?;
    let l2_eps = match files.format() {
        Format::Container => {
            mla.eps = eps;
            CONTAINER_L2_EPS
        }
        Format::Gguf | Format::Safetensors => L2_EPS,
    };
    let config = Config {
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
            keys::ignore_all(meta, "linear_attn_config.");
            None
        },
        is_kda,
        mla,
        first_moe: hybrid::first_moe(meta, n_layers, "first_k_dense_replace", moe.is_some())?,
        moe,
        names: &HF,
        // The first layer has nothing to mix with.
        harmless: res_block.map(|_| format!("{}0.self_attention_res_", HF.layer)).into_iter().collect(),
        res_block,
    };
    // Left over from other families: delta and latent attention have widths of their own.
    for key in ["head_dim", "model_max_length"] {
        meta.ignore(key);
    }
    keys::refuse_unknown(meta)?;
    Ok(config)
}

/// For each layer, whether it has delta attention. If both lists are there, each layer is in one of them.
fn delta_layers(meta: &Meta, n_layers: u32) -> Res<Vec<bool>> {
    const KDA: &str = "linear_attn_config.kda_layers";
    const FULL: &str = "linear_attn_config.full_attn_layers";
    let mut is_kda = vec![false; n_layers as usize];
    for layer in meta.get_ints::<u32>(KDA)?.unwrap_or_default() {
        match layer.checked_sub(1).and_then(|it| is_kda.get_mut(it as usize)) {
            Some(it) if !*it => *it = true,
            _ => {
                let reason = format!("layer {layer} of 1 to {n_layers} is out of range or twice");
                return Err(meta.refuse(KDA, reason));
            }
        }
    }
    let Some(full) = meta.get_ints::<u32>(FULL)? else { return Ok(is_kda) };
    let mut is_known = is_kda.clone();
    for layer in full {
        match layer.checked_sub(1).and_then(|it| is_known.get_mut(it as usize)) {
            Some(it) if !*it => *it = true,
            _ => {
                let reason = format!("layer {layer} of 1 to {n_layers} is out of range or in '{KDA}' too");
                return Err(meta.refuse(FULL, reason));
            }
        }
    }
    match (1u32..).zip(&is_known).find(|it| !it.1) {
        Some((layer, _)) => Err(meta.refuse(FULL, format!("layer {layer} is in neither list"))),
        None => Ok(is_kda),
    }
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

const KEYS: MoeKeys<'static> = MoeKeys {
    experts: "num_experts",
    k: "num_experts_per_token",
    width: "moe_intermediate_size",
    groups: Some(["num_expert_group", "topk_group"]),
    shared: Some("num_shared_experts"),
    scoring: (Some("moe_router_activation_func"), Scoring::Sigmoid),
    renorm: (Some("moe_renormalize"), true),
    scale: Some("routed_scaling_factor"),
};

fn experts(meta: &Meta) -> Res<Option<MoeConfig>> {
    let Some(mut config) = MoeConfig::read(meta, &KEYS)? else { return Ok(None) };
    if meta.get_bool("use_grouped_topk")? == Some(false) && config.groups > 1 {
        let reason = format!("false, but there are {} groups", config.groups);
        return Err(meta.refuse("use_grouped_topk", reason));
    }
    // One expert's weight stays its score.
    config.renorm &= config.k > 1;
    let is_normed = meta.get_bool("latent_moe_use_norm")?.unwrap_or(false);
    let latent = meta.get_u32("routed_expert_hidden_size")?.filter(|it| *it > 0);
    config.latent = latent.map(|it| (it, is_normed));
    Ok(Some(config))
}
