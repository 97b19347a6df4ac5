//! `waste convert` and `waste verify`: what goes in comes out, in the same bytes whatever happens on the way.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/checkpoint.rs"]
mod checkpoint;
#[path = "support/program.rs"]
mod program;
#[path = "support/scratch.rs"]
mod scratch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use checkpoint::{Checkpoint, Sizes, bf16};
use program::Waste;
use scratch::Scratch;
use waste::convert::{ConvertOptions, Verified, convert, verify};
use waste::formats::ModelFiles;
use waste::formats::container::{MatrixKind, TrunkFormat, VqCode};
use waste::progress::Silent;

const SMALL: Sizes = Sizes { layers: 2, experts: 3, hidden: 32, inter: 24 };

const OPTIONS: ConvertOptions =
    ConvertOptions { experts: VqCode::Vq3r, trunk: TrunkFormat::Q8G, sample: 200, jobs: 1, seed: 0 };

fn open(path: &Path) -> ModelFiles {
    ModelFiles::open(path, None).unwrap()
}

/// Every file of a folder.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entry = |it: std::io::Result<std::fs::DirEntry>| {
        let it = it.unwrap();
        (it.file_name().into_string().unwrap(), std::fs::read(it.path()).unwrap())
    };
    std::fs::read_dir(folder).unwrap().map(entry).collect()
}

fn verified(container: &Path, source: &Path) -> Verified {
    verify(open(container).container().unwrap(), Some(&open(source)), &Silent).unwrap()
}

#[test]
fn a_conversion_is_close_to_its_checkpoint() {
    let dir = Scratch::new("convert-close");
    let source = Checkpoint::new(SMALL).write(&dir, "src");
    // The largest relative error of a roughly normal matrix. There are 288 vectors of a kind in a layer.
    let codes = [(VqCode::Vq3r, 0.02, 3.0), (VqCode::Vq2r, 0.1, 2.0), (VqCode::Vq4p, 0.2, 3.0)];
    let trunks =
        [(TrunkFormat::Q8G, 0.01, 8.0), (TrunkFormat::Q4G, 0.16, 4.0), (TrunkFormat::Q3G, 0.35, 3.0)];
    for ((experts, vq_error, vq_bits), (trunk, error, bits)) in codes.into_iter().zip(trunks) {
        let out = dir.path().join(experts.name());
        let options = ConvertOptions { experts, trunk, sample: 1000, ..OPTIONS };
        let made = convert(&open(&source), &out, &options, &Silent).unwrap();
        assert_eq!((made.layers, made.kept), (2, 0));
        let report = verified(&out, &source);
        assert!(report.damages.is_empty(), "{:?}", report.damages);
        assert_eq!((report.records, report.tensors, report.distances.len()), (6, 9, 9 + 6));
        for it in &report.distances {
            let (format, most, least, about) = match it.name.as_str() {
                name if name.starts_with("experts") => (experts.name(), vq_error, 0.0, vq_bits),
                "model.layers.0.mlp.up_proj.weight" => (trunk.name(), error, error / 10.0, bits),
                "model.embed_tokens.weight" | "lm_head.weight" => ("q8g", 0.01, 0.001, 8.0),
                _ => ("f32", 0.0, 0.0, 32.0),
            };
            assert_eq!(it.format, format, "{}", it.name);
            assert!((least..=most).contains(&it.relative) && it.relative <= it.worst, "{it:?}");
            // Scales are paid for by short rows.
            assert!(about <= it.bits && (it.bits < 6.0 * about), "{it:?}");
        }
    }
}

#[test]
fn books_fitted_to_few_vectors_serve_the_others() {
    let dir = Scratch::new("convert-fit");
    let source = Checkpoint::new(Sizes { layers: 1, experts: 4, hidden: 64, inter: 64 }).write(&dir, "src");
    let error = |sample: usize, seed: u64| {
        let out = dir.path().join(format!("{sample}-{seed}"));
        convert(&open(&source), &out, &ConvertOptions { sample, seed, ..OPTIONS }, &Silent).unwrap();
        let report = verified(&out, &source);
        let worst = report.distances.iter().filter(|it| it.format == "vq3r").map(|it| it.relative);
        worst.fold(0.0, f64::max)
    };
    let (few, many) = (error(300, 0), error(100_000, 0));
    assert!(many < few && many < 0.2 && few < 0.6, "{few} {many}");
    assert_ne!(error(300, 1), few, "the seed draws other vectors");
}

