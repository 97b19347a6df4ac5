//! Mixtral, OLMoE, Qwen3-MoE and DeepSeek-V3 against their references, from checkpoints and as llama.cpp's converter writes them.

use serde_json::{Value as Json, json};
use waste::formats::ModelFiles;
use waste::models::import;
use waste_ir::{Module, WeightInit, verify};
use waste_plan::DType;

use super::files::{OPTIONS, edited, fixture, json as read_json};
use super::gguf::Gguf;
use super::scratch::Scratch;
use super::{check, pairs_together};

#[test]
fn checkpoints_with_experts_evaluate_to_their_references() {
    for name in ["mixtral-rand-bf16", "olmoe-rand-bf16", "qwen3moe-rand-bf16", "deepseek-rand-bf16"] {
        check(&fixture(name), name);
    }
}

/// A fixture on its way to GGUF.
struct Converter {
    files: ModelFiles,
    config: Json,
    arch: &'static str,
    out: Gguf,
}

impl Converter {
    fn new(name: &str, arch: &'static str) -> Self {
        let files = ModelFiles::open(&fixture(name), None).unwrap();
        let out = Gguf::new().str("general.architecture", arch);
        Self { files, config: read_json(&fixture(name).join("config.json")), arch, out }
    }

    fn size(&self, key: &str) -> u32 {
        u32::try_from(self.config[key].as_u64().unwrap()).unwrap()
    }

    fn number(mut self, key: &str, value: u32) -> Self {
        self.out = self.out.u32(&format!("{}.{key}", self.arch), value);
        self
    }

    fn float(mut self, key: &str, from: &str) -> Self {
        let value = self.config[from].as_f64().unwrap() as f32;
        self.out = self.out.f32(&format!("{}.{key}", self.arch), value);
        self
    }

    /// The keys of every family.
    fn sizes(self, experts: &str, k: &str) -> Self {
        let keys = [
            ("block_count", "num_hidden_layers"),
            ("context_length", "max_position_embeddings"),
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
            ("attention.head_count", "num_attention_heads"),
            ("expert_count", experts),
            ("expert_used_count", k),
        ];
        let out = keys.iter().fold(self, |it, (to, from)| {
            let value = it.size(from);
            it.number(to, value)
        });
        out.float("rope.freq_base", "rope_theta").float("attention.layer_norm_rms_epsilon", "rms_norm_eps")
    }

    fn bytes(&self, name: &str) -> (Vec<u64>, u32, Vec<u8>) {
        let info = self.files.tensor(name).unwrap();
        let kind = if info.dtype == DType::F32 { 0 } else { 30 };
        (info.shape.clone(), kind, self.files.tensor_bytes(info).to_vec())
    }

    fn tensor(mut self, name: &str, shape: &[u64], kind: u32, data: &[u8]) -> Self {
        let dims: Vec<u64> = shape.iter().rev().copied().collect();
        self.out = self.out.tensor(name, &dims, kind, data);
        self
    }

    /// All tensors under new names; those of experts stacked, and what `other` gives in place of the rest.
    fn tensors(
        mut self,
        names: &[(&str, &str)],
        experts: &[(&str, &str)],
        other: impl Fn(&Self, &str) -> Option<Vec<(String, Vec<u64>, u32, Vec<u8>)>>,
    ) -> Gguf {
        let renamed = |name: &str| names.iter().fold(name.to_owned(), |it, (from, to)| it.replace(from, to));
        let all: Vec<String> = self.files.tensors().keys().cloned().collect();
        for name in all {
            let Some((before, after)) = name.split_once("experts.0.") else {
                if name.contains("experts.") && !name.contains("shared_experts") {
                    continue;
                }
                let made = other(&self, &name).unwrap_or_else(|| {
                    let (shape, kind, data) = self.bytes(&name);
                    vec![(renamed(&name), shape, kind, data)]
                });
                self = made
                    .iter()
                    .fold(self, |it, (name, shape, kind, data)| it.tensor(name, shape, *kind, data));
                continue;
            };
            let mut stacked = Vec::new();
            let (mut shape, kind, _) = self.bytes(&name);
            let mut n = 0;
            while self.files.get_tensor(&format!("{before}experts.{n}.{after}")).unwrap().is_some() {
                stacked.extend(self.bytes(&format!("{before}experts.{n}.{after}")).2);
                n += 1;
            }
            shape.insert(0, n);
            let block = renamed(before);
            let block = block.split_inclusive('.').take(2).collect::<String>();
            let to = experts.iter().find(|it| after.starts_with(it.0)).unwrap().1;
            self = self.tensor(&format!("{block}{to}.weight"), &shape, kind, &stacked);
        }
        self.out
    }
}

const NAMES: &[(&str, &str)] = &[
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.", "blk."),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.kv_b_proj", "attn_kv_b"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("block_sparse_moe.gate.", "ffn_gate_inp."),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.gate.", "ffn_gate_inp."),
];

