//! DeepSeek-V3 and R1, and Kimi K2 of the same make (DeepSeek-V3 technical report 2024; transformers 5, `modeling_deepseek_v3.py`):
//! a `hybrid` decoder all of whose layers have latent attention, which rotates.
//!
//! What predicts further tokens (`num_nextn_predict_layers`) follows the last layer and is left out.

mod gguf;

use waste_ir::{Act, ModelInfo, Module, Scoring};

use crate::formats::{Format, Meta, ModelFiles, shown};

use super::ffn::GatedAct;
use super::hybrid::{self, Config, Names};
use super::keys::{self, activation, epsilon, get_positive, positive};
use super::mla::{self, MlaConfig};
use super::moe::{ExpertNames, MoeConfig, MoeKeys, MoeNames};
use super::weights::has_tensor;
use super::{ImportOptions, Result};

/// Lowers a model of the family.
pub(super) fn import(files: &ModelFiles, opts: &ImportOptions) -> Result<Module> {
    let config = match files.format() {
        Format::Safetensors | Format::Container => from_json(files)?,
        Format::Gguf => gguf::read(files)?,
    };
    hybrid::import(files, opts, &config)
}

/// Positions that the model was trained for.
pub(super) fn trained_ctx(files: &ModelFiles) -> Result<u32> {
    let key = match files.format() {
        Format::Safetensors | Format::Container => "max_position_embeddings",
        Format::Gguf => gguf::CONTEXT,
    };
    Ok(positive(files.meta(), key)?)
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
        router: "mlp.gate.weight",
        bias: Some("mlp.gate.e_score_correction_bias"),
        experts: ExpertNames::Each {
            before: "mlp.experts.",
            matrices: [".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"],
        },
        shared: [
            "mlp.shared_experts.gate_proj.weight",
            "mlp.shared_experts.up_proj.weight",
            "mlp.shared_experts.down_proj.weight",
        ],
        latent: [""; 3],
    },
};

const KEYS: MoeKeys<'static> = MoeKeys {
    experts: "n_routed_experts",
    k: "num_experts_per_tok",
    width: "moe_intermediate_size",
    groups: Some(["n_group", "topk_group"]),
    shared: Some("n_shared_experts"),
    scoring: (Some("scoring_func"), Scoring::Sigmoid),
    renorm: (Some("norm_topk_prob"), true),
    scale: Some("routed_scaling_factor"),
};

/// Layers after the last that a checkpoint may carry.
const MOST_EXTRA: u32 = 16;

fn from_json(files: &ModelFiles) -> Result<Config> {
    let meta = files.meta();
    let n_layers = keys::layers(files, "num_hidden_layers")?;
    let heads = positive(meta, "num_attention_heads")?;
    if let Some(kv_heads) = get_positive(meta, "num_key_value_heads")?.filter(|it| *it != heads) {
        let reason = format!("{kv_heads}, but latents are shared by all {heads} heads");
        return Err(meta.refuse("num_key_value_heads", reason).into());
    }
    refuse_variants(meta)?;
    let is_tied = match meta.get_bool("tie_word_embeddings")? {
        Some(it) => it,
        None => !has_tensor(files, HF.head),
    };
    let folder = files.folder().file_name().map(|it| it.to_string_lossy().into_owned());
    let moe = MoeConfig::read(meta, &KEYS)?;
    let config = Config {
        info: ModelInfo {
            name: folder.unwrap_or_else(|| "model".to_owned()),
            arch: "deepseek_v3".to_owned(),
            ctx_trained: trained_ctx(files)?,
            vocab: positive(meta, "vocab_size")?,
        },
        n_layers,
        hidden: positive(meta, "hidden_size")?,
        ffn: positive(meta, "intermediate_size")?,
        eps: epsilon(meta, "rms_norm_eps", Some(1e-6))?,
        act: GatedAct::Gate(activation(meta, "hidden_act", Act::Silu)?),
        is_tied,
        kda: None,
        is_kda: vec![false; n_layers as usize],
        mla: MlaConfig::from_config(meta, heads, false)?,
        first_moe: hybrid::first_moe(meta, n_layers, "first_k_dense_replace", moe.is_some())?,
        moe,
        res_block: None,
        names: &HF,
        harmless: extra_layers(meta, n_layers)?,
    };
    // The width of what rotates, repeated.
    meta.ignore("head_dim");
    keys::refuse_unknown(meta)?;
    Ok(config)
}

fn refuse_variants(meta: &Meta) -> Result<()> {
    keys::refuse_true(meta, "attention_bias")?;
    if meta.get_bool("rope_interleave")? == Some(false) {
        return Err(meta.refuse("rope_interleave", "false is not supported").into());
    }
    if let Some(other) = meta.get_str("topk_method")?.filter(|it| *it != "noaux_tc") {
        let reason = format!("'{}' is not supported (noaux_tc is)", shown(other));
        return Err(meta.refuse("topk_method", reason).into());
    }
    Ok(())
}

/// How the names of tensors begin that predict further tokens.
fn extra_layers(meta: &Meta, n_layers: u32) -> Result<Vec<String>> {
    const KEY: &str = "num_nextn_predict_layers";
    let n = meta.get_u32(KEY)?.unwrap_or(0);
    if n > MOST_EXTRA {
        return Err(meta.refuse(KEY, format!("{n}, at most {MOST_EXTRA} are expected")).into());
    }
    Ok((n_layers..).take(n as usize).map(|i| format!("{}{i}.", HF.layer)).collect())
}
