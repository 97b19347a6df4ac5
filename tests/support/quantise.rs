//! A fixture's Llama weights as a GGUF with quantised matrices: embeddings Q8_0, attention Q4_1, gate and up Q4_0, the rest f32.
//! The rows of q and k stay in Hugging Face's order: another model than the original, which is all that tests need.

use std::path::Path;

use half::f16;

use super::Fixture;
use super::gguf::Gguf;

const F32: u32 = 0;
const Q4_0: u32 = 2;
const Q4_1: u32 = 3;
const Q8_0: u32 = 8;

pub(crate) fn write_gguf(from: &Fixture, path: &Path) {
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(from.folder.join("config.json")).unwrap()).unwrap();
    let number = |key: &str| u32::try_from(config[key].as_u64().unwrap()).unwrap();
    let mut gguf = Gguf::new()
        .str("general.architecture", "llama")
        .u32("llama.block_count", number("num_hidden_layers"))
        .u32("llama.context_length", number("max_position_embeddings"))
        .u32("llama.embedding_length", number("hidden_size"))
        .u32("llama.feed_forward_length", number("intermediate_size"))
        .u32("llama.attention.head_count", number("num_attention_heads"))
        .u32("llama.attention.head_count_kv", number("num_key_value_heads"))
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .f32("llama.rope.freq_base", 10000.0)
        .u32("llama.vocab_size", number("vocab_size"));
    for (name, info) in from.files.tensors() {
        let mut values = vec![0f32; usize::try_from(info.elements()).unwrap()];
        info.dtype.decode(from.files.tensor_bytes(info), &mut values);
        let dims: Vec<u64> = info.shape.iter().rev().copied().collect();
        let name = gguf_name(name);
        let kind = if dims.len() == 1 || !dims[0].is_multiple_of(32) {
            F32
        } else if name.contains("attn") {
            Q4_1
        } else if name.contains("ffn") {
            Q4_0
        } else {
            Q8_0
        };
        gguf = gguf.tensor(&name, &dims, kind, &encode(kind, &values));
    }
    std::fs::write(path, gguf.bytes()).unwrap();
}

fn gguf_name(name: &str) -> String {
    let short = name.trim_start_matches("model.").replace("layers.", "blk.");
    let pairs = [
        ("embed_tokens", "token_embd"),
        ("lm_head", "output"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ];
    let short = pairs.iter().fold(short, |it, (from, to)| it.replace(from, to));
    if short == "norm.weight" { "output_norm.weight".into() } else { short }
}

fn encode(kind: u32, values: &[f32]) -> Vec<u8> {
    match kind {
        F32 => values.iter().flat_map(|it| it.to_le_bytes()).collect(),
        Q8_0 => values.chunks(32).flat_map(q8_0).collect(),
        Q4_0 => values.chunks(32).flat_map(|it| q4(it, false)).collect(),
        _ => values.chunks(32).flat_map(|it| q4(it, true)).collect(),
    }
}

fn q8_0(block: &[f32]) -> Vec<u8> {
    let d = f16::from_f32(block.iter().fold(0f32, |m, it| m.max(it.abs())) / 127.0);
    let codes = block.iter().map(|it| (it / d.to_f32()).round().clamp(-127.0, 127.0) as i8 as u8);
    d.to_le_bytes().into_iter().chain(codes).collect()
}

/// Q4_1 with `minimum`, else Q4_0.
fn q4(block: &[f32], minimum: bool) -> Vec<u8> {
    let low = block.iter().fold(f32::INFINITY, |m, it| m.min(*it));
    let high = block.iter().fold(f32::NEG_INFINITY, |m, it| m.max(*it));
    let (d, m) = if minimum {
        (f16::from_f32((high - low) / 15.0), f16::from_f32(low))
    } else {
        let d = f16::from_f32(low.abs().max(high.abs()) / 7.0);
        (d, f16::from_f32(-8.0 * d.to_f32()))
    };
    let code = |x: f32| ((x - m.to_f32()) / d.to_f32()).round().clamp(0.0, 15.0) as u8;
    let mut out = d.to_le_bytes().to_vec();
    if minimum {
        out.extend(m.to_le_bytes());
    }
    out.extend((0..16).map(|i| code(block[i]) | code(block[i + 16]) << 4));
    out
}
