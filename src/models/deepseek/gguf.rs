//! The same model as llama.cpp's converter writes it (`deepseek2`).
//!
//! Files from before April 2025 hold each head's rows of keys and values in one matrix; later ones split it, with the keys transposed, and
//! give the widths of a head under names of their own.

use waste_ir::{Act, ModelInfo, RopeScaling, RopeStyle, Scoring};

use crate::formats::{Meta, ModelFiles};

use crate::models::Result;
use crate::models::ffn::GatedAct;
use crate::models::hybrid::{self, Config, Names};
use crate::models::keys::{self, epsilon, get_positive, positive};
use crate::models::mla::{LATENT_EPS, MlaConfig, MlaNames};
use crate::models::moe::{ExpertNames, MoeConfig, MoeKeys, MoeNames};
use crate::models::rope::Rope;

/// The key of the positions that the model was trained for.
pub(super) const CONTEXT: &str = "deepseek2.context_length";

const NAMES: Names = Names {
    embed: "token_embd.weight",
    final_norm: "output_norm.weight",
    head: "output.weight",
    layer: "blk.",
    attn_norm: "attn_norm.weight",
    mla: MlaNames {
        q: "attn_q",
        q_a: "attn_q_a",
        q_norm: "attn_q_a_norm",
        q_b: "attn_q_b",
        kv_a: "attn_kv_a_mqa",
        kv_norm: "attn_kv_a_norm",
        kv_b: "attn_kv_b",
        split: Some(["attn_k_b", "attn_v_b"]),
        gate: "attn_gate",
        out: "attn_output",
    },
    ffn_norm: "ffn_norm.weight",
    ffn: ["ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"],
    moe: MoeNames {
        router: "ffn_gate_inp.weight",
        bias: Some("exp_probs_b.bias"),
        experts: ExpertNames::Stacked(["ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"]),
        shared: ["ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight"],
        latent: [""; 3],
    },
};

/// Experts, their weights and groups; the scoring is a number, read apart.
const KEYS: MoeKeys<'static> = MoeKeys {
    experts: "deepseek2.expert_count",
    k: "deepseek2.expert_used_count",
    width: "deepseek2.expert_feed_forward_length",
    groups: Some(["deepseek2.expert_group_count", "deepseek2.expert_group_used_count"]),
    shared: Some("deepseek2.expert_shared_count"),
    scoring: (None, Scoring::Softmax),
    renorm: (Some("deepseek2.expert_weights_norm"), false),
    scale: Some("deepseek2.expert_weights_scale"),
};

pub(super) fn read(files: &ModelFiles) -> Result<Config> {
    let meta = files.meta();
    let n_layers = keys::layers(files, "deepseek2.block_count")?;
    let mut moe = MoeConfig::read(meta, &KEYS)?;
    if let Some(moe) = &mut moe {
        moe.scoring = scoring(meta)?;
    }
    let config = Config {
        info: ModelInfo {
            name: meta.get_str("general.name")?.unwrap_or("model").to_owned(),
            arch: "deepseek2".to_owned(),
            ctx_trained: positive(meta, CONTEXT)?,
            vocab: vocab(files)?,
        },
        n_layers,
        hidden: positive(meta, "deepseek2.embedding_length")?,
        ffn: positive(meta, "deepseek2.feed_forward_length")?,
        eps: epsilon(meta, "deepseek2.attention.layer_norm_rms_epsilon", None)?,
        act: GatedAct::Gate(Act::Silu),
        is_tied: files.get_tensor(NAMES.head)?.is_none(),
        kda: None,
        is_kda: vec![false; n_layers as usize],
        mla: latent(meta)?,
        first_moe: hybrid::first_moe(meta, n_layers, "deepseek2.leading_dense_block_count", moe.is_some())?,
        moe,
        res_block: None,
        names: &NAMES,
        harmless: Vec::new(),
    };
    // One for all heads in later files, as many as there are heads in earlier ones: the widths are what counts.
    for key in ["attention.head_count_kv", "attention.key_length", "attention.value_length"] {
        meta.ignore(&format!("deepseek2.{key}"));
    }
    keys::refuse_unknown_gguf(meta, "deepseek2")?;
    Ok(config)
}

fn vocab(files: &ModelFiles) -> Result<u32> {
    let meta = files.meta();
    if let Some(vocab) = get_positive(meta, "deepseek2.vocab_size")? {
        return Ok(vocab);
    }
    let rows = files.tensor(NAMES.embed)?.shape.first().and_then(|it| u32::try_from(*it).ok());
    Ok(rows.ok_or_else(|| meta.missing("deepseek2.vocab_size"))?)
}

