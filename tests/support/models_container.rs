//! Containers as models: against the checkpoint of the same numbers, and against the engine that defined the format.

use std::path::{Path, PathBuf};

use waste::formats::ModelFiles;
use waste::models::{ImportOptions, import};
use waste_ir::{
    Inputs, Interp, Module, Op, WeightInit, decode_matrix, decode_weight, parse_module, print_module, verify,
};
use waste_passes::{PipelineOptions, TableBuilds};
use waste_plan::{DType, Math, Packing, Tables};

use super::made::{Code, Made, VQ2R, VQ3R, VQ4P};
use super::scratch::Scratch;
use super::{floats, relative_l2, stored};

const IDS: [i32; 12] = [3, 7, 11, 5, 9, 13, 2, 17, 4, 8, 19, 23];

fn imported(model: &Path) -> (ModelFiles, Module) {
    let files = ModelFiles::open(model, None).unwrap();
    let opts = ImportOptions { ctx: 64, batch: 1, chunk: 16, want: 16, kv: DType::F32 };
    let module = import(&files, &opts).unwrap();
    (files, module)
}

/// Logits of `want` after all of [`IDS`].
fn logits(files: &ModelFiles, module: &Module, want: &[i32]) -> Vec<f64> {
    let verified = verify(module).unwrap_or_else(|all| panic!("{}", all[0]));
    let read = |source, offset, bytes| Ok(stored(files, module, source, offset, bytes));
    let source = |id| decode_weight(module, id, &read);
    let matrix = |id, e| decode_matrix(module, id, e, &read);
    let mut interp = Interp::new(verified, &source).with_matrices(&matrix);
    let places: Vec<i32> = (0..12).collect();
    let out = interp.run("prefill", &Inputs::tokens(&IDS, &[0; 12], &places, want)).unwrap();
    out["logits"].f64s().to_vec()
}

fn both(code: Code, dir: &Scratch) -> (PathBuf, PathBuf) {
    let made = Made::new(code);
    (made.write_container(dir, "c"), made.write_checkpoint(dir, "s"))
}

/// Every trunk format, rows that are no whole groups, a prefix with a foreign tensor outside it, and each code of experts.
#[test]
fn a_container_evaluates_as_the_checkpoint_of_its_numbers() {
    for code in [VQ3R, VQ2R, VQ4P] {
        let dir = Scratch::new("models-container");
        let (container, checkpoint) = both(code, &dir);
        let all: Vec<i32> = (0..12).collect();
        let (files, module) = imported(&checkpoint);
        let expected: Vec<f32> = logits(&files, &module, &all).iter().map(|it| *it as f32).collect();
        let (files, module) = imported(&container);
        let error = relative_l2(&logits(&files, &module, &all), &expected);
        assert!(error <= 1e-6, "{}: {error:e}", code.name);
    }
}

#[test]
fn passes_change_no_bit_of_a_container_and_halve_its_tables() {
    let dir = Scratch::new("models-container-passes");
    let (files, module) = imported(&both(VQ3R, &dir).0);
    let before = logits(&files, &module, &[0, 11]);
    let options = PipelineOptions {
        math: Math::Fixed24,
        tables: Tables::Fixed24,
        lookahead: 0,
        only: None,
        disabled: Vec::new(),
        rewrite_limit: None,
        verify: true,
    };
    let mut after = module.clone();
    let report = waste_passes::run(&mut after, &options, &mut |_| {}).unwrap();
    assert_eq!(logits(&files, &after, &[0, 11]), before);
    // Of two layers, three matrices for each of two experts; then gate and up once, down for each.
    assert_eq!(report.tables, Some(TableBuilds { before: 12, after: 8, layers: 2 }));
    assert!(report.table(false).ends_with("lut_build a token: 12 -> 8 (6 -> 4 in each of 2 layers)\n"));
    let text = print_module(&after);
    assert_eq!(parse_module(&text).unwrap(), after.canonical());
    let packing = |end: &str| after.weights.values().find(|it| it.name.ends_with(end)).unwrap().packing;
    assert_eq!(packing("experts.*.w1.weight"), Some(Packing::Record));
    assert_eq!(packing("experts.*.w1.books"), Some(Packing::Columns));
    assert_eq!(packing("embed_tokens.weight"), Some(Packing::W8));
    let merged = after.weights.values().find(|it| it.name.matches('+').count() == 5).unwrap();
    assert_eq!((merged.ty.dtype, merged.packing), (DType::Q4G, Some(Packing::W4)), "{}", merged.name);
}