const EXPERTS: &[(&str, &str)] = &[
    ("w1", "ffn_gate_exps"),
    ("w3", "ffn_up_exps"),
    ("w2", "ffn_down_exps"),
    ("gate", "ffn_gate_exps"),
    ("up", "ffn_up_exps"),
    ("down", "ffn_down_exps"),
];

#[test]
fn ggufs_of_llamas_with_experts_evaluate_to_the_same_references() {
    let dir = Scratch::new("models-moe-gguf");
    let mixtral =
        Converter::new("mixtral-rand-bf16", "llama").sizes("num_local_experts", "num_experts_per_tok");
    let kv_heads = mixtral.size("num_key_value_heads");
    let mixtral = mixtral.number("attention.head_count_kv", kv_heads).number("rope.dimension_count", 8);
    let permuted = |it: &Converter, name: &str| {
        let (shape, kind, data) = it.bytes(name);
        let to = if name.contains("q_proj") { "attn_q" } else { "attn_k" };
        let (layer, _) = name.strip_prefix("model.layers.")?.split_once(".self_attn.")?;
        let is_turned = name.contains("q_proj") || name.contains("k_proj");
        let row = data.len() / usize::try_from(shape[0]).unwrap();
        is_turned
            .then(|| vec![(format!("blk.{layer}.{to}.weight"), shape, kind, pairs_together(&data, row, 8))])
    };
    let path = dir.write("mixtral.gguf", mixtral.tensors(NAMES, EXPERTS, permuted).bytes());
    check(&path, "mixtral-rand-bf16");

    let olmoe = Converter::new("olmoe-rand-bf16", "olmoe").sizes("num_experts", "num_experts_per_tok");
    let olmoe = olmoe.number("attention.head_count_kv", 2);
    let path = dir.write("olmoe.gguf", olmoe.tensors(NAMES, EXPERTS, |_, _| None).bytes());
    check(&path, "olmoe-rand-bf16");
}

/// GGUF knows no dense layers in between: the fixture's is replaced by a copy of the first, so only the graph can be compared.
#[test]
fn the_gguf_of_a_qwen3_moe_renormalises_and_turns_halves() {
    let dir = Scratch::new("models-qwen-gguf");
    let qwen = Converter::new("qwen3moe-rand-bf16", "qwen3moe").sizes("num_experts", "num_experts_per_tok");
    let qwen = qwen.number("attention.head_count_kv", 2).number("attention.key_length", 12);
    let qwen = qwen.number("attention.value_length", 12).number("expert_feed_forward_length", 16);
    let drop = |_: &Converter, name: &str| name.contains("layers.1.").then(Vec::new);
    let mut gguf = qwen.tensors(NAMES, EXPERTS, drop);
    let files = ModelFiles::open(&dir.write("part.gguf", gguf.bytes()), None).unwrap();
    for info in files.tensors().values().filter(|it| it.name.starts_with("blk.0.")) {
        let dims: Vec<u64> = info.shape.iter().rev().copied().collect();
        let kind = if info.dtype == DType::F32 { 0 } else { 30 };
        gguf = gguf.tensor(&info.name.replace("blk.0.", "blk.1."), &dims, kind, files.tensor_bytes(info));
    }
    let module =
        import(&ModelFiles::open(&dir.write("m.gguf", gguf.bytes()), None).unwrap(), &OPTIONS).unwrap();
    verify(&module).unwrap();
    let decode = |module: &Module| waste_ir::print_graph(module, module.graph("decode").unwrap());
    let text = decode(&module);
    assert_eq!(text.matches("renorm=true").count(), 3, "{text}");
    assert_eq!(text.matches("style=half").count(), 6, "{text}");
    assert_eq!(text.matches("f32[4*B, 12] = rms_norm").count(), 3, "{text}");
    let checkpoint =
        import(&ModelFiles::open(&fixture("qwen3moe-rand-bf16"), None).unwrap(), &OPTIONS).unwrap();
    assert_eq!(decode(&checkpoint).matches("for_each_expert").count(), 2, "layer 1 is dense");
}

