//! Kimi-Linear against its references: logits, states, and that neither chunks nor neighbours change a bit.

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use waste::formats::ModelFiles;
use waste::models::{ImportOptions, import};
use waste_ir::{Inputs, Interp, Module, StateKind, decode_weight, verify};
use waste_plan::DType;

use super::files::{OPTIONS, edited, fixture, json as read_json};
use super::scratch::Scratch;
use super::{check, floats, relative_l2, stored};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/kimi-tiny")
}

#[test]
fn kimi_tiny_evaluates_to_its_reference() {
    check(&tiny(), "kimi-tiny");
}

/// Grouped routing, two shared experts, values wider than keys.
#[test]
fn kimi_with_groups_and_awkward_sizes_evaluates_to_its_reference() {
    check(&fixture("kimi-rand-bf16"), "kimi-rand-bf16");
}

/// What Kimi K3 adds: latent experts, SiTU, residuals of earlier blocks, bounded decay, full gates, latent queries, gated outputs.
#[test]
fn kimi_k3_evaluates_to_its_reference() {
    check(&fixture("kimi-k3-rand-bf16"), "kimi-k3-rand-bf16");
}

/// Latent attention that rotates, with YaRN; softmax scores in groups, not renormalised.
#[test]
fn rotating_latent_attention_evaluates_to_its_reference() {
    check(&fixture("kimi-yarn-rand-bf16"), "kimi-yarn-rand-bf16");
}

/// Ids with their rows and positions.
type Call = (Vec<i32>, Vec<i32>, Vec<i32>);
/// Logits of each token, and what each state holds after the last call.
type Outcome = (Vec<Vec<f64>>, Vec<(String, Vec<f64>)>);

/// The random fixture for three rows.
struct Model {
    files: ModelFiles,
    module: Module,
}

impl Model {
    fn open() -> Self {
        let files = ModelFiles::open(&fixture("kimi-rand-bf16"), None).unwrap();
        let opts = ImportOptions { ctx: 64, batch: 3, chunk: 32, want: 32, kv: DType::F32 };
        let module = import(&files, &opts).unwrap();
        Self { files, module }
    }

    /// Calls one after the other.
    fn run(&self, calls: &[Call]) -> Outcome {
        let read = |source, offset, bytes| Ok(stored(&self.files, &self.module, source, offset, bytes));
        let source = |id| decode_weight(&self.module, id, &read);
        let mut interp = Interp::new(verify(&self.module).unwrap(), &source);
        let mut logits = Vec::new();
        for (ids, rows, places) in calls {
            let want: Vec<i32> = (0..i32::try_from(ids.len()).unwrap()).collect();
            let out = interp.run("prefill", &Inputs::tokens(ids, rows, places, &want)).unwrap();
            logits.extend(out["logits"].rows().map(<[f64]>::to_vec));
        }
        let states = self.module.states.values();
        let states = states.map(|it| (it.name.clone(), interp.state(&it.name).unwrap().to_vec()));
        (logits, states.collect())
    }
}

/// The prompt of 17 ids that the reference's states belong to.
fn prompt() -> Vec<i32> {
    super::Oracle::open("kimi-rand-bf16").prompts[1].0.clone()
}

/// One row's ids, from position `from`.
fn call(ids: &[i32], row: i32, from: i32) -> Call {
    (ids.to_vec(), vec![row; ids.len()], (from..).take(ids.len()).collect())
}

#[test]
fn chunks_change_no_bit() {
    let (model, ids) = (Model::open(), prompt());
    let whole = model.run(&[call(&ids, 0, 0)]);
    let single: Vec<_> = (0..).zip(&ids).map(|(pos, id)| call(&[*id], 0, pos)).collect();
    assert_eq!(model.run(&single), whole);
    let (head, tail) = ids.split_at(5);
    assert_eq!(model.run(&[call(head, 0, 0), call(tail, 0, 5)]), whole);
}

/// Rows of different lengths in one call, and a row that begins anew over what another prompt left behind.
#[test]
fn rows_do_not_see_each_other() {
    let (model, ids) = (Model::open(), prompt());
    let (alone, _) = model.run(&[call(&ids, 0, 0)]);
    let parts = [call(&ids[..3], 2, 0), call(&ids, 0, 0), call(&ids[..2], 1, 0)];
    let packed = parts.iter().fold((vec![], vec![], vec![]), |(mut ids, mut rows, mut places), part| {
        ids.extend(&part.0);
        rows.extend(&part.1);
        places.extend(&part.2);
        (ids, rows, places)
    });
    let old = call(&[1, 2, 3, 4, 5, 6, 7], 0, 0);
    let (logits, _) = model.run(&[old, packed, call(&ids[3..], 2, 3)]);
    let logits = &logits[7..];
    assert_eq!(logits[..3], alone[..3], "row 2");
    assert_eq!(logits[3..20], alone, "row 0");
    assert_eq!(logits[20..22], alone[..2], "row 1");
    assert_eq!(logits[22..], alone[3..], "row 2 again");
}

/// What lives on after a prompt is what the reference keeps.
#[test]
fn states_are_those_of_the_reference() {
    let model = Model::open();
    let (_, states) = model.run(&[call(&prompt(), 0, 0)]);
    let bytes = std::fs::read(fixture("kimi-rand-bf16").join("oracle.safetensors")).unwrap();
    let table = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut compared = 0;
    for (name, found) in &states {
        let (kind, layer) = name.split_once('.').unwrap();
        let reference = match kind {
            "delta" => format!("state.S.{layer}"),
            "latent" => format!("state.ckv.{layer}"),
            ring => format!("state.conv.{layer}.{}", ring.strip_prefix("ring_").unwrap()),
        };
        let expected = floats(table.tensor(&reference).unwrap().data());
        let error = relative_l2(&found[..expected.len()], &expected);
        assert!(error <= 1e-6, "{name}: {error:e}");
        compared += 1;
    }
    assert_eq!(compared, 3 * 4 + 2);
    for state in model.module.states.values() {
        let recurrent = !state.name.starts_with("latent");
        assert_eq!(state.kind == StateKind::Recurrent, recurrent, "{}", state.name);
    }
}

