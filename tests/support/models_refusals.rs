//! What front ends refuse, by name, and what they rightly do not.

use serde_json::{Value as Json, json};
use waste::formats::ModelFiles;
use waste::models::{ImportOptions, import};
use waste_plan::DType;

use super::files::{OPTIONS, Sizes, TINY, Table, edited, fixture, import_made, json as read_json};
use super::gguf::Gguf;
use super::scratch::Scratch;

fn llama() -> (Json, Table) {
    (TINY.config("llama", "LlamaForCausalLM"), TINY.table(false, false))
}

/// Edits of config.json with a part of the line that refuses them.
fn config_cases() -> Vec<(Vec<(&'static str, Json)>, &'static str)> {
    vec![
        (vec![("model_type", json!("mamba"))], "key 'model_type': 'mamba' is not supported (llama, mistral,"),
        (
            vec![("architectures", json!(["LlamaForSequenceClassification"]))],
            "'LlamaForSequenceClassification'",
        ),
        (vec![("architectures", json!(["Qwen2ForCausalLM"]))], "key 'architectures'"),
        (vec![("hidden_size", json!(null))], "key 'hidden_size' is missing"),
        (vec![("num_hidden_layers", json!(0))], "key 'num_hidden_layers': 0, expected at least 1"),
        (vec![("hidden_act", json!("xielu"))], "key 'hidden_act': 'xielu' is not supported (silu,"),
        (vec![("rms_norm_eps", json!(-1e-5))], "key 'rms_norm_eps'"),
        (vec![("rope_scaling", json!({"type": "yarn", "factor": 4.0}))], "key 'rope_scaling.type': 'yarn'"),
        (
            vec![("rope_scaling", json!({"rope_type": "dynamic", "factor": 2.0}))],
            "'dynamic' is not supported",
        ),
        (vec![("rope_scaling", json!({"rope_type": "longrope"}))], "'longrope' is not supported"),
        (vec![("rope_parameters", json!({"rope_type": "yarn"}))], "key 'rope_parameters.rope_type'"),
        (vec![("rope_scaling", json!({"rope_type": "linear"}))], "key 'rope_scaling.factor' is missing"),
        (
            vec![("rope_scaling", json!({"rope_type": "linear", "factor": 0}))],
            "0, expected a positive number",
        ),
        (
            vec![(
                "rope_scaling",
                json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                "high_freq_factor": 4, "original_max_position_embeddings": 64}),
            )],
            "key 'rope_scaling.high_freq_factor': 4, expected more than",
        ),
        (
            vec![("rope_scaling", json!({"rope_type": "linear", "factor": 2, "attention_factor": 1.5}))],
            "key 'rope_scaling.attention_factor': is not understood",
        ),
        (
            vec![("rope_theta", json!(1e4)), ("rope_parameters.rope_theta", json!(5e5))],
            "'rope_theta' is 10000",
        ),
        (
            vec![("rope_parameters.full_attention.rope_theta", json!(5e5))],
            "rope_parameters.full_attention.rope_theta",
        ),
        (
            vec![("partial_rotary_factor", json!(0.25))],
            "key 'partial_rotary_factor': rotates 1 of 4 elements",
        ),
        (vec![("partial_rotary_factor", json!(1.5))], "1.5, expected a share up to 1"),
        (
            vec![("sliding_window", json!(63))],
            "a window of 63 positions is not supported for a context of 64",
        ),
        (vec![("layer_types", json!(["sliding_attention"]))], "key 'sliding_window' is missing"),
        (vec![("layer_types", json!(["linear_attention"]))], "key 'layer_types': 'linear_attention'"),
        (vec![("attn_logit_softcapping", json!(50.0))], "key 'attn_logit_softcapping': is not understood"),
        (vec![("embedding_multiplier", json!(12.0))], "key 'embedding_multiplier'"),
        (vec![("clip_qkv", json!(8.0))], "key 'clip_qkv'"),
        (vec![("logit_scale", json!(0.0625))], "key 'logit_scale'"),
        (vec![("alibi", json!(true))], "key 'alibi'"),
        (vec![("quantization_config.quant_method", json!("awq"))], "key 'quantization_config.quant_method'"),
        (vec![("rope_interleaved", json!(true))], "key 'rope_interleaved'"),
        (
            vec![("num_attention_heads", json!(3)), ("head_dim", json!(null))],
            "3 heads do not divide 8 elements",
        ),
        (
            vec![("head_dim", json!(2_000_000_000)), ("num_attention_heads", json!(3))],
            "3 times 2000000000 columns",
        ),
        (
            vec![
                ("num_key_value_heads", json!(3)),
                ("num_attention_heads", json!(4)),
                ("head_dim", json!(2)),
            ],
            "shape",
        ),
        (vec![("attention_bias", json!(true))], "tensor 'model.layers.0.self_attn.q_proj.bias' is missing"),
        (vec![("mlp_bias", json!(true))], "tensor 'model.layers.0.mlp.gate_proj.bias' is missing"),
        (vec![("tie_word_embeddings", json!(false))], "tensor 'lm_head.weight' is missing"),
        (
            vec![("num_hidden_layers", json!(4_000_000_000_u32))],
            "4000000000 layers, but there are 11 tensors",
        ),
        (
            vec![("vocab_size", json!(11))],
            "tensor 'model.embed_tokens.weight' has shape [10, 8], expected [11, 8]",
        ),
    ]
}