#[test]
fn threads_do_not_change_a_byte() {
    let dir = Scratch::new("convert-jobs");
    let source = Checkpoint::new(SMALL).write(&dir, "src");
    let run = |jobs: usize| {
        let out = dir.path().join(format!("jobs-{jobs}"));
        convert(&open(&source), &out, &ConvertOptions { jobs, ..OPTIONS }, &Silent).unwrap();
        contents(&out)
    };
    let one = run(1);
    assert_eq!(
        one.keys().map(String::as_str).collect::<Vec<_>>(),
        ["codebooks.bin", "experts-L1.bin", "experts-L2.bin", "manifest.json", "trunk.bin"]
    );
    assert_eq!(run(2), one);
}

/// The process is killed in the middle; what it had finished stays, and the container has the bytes it would have had.
#[test]
fn a_killed_conversion_is_taken_up() {
    let dir = Scratch::new("convert-killed");
    let source = Checkpoint::new(Sizes { layers: 4, experts: 6, hidden: 64, inter: 64 }).write(&dir, "src");
    let out = dir.path().join("out.waste");
    let part = dir.path().join("out.waste.part");
    let journal = || std::fs::read_to_string(part.join("journal")).unwrap_or_default();
    let command =
        || Waste::new(&dir).args(["convert", "src", "-o", "out.waste", "--jobs", "1", "--sample", "2000"]);
    let mut child = command().spawn();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !journal().contains("layer 2\n") {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "{}", journal());
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!out.exists() && !journal().contains("layer 4"), "killed too late: {}", journal());
    // The layer that was being written, and a line that was: neither counts.
    dir.write("out.waste.part/experts-L4.bin", "half a record");
    let text = journal();
    dir.write("out.waste.part/journal", text + "layer 4");
    let kept = std::fs::metadata(part.join("experts-L1.bin")).unwrap().modified().unwrap();

    let done = command().run().ok();
    assert!(done.stderr.contains("were finished before"), "{}", done.stderr);
    assert_eq!(std::fs::metadata(out.join("experts-L1.bin")).unwrap().modified().unwrap(), kept);
    assert!(!part.exists());
    let whole = dir.path().join("whole");
    convert(&open(&source), &whole, &ConvertOptions { sample: 2000, ..OPTIONS }, &Silent).unwrap();
    assert_eq!(contents(&out), contents(&whole));
}

#[test]
fn other_options_start_anew() {
    let dir = Scratch::new("convert-anew");
    let source = Checkpoint::new(SMALL).write(&dir, "src");
    let out = dir.path().join("out");
    dir.write("out.part/journal", "waste convert 1 other options\ntrunk\nlayer 1\nlayer 2\n");
    dir.write("out.part/experts-L9.bin", "of another model");
    let made = convert(&open(&source), &out, &OPTIONS, &Silent).unwrap();
    assert_eq!(made.kept, 0);
    assert_eq!(contents(&out).len(), 5);
}

fn refusal(dir: &Scratch, change: impl FnOnce(&mut Checkpoint)) -> String {
    let mut checkpoint = Checkpoint::new(SMALL);
    change(&mut checkpoint);
    let source = checkpoint.write(dir, "src");
    let err =
        convert(&open(&source), &dir.path().join("refused"), &OPTIONS, &Silent).unwrap_err().to_string();
    assert!(!err.contains('\n') && !dir.path().join("refused").exists(), "{err}");
    err
}

#[test]
fn what_cannot_be_converted_is_refused_by_name() {
    let dir = Scratch::new("convert-refused");
    let expert = "model.layers.2.block_sparse_moe.experts.1.w3.weight";
    let first = "model.layers.1.block_sparse_moe.experts.0.w1.weight";
    type Change = Box<dyn FnOnce(&mut Checkpoint)>;
    let drop = |name: &'static str| -> Change { Box::new(move |it| drop(it.tensors.remove(name))) };
    let cases: [(Change, &[&str]); 9] = [
        (drop(expert), &[expert, "missing"]),
        (drop(first), &[first, "missing"]),
        (Box::new(|it| it.config["num_experts"] = 0.into()), &["no routed experts"]),
        (
            Box::new(|it| it.config["num_experts"] = 2.into()),
            &["18 matrices of experts, the configuration 12"],
        ),
        (
            Box::new(|it| it.config["moe_intermediate_size"] = 16.into()),
            &["has shape [24, 32], expected [16, 32]"],
        ),
        (
            Box::new(|it| it.tensors.get_mut(expert).unwrap().2[10..12].copy_from_slice(&bf16(f32::NAN))),
            &[expert, "row 0 has a weight of NaN"],
        ),
        (
            Box::new(|it| it.tensors.get_mut(expert).unwrap().2[130..132].copy_from_slice(&bf16(70_000.0))),
            &[expert, "row 2 has a weight of 70144"],
        ),
        (
            Box::new(|it| {
                it.tensors.get_mut("model.norm.weight").unwrap().2[..2].copy_from_slice(&bf16(f32::INFINITY))
            }),
            &["model.norm.weight", "row 0 has a weight of inf"],
        ),
        (
            Box::new(|it| it.tensors.get_mut(expert).unwrap().0 = "I16"),
            &[expert, "dtype I16 is not supported"],
        ),
    ];
    for (change, says) in cases {
        let message = refusal(&dir, change);
        assert!(says.iter().all(|it| message.contains(it)), "{says:?}: {message}");
    }
    let odd = Checkpoint::new(Sizes { inter: 20, ..SMALL }).write(&dir, "odd");
    let err = convert(&open(&odd), &dir.path().join("refused"), &OPTIONS, &Silent).unwrap_err();
    assert!(err.to_string().contains("experts of 20 × 32 cannot be coded in vectors of 8"), "{err}");
}

