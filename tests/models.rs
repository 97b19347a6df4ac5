//! Front ends: what they build evaluates to the references, from either format; what they do not understand they refuse.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/models_container.rs"]
mod containers;
#[path = "support/models_files.rs"]
mod files;
#[path = "support/gguf.rs"]
mod gguf;
#[path = "support/models_kimi.rs"]
mod kimi;
#[path = "support/models_made.rs"]
mod made;
#[path = "support/models_moe.rs"]
mod moe;
#[path = "support/models_refusals.rs"]
mod refusals;
#[path = "support/scratch.rs"]
mod scratch;

use std::path::Path;

use files::{OPTIONS, Sizes, TINY, fixture, import_made, json};
use gguf::Gguf;
use refusals::More;
use scratch::Scratch;
use waste::formats::ModelFiles;
use waste::models::{ImportOptions, import, trained_ctx};
use waste_ir::{Inputs, Interp, Module, decode_weight, print_graph, verify};
use waste_plan::DType;

/// The float64 references of a fixture: prompts with their continuations, and logits of every position.
struct Oracle {
    prompts: Vec<(Vec<i32>, Vec<i32>)>,
    logits: Vec<Vec<f32>>,
}

impl Oracle {
    fn open(name: &str) -> Self {
        let text = json(&fixture(name).join("oracle.json"));
        let ids = |it: &serde_json::Value| serde_json::from_value::<Vec<i32>>(it.clone()).unwrap();
        let prompts: Vec<_> = text["prompts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| (ids(&it["ids"]), ids(&it["greedy"])))
            .collect();
        let bytes = std::fs::read(fixture(name).join("oracle.safetensors")).unwrap();
        let table = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let logits = (0..prompts.len()).map(|i| floats(table.tensor(&format!("logits.{i}")).unwrap().data()));
        Self { logits: logits.collect(), prompts }
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect()
}

/// Evaluates `model` on all prompts of `oracle`: logits of every position, then the greedy continuation.
fn check(model: &Path, oracle: &str) {
    let files = ModelFiles::open(model, None).unwrap();
    let ctx = trained_ctx(&files).unwrap().min(256);
    let opts = ImportOptions { ctx, batch: 1, chunk: 192, want: 192, kv: DType::F32 };
    let module = import(&files, &opts).unwrap();
    let verified = verify(&module).unwrap_or_else(|all| panic!("{}", all[0]));
    let read = |source, offset, bytes| Ok(stored(&files, &module, source, offset, bytes));
    let source = |id| decode_weight(&module, id, &read);
    let oracle = Oracle::open(oracle);
    for ((ids, greedy), expected) in oracle.prompts.iter().zip(&oracle.logits) {
        let mut interp = Interp::new(verified, &source);
        let places: Vec<i32> = (0..i32::try_from(ids.len()).unwrap()).collect();
        let rows = vec![0; ids.len()];
        let out = interp.run("prefill", &Inputs::tokens(ids, &rows, &places, &places)).unwrap();
        let error = relative_l2(out["logits"].f64s(), expected);
        assert!(error <= 1e-6, "{}: {error:e} after {} tokens", model.display(), ids.len());
        assert!(out["finite"].i32s().iter().all(|it| *it == 1));

        let mut next = *out["next"].i32s().last().unwrap();
        let mut found = vec![next];
        for pos in ids.len()..ids.len() + greedy.len() - 1 {
            let pos = i32::try_from(pos).unwrap();
            let out = interp.run("decode", &Inputs::tokens(&[next], &[0], &[pos], &[0])).unwrap();
            next = out["next"].i32s()[0];
            found.push(next);
        }
        assert_eq!(&found, greedy, "{}", model.display());
    }
}

fn stored(
    files: &ModelFiles,
    module: &Module,
    source: waste_ir::SourceId,
    offset: u64,
    bytes: u64,
) -> Vec<u8> {
    let idx = module.sources.keys().position(|it| it == source).unwrap();
    let (from, to) = (usize::try_from(offset).unwrap(), usize::try_from(offset + bytes).unwrap());
    files.sources()[idx].bytes()[from..to].to_vec()
}

fn relative_l2(found: &[f64], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = || found.iter().zip(expected).map(|(a, b)| (*a, f64::from(*b)));
    let (error, norm) = pairs().fold((0.0, 0.0), |(e, n), (a, b)| (e + (a - b) * (a - b), n + b * b));
    (error / norm).sqrt()
}

#[test]
fn gpt2_evaluates_to_its_reference() {
    check(&fixture("gpt2-rand-f32"), "gpt2-rand-f32");
}

#[test]
fn llama_with_untied_head_evaluates_to_its_reference() {
    check(&fixture("llama-rand-gqa-untied-f32"), "llama-rand-gqa-untied-f32");
}

#[test]
fn llama_with_tied_head_and_wide_heads_evaluates_to_its_reference() {
    check(&fixture("llama-rand-gqa-tied-bf16"), "llama-rand-gqa-tied-bf16");
}

#[test]
fn llama3_rope_evaluates_to_its_reference() {
    check(&fixture("llama-rand-llama3rope-f16"), "llama-rand-llama3rope-f16");
}

/// The fixture `name` as its converter would write it: renamed, q and k rows permuted for rotation in pairs.
fn llama_as_gguf(name: &str, more: impl FnOnce(Gguf) -> Gguf) -> Gguf {
    let config = json(&fixture(name).join("config.json"));
    let size = |key: &str| u32::try_from(config[key].as_u64().unwrap()).unwrap();
    let head_dim = size("hidden_size") / size("num_attention_heads");
    let mut out = Gguf::new()
        .str("general.architecture", "llama")
        .u32("llama.block_count", size("num_hidden_layers"))
        .u32("llama.context_length", size("max_position_embeddings"))
        .u32("llama.embedding_length", size("hidden_size"))
        .u32("llama.feed_forward_length", size("intermediate_size"))
        .u32("llama.attention.head_count", size("num_attention_heads"))
        .u32("llama.attention.head_count_kv", size("num_key_value_heads"))
        .u32("llama.rope.dimension_count", head_dim)
        .f32("llama.rope.freq_base", config["rope_theta"].as_f64().unwrap() as f32)
        .f32("llama.attention.layer_norm_rms_epsilon", config["rms_norm_eps"].as_f64().unwrap() as f32);
    out = more(out);
    let files = ModelFiles::open(&fixture(name), None).unwrap();
    for info in files.tensors().values() {
        let mut data = files.tensor_bytes(info).to_vec();
        let is_rotated = info.name.contains(".q_proj.") || info.name.contains(".k_proj.");
        if is_rotated {
            let row = data.len() / usize::try_from(info.shape[0]).unwrap();
            data = pairs_together(&data, row, head_dim as usize);
        }
        let dims: Vec<u64> = info.shape.iter().rev().copied().collect();
        let kind = if info.dtype == DType::F32 { 0 } else { 1 };
        out = out.tensor(&gguf_name(&info.name), &dims, kind, &data);
    }
    out
}

/// Row i and row i + d/2 of each head become rows 2i and 2i + 1.
fn pairs_together(data: &[u8], row_bytes: usize, head_dim: usize) -> Vec<u8> {
    let rows: Vec<&[u8]> = data.chunks(row_bytes).collect();
    let order = |head: &[&[u8]]| -> Vec<u8> {
        let half = head_dim / 2;
        (0..head_dim).flat_map(|i| head[i % 2 * half + i / 2].to_vec()).collect()
    };
    rows.chunks(head_dim).flat_map(order).collect()
}

fn gguf_name(name: &str) -> String {
    const NAMES: [(&str, &str); 14] = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers.", "blk."),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("self_attn.", "attn_"),
    ];
    NAMES.iter().fold(name.to_owned(), |it, (from, to)| it.replace(from, to))
}

#[test]
fn the_gguf_of_a_llama_evaluates_to_the_same_reference() {
    let dir = Scratch::new("models-llama-gguf");
    let path = dir.write("m.gguf", llama_as_gguf("llama-rand-gqa-untied-f32", |it| it).bytes());
    check(&path, "llama-rand-gqa-untied-f32");
}

/// GGUF carries Llama 3's rope scaling as divisors. Formula: transformers, `_compute_llama3_parameters`.
#[test]
fn the_rope_factors_of_a_gguf_are_llama3s_scaling() {
    let (base, dims, factor, low, high, orig) = (500_000f64, 16, 8.0, 1.0, 4.0, 64.0);
    let divisor = |i: i32| -> f32 {
        let wave = 2.0 * std::f64::consts::PI * base.powf(f64::from(2 * i) / f64::from(dims));
        let smooth = ((orig / wave - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
    };
    let factors: Vec<u8> = (0..dims / 2).flat_map(|i| divisor(i).to_le_bytes()).collect();
    let add = |it: Gguf| it.tensor("rope_freqs.weight", &[u64::try_from(dims / 2).unwrap()], 0, &factors);
    let dir = Scratch::new("models-rope-factors");
    let path = dir.write("m.gguf", llama_as_gguf("llama-rand-llama3rope-f16", add).bytes());
    check(&path, "llama-rand-llama3rope-f16");
}

#[test]
fn the_gguf_of_a_gpt2_evaluates_to_the_same_reference() {
    const NAMES: [(&str, &str); 11] = [
        ("transformer.h.", "blk."),
        ("transformer.wte", "token_embd"),
        ("transformer.wpe", "position_embd"),
        ("transformer.ln_f", "output_norm"),
        ("attn.c_attn", "attn_qkv"),
        ("attn.c_proj", "attn_output"),
        ("mlp.c_fc", "ffn_up"),
        ("mlp.c_proj", "ffn_down"),
        ("ln_1", "attn_norm"),
        ("ln_2", "ffn_norm"),
        ("transformer.", ""),
    ];
    let mut out = Gguf::new()
        .str("general.architecture", "gpt2")
        .u32("gpt2.block_count", 2)
        .u32("gpt2.context_length", 96)
        .u32("gpt2.embedding_length", 32)
        .u32("gpt2.feed_forward_length", 128)
        .u32("gpt2.attention.head_count", 4)
        .f32("gpt2.attention.layer_norm_epsilon", 1e-5);
    let files = ModelFiles::open(&fixture("gpt2-rand-f32"), None).unwrap();
    for info in files.tensors().values() {
        let mut data = files.tensor_bytes(info).to_vec();
        let mut dims: Vec<u64> = info.shape.iter().rev().copied().collect();
        if info.name.contains(".c_") && dims.len() == 2 {
            let rows: Vec<&[u8]> = data.chunks(4 * usize::try_from(info.shape[1]).unwrap()).collect();
            let columns = 0..usize::try_from(info.shape[1]).unwrap();
            data =
                columns.flat_map(|col| rows.iter().flat_map(move |it| it[4 * col..][..4].to_vec())).collect();
            dims.reverse();
        }
        let name = NAMES.iter().fold(info.name.clone(), |it, (from, to)| it.replace(from, to));
        out = out.tensor(&name, &dims, 0, &data);
    }
    let dir = Scratch::new("models-gpt2-gguf");
    check(&dir.write("m.gguf", out.bytes()), "gpt2-rand-f32");
}

#[test]
fn gpt2_names_come_without_a_prefix_too() {
    let dir = Scratch::new("models-gpt2-names");
    let mut table = files::Table::default();
    let files = ModelFiles::open(&fixture("gpt2-rand-f32"), None).unwrap();
    for info in files.tensors().values() {
        table.add(info.name.strip_prefix("transformer.").unwrap(), &info.shape);
    }
    table.add("h.0.attn.bias", &[1, 1, 96, 96]);
    table.add("h.1.attn.masked_bias", &[]);
    let config = json(&fixture("gpt2-rand-f32").join("config.json"));
    let module = import_made(&dir, &config, &table, &OPTIONS).unwrap();
    let plain = import(&files, &OPTIONS).unwrap();
    let names = |module: &Module| -> Vec<String> {
        module.weights.values().map(|it| it.name.trim_start_matches("transformer.").to_owned()).collect()
    };
    assert_eq!(names(&module), names(&plain));
    verify(&module).unwrap();
}

/// The decode graph of a made-up model of the family.
fn decode_text(model_type: &str, class: &str, bias: bool, norm: bool) -> String {
    let dir = Scratch::new(&format!("models-{model_type}"));
    let module =
        import_made(&dir, &TINY.config(model_type, class), &TINY.table(bias, norm), &OPTIONS).unwrap();
    verify(&module).unwrap();
    let text = print_graph(&module, module.graph("decode").unwrap());
    text.replace("model.layers.0.self_attn.", "").replace(".weight\"", "\"")
}

#[test]
fn qwen2_adds_biases_to_q_k_and_v_only() {
    let text = decode_text("qwen2", "Qwen2ForCausalLM", true, false);
    for part in ["q_proj", "k_proj", "v_proj"] {
        assert!(text.contains(&format!("w\"{part}\", bias=w\"{part}.bias\"")), "{text}");
    }
    assert!(!text.contains("o_proj.bias") && text.contains("o_proj\""), "{text}");
}

#[test]
fn qwen3_norms_each_head_of_q_and_k_before_rotating() {
    let text = decode_text("qwen3", "Qwen3ForCausalLM", false, true);
    let shapes: Vec<&str> = text.lines().filter(|it| it.contains("reshape")).collect();
    let dims: Vec<&str> =
        shapes.iter().map(|it| it.split_once(": ").unwrap().1.split(" =").next().unwrap()).collect();
    assert_eq!(dims, ["f32[2*B, 4]", "f32[B, 8]", "f32[B, 4]", "f32[B, 4]"], "{text}");
    let at = |needle: &str| text.find(needle).unwrap_or_else(|| panic!("no {needle} in\n{text}"));
    assert!(at("w\"q_norm\"") < at(" = rope ") && at("w\"k_norm\"") < at(" = rope "), "{text}");
    assert!(at("w\"v_proj\"") < at("kv_append @v.0"), "{text}");
}

#[test]
fn rotation_follows_the_rows_of_each_format() {
    fn with_bias(it: Gguf) -> Gguf {
        let parts = [("q", 8), ("k", 4), ("v", 4)];
        parts.iter().fold(it, |it, (part, n)| refusals::zeros(it, &format!("blk.0.attn_{part}.bias"), &[*n]))
    }
    fn with_norm(it: Gguf) -> Gguf {
        let parts = ["q", "k"];
        parts.iter().fold(it, |it, part| refusals::zeros(it, &format!("blk.0.attn_{part}_norm.weight"), &[4]))
    }
    let dir = Scratch::new("models-style");
    let cases: [(&str, More, &str); 3] =
        [("llama", |it| it, "pair"), ("qwen2", with_bias, "half"), ("qwen3", with_norm, "half")];
    for (arch, more, style) in cases {
        let path = dir.write("m.gguf", refusals::tiny_gguf(arch, more).bytes());
        let module = import(&ModelFiles::open(&path, None).unwrap(), &OPTIONS).unwrap();
        verify(&module).unwrap();
        let text = print_graph(&module, module.graph("prefill").unwrap());
        assert_eq!(text.matches(&format!("style={style}")).count(), 2, "{arch}:\n{text}");
    }
}

#[test]
fn programs_have_the_promised_inputs_and_outputs() {
    let dir = Scratch::new("models-io");
    let config = TINY.config("llama", "LlamaForCausalLM");
    let module = import_made(&dir, &config, &TINY.table(false, false), &OPTIONS).unwrap();
    let text = waste_ir::print_module(&module);
    let trimmed: String = text.lines().map(|it| format!("{}\n", it.trim())).collect();
    for line in [
        "sym B in 1..=2",
        "sym Q in 0..=2",
        "sym T in 1..=8",
        "sym R in 0..=3",
        "state @k.0: f32[2, 64, 1, 4] keys",
    ] {
        assert!(trimmed.contains(&format!("{line}\n")), "no {line} in\n{text}");
    }
    for graph in [
        "decode(token: i32[B], row: i32[B], pos: i32[B], want: i32[Q])",
        "prefill(token: i32[T], row: i32[T], pos: i32[T], want: i32[R])",
    ] {
        assert!(text.contains(graph), "no {graph} in\n{text}");
    }
    let outputs: Vec<&str> =
        module.graph("decode").unwrap().outputs.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(outputs, ["logits", "next", "finite", "@k.0", "@v.0"]);
    let (before, after) = text.split_once(" = select_rows v18, want\n").unwrap();
    let norm = after.lines().next().unwrap();
    assert!(norm.contains("rms_norm v19, w\"model.norm.weight\""), "selected before the norm: {norm}");
    assert!(!before.contains("model.norm.weight {"), "only wanted rows are normed");
    assert_eq!(module.info.ctx_trained, 64);
    let odd = ImportOptions { ctx: 33, kv: DType::F16, ..OPTIONS };
    let module = import_made(&dir, &config, &TINY.table(false, false), &odd).unwrap();
    assert!(waste_ir::print_module(&module).contains("state @v.0: f16[2, 64, 1, 4] values"));
}

/// An 8B model's shapes over a sparse file: everything is found, and no weight is touched.
#[test]
fn an_8b_model_imports_without_its_bytes() {
    let sizes =
        Sizes { layers: 32, hidden: 4096, ffn: 14336, heads: 32, kv_heads: 8, head_dim: 128, vocab: 128_256 };
    let mut table = sizes.table(false, false);
    table.add("lm_head.weight", &[sizes.vocab, sizes.hidden]);
    table.0.values_mut().for_each(|it| it.0 = "BF16");
    let config =
        files::edited(&sizes.config("llama", "LlamaForCausalLM"), &[("tie_word_embeddings", false.into())]);
    let dir = Scratch::new("models-8b");
    let opts = ImportOptions { ctx: 4096, batch: 1, chunk: 256, want: 1, kv: DType::F32 };
    let module = import_made(&dir, &config, &table, &opts).unwrap();
    assert_eq!((module.weights.len(), module.states.len()), (291, 64));
    verify(&module).unwrap();
    assert_eq!(
        module.sources.values().next().unwrap().bytes,
        std::fs::metadata(dir.path().join("model.safetensors")).unwrap().len()
    );
}