#[test]
fn keys_that_change_the_maths_are_refused_by_name() {
    let dir = Scratch::new("models-keys");
    let (config, table) = llama();
    for (edits, want) in config_cases() {
        let result = import_made(&dir, &edited(&config, &edits), &table, &OPTIONS);
        let line = result.expect_err(want).to_string();
        assert!(line.contains(want), "{edits:?}: {line}");
        assert!(line.contains("config.json") || line.contains("model.safetensors"), "{line}");
        assert!(!line.contains('\n'), "{line}");
    }
}

#[test]
fn keys_that_change_nothing_are_accepted() {
    let dir = Scratch::new("models-harmless");
    let (config, table) = llama();
    let cases = [
        ("rope_interleaved", json!(false)),
        ("attn_logit_softcapping", json!(null)),
        ("sliding_window", json!(64)),
        ("layer_types", json!(["full_attention"])),
        ("_name_or_path", json!("x")),
        ("pretraining_tp", json!(1)),
        ("eos_token_id", json!([2, 3])),
        ("transformers.js_config", json!({"dtype": "q4", "kv_cache_dtype": {"q4f16": "float16"}})),
        ("partial_rotary_factor", json!(0.5)),
        ("rope_parameters", json!({"rope_type": "default", "rope_theta": 1e5})),
        ("model_type", json!(null)),
    ];
    for (key, value) in cases {
        let result = import_made(&dir, &edited(&config, &[(key, value)]), &table, &OPTIONS);
        assert!(result.is_ok(), "{key}: {}", result.unwrap_err());
    }
    let window = [
        ("sliding_window", json!(16)),
        ("use_sliding_window", json!(false)),
        ("max_window_layers", json!(1)),
    ];
    let config = edited(&TINY.config("qwen2", "Qwen2ForCausalLM"), &window);
    assert!(import_made(&dir, &config, &TINY.table(true, false), &OPTIONS).is_ok());
}

#[test]
fn tensors_are_taken_or_refused() {
    let dir = Scratch::new("models-tensors");
    let (config, table) = llama();
    type Change = fn(&mut Table);
    let line = |change: Change| {
        let mut table = table.clone();
        change(&mut table);
        import_made(&dir, &config, &table, &OPTIONS).map(|_| ()).map_err(|err| err.to_string())
    };
    assert_eq!(line(|t| t.add("model.layers.0.self_attn.rotary_emb.inv_freq", &[2])), Ok(()));
    assert_eq!(line(|t| t.add("lm_head.weight", &[10, 8])), Ok(()), "the tied head, repeated");
    let cases: [(Change, &str); 6] = [
        (|t| drop(t.0.remove("model.norm.weight")), "tensor 'model.norm.weight' is missing"),
        (
            |t| t.add("model.layers.0.self_attn.q_proj.bias", &[8]),
            "'model.layers.0.self_attn.q_proj.bias' at",
        ),
        (|t| t.add("model.layers.1.input_layernorm.weight", &[8]), "is not part of this architecture"),
        (
            |t| t.add("model.norm.weight", &[8, 1]),
            "tensor 'model.norm.weight' has shape [8, 1], expected [8]",
        ),
        (|t| t.add("model.layers.0.mlp.up_proj.weight", &[8, 16]), "has shape [8, 16], expected [16, 8]"),
        (|t| t.0.get_mut("model.norm.weight").unwrap().0 = "I8", "tensor 'model.norm.weight' at"),
    ];
    for (change, want) in cases {
        let line = line(change).expect_err(want);
        assert!(line.contains(want), "{line}, expected {want}");
    }
}