/// The engine whose containers these are has one eps for all norms, and a much smaller one for the lengths of q and k.
#[test]
fn a_container_has_the_eps_of_its_engine() {
    let dir = Scratch::new("models-container-eps");
    let (container, checkpoint) = both(VQ4P, &dir);
    let eps = |model: &Path| {
        let module = imported(model).1;
        let ops = module.graphs.values().flat_map(|it| it.ops.values());
        let mut found: Vec<f32> = ops
            .filter_map(|it| match it.op {
                Op::RmsNorm { eps, .. } | Op::L2Norm { eps, .. } => Some(eps),
                _ => None,
            })
            .collect();
        found.sort_by(f32::total_cmp);
        found.dedup();
        found
    };
    assert_eq!(eps(&container), [1e-12, Made::EPS]);
    assert_eq!(eps(&checkpoint), [1e-6]);
}

#[test]
fn files_of_a_container_are_named_with_the_hash_of_its_manifest_or_of_their_headers() {
    let dir = Scratch::new("models-container-sources");
    let (files, module) = imported(&both(VQ3R, &dir).0);
    let names: Vec<&str> = module.sources.values().map(|it| it.path.rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["trunk.bin", "codebooks.bin", "experts-L1.bin", "experts-L2.bin"]);
    let hashes: Vec<&str> = module.sources.values().map(|it| it.header_sha256.as_str()).collect();
    assert_eq!(hashes[0], hashes[1]);
    assert!(hashes[1] != hashes[2] && hashes[2] != hashes[3] && hashes[1] != hashes[3], "{hashes:?}");
    let bank =
        module.weights.values().find(|it| it.name.ends_with("layers.2.block_sparse_moe.experts.*.w2.weight"));
    let bank = bank.unwrap();
    let WeightInit::Records { first: 0, stride, indices, .. } = bank.init else { panic!("{:?}", bank.init) };
    let found = files.container().unwrap().banks()[&2].clone();
    assert_eq!(stride, found.record_bytes());
    assert_eq!(indices, found.matrix(waste::formats::container::MatrixKind::Down).indices);
}

#[test]
fn what_a_container_does_not_say_right_is_refused_by_name() {
    let dir = Scratch::new("models-container-refused");
    let opts = ImportOptions { ctx: 64, batch: 1, chunk: 16, want: 16, kv: DType::F32 };
    let refusal = |made: &Made| {
        let files = ModelFiles::open(&made.write_container(&dir, "c"), None).unwrap();
        import(&files, &opts).unwrap_err().to_string()
    };
    let good = Made::new(VQ3R);

    let mut made = good.clone();
    made.trunk_entry("language_model.lm_head.weight")["name"] = "language_model.model.other.weight".into();
    let message = refusal(&made);
    assert!(message.contains("lm_head.weight") || message.contains("other.weight"), "{message}");

    let mut made = good.clone();
    let shape = &mut made.trunk_entry("language_model.model.layers.1.block_sparse_moe.gate.weight")["shape"];
    *shape = serde_json::json!([3, 160]);
    assert!(refusal(&made).contains("has shape [3, 160], expected [4, 160]"));

    let mut made = good.clone();
    let last = made.banks[0].len() - made.record_bytes();
    made.banks[0][last + 10] ^= 1;
    let message = refusal(&made);
    assert!(message.contains("expert 3 of layer 1") && message.contains("codebook_id"), "{message}");
}

/// Compares last-token logits of a container under `root` with those of the engine, on its scalar rows and on its widest ones.
fn check_golden(root: &Path, name: &str, limit: f64) {
    let (files, module) = imported(&root.join(name));
    let found = logits(&files, &module, &[11]);
    for rows in ["cpu", "auto"] {
        let golden = std::fs::read(root.join(format!("golden/{name}.{rows}.bin"))).unwrap();
        let error = relative_l2(&found, &floats(&golden));
        assert!(error <= limit, "{name}.{rows}: {error:e}");
    }
}

/// Its tables of VQ4P are rounded to bytes, ours are exact: that is the second limit.
#[test]
fn containers_evaluate_as_their_engine_does() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/containers");
    for (code, limit) in [("vq3r", 2e-5), ("vq4p", 5e-2)] {
        check_golden(&root, &format!("tiny-{code}"), limit);
        check_golden(&root, &format!("tinyk3-{code}"), limit);
    }
}

/// Layers of the real width.
#[test]
#[ignore = "half a gigabyte each: name their folder in WASTE_TEST_CONTAINERS"]
fn wide_containers_evaluate_as_their_engine_does() {
    let name = "WASTE_TEST_CONTAINERS";
    let root = std::env::var_os(name).unwrap_or_else(|| panic!("{name} must name a folder of containers"));
    check_golden(Path::new(&root), "kl4-vq3r", 2e-5);
    check_golden(Path::new(&root), "kl4-vq4p", 5e-2);
}