#[test]
fn a_name_that_is_taken_is_refused() {
    let dir = Scratch::new("convert-taken");
    let source = Checkpoint::new(SMALL).write(&dir, "src");
    let made =
        |out: &str| Waste::new(&dir).args(["convert", "src", "-q", "--sample", "100", "-o", out]).run();
    made("out").ok();
    made("out").fails(1, "out: exists already");
    Waste::new(&dir)
        .args(["convert", "out", "-o", "again"])
        .run()
        .fails(1, "is no checkpoint in safetensors");
    Waste::new(&dir)
        .args(["convert", "src", "-o", "x", "--experts", "vq5"])
        .run()
        .fails(2, "vq3r, vq2r, vq4p");
    dir.write("busy.part/journal", "");
    let held = std::fs::File::open(dir.path().join("busy.part/journal")).unwrap();
    held.lock().unwrap();
    made("busy").fails(1, "busy.part: another conversion is writing here");
    drop(held);
    made("busy").ok();
    assert_eq!(contents(&dir.path().join("busy")), contents(&dir.path().join("out")));
    drop(source);
}

/// A container, a copy of it with one byte changed, and what `waste verify` says of that.
fn damaged(dir: &Scratch, file: &str, at: usize, value: u8) -> PathBuf {
    let folder = dir.path().join("damaged");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, mut bytes) in contents(&dir.path().join("out")) {
        if name == file {
            bytes[at] = if bytes[at] == value { value ^ 1 } else { value };
        }
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    folder
}

#[test]
fn verify_names_what_is_broken() {
    let dir = Scratch::new("convert-verify");
    let source = Checkpoint::new(SMALL).write(&dir, "src");
    let out = dir.path().join("out");
    convert(&open(&source), &out, &OPTIONS, &Silent).unwrap();
    let done = Waste::new(&dir).args(["verify", "out"]).run().ok();
    assert_eq!(done.stdout, "6 records whole: headers, checksums, scales; 9 tensors in the trunk\n");
    let done = Waste::new(&dir).args(["verify", "out", "src", "-o", "json"]).run().ok().json();
    assert_eq!(done["distances"].as_array().unwrap().len(), 15);
    assert_eq!(done["damages"].as_array().unwrap().len(), 0);
    let table = Waste::new(&dir).args(["verify", "out", "src"]).run().ok().stdout;
    assert!(
        table.contains("| experts of layer 1, gate ") && table.contains("6 tensors in f32 equal"),
        "{table}"
    );

    let files = open(&out);
    let container = files.container().unwrap();
    let bank = &container.banks()[&2];
    let record = usize::try_from(bank.record_bytes()).unwrap();
    let scales = usize::try_from(bank.matrix(MatrixKind::Gate).scales).unwrap();
    let eight = container.tensor("lm_head.weight").unwrap();
    let plain = container.tensor("model.norm.weight").unwrap();
    let at = |it: u64| usize::try_from(it).unwrap();
    let cases = [
        ("experts-L2.bin", record + 100, 1, "experts-L2.bin: expert 1 of layer 2 at 0x1030: CRC-32"),
        ("experts-L2.bin", 2 * record + scales + 1, 0x7c, "expert 2 of layer 2"),
        ("experts-L2.bin", record - 1, 1, "expert 0 of layer 2 at 0xfff: the padding is not zero"),
        ("experts-L1.bin", 0, 0, "expert 0 of layer 1 at 0x0: magic"),
        ("trunk.bin", at(eight.scale_offset) + 1, 0x7c, "tensor 'lm_head.weight'"),
        ("trunk.bin", at(plain.offset) + 3, 0x7f, "tensor 'model.norm.weight'"),
    ];
    for (file, at, value, says) in cases {
        let folder = damaged(&dir, file, at, value);
        if says.contains("norm") {
            // All ones in the exponent takes two bytes.
            let mut bytes = std::fs::read(folder.join(file)).unwrap();
            bytes[at - 1] |= 0x80;
            std::fs::write(folder.join(file), bytes).unwrap();
        }
        for args in [
            vec!["verify", "damaged"],
            vec!["verify", "damaged", "src"],
            vec!["verify", "damaged", "-o", "json"],
        ] {
            let done = Waste::new(&dir).args(args).run();
            done.fails(1, says);
            assert!(done.stdout.contains(says), "{}", done.stdout);
        }
    }
    Waste::new(&dir).args(["verify", "src"]).run().fails(1, "is no container");
}