/// What importing a fixture with an edited configuration says.
fn with_config(dir: &Scratch, name: &str, edits: &[(&str, Json)]) -> Result<Module, String> {
    dir.write("config.json", edited(&read_json(&fixture(name).join("config.json")), edits).to_string());
    dir.write("model.safetensors", std::fs::read(fixture(name).join("model.safetensors")).unwrap());
    import(&ModelFiles::open(dir.path(), None).unwrap(), &OPTIONS).map_err(|it| it.to_string())
}

#[test]
fn kimi_variants_are_refused_by_name() {
    const KDA: &str = "linear_attn_config.kda_layers";
    const FULL: &str = "linear_attn_config.full_attn_layers";
    let cases: &[(&str, Json, &str)] = &[
        ("num_key_value_heads", json!(2), "key 'num_key_value_heads': 2, but latents are shared"),
        (KDA, json!([0, 1]), "layer 0 of 1 to 5 is out of range or twice"),
        (KDA, json!([1, 6]), "layer 6 of 1 to 5"),
        (KDA, json!([1, 1]), "layer 1 of 1 to 5"),
        (KDA, json!([1, 2]), "key 'linear_attn_config.full_attn_layers': layer 4 is in neither list"),
        (
            FULL,
            json!([3, 4, 5]),
            "layer 4 of 1 to 5 is out of range or in 'linear_attn_config.kda_layers' too",
        ),
        ("linear_attn_config.short_conv_kernel_size", json!(1), "1, expected at least 2"),
        ("linear_attn_config.gate_lower_bound", json!(0.5), "0.5, expected at most 0"),
        ("linear_attn_config.use_full_rank_gate", json!(false), "'model.layers.0.self_attn.g_a_proj.weight'"),
        ("num_hidden_layers", json!(4_000_000), "4000000 layers, but there are"),
        ("hidden_act", json!("xielu"), "key 'hidden_act': 'xielu'"),
        ("activation_situ_beta", json!(0.0), "key 'activation_situ_beta'"),
        ("moe_router_activation_func", json!("tanh"), "'tanh' is not supported (sigmoid and softmax are)"),
        ("num_expert_group", json!(3), "1 of 3 groups of 8 experts"),
        ("topk_group", json!(2), "2 of 1 groups"),
        ("num_experts_per_token", json!(9), "9 of 8 experts"),
        ("moe_layer_freq", json!(2), "key 'moe_layer_freq': 2, expected 1"),
        ("first_k_dense_replace", json!(6), "6 of 5 layers"),
        ("num_nextn_predict_layers", json!(1), "key 'num_nextn_predict_layers': is not understood"),
        ("moe_intermediate_size", json!(24), "has shape [16, 24], expected [24, 24]"),
        ("kv_lora_rank", json!(16), "'model.layers.2.self_attn.kv_b_proj.weight' has shape [88, 24]"),
        ("attn_res_block_size", json!(0), "'model.layers.0.mlp_res_norm.weight'"),
        ("latent_moe_use_norm", json!(false), "'model.layers.1.block_sparse_moe.routed_expert_norm.weight'"),
        ("mla_use_output_gate", json!(false), "'model.layers.2.self_attn.g_proj.weight'"),
    ];
    let dir = Scratch::new("models-kimi-refusals");
    for (key, value, expected) in cases {
        match with_config(&dir, "kimi-k3-rand-bf16", &[(*key, value.clone())]) {
            Ok(_) => panic!("{key} = {value} was accepted"),
            Err(found) => assert!(found.contains(expected), "{key} = {value}: {found}"),
        }
    }
}

#[test]
fn rotations_of_latents_are_refused_by_name() {
    let cases: &[(&str, Json, &str)] = &[
        ("rope_scaling.type", json!("linear"), "'linear' is not supported (default and yarn are)"),
        ("rope_scaling.type", json!(null), "key 'rope_scaling.type' is missing"),
        ("rope_scaling.mscale", json!(1.0), "1, but mscale_all_dim is 0.7"),
        ("rope_scaling.mscale_all_dim", json!(null), "key 'rope_scaling.mscale_all_dim' is missing"),
        ("rope_scaling.attention_factor", json!(1.5), "key 'rope_scaling.attention_factor'"),
        ("rope_theta", json!(1.0), "1, expected a number above 1"),
        ("qk_rope_head_dim", json!(7), "rotates 7 of 7 elements"),
        ("use_grouped_topk", json!(false), "false, but there are 4 groups"),
    ];
    let dir = Scratch::new("models-kimi-rope");
    for (key, value, expected) in cases {
        match with_config(&dir, "kimi-yarn-rand-bf16", &[(*key, value.clone())]) {
            Ok(_) => panic!("{key} = {value} was accepted"),
            Err(found) => assert!(found.contains(expected), "{key} = {value}: {found}"),
        }
    }
    // Where nothing turns, nothing that is said of turning matters.
    let edits = [("mla_use_nope", json!(true)), ("rope_scaling.type", json!("longrope"))];
    with_config(&dir, "kimi-yarn-rand-bf16", &edits).unwrap();
}
