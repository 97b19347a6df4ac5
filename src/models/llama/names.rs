//! How formats name the tensors of a Llama-like model.

use crate::models::moe::{ExpertNames, MoeNames};

/// How a format names the tensors.
pub(super) struct Names {
    /// Before the number of the layer.
    pub(super) layer: &'static str,
    pub(super) embed: &'static str,
    pub(super) final_norm: &'static str,
    pub(super) head: &'static str,
    pub(super) attn_norm: &'static str,
    pub(super) q: &'static str,
    pub(super) k: &'static str,
    pub(super) v: &'static str,
    pub(super) o: &'static str,
    pub(super) q_norm: &'static str,
    pub(super) k_norm: &'static str,
    pub(super) ffn_norm: &'static str,
    pub(super) gate: &'static str,
    pub(super) up: &'static str,
    pub(super) down: &'static str,
    pub(super) moe: MoeNames,
    /// Whether [`FACTORS`] may be there.
    pub(super) has_factors: bool,
    /// Ends of tensor names that carry nothing new: tables of rotary frequencies.
    pub(super) harmless: &'static [&'static str],
}

/// GGUF's divisors of the rotary frequencies: Llama 3's scaling, worked out by the converter.
pub(super) const FACTORS: &str = "rope_freqs.weight";

pub(super) const HF: Names = Names {
    layer: "model.layers.",
    embed: "model.embed_tokens.weight",
    final_norm: "model.norm.weight",
    head: "lm_head.weight",
    attn_norm: "input_layernorm",
    q: "self_attn.q_proj",
    k: "self_attn.k_proj",
    v: "self_attn.v_proj",
    o: "self_attn.o_proj",
    q_norm: "self_attn.q_norm",
    k_norm: "self_attn.k_norm",
    ffn_norm: "post_attention_layernorm",
    gate: "mlp.gate_proj",
    up: "mlp.up_proj",
    down: "mlp.down_proj",
    moe: QWEN_EXPERTS,
    has_factors: false,
    harmless: &[".rotary_emb.inv_freq"],
};

pub(super) const GGUF: Names = Names {
    layer: "blk.",
    embed: "token_embd.weight",
    final_norm: "output_norm.weight",
    head: "output.weight",
    attn_norm: "attn_norm",
    q: "attn_q",
    k: "attn_k",
    v: "attn_v",
    o: "attn_output",
    q_norm: "attn_q_norm",
    k_norm: "attn_k_norm",
    ffn_norm: "ffn_norm",
    gate: "ffn_gate",
    up: "ffn_up",
    down: "ffn_down",
    moe: MoeNames {
        router: "ffn_gate_inp.weight",
        bias: Some("exp_probs_b.bias"),
        experts: ExpertNames::Stacked(["ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"]),
        ..QWEN_EXPERTS
    },
    has_factors: true,
    harmless: &[".attn_rot_embd"],
};

/// Experts of OLMoE and Qwen3-MoE.
const QWEN_EXPERTS: MoeNames = MoeNames {
    router: "mlp.gate.weight",
    bias: None,
    experts: ExpertNames::Each {
        before: "mlp.experts.",
        matrices: [".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"],
    },
    shared: [""; 3],
    latent: [""; 3],
};

/// As [`HF`], with the experts of Mixtral.
pub(super) const MIXTRAL: Names = Names {
    moe: MoeNames {
        router: "block_sparse_moe.gate.weight",
        experts: ExpertNames::Each {
            before: "block_sparse_moe.experts.",
            matrices: [".w1.weight", ".w3.weight", ".w2.weight"],
        },
        ..QWEN_EXPERTS
    },
    ..HF
};