#[test]
fn another_checkpoint_is_told_apart() {
    let dir = Scratch::new("convert-other");
    let mut checkpoint = Checkpoint::new(SMALL);
    let source = checkpoint.write(&dir, "src");
    convert(&open(&source), &dir.path().join("out"), &OPTIONS, &Silent).unwrap();
    let name = "model.layers.1.block_sparse_moe.experts.2.w2.weight";
    let bytes = &mut checkpoint.tensors.get_mut(name).unwrap().2;
    bytes.rotate_left(64);
    checkpoint.write(&dir, "other");
    let verify = || Waste::new(&dir).args(["verify", "out", "other"]).run();
    verify().fails(3, "experts of layer 1, down: the relative error of the worst is 1.");
    checkpoint.tensors.get_mut("model.norm.weight").unwrap().1 = vec![1, 32];
    let embed = checkpoint.tensors.get_mut("model.embed_tokens.weight").unwrap();
    embed.1 = vec![32, 300];
    checkpoint.write(&dir, "other");
    verify().fails(1, "tensor 'model.embed_tokens.weight'");
    checkpoint.tensors.remove("lm_head.weight");
    checkpoint.tensors.get_mut("model.embed_tokens.weight").unwrap().1 = vec![300, 32];
    checkpoint.write(&dir, "other");
    verify().fails(1, "has 8 tensors, the container's trunk 9");
}

/// A comparison with NaN is false: it must not make a checkpoint the right one.
#[test]
fn a_checkpoint_with_a_nan_is_told_apart() {
    let dir = Scratch::new("convert-nan");
    let checkpoint = Checkpoint::new(SMALL);
    let source = checkpoint.write(&dir, "src");
    convert(&open(&source), &dir.path().join("out"), &OPTIONS, &Silent).unwrap();
    for (name, at, value, says) in [
        ("model.norm.weight", 0, f32::NAN, "model.norm.weight"),
        ("model.norm.weight", 62, f32::INFINITY, "model.norm.weight"),
        ("model.layers.2.block_sparse_moe.experts.1.w3.weight", 130, f32::NAN, "experts of layer 2, up"),
    ] {
        let mut other = checkpoint.clone();
        other.tensors.get_mut(name).unwrap().2[at..at + 2].copy_from_slice(&bf16(value));
        other.write(&dir, "other");
        let done = Waste::new(&dir).args(["verify", "out", "other"]).run();
        done.fails(
            3,
            &format!("{says}: the relative error of the worst is inf: not made of this checkpoint"),
        );
        let equal = if name.ends_with("norm.weight") { 5 } else { 6 };
        assert!(done.stdout.contains(&format!("{equal} tensors in f32 equal")), "{}", done.stdout);
    }
}

