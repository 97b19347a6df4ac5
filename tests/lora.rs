//! Adapters: merged at compile they give the logits of a checkpoint into which NumPy merged them; what cannot be merged is refused by
//! name.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests, which show their figures")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use support::scratch::Scratch;
use support::{Fixture, Run, rel_l2, run};
use waste::compile::{CompileOptions, compile, compile_text, import_module};
use waste::formats::{Adapter, ModelFiles};
use waste::progress::Silent;
use waste_ir::interp::{Inputs, Interp, decode_weight};
use waste_ir::{SourceId, WeightInit, parse_module, print_module};
use waste_plan::ids::EntityRef;
use waste_runtime::LoadedPlan;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn adapters(names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|it| data("adapters").join(it)).collect()
}

fn options(names: &[&str]) -> CompileOptions {
    CompileOptions { chunk: Some(32), want: Some(32), lora: adapters(names), ..CompileOptions::usual() }
}

/// The base, its adapters, and the file with the matrices that NumPy merged.
const CASES: [(&str, &[&str], &str); 3] = [
    ("llama-rand-gqa-untied-f32", &["llama-patterns", "llama-rslora"], "llama.safetensors"),
    ("gpt2-rand-f32", &["gpt2"], "gpt2.safetensors"),
    ("llama-rand-gqa-tied-bf16", &["llama-bf16"], "llama-bf16.safetensors"),
];

/// The base with the merged matrices in place of its own.
fn merged_checkpoint(scratch: &Scratch, base: &str, merged: &str) -> Fixture {
    let folder = data("models").join(base);
    let read = |path: &Path| std::fs::read(path).unwrap();
    let (own, other) = (read(&folder.join("model.safetensors")), read(&data("adapters").join(merged)));
    let (own, other) = (SafeTensors::deserialize(&own).unwrap(), SafeTensors::deserialize(&other).unwrap());
    let mut all: BTreeMap<String, TensorView<'_>> = own.tensors().into_iter().collect();
    for (name, view) in other.tensors() {
        assert!(view.dtype() == Dtype::F32 && all.insert(name.clone(), view).is_some(), "{name}");
    }
    let at = scratch.write(&format!("{base}/model.safetensors"), serialize(&all, None).unwrap());
    scratch.write(&format!("{base}/config.json"), read(&folder.join("config.json")));
    Fixture::at(at.parent().unwrap(), &folder)
}

/// Logits of every position by the f64 evaluator on the imported graphs.
fn evaluate(files: &ModelFiles, options: &CompileOptions, ids: &[u32]) -> Vec<f32> {
    let module = import_module(files, options).unwrap();
    let adapters: Vec<Adapter> = options.lora.iter().map(|it| Adapter::open(it).unwrap()).collect();
    let sources: Vec<_> = files.sources().iter().chain(adapters.iter().map(Adapter::source)).collect();
    let read = |source: SourceId, offset: u64, bytes: u64| {
        let at = usize::try_from(offset).unwrap();
        Ok(sources[source.index()].bytes()[at..at + usize::try_from(bytes).unwrap()].to_vec())
    };
    let weights = |id| decode_weight(&module, id, &read);
    let verified = waste_ir::verify(&module).unwrap_or_else(|all| panic!("{}", all[0]));
    let token: Vec<i32> = ids.iter().map(|it| i32::try_from(*it).unwrap()).collect();
    let pos: Vec<i32> = (0..).take(ids.len()).collect();
    let inputs = Inputs::tokens(&token, &vec![0; ids.len()], &pos, &pos);
    let outputs = Interp::new(verified, &weights).run("prefill", &inputs).unwrap();
    outputs["logits"].f64s().iter().map(|it| *it as f32).collect()
}

#[test]
fn logits_are_those_of_the_merged_checkpoint() {
    let scratch = Scratch::new("lora-logits");
    for (base, names, merged) in CASES {
        let plain = Fixture::open(base);
        let merged = merged_checkpoint(&scratch, base, merged);
        let ids = &plain.prompts[0].ids[..plain.prompts[0].ids.len().min(24)];
        let expected = evaluate(&merged.files, &options(&[]), ids);
        let found = evaluate(&plain.files, &options(names), ids);
        let error = rel_l2(&found, &expected);
        assert!(error <= 1e-6, "{base}: evaluator {error:.2e}");
        let change = rel_l2(&evaluate(&plain.files, &options(&[]), ids), &expected);
        assert!(change > 1e-2, "{base}: the adapter changes nothing ({change:.2e})");

        let loaded = compile(&plain.files, &options(names), &mut |_| ()).unwrap().load(&Silent).unwrap();
        let error = rel_l2(&run(&loaded, &Run::default(), &[ids]).remove(0), &expected);
        println!("{base}: product {error:.2e}");
        assert!(error <= 1e-5, "{base}: product {error:.2e}");
    }
}