#[test]
fn impossible_options_are_refused() {
    let gpt2 = ModelFiles::open(&fixture("gpt2-rand-f32"), None).unwrap();
    let cases = [
        (ImportOptions { ctx: 97, ..OPTIONS }, "ctx 97: the model has learned 96 positions, no more exist"),
        (ImportOptions { ctx: 0, ..OPTIONS }, "ctx 0: must be at least 1"),
        (ImportOptions { batch: 0, ..OPTIONS }, "batch 0: must be at least 1"),
        (ImportOptions { chunk: 0, ..OPTIONS }, "chunk 0: must be at least 1"),
        (ImportOptions { want: 0, ..OPTIONS }, "want 0: must be at least 1"),
        (ImportOptions { kv: DType::BF16, ..OPTIONS }, "kv bf16: must be f32 or f16"),
    ];
    for (opts, want) in cases {
        assert_eq!(import(&gpt2, &opts).unwrap_err().to_string(), want);
    }
    let llama = ModelFiles::open(&fixture("llama-rand-gqa-untied-f32"), None).unwrap();
    let err = import(&llama, &ImportOptions { ctx: u32::MAX, ..OPTIONS }).unwrap_err();
    assert_eq!(err.to_string(), "ctx 4294967295: is more than any cache holds");
}