/// fp8 with block scales and MXFP4 pairs: literal values, in f32 in the trunk.
#[test]
fn eight_and_four_bit_floats_are_decoded() {
    let dir = Scratch::new("convert-floats");
    let mut checkpoint = Checkpoint::new(SMALL);
    let name = |it: &str| format!("model.layers.0.{it}");
    // 3 × 5 in blocks of 2 × 4: 1.0, 448 and a subnormal.
    let mut values = vec![0x38; 15];
    (values[0], values[14]) = (0x7e, 0x81);
    checkpoint.config["quantization_config"] = serde_json::json!({"weight_block_size": [2, 4]});
    checkpoint.tensors.insert(name("a.weight"), ("F8_E4M3", vec![3, 5], values));
    let scales: Vec<u8> = [0.5f32, 3.0, 7.0, -2.0].iter().flat_map(|it| it.to_le_bytes()).collect();
    checkpoint.tensors.insert(name("a.weight_scale_inv"), ("F32", vec![2, 2], scales));
    // Two rows of 64: codes 0 to 15 from the low nibble on; scales 2, 1, 1/2, 0.
    let codes: Vec<u8> = (0..64).map(|it| it % 8 * 0x22 + 0x10).collect();
    checkpoint.tensors.insert(name("b.weight_packed"), ("U8", vec![2, 32], codes));
    checkpoint.tensors.insert(name("b.weight_scale"), ("U8", vec![2, 2], vec![128, 127, 126, 0]));
    // An expert of each kind.
    let expert = |it: &str| format!("model.layers.1.block_sparse_moe.experts.0.{it}");
    checkpoint.tensors.remove(&expert("w1.weight"));
    let fp8 = (0..24 * 32u32).map(|it| (it * 37 % 120) as u8).collect();
    checkpoint.tensors.insert(expert("w1.weight"), ("F8_E4M3", vec![24, 32], fp8));
    let scales: Vec<u8> = (0..12 * 8).flat_map(|_| 0.001f32.to_le_bytes()).collect();
    checkpoint.tensors.insert(expert("w1.weight_scale_inv"), ("F32", vec![12, 8], scales));
    checkpoint.tensors.remove(&expert("w3.weight"));
    let packed = (0..24 * 16u32).map(|it| (it * 37 % 251) as u8).collect();
    checkpoint.tensors.insert(expert("w3.weight_packed"), ("U8", vec![24, 16], packed));
    checkpoint.tensors.insert(expert("w3.weight_scale"), ("U8", vec![24, 1], vec![120; 24]));
    let source = checkpoint.write(&dir, "src");
    let out = dir.path().join("out");
    convert(&open(&source), &out, &ConvertOptions { sample: 1000, ..OPTIONS }, &Silent).unwrap();

    let files = open(&out);
    assert!(
        !files.meta().contains("quantization_config.weight_block_size"),
        "the container's weights are its own"
    );
    let container = files.container().unwrap();
    let row = |it: &str, row: u64| {
        let tensor = container.tensor(&name(it)).unwrap();
        let mut out = vec![0.0; usize::try_from(tensor.cols()).unwrap()];
        tensor.decode_row(container.trunk(), row, &mut out);
        out
    };
    assert_eq!(row("a.weight", 0), [224.0, 0.5, 0.5, 0.5, 3.0]);
    assert_eq!(row("a.weight", 2), [7.0, 7.0, 7.0, 7.0, -2.0 * -0.001_953_125]);
    let first = row("b.weight", 0);
    assert_eq!(first[..8], [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]);
    assert_eq!(
        first[8..16],
        [0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0].map(|it: f32| if it == 0.0 { -0.0 } else { it })
    );
    assert_eq!(
        (row("b.weight", 0)[33], row("b.weight", 1)[1], row("b.weight", 1)[33]),
        (0.5, 0.25, f32::MIN_POSITIVE / 4.0)
    );
    let report = verified(&out, &source);
    assert!(report.damages.is_empty(), "{:?}", report.damages);
    assert!(report.distances.iter().all(|it| it.worst < 0.3), "{:#?}", report.distances);

    let damage = |change: &dyn Fn(&mut Checkpoint)| {
        let mut other = checkpoint.clone();
        change(&mut other);
        let source = other.write(&dir, "broken");
        convert(&open(&source), &dir.path().join("refused"), &OPTIONS, &Silent).unwrap_err().to_string()
    };
    type Change<'a> = &'a dyn Fn(&mut Checkpoint);
    let cases: [(Change<'_>, &str); 6] = [
        (
            &|it| drop(it.tensors.remove(&name("a.weight_scale_inv"))),
            "'model.layers.0.a.weight_scale_inv' is missing",
        ),
        (
            &|it| it.tensors.get_mut(&name("a.weight_scale_inv")).unwrap().1 = vec![4],
            "scales of f32 [4], expected f32 [2, 2]",
        ),
        (
            &|it| drop(it.tensors.remove(&name("b.weight_scale"))),
            "has no 'model.layers.0.b.weight_scale' beside it",
        ),
        (
            &|it| it.tensors.get_mut(&name("b.weight_scale")).unwrap().1 = vec![4, 1],
            "expected u8 [n, k/2] and u8 [n, k/32]",
        ),
        (&|it| it.tensors.get_mut(&name("b.weight_scale")).unwrap().2[2] = 255, "row 1 has a weight of NaN"),
        (
            &|it| it.config["quantization_config"]["weight_block_size"] = 0.into(),
            "weight_block_size that is no pair",
        ),
    ];
    for (change, says) in cases {
        let message = damage(change);
        assert!(message.contains(says), "{says}: {message}");
    }
}