/// Also with the weights left outside, through the plan file and through the texts, which say what is merged.
#[test]
fn adapters_survive_files_and_texts() {
    let scratch = Scratch::new("lora-files");
    let (base, names, _) = CASES[0];
    let plain = Fixture::open(base);
    let ids = &plain.prompts[1].ids[..8];
    let compiled = compile(&plain.files, &options(names), &mut |_| ()).unwrap();
    let logits = |loaded: &LoadedPlan| run(loaded, &Run::default(), &[ids]).remove(0);
    let expected = logits(&compiled.load(&Silent).unwrap());
    for embed in [true, false] {
        let path = scratch.path().join(format!("{embed}.wplan"));
        let plan = compiled.write(&path, embed, &Silent).unwrap();
        assert_eq!(logits(&LoadedPlan::open(&path).unwrap()), expected, "embed {embed}");
        assert_eq!(plan.sources.len(), 3);
        let text = waste_plan::text::print(&plan);
        assert_eq!(waste_plan::text::parse(&text).unwrap(), plan);
    }
    let verified = waste::compile::verified(&compiled.module).unwrap();
    waste_codegen::check::check(&verified, &compiled.plan).unwrap();
    let mut other = compiled.plan.clone();
    let term = other.weights.iter_mut().flat_map(|it| &mut it.parts).find_map(|it| it.terms.first_mut());
    term.unwrap().scale += 1.0;
    waste_codegen::check::check(&verified, &other).unwrap_err();

    let text = print_module(&compiled.module);
    assert_eq!(print_module(&parse_module(&text).unwrap()), text);
    let imported = print_module(&import_module(&plain.files, &options(names)).unwrap());
    let options = CompileOptions { lora: Vec::new(), ..options(names) };
    let from_text = |text: &str| compile_text("text", text, Path::new("/"), &options, &mut |_| ());
    assert_eq!(logits(&from_text(&imported).unwrap().load(&Silent).unwrap()), expected, "from text");
    let hash = &compiled.module.sources.values().next_back().unwrap().header_sha256;
    let message = from_text(&imported.replace(&hash[..], &"0".repeat(64))).unwrap_err().to_string();
    assert!(message.contains("has a header of SHA-256"), "{message}");
    let both = "weight \"model.layers.0.self_attn.q_proj.weight+lora\": f32[64, 64] = merge \
                \"model.layers.0.self_attn.q_proj.weight\" + f32 a @1+";
    let line = text.lines().find(|it| it.trim_start().starts_with(both)).unwrap();
    assert!(
        line.contains("rank 4 scale 1.5 + bf16 a @2+") && line.contains("rank 3 scale 1.1547005383792517")
    );
    assert!(
        compiled
            .module
            .weights
            .values()
            .any(|it| matches!(&it.init, WeightInit::Concat(_)) && it.name.contains("q_proj.weight+lora+")),
        "merged matrices are merged side by side too"
    );
}

/// An adapter with one thing changed: a line of its configuration, or a tensor.
struct Changed<'a> {
    scratch: &'a Scratch,
    from: &'a str,
}

impl Changed<'_> {
    fn refusal(&self, base: &ModelFiles, edit: impl Fn(&mut serde_json::Value, &mut Tensors)) -> String {
        let folder = data("adapters").join(self.from);
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
        let mut config = serde_json::from_slice(&read("adapter_config.json")).unwrap();
        let bytes = read("adapter_model.safetensors");
        let mut tensors = Tensors::new();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            tensors.insert(name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
        }
        edit(&mut config, &mut tensors);
        let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let at = self.scratch.write("a/adapter_model.safetensors", serialize(views, None).unwrap());
        self.scratch.write("a/adapter_config.json", config.to_string());
        let options = CompileOptions { lora: vec![at.parent().unwrap().to_owned()], ..options(&[]) };
        let message = compile(base, &options, &mut |_| ()).unwrap_err().to_string();
        assert!(!message.contains('\n') && message.len() < 700, "{message}");
        message
    }
}

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

const Q: &str = "base_model.model.model.layers.0.self_attn.q_proj";

fn rename(tensors: &mut Tensors, from: &str, to: &str) {
    let it = tensors.remove(from).unwrap();
    tensors.insert(to.to_owned(), it);
}

