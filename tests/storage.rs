//! What the command line says and does about disks: the probe of a disk, what a run learns about experts for the next, files
//! that are read alone, and plans of models that are not there yet.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/program.rs"]
mod program;
#[path = "support/scratch.rs"]
mod scratch;

use std::path::{Path, PathBuf};

use program::{Done, Waste};
use scratch::Scratch;
use serde_json::Value;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// A container of experts in a folder of its own, and its plan.
fn container(dir: &Scratch, name: &str) -> (PathBuf, PathBuf) {
    let folder = dir.path().join("model.waste");
    std::fs::create_dir_all(&folder).unwrap();
    for entry in std::fs::read_dir(data("containers").join(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    let plan = dir.path().join("m.wplan");
    Waste::new(dir).arg("compile").arg(&folder).arg("-o").arg(&plan).args(["--ctx", "64"]).run().ok();
    (folder, plan)
}

fn probe(dir: &Scratch, at: &Path, more: &[&str]) -> Done {
    Waste::new(dir).arg("info").arg("--storage").arg(at).args(["--seconds", "1"]).args(more).run()
}

#[test]
fn a_probe_reads_records_of_the_size_that_a_container_has() {
    let dir = Scratch::new("storage-probe");
    let folder = data("containers/tiny-vq3r");
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(folder.join("manifest.json")).unwrap()).unwrap();
    let bank = &manifest["layers"]["1"];
    let (experts, bytes) = (bank["experts"].as_u64().unwrap(), bank["bytes"].as_u64().unwrap());

    let whole = probe(&dir, &folder, &["-o", "json", "--read-threads", "3"]).ok().json();
    assert_eq!((&whole["files"], &whole["readers"]), (&3.into(), &3.into()));
    assert_eq!(whole["records"], 3 * experts);
    assert_eq!(whole["record_bytes"], bytes / experts);
    let number = |name: &str| whole[name].as_f64().unwrap();
    assert_eq!(number("read_bytes"), number("reads") * number("record_bytes"));
    assert!(0.0 < number("gb_per_s_low") && number("gb_per_s") <= number("gb_per_s_high"), "{whole}");
    assert!(
        0.0 < number("latency_p50_ms") && number("latency_p50_ms") <= number("latency_p99_ms"),
        "{whole}"
    );
    assert_eq!(whole["access"] == "direct", whole["why_buffered"].is_null(), "{whole}");

    let text = probe(&dir, &folder.join("experts-L2.bin"), &["--buffered"]).ok().stdout;
    assert!(text.contains("buffered (as asked for)") && text.contains(" in 1 file\n"), "{text}");
    let plain = dir.path().join("plain");
    std::fs::write(&plain, vec![1; 100_000]).unwrap();
    let json = probe(&dir, &plain, &["--record", "32K", "-o", "json"]).ok().json();
    assert_eq!((&json["records"], &json["record_bytes"]), (&3.into(), &32768.into()));
    probe(&dir, &plain, &[]).fails(1, "less than one record of 2666496");
    probe(&dir, &dir.path().join("none"), &[]).fails(1, "none: ");
    Waste::new(&dir).args(["info", "--record", "4K"]).run().fails(2, "--storage");
}

fn exec(dir: &Scratch, plan: &Path, more: &[&str]) -> Waste {
    let ids = "3 7 11 5 9 13 2 17 4 8 19 23";
    let waste = Waste::new(dir).arg("exec").arg(plan).args(["--tokens", ids, "--ignore-eos", "--hash"]);
    let more = if more.contains(&"-n") { more.to_vec() } else { [&["-n", "8"], more].concat() };
    waste.args(["-t", "1", "-o", "json", "-q"]).args(more)
}

fn hash(json: &Value) -> String {
    json["prompts"][0]["logits_sha256"].as_str().unwrap().to_owned()
}

#[test]
fn what_a_run_learned_saves_the_next_one_reads_and_changes_no_bit() {
    let dir = Scratch::new("storage-learn");
    let (folder, plan) = container(&dir, "tiny-vq3r");
    let run = |more: &[&str]| exec(&dir, &plan, more).run().ok().json();
    // Room for all experts: each is read once.
    let plain = run(&["--expert-cache", "48"]);
    assert!(plain["learned"].is_null());
    let first = run(&["--expert-cache", "48", "--learn"]);
    assert_eq!((&first["learned"]["known"], &first["learned"]["warmed"]), (&0.into(), &0.into()));
    let list = dir.path().join("m.hot");
    assert!(list.exists());
    let second = run(&["--expert-cache", "48", "--learn"]);
    let of = |json: &Value, name: &str| json["experts"][name].as_u64().unwrap();
    let (known, warmed) =
        (second["learned"]["known"].as_u64().unwrap(), second["learned"]["warmed"].as_u64().unwrap());
    assert!(0 < warmed && warmed <= known, "{second}");
    assert!(0 < of(&second, "warm_hits"), "{second}");
    assert_eq!(of(&second, "reads") + of(&second, "warm_hits"), of(&first, "reads"), "{second}");
    assert_eq!(second["learned"]["tokens"], first["counters"]["tokens"]);

    // Read only, from elsewhere, with a cache of four records: all bits are the same.
    let other = dir.path().join("other.hot");
    std::fs::rename(&list, &other).unwrap();
    let third = run(&["--hot", other.to_str().unwrap(), "--expert-cache", "4"]);
    assert_eq!(third["learned"]["warmed"], 4);
    assert!(!list.exists());
    for json in [&first, &second, &third] {
        assert_eq!(hash(json), hash(&plain));
    }

    exec(&dir, &plan, &["--hot", "absent"]).run().fails(1, "absent: ");
    let mut bytes = std::fs::read(&other).unwrap();
    let last = bytes.len() - 9;
    bytes[last] ^= 1;
    std::fs::write(&list, &bytes).unwrap();
    exec(&dir, &plan, &["--learn"]).run().fails(1, "m.hot: is damaged");
    std::fs::copy(&other, &list).unwrap();
    // A container with other records is another model.
    let bank = folder.join("experts-L1.bin");
    let mut bytes = std::fs::read(&bank).unwrap();
    // The checksum in the header of the first.
    bytes[36] ^= 1;
    std::fs::write(&bank, bytes).unwrap();
    let plan = dir.path().join("m.wplan");
    Waste::new(&dir).arg("compile").arg(&folder).arg("-o").arg(&plan).args(["--ctx", "64"]).run().ok();
    exec(&dir, &plan, &["--learn"]).run().fails(1, "is of another model: 'layer 1: ");
}

#[test]
fn a_list_needs_experts_in_files_and_a_place() {
    let dir = Scratch::new("storage-place");
    let dense = data("models/llama-rand-gqa-tied-bf16");
    let run = |model: &Path, more: &[&str]| {
        Waste::new(&dir).arg("run").arg(model).args(["--tokens", "1 2", "-n", "1"]).args(more).run()
    };
    run(&dense, &["--learn"]).fails(2, "experts in files");
    let streamed = data("containers/tiny-vq3r");
    run(&streamed, &["--learn", "--no-cache"]).fails(2, "give --hot FILE");
    let done = run(&streamed, &["--learn"]).ok();
    assert!(done.stderr.contains("learned: nothing was known"), "{}", done.stderr);
    let done = run(&streamed, &["--learn"]).ok();
    assert!(done.stderr.contains(" reads fewer"), "{}", done.stderr);
    let cache = std::fs::read_dir(dir.path().join("cache")).unwrap();
    let lists = cache.filter(|it| it.as_ref().unwrap().path().extension().is_some_and(|it| it == "hot"));
    assert_eq!(lists.count(), 1);
}

#[test]
fn files_of_experts_can_be_read_alone() {
    let dir = Scratch::new("storage-alone");
    let (folder, plan) = container(&dir, "tiny-vq3r");
    exec(&dir, &plan, &["--exclusive-open"]).run().ok();
    let bank = std::fs::File::open(folder.join("experts-L1.bin")).unwrap();
    bank.try_lock_shared().unwrap();
    exec(&dir, &plan, &[]).run().ok();
    exec(&dir, &plan, &["--exclusive-open"]).run().fails(1, "experts-L1.bin: others are reading it");
    bank.unlock().unwrap();
    bank.try_lock().unwrap();
    exec(&dir, &plan, &[]).run().fails(1, "experts-L1.bin: somebody reads it alone");
}

/// Prefill steps of one program read the same dense weights each, so what is left is the experts that had a token.
#[test]
fn multiplied_weights_count_the_experts_that_were_used() {
    let dir = Scratch::new("storage-weights");
    let (_, plan) = container(&dir, "tiny-vq3r");
    // Three bytes for eight weights, and a scale of two for each row: two matrices of 128 × 256, one of 256 × 128.
    let expert = 3 * (128 * 256 / 8 * 3) + 2 * (128 + 128 + 256);
    let dense = |chunk: &str| {
        let json = exec(&dir, &plan, &["--chunk", chunk, "-n", "1", "--expert-cache", "5"]).run().ok().json();
        let of = |part: &str, name: &str| json[part][name].as_u64().unwrap();
        let used = of("experts", "hits") + of("experts", "misses");
        of("counters", "weight_bytes") - used * expert
    };
    let one = dense("12");
    assert!(0 < one);
    assert_eq!([dense("6"), dense("4"), dense("3")], [2, 3, 4].map(|steps| steps * one));
}

fn plan(dir: &Scratch, model: &Path, more: &[&str]) -> Done {
    Waste::new(dir).arg("plan").arg(model).args(["-o", "json", "--ctx", "64"]).args(more).run()
}

fn copy(from: &Path, names: &[&str], to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for name in names {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

/// Before anything is downloaded: from the configuration of the large model alone.
#[test]
fn a_configuration_alone_says_what_a_budget_buys() {
    let dir = Scratch::new("storage-shaped");
    let config = data("models/k3-shaped/config.json");
    let more = ["--experts", "vq3r", "--trunk", "q4g", "--budget", "46G", "--nvme", "7"];
    let json = plan(&dir, &config, &more).ok().json();
    let caches = json["expert_caches"].as_array().unwrap();
    // 3 bits a weight of 3 · 3072 · 3584, scales of two bytes a row, and a header, in whole blocks.
    let (record, layers, experts) = (12_406_784, 92, 896);
    let field = |it: &Value, name: &str| it[name].as_f64().unwrap();
    for it in caches {
        assert_eq!(it["cache_bytes"].as_u64().unwrap(), it["slots"].as_u64().unwrap() * record);
        let misses = 1.0 - field(it, "hit_rate");
        let read = misses * 16.0 * layers as f64 * record as f64;
        assert!((field(it, "read_bytes_a_token") - read).abs() <= 1e-6 * read, "{it}");
    }
    let slots: Vec<u64> = caches.iter().map(|it| it["slots"].as_u64().unwrap()).collect();
    assert_eq!((slots[0], *slots.last().unwrap()), (2 * 16, layers * experts));
    let paced: Vec<f64> = caches.iter().filter_map(|it| it["tokens_per_second"].as_f64()).collect();
    assert!(
        paced.is_sorted() && paced.len() + 1 == caches.len(),
        "nothing is read where all fits: {paced:?}"
    );
    // The cache of the plan is the largest that the budget holds.
    let planned = json["expert_slots"].as_u64().unwrap();
    let chosen = caches.iter().find(|it| it["slots"] == planned).unwrap();
    let needs = chosen["needed_bytes"].as_u64().unwrap();
    assert!(needs <= 46 << 30 && 46 << 30 < needs + record, "{needs}");
    assert!(json["floor_bytes"].as_u64().unwrap() < 46 << 30);

    let small = plan(&dir, &config, &["--trunk", "q4g", "--budget", "8G"]);
    small.fails(4, "8589934592 are allowed");
    let text = Waste::new(&dir).arg("plan").arg(&config).args(["--trunk", "q4g"]).run().ok().stdout;
    assert!(text.contains("working set") && text.contains("1,472 records"), "{text}");
}

/// What is declared is what is made: the plan of a configuration is that of its container, with all files or the manifest only.
#[test]
fn a_plan_of_shapes_is_the_plan_of_the_container() {
    let dir = Scratch::new("storage-declared");
    let source = data("models/kimi-k3-rand-bf16");
    for (experts, trunk) in [("vq3r", "q8g"), ("vq4p", "q4g"), ("vq2r", "f32")] {
        let at = |name: &str| dir.path().join(experts).join(name).join("m");
        let made = at("made");
        std::fs::create_dir_all(made.parent().unwrap()).unwrap();
        let coding = ["--experts", experts, "--trunk", trunk];
        let convert = Waste::new(&dir).arg("convert").arg(&source).arg("-o").arg(&made).args(coding);
        convert.args(["--sample", "100", "--jobs", "1", "-q"]).run().ok();
        let whole = plan(&dir, &made, &[]).ok().stdout;

        let shapes = at("shapes");
        copy(&source, &["config.json"], &shapes);
        // A container has the engine's epsilons and no context of its own; neither shows in a plan's bytes.
        assert_eq!(plan(&dir, &shapes, &coding).ok().stdout, whole);
        assert_eq!(plan(&dir, &shapes.join("config.json"), &coding).ok().stdout, whole);
        copy(&source, &["config.json", "model.safetensors"], &at("weights"));
        assert_eq!(plan(&dir, &at("weights"), &coding).ok().stdout, whole);

        copy(&made, &["manifest.json"], &at("manifest"));
        assert_eq!(plan(&dir, &at("manifest"), &[]).ok().stdout, whole);
        // Only planning does without the files.
        let done = Waste::new(&dir).arg("compile").arg(at("manifest")).args(["-o", "x.wplan"]).run();
        done.fails(1, "trunk.bin");
    }
}

#[test]
fn a_configuration_that_cannot_be_planned_is_refused_in_one_line() {
    let dir = Scratch::new("storage-refused");
    let folder = dir.path().join("bad");
    let good: Value =
        serde_json::from_slice(&std::fs::read(data("models/kimi-k3-rand-bf16/config.json")).unwrap())
            .unwrap();
    let with = |key: &str, value: Value| {
        std::fs::create_dir_all(&folder).unwrap();
        let mut config = good.clone();
        config[key] = value;
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        plan(&dir, &folder, &[])
    };
    with("hidden_size", 40.into()).ok();
    with("num_experts", 0.into()).fails(1, "num_experts");
    with("routed_expert_hidden_size", 20.into()).fails(1, "vectors of 8");
    with("routed_expert_hidden_size", 1_000_000.into()).ok();
    with("model_type", "unknown".into()).fails(1, "'unknown' is not supported");
    for key in ["vocab_size", "intermediate_size", "q_lora_rank"] {
        with(key, u32::MAX.into()).fails(1, "is larger than any model");
    }
    with("num_hidden_layers", (1 << 30).into()).fails(1, "expected 1 to 65536");
    with("num_hidden_layers", 5000.into()).fails(1, "5000 layers");
    std::fs::write(folder.join("config.json"), "{").unwrap();
    plan(&dir, &folder, &[]).fails(1, "not valid JSON");
    plan(&dir, dir.path(), &["--experts", "vq3r"]).fails(1, "no checkpoint with a config.json");
}
