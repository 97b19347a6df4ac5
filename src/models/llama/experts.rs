//! Routed experts of Llama-like models, from config.json or GGUF keys. Scores are softmax over all experts.

use waste_ir::Scoring;

use super::Variant;
use crate::formats::{FormatError, Meta};
use crate::models::keys::{get_positive, positive};
use crate::models::moe::{MoeConfig, MoeKeys};

type Res<T> = Result<T, FormatError>;

/// Of Mixtral; the others differ in names.
const KEYS: MoeKeys<'static> = MoeKeys {
    experts: "num_local_experts",
    k: "num_experts_per_tok",
    width: "intermediate_size",
    groups: None,
    shared: None,
    scoring: (None, Scoring::Softmax),
    renorm: (None, true),
    scale: None,
};

pub(super) fn from_config(meta: &Meta, variant: Variant) -> Res<Option<MoeConfig>> {
    let keys = match variant {
        Variant::Llama | Variant::Mistral | Variant::Qwen2 | Variant::Qwen3 => return Ok(None),
        Variant::Mixtral => KEYS,
        Variant::Olmoe => MoeKeys { experts: "num_experts", renorm: (Some("norm_topk_prob"), false), ..KEYS },
        Variant::Qwen3Moe => MoeKeys {
            experts: "num_experts",
            width: "moe_intermediate_size",
            renorm: (Some("norm_topk_prob"), false),
            ..KEYS
        },
    };
    positive(meta, keys.experts)?;
    MoeConfig::read(meta, &keys)
}

/// Which layers have experts: of Qwen3-MoE each `decoder_sparse_step`-th, but for `mlp_only_layers`, which count from 0.
pub(super) fn layers(meta: &Meta, variant: Variant, n_layers: u32, has_experts: bool) -> Res<Vec<bool>> {
    let mut is_moe = vec![has_experts; n_layers as usize];
    if variant != Variant::Qwen3Moe {
        return Ok(is_moe);
    }
    let step = get_positive(meta, "decoder_sparse_step")?.unwrap_or(1);
    for (i, it) in (1u32..).zip(&mut is_moe) {
        *it &= i.is_multiple_of(step);
    }
    for layer in meta.get_ints::<u32>("mlp_only_layers")?.unwrap_or_default() {
        let Some(it) = is_moe.get_mut(layer as usize) else {
            return Err(meta.refuse("mlp_only_layers", format!("layer {layer} of {n_layers}, from 0")));
        };
        *it = false;
    }
    Ok(is_moe)
}

/// Mixtral is a `llama` with experts. llama.cpp's graphs of it and of `qwen3moe` renormalise, that of `olmoe` does not.
pub(super) fn from_gguf(meta: &Meta, variant: Variant) -> Res<Option<MoeConfig>> {
    let key = |name: &str| format!("{}.{name}", variant.name());
    let (experts, k) = (key("expert_count"), key("expert_used_count"));
    let width = match variant {
        Variant::Qwen3Moe => key("expert_feed_forward_length"),
        _ => key("feed_forward_length"),
    };
    let renorm = (None, variant != Variant::Olmoe);
    MoeConfig::read(meta, &MoeKeys { experts: &experts, k: &k, width: &width, renorm, ..KEYS })
}