#[test]
fn what_cannot_be_merged_is_refused_by_name() {
    let scratch = Scratch::new("lora-refusals");
    let base = Fixture::open(CASES[0].0);
    let changed = Changed { scratch: &scratch, from: "llama-patterns" };
    let keys: [(&str, serde_json::Value, &str); 16] = [
        ("use_dora", true.into(), "key 'use_dora': true is not supported"),
        ("bias", "all".into(), "key 'bias': 'all' is not supported"),
        ("peft_type", "LOHA".into(), "'LOHA' is not supported (LORA is)"),
        ("modules_to_save", vec!["lm_head"].into(), "key 'modules_to_save': is not understood"),
        ("layer_replication", vec![vec![0, 1]].into(), "key 'layer_replication.0'"),
        ("init_lora_weights", "pissa".into(), "'pissa' changes the base too"),
        ("r", 5.into(), "lora_A.weight' at"),
        ("r", serde_json::Value::Null, "key 'r' is missing"),
        ("r", 0.into(), "key 'r': a rank of 0"),
        ("lora_alpha", 0.into(), "key 'lora_alpha': an alpha of 0 adds nothing"),
        ("alpha_pattern", serde_json::json!({"q_proj": 0}), "an alpha of 0 adds nothing"),
        ("use_bdlora", serde_json::json!({"nblocks": 2}), "key 'use_bdlora.nblocks': is not understood"),
        ("target_modules", vec!["q_proj", "v_proj"].into(), "'target_modules' does not name"),
        ("target_modules", vec!["q_proj", "v_proj", "down_proj", "c_attn"].into(), "'c_attn' has no tensors"),
        ("rank_pattern", serde_json::json!({".*q_proj": 4}), "is a regular expression"),
        (
            "rank_pattern",
            serde_json::json!({"q_proj": 4, "0.self_attn.q_proj": 2, "down_proj": 2}),
            "and differ",
        ),
    ];
    for (key, value, expected) in keys {
        let message = changed.refusal(&base.files, |config, _| config[key] = value.clone());
        assert!(message.contains(expected), "{key}: {message}");
    }
    let (a, b) = (format!("{Q}.lora_A.weight"), format!("{Q}.lora_B.weight"));
    let tensor = |expected: &str, edit: &dyn Fn(&mut Tensors)| {
        let message = changed.refusal(&base.files, |_, tensors| edit(tensors));
        assert!(message.contains(expected), "{message}");
    };
    tensor(&format!("'{a}' at 0x"), &|it| drop(it.remove(&b)));
    tensor("has no 'lora_B.weight' beside it", &|it| drop(it.remove(&b)));
    tensor("has no 'lora_A.weight' beside it", &|it| drop(it.remove(&a)));
    tensor("is DoRA", &|it| rename(it, &a, &format!("{Q}.lora_magnitude_vector")));
    tensor("adapts an embedding", &|it| {
        rename(it, &a, "base_model.model.model.embed_tokens.lora_embedding_A")
    });
    tensor("does not begin with 'base_model.model.'", &|it| rename(it, &a, "q.lora_A.weight"));
    tensor("is neither 'lora_A.weight' nor", &|it| rename(it, &a, &format!("{Q}.lora_A.default.weight")));
    tensor("module 'model.layers.7.self_attn.q_proj' is unknown", &|it| {
        rename(it, &a, "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight");
        rename(it, &b, "base_model.model.model.layers.7.self_attn.q_proj.lora_B.weight");
    });
    tensor("adds a matrix of [32, 64], the model's is [64, 64]", &|it| {
        let it = it.get_mut(&b).unwrap();
        (it.1, it.2) = (vec![32, 4], it.2[..32 * 4 * 4].to_vec());
    });
    tensor("expected [4, inputs]", &|it| it.get_mut(&a).unwrap().1 = vec![64, 4]);
}

#[test]
fn other_formats_and_empty_folders_are_refused() {
    let scratch = Scratch::new("lora-other");
    let refusal = |files: &ModelFiles, folder: &Path| {
        let options = CompileOptions { lora: vec![folder.to_owned()], ..options(&[]) };
        compile(files, &options, &mut |_| ()).unwrap_err().to_string()
    };
    let quantised = Fixture::quantised(CASES[0].0);
    let message = refusal(&quantised.files, &data("adapters/llama-patterns"));
    assert!(message.contains("adapters name the matrices of a safetensors checkpoint"), "{message}");
    let base = Fixture::open(CASES[0].0);
    let message = refusal(&base.files, scratch.path());
    assert!(message.contains("holds no adapter_config.json"), "{message}");
    scratch.write("adapter_config.json", "{}");
    let message = refusal(&base.files, scratch.path());
    assert!(message.contains("holds no adapter_model.safetensors"), "{message}");
}