#[test]
fn gpt2_variants_are_refused_by_name() {
    let dir = Scratch::new("models-gpt2");
    let source = fixture("gpt2-rand-f32");
    let config = read_json(&source.join("config.json"));
    std::fs::copy(source.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let cases = [
        ("scale_attn_by_inverse_layer_idx", json!(true), "true is not supported"),
        ("reorder_and_upcast_attn", json!(true), "true is not supported"),
        ("add_cross_attention", json!(true), "true is not supported"),
        ("scale_attn_weights", json!(false), "false is not supported"),
        ("activation_function", json!("quick_gelu"), "'quick_gelu' is not supported"),
        ("n_ctx", json!(48), "48, but 'n_positions' is 96"),
        ("n_head", json!(5), "5 heads do not divide 32 elements"),
        ("rotary_dim", json!(8), "is not understood"),
    ];
    for (key, value, want) in cases {
        dir.write("config.json", edited(&config, &[(key, value)]).to_string());
        let err = import(&ModelFiles::open(dir.path(), None).unwrap(), &OPTIONS).unwrap_err().to_string();
        assert!(err.contains(&format!("key '{key}'")) && err.contains(want), "{err}");
    }
    for (key, value) in [("n_positions", json!(95)), ("n_layer", json!(3)), ("n_inner", json!(64))] {
        dir.write("config.json", edited(&config, &[(key, value), ("n_ctx", json!(null))]).to_string());
        let err = import(&ModelFiles::open(dir.path(), None).unwrap(), &OPTIONS).unwrap_err().to_string();
        assert!(err.contains("tensor 'transformer."), "{key}: {err}");
    }
}

/// What a test adds to a GGUF.
pub(crate) type More = fn(Gguf) -> Gguf;

/// A whole GGUF of architecture `arch` with TINY's sizes, all zero but for what `more` adds.
pub(crate) fn tiny_gguf(arch: &str, more: impl FnOnce(Gguf) -> Gguf) -> Gguf {
    let Sizes { hidden, ffn, heads, kv_heads, head_dim, vocab, .. } = TINY;
    let key = |name: &str| format!("{arch}.{name}");
    let mut it = Gguf::new().str("general.architecture", arch).u32(&key("block_count"), 1);
    let sizes = [
        ("context_length", 64),
        ("embedding_length", hidden),
        ("feed_forward_length", ffn),
        ("attention.head_count", heads),
        ("attention.head_count_kv", kv_heads),
    ];
    for (name, size) in sizes {
        it = it.u32(&key(name), u32::try_from(size).unwrap());
    }
    it = more(it.f32(&key("attention.layer_norm_rms_epsilon"), 1e-5));
    let (q, kv) = (heads * head_dim, kv_heads * head_dim);
    let tensors: [(&str, &[u64]); 11] = [
        ("token_embd.weight", &[hidden, vocab]),
        ("output_norm.weight", &[hidden]),
        ("blk.0.attn_norm.weight", &[hidden]),
        ("blk.0.attn_q.weight", &[hidden, q]),
        ("blk.0.attn_k.weight", &[hidden, kv]),
        ("blk.0.attn_v.weight", &[hidden, kv]),
        ("blk.0.attn_output.weight", &[q, hidden]),
        ("blk.0.ffn_norm.weight", &[hidden]),
        ("blk.0.ffn_gate.weight", &[hidden, ffn]),
        ("blk.0.ffn_up.weight", &[hidden, ffn]),
        ("blk.0.ffn_down.weight", &[ffn, hidden]),
    ];
    for (name, dims) in tensors {
        it = zeros(it, name, dims);
    }
    it
}

pub(crate) fn zeros(it: Gguf, name: &str, dims: &[u64]) -> Gguf {
    let bytes = 4 * usize::try_from(dims.iter().product::<u64>()).unwrap();
    it.tensor(name, dims, 0, &vec![0; bytes])
}

#[test]
fn gguf_keys_that_change_the_maths_are_refused_by_name() {
    let dir = Scratch::new("models-gguf-keys");
    let cases: [(More, Option<&str>); 16] = [
        (|it| it, None),
        (|it| it.str("general.type", "adapter"), Some("key 'general.type' at 0x")),
        (
            |it| it.str("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.factor", 4.0),
            Some("'yarn'"),
        ),
        (|it| it.str("llama.rope.scaling.type", "none").f32("llama.rope.scaling.factor", 4.0), None),
        (|it| it.f32("llama.rope.scaling.factor", -2.0), Some("-2, expected a positive number")),
        (|it| it.f32("llama.rope.scaling.attn_factor", 1.2), Some("key 'llama.rope.scaling.attn_factor'")),
        (|it| it.u32("llama.rope.dimension_count", 3), Some("rotates 3 of 4 elements")),
        (|it| it.f32("llama.rope.freq_base", 0.0), Some("key 'llama.rope.freq_base'")),
        (|it| it.u32("llama.expert_count", 8), Some("key 'llama.expert_used_count' is missing")),
        (|it| it.u32("llama.expert_count", 0), None),
        (|it| it.u32("llama.attention.sliding_window", 4096), Some("key 'llama.attention.sliding_window'")),
        (|it| it.f32("llama.logit_scale", 0.5), Some("key 'llama.logit_scale'")),
        (|it| it.u32("llama.attention.value_length", 2), Some("2, but keys have 4")),
        (|it| zeros(it, "blk.0.attn_q.bias", &[8]), Some("tensor 'blk.0.attn_k.bias' is missing")),
        (|it| zeros(it, "blk.0.exp_probs.weight", &[8]), Some("tensor 'blk.0.exp_probs.weight'")),
        (|it| zeros(it, "rope_freqs.weight", &[3]), Some("'rope_freqs.weight' has shape [3], expected [2]")),
    ];
    for (idx, (more, want)) in cases.into_iter().enumerate() {
        let path = dir.write("m.gguf", tiny_gguf("llama", more).bytes());
        let result = import(&ModelFiles::open(&path, None).unwrap(), &OPTIONS).map_err(|err| err.to_string());
        match want {
            None => assert!(result.is_ok(), "case {idx}: {}", result.unwrap_err()),
            Some(want) => {
                let line = result.expect_err(want);
                assert!(line.contains(want) && line.contains("m.gguf"), "case {idx}: {line}");
            }
        }
    }
    let path = dir.write("m.gguf", tiny_gguf("mpt", |it| it).bytes());
    let err = import(&ModelFiles::open(&path, None).unwrap(), &OPTIONS).unwrap_err().to_string();
    assert!(err.contains("key 'general.architecture' at 0x") && err.contains("'mpt'"), "{err}");
    let path = dir.write("m.gguf", tiny_gguf("qwen2", |it| it).bytes());
    let err = import(&ModelFiles::open(&path, None).unwrap(), &OPTIONS).unwrap_err().to_string();
    assert!(err.contains("tensor 'blk.0.attn_q.bias' is missing"), "{err}");
}