/// llama.cpp's numbers: 1 is softmax, 2 sigmoid; absent in files of DeepSeek-V2, whose scores are softmax.
fn scoring(meta: &Meta) -> Result<Scoring> {
    const KEY: &str = "deepseek2.expert_gating_func";
    match meta.get_u32(KEY)? {
        None | Some(1) => Ok(Scoring::Softmax),
        Some(2) => Ok(Scoring::Sigmoid),
        Some(other) => Err(meta
            .refuse(KEY, format!("{other} is not supported (1, softmax, and 2, sigmoid, are)"))
            .into()),
    }
}

fn latent(meta: &Meta) -> Result<MlaConfig> {
    let key = |name: &str| format!("deepseek2.attention.{name}");
    let width = |of_head: &str, plain: &str| -> Result<u32> {
        match get_positive(meta, &key(of_head))? {
            Some(it) => Ok(it),
            None => Ok(positive(meta, &key(plain))?),
        }
    };
    let query_dim = width("key_length_mla", "key_length")?;
    let value_dim = width("value_length_mla", "value_length")?;
    let rope_dim = positive(meta, "deepseek2.rope.dimension_count")?;
    let Some(nope_dim) = query_dim.checked_sub(rope_dim).filter(|it| *it > 0) else {
        let reason = format!("{rope_dim} of {query_dim} columns of a query");
        return Err(meta.refuse("deepseek2.rope.dimension_count", reason).into());
    };
    if !rope_dim.is_multiple_of(2) {
        return Err(meta.refuse("deepseek2.rope.dimension_count", format!("{rope_dim} is odd")).into());
    }
    let (rope, sharper) = rope(meta, rope_dim)?;
    let mut config = MlaConfig {
        heads: positive(meta, &key("head_count"))?,
        q_latents: meta.get_u32(&key("q_lora_rank"))?.filter(|it| *it > 0),
        latents: positive(meta, &key("kv_lora_rank"))?,
        nope_dim,
        rope_dim,
        value_dim,
        has_gate: false,
        rope: Some(rope),
        scale: 0.0,
        eps: LATENT_EPS,
    };
    config.check(meta, &key("head_count"))?;
    config.sharpen(sharper);
    Ok(config)
}

/// How r and q turn, and by what YaRN sharpens the softmax: (1 + `yarn_log_multiplier` · ln factor)², the multiplier being a tenth of
/// config.json's `mscale_all_dim`.
fn rope(meta: &Meta, dims: u32) -> Result<(Rope, f64)> {
    let key = |name: &str| format!("deepseek2.rope.{name}");
    let base = meta.get_f64(&key("freq_base"))?.unwrap_or(10_000.0);
    if base <= 1.0 {
        return Err(meta.refuse(&key("freq_base"), format!("{base}, expected a number above 1")).into());
    }
    let plain = Rope { dims, base, scaling: RopeScaling::None, style: RopeStyle::Pair };
    match meta.get_str(&key("scaling.type"))? {
        None | Some("none") => return Ok((plain, 1.0)),
        Some("yarn") => {}
        Some(other) => {
            let reason = format!("'{}' is not supported (none and yarn are)", crate::formats::shown(other));
            return Err(meta.refuse(&key("scaling.type"), reason).into());
        }
    }
    let factor = meta.f64(&key("scaling.factor"))?;
    let fast = meta.get_f64(&key("scaling.yarn_beta_fast"))?.unwrap_or(32.0);
    let slow = meta.get_f64(&key("scaling.yarn_beta_slow"))?.unwrap_or(1.0);
    if [factor, fast, slow].iter().any(|it| *it <= 0.0) {
        let reason = format!("{factor}, between {fast} and {slow} turns: expected positive numbers");
        return Err(meta.refuse(&key("scaling.factor"), reason).into());
    }
    let orig = positive(meta, &key("scaling.original_context_length"))?;
    let log_multiplier = meta.f64(&key("scaling.yarn_log_multiplier"))?;
    let sharper = if factor > 1.0 { log_multiplier * libm::log(factor) + 1.0 } else { 1.0 };
    let scaling = RopeScaling::Yarn { factor, fast, slow, orig };
    Ok((Rope { scaling, ..plain }, sharper * sharper))
}