/// Both forms of the second latent matrix: whole, and split with the keys' part transposed.
#[test]
fn ggufs_of_deepseek_evaluate_to_the_same_reference() {
    let dir = Scratch::new("models-deepseek-gguf");
    let base = || {
        let it = Converter::new("deepseek-rand-bf16", "deepseek2")
            .sizes("n_routed_experts", "num_experts_per_tok");
        let it = it.number("attention.q_lora_rank", 20).number("attention.kv_lora_rank", 24);
        let it = it.number("rope.dimension_count", 8).number("leading_dense_block_count", 1);
        let it = it.number("expert_shared_count", 1).number("expert_feed_forward_length", 16);
        let it = it.number("expert_group_count", 4).number("expert_group_used_count", 2);
        let it = it.number("expert_gating_func", 2).number("rope.scaling.original_context_length", 64);
        let mut it = it.float("expert_weights_scale", "routed_scaling_factor");
        it.out =
            it.out.bool("deepseek2.expert_weights_norm", true).str("deepseek2.rope.scaling.type", "yarn");
        let floats =
            [("factor", 4.0), ("yarn_log_multiplier", 0.1), ("yarn_beta_fast", 2.0), ("yarn_beta_slow", 1.0)];
        for (key, value) in floats {
            it.out = it.out.f32(&format!("deepseek2.rope.scaling.{key}"), value);
        }
        it
    };
    let extra = |name: &str| name.contains("layers.3.").then(Vec::new);
    let whole = base().number("attention.head_count_kv", 4).number("attention.key_length", 20);
    let whole = whole.number("attention.value_length", 10).tensors(NAMES, EXPERTS, |_, name| extra(name));
    check(&dir.write("whole.gguf", whole.bytes()), "deepseek-rand-bf16");

    let split = base().number("attention.head_count_kv", 1).number("attention.key_length", 32);
    let split = split.number("attention.value_length", 24).number("attention.key_length_mla", 20);
    let split = split.number("attention.value_length_mla", 10).tensors(NAMES, EXPERTS, |it, name| {
        let Some(layer) = name.strip_suffix(".self_attn.kv_b_proj.weight") else {
            return extra(name);
        };
        let (_, kind, data) = it.bytes(name);
        let rows: Vec<&[u8]> = data.chunks_exact(24 * 2).collect();
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for head in rows.chunks_exact(12 + 10) {
            for latent in 0..24 {
                keys.extend(head[..12].iter().flat_map(|row| row[2 * latent..][..2].to_vec()));
            }
            values.extend(head[12..].concat());
        }
        let block = layer.replace("model.layers.", "blk.");
        Some(vec![
            (format!("{block}.attn_k_b.weight"), vec![4, 24, 12], kind, keys),
            (format!("{block}.attn_v_b.weight"), vec![4, 10, 24], kind, values),
        ])
    });
    check(&dir.write("split.gguf", split.bytes()), "deepseek-rand-bf16");
}

/// Importing reads no byte of a weight: banks say where the experts' matrices are.
#[test]
fn experts_become_banks_in_place() {
    let files = ModelFiles::open(&fixture("mixtral-rand-bf16"), None).unwrap();
    let module = import(&files, &OPTIONS).unwrap();
    let name = "model.layers.1.block_sparse_moe.experts.*.w2.weight";
    let bank = module.weights.values().find(|it| it.name == name).unwrap();
    let WeightInit::Bank { stored: DType::BF16, parts } = &bank.init else { panic!("{:?}", bank.init) };
    let offset = |e: usize| files.tensor(&name.replace('*', &e.to_string())).unwrap().offset;
    assert_eq!(parts.iter().map(|it| it.1).collect::<Vec<_>>(), (0..5).map(offset).collect::<Vec<_>>());
}

#[test]
fn variants_with_experts_are_refused_by_name() {
    let cases: &[(&str, &str, Json, &str)] = &[
        ("mixtral", "num_local_experts", json!(null), "key 'num_local_experts' is missing"),
        ("mixtral", "num_experts_per_tok", json!(6), "6 of 5 experts"),
        ("mixtral", "sliding_window", json!(32), "a window of 32 positions"),
        ("olmoe", "clip_qkv", json!(8.0), "key 'clip_qkv': is not understood"),
        ("olmoe", "num_experts", json!(7), "'model.layers.0.mlp.experts.6.gate_proj.weight'"),
        (
            "olmoe",
            "num_experts",
            json!(5),
            "'model.layers.0.mlp.gate.weight' has shape [6, 32], expected [5, 32]",
        ),
        ("qwen3moe", "mlp_only_layers", json!([3]), "layer 3 of 3, from 0"),
        ("qwen3moe", "decoder_sparse_step", json!(2), "'model.layers.0.mlp.gate_proj.weight'"),
        ("deepseek", "topk_method", json!("greedy"), "'greedy' is not supported (noaux_tc is)"),
        ("deepseek", "scoring_func", json!("tanh"), "'tanh' is not supported"),
        ("deepseek", "attention_bias", json!(true), "key 'attention_bias'"),
        ("deepseek", "rope_interleave", json!(false), "key 'rope_interleave'"),
        ("deepseek", "num_nextn_predict_layers", json!(0), "'model.layers.3.eh_proj.weight'"),
        ("deepseek", "num_nextn_predict_layers", json!(17), "17, at most 16"),
        ("deepseek", "quantization_config", json!({"fmt": "e4m3"}), "key 'quantization_config.fmt'"),
    ];
    let dir = Scratch::new("models-moe-refusals");
    for (name, key, value, expected) in cases {
        let fixture = fixture(&format!("{name}-rand-bf16"));
        dir.write(
            "config.json",
            edited(&read_json(&fixture.join("config.json")), &[(*key, value.clone())]).to_string(),
        );
        dir.write("model.safetensors", std::fs::read(fixture.join("model.safetensors")).unwrap());
        match import(&ModelFiles::open(dir.path(), None).unwrap(), &OPTIONS) {
            Ok(_) => panic!("{key} = {value} was accepted"),
            Err(found) => assert!(found.to_string().contains(expected), "{key} = {value}: {found}"),
        }
    }
}
