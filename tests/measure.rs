//! The verbs that measure: `bench`, `eval` and `info`, run as a user runs them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use support::scratch::Scratch;
use support::{Fixture, rel_l2};

const MODEL: &str = "llama-rand-gqa-untied-f32";

fn waste(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waste"));
    for name in ["WASTE_THREADS", "WASTE_BACKEND", "WASTE_LOG"] {
        command.env_remove(name);
    }
    command.args(args).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = waste(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).unwrap()
}

fn error(args: &[&str]) -> (Option<i32>, String) {
    let output = waste(args);
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn model() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models").join(MODEL).display().to_string()
}

#[test]
fn bench_has_the_fields_and_test_names_of_llama_bench() {
    let model = model();
    let args = ["bench", &model, "-p", "20", "-n", "3", "-d", "0,5", "-r", "3", "-t", "1", "--chunk", "8"];
    let records = json(&[&args[..], &["-o", "json"]].concat());
    let shapes: Vec<[u64; 3]> = records
        .as_array()
        .unwrap()
        .iter()
        .map(|it| ["n_prompt", "n_gen", "n_depth"].map(|name| it[name].as_u64().unwrap()))
        .collect();
    assert_eq!(shapes, [[20, 0, 0], [0, 3, 0], [20, 0, 5], [0, 3, 5]]);
    for record in records.as_array().unwrap() {
        let tokens = record["n_prompt"].as_f64().unwrap() + record["n_gen"].as_f64().unwrap();
        let samples = record["samples_ns"].as_array().unwrap();
        let rates = record["samples_ts"].as_array().unwrap();
        assert_eq!((samples.len(), rates.len(), &record["n_threads"]), (3, 3, &Value::from(1)));
        let rate = tokens * 1e9 / samples[0].as_f64().unwrap();
        assert!((rates[0].as_f64().unwrap() / rate - 1.0).abs() < 1e-9);
        let mean = rates.iter().map(|it| it.as_f64().unwrap()).sum::<f64>() / 3.0;
        assert!((record["avg_ts"].as_f64().unwrap() / mean - 1.0).abs() < 1e-9);
        assert!(0.0 < record["roof_gb_s"].as_f64().unwrap());
    }
    // A longer history costs more bytes of cache, and the weights are read once a call: three chunks, three tokens.
    let bytes = |i: usize| records[i]["memory_bytes"].as_u64().unwrap();
    assert!(bytes(0) < bytes(2) && bytes(1) < bytes(3));

    let table = stdout(&args);
    let tests: Vec<&str> = table.lines().skip(2).map(|it| it.split('|').nth(6).unwrap().trim()).collect();
    assert_eq!(tests, ["pp20", "tg3", "pp20 @ d5", "tg3 @ d5"]);
    let csv = stdout(&[&args[..], &["-o", "csv"]].concat());
    assert_eq!(csv.lines().count(), 5);
    assert!(csv.starts_with("build_commit,build_number,cpu_info,"));
}

#[test]
fn a_profile_accounts_for_every_step_and_byte() {
    let model = model();
    let args = ["bench", &model, "-p", "0", "-n", "4", "-r", "1", "-t", "2", "--profile", "-o", "json"];
    let record = &json(&args)[0];
    let profile = &record["profile"][0];
    assert_eq!((profile["program"].as_str(), profile["calls"].as_u64()), (Some("decode"), Some(4)));
    let classes = profile["classes"].as_array().unwrap();
    let sum = |name: &str| classes.iter().map(|it| it[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("weight_bytes") + sum("state_bytes"), record["memory_bytes"].as_u64().unwrap());
    assert_eq!(sum("flops"), record["flops"].as_u64().unwrap());
    assert!(0 < sum("ns"));
    assert!(classes.iter().any(|it| it["op"] == "linear f32x16"), "{classes:?}");
    assert!(classes.iter().any(|it| it["op"] == "attention f32"), "{classes:?}");

    let text = stdout(&args[..args.len() - 2]);
    assert!(text.contains("tg4, 2 threads, roof ") && text.contains(": decode, 4 calls\n"), "{text}");
}

#[test]
fn a_profile_of_ops_has_every_step_and_the_sums_of_its_classes() {
    let (model, scratch) = (model(), Scratch::new("measure-ops"));
    let plan = scratch.path().join("m.wplan").display().to_string();
    stdout(&["compile", &model, "-o", &plan, "--ctx", "64"]);
    let shown = stdout(&["dump", &plan, "--stage", "plan"]);
    let program = shown.split("\nprogram ").find(|it| it.starts_with("\"prefill\"")).unwrap();
    let steps = program.lines().filter(|it| it.trim_start().starts_with('#')).count();
    let args = ["bench", &plan, "-p", "32", "-n", "0", "-r", "1", "-t", "1", "--profile=ops"];
    let profile = &json(&[&args[..], &["-o", "json"]].concat())[0]["profile"][0];
    let (ops, classes) = (profile["ops"].as_array().unwrap(), profile["classes"].as_array().unwrap());
    let numbers: Vec<u64> = ops.iter().map(|it| it["step"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..steps as u64).collect::<Vec<_>>());
    for class in classes {
        let its: Vec<&Value> = ops.iter().filter(|it| it["op"] == class["op"]).collect();
        assert_eq!(its.len() as u64, class["steps"].as_u64().unwrap(), "{class}");
        for name in ["weight_bytes", "state_bytes", "other_bytes", "flops", "ns"] {
            let sum: u64 = its.iter().map(|it| it[name].as_u64().unwrap()).sum();
            assert_eq!(sum, class[name].as_u64().unwrap(), "{name}: {class}");
        }
        let least: f64 = its.iter().map(|it| it["least_ns"].as_f64().unwrap()).sum();
        assert!((least - class["least_ns"].as_f64().unwrap()).abs() <= 1e-9 * least, "{class}");
    }
    let head = ops.iter().find(|it| it["tensor"] == "lm_head.weight").unwrap();
    assert_eq!((&head["shape"], &head["op"]), (&"R×64 → R×272".into(), &"linear f32x16".into()));
    // 272 rows of 64 weights, four bytes each, for one row of logits.
    assert_eq!((&head["weight_bytes"], &head["flops"]), (&69_632.into(), &34_816.into()));

    let text = stdout(&args);
    let table = text.split("\n\n").last().unwrap();
    assert!(
        table.contains("% of possible") && table.contains("layers.0.self_attn.q_proj.weight +2"),
        "{table}"
    );
    assert_eq!(table.trim_end().lines().count(), 2 + steps + 1, "{table}");
    assert!(stdout(&args[..args.len() - 1]).lines().count() < 4, "no profile unless asked for");
}

#[test]
fn what_does_not_fit_is_a_usage_error() {
    let scratch = Scratch::new("measure-usage");
    let plan = scratch.path().join("m.wplan").display().to_string();
    stdout(&["compile", &model(), "-o", &plan, "--ctx", "32"]);
    let (code, line) = error(&["bench", &plan, "-p", "33", "-n", "0"]);
    assert_eq!((code, line.as_str()), (Some(2), "waste: pp33 needs 33 positions, the plan has 32\n"));
    let (code, line) = error(&["bench", &plan, "-p", "0", "-n", "0"]);
    assert_eq!((code, line.as_str()), (Some(2), "waste: nothing to measure: give -p or -n\n"));
    assert!(stdout(&["bench", &plan, "-p", "32", "-n", "0", "-r", "1"]).contains("pp32"));
}

/// The logits of every position, against the float64 references, whatever the step.
#[test]
fn eval_writes_the_logits_of_every_position() {
    let scratch = Scratch::new("measure-logits");
    let fixture = Fixture::open(MODEL);
    let model = model();
    let longest = (0..fixture.prompts.len()).max_by_key(|it| fixture.prompts[*it].ids.len()).unwrap();
    let ids = serde_json::to_string(&fixture.prompts[longest].ids).unwrap();
    let tokens = scratch.write("ids.json", &ids);
    let mut files = Vec::new();
    for (index, extra) in
        [&["-t", "1"][..], &["-t", "2", "--chunk", "3"], &["--chunk", "1"]].iter().enumerate()
    {
        let out = scratch.path().join(format!("{index}.npy"));
        let (tokens, out) = (tokens.display().to_string(), out.display().to_string());
        stdout(&[&["eval", &model, "--tokens", &tokens, "--logits", &out][..], extra].concat());
        files.push(std::fs::read(&out).unwrap());
    }
    assert!(files.windows(2).all(|it| it[0] == it[1]), "the bits depend on the step");

    let (head, data) = files[0].split_at(128);
    let rows = fixture.prompts[longest].ids.len();
    let shape = format!("'shape': ({rows}, {})", fixture.logits[longest].len() / rows);
    assert!(String::from_utf8_lossy(head).contains(&shape));
    let logits: Vec<f32> =
        data.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().unwrap())).collect();
    let error = rel_l2(&logits, &fixture.logits[longest]);
    assert!(error <= 1e-5, "relative L2 {error:.2e}");
}

#[test]
fn eval_names_what_is_wrong() {
    let scratch = Scratch::new("measure-eval");
    let model = model();
    let file = scratch.write("bad.txt", "1 2 x").display().to_string();
    let out = scratch.path().join("out.npy").display().to_string();
    let (code, line) = error(&["eval", &model, "--tokens", &file, "--logits", &out]);
    assert_eq!((code, line), (Some(1), format!("waste: {file}: 'x' is no token id\n")));
    let (code, line) = error(&["eval", &model, "-f", &file]);
    assert_eq!((code, line), (Some(1), format!("waste: {model}: has no tokenizer\n")));
    assert_eq!(error(&["eval", &model]).0, Some(2));
    assert_eq!(error(&["eval", &model, "--tokens", &file]).0, Some(2));
}

#[test]
fn info_lists_every_row_and_the_limit_that_set_the_threads() {
    let info = json(&["info", "-o", "json", "--backend", "cpu:portable", "-t", "3"]);
    assert_eq!((info["threads"].as_u64(), info["backend"].as_str()), (Some(3), Some("cpu:portable")));
    let kernels = info["kernels"].as_array().unwrap();
    assert!(30 < kernels.len() && kernels.iter().all(|it| it["tier"] == "portable"));
    assert_eq!(info["tiers"].as_array().unwrap().len(), 8);

    assert_eq!(error(&["info", "-t", "0"]).0, Some(2), "as exec has it");
    let mut command = Command::new(env!("CARGO_BIN_EXE_waste"));
    let output = command.args(["info"]).env("WASTE_THREADS", "1").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("threads    1 (as asked)\n") && text.contains("  WASTE_THREADS=1\n"), "{text}");
}

/// Each session is opened by a process as free as the first found it.
#[cfg(target_os = "linux")]
#[test]
fn bench_runs_every_test_on_the_processors_that_are_asked_for() {
    let machine = waste_runtime::sys::Machine::detect();
    let allowed: Vec<usize> = machine.cpus.iter().filter(|it| it.is_allowed).map(|it| it.id).collect();
    let [first, .., last] = allowed[..] else { return };
    let (model, cpus) = (model(), format!("{first},{last}"));
    let args = ["bench", &model, "--cpus", &cpus, "-t", "1,2", "-p", "8", "-n", "2", "-r", "1", "-o", "json"];
    let threads: Vec<u64> =
        json(&args).as_array().unwrap().iter().map(|it| it["n_threads"].as_u64().unwrap()).collect();
    assert_eq!(threads, [1, 1, 2, 2]);
}

/// The sentence of the README, where all states are used: those of a saved session take no memory beside their own.
#[cfg(target_os = "linux")]
#[test]
fn resident_memory_stays_within_32_mib_of_what_is_stated() {
    const POSITIONS: usize = 1 << 17;
    let scratch = Scratch::new("measure-resident");
    let name = |it: &str| scratch.path().join(it).display().to_string();
    let (plan, file) = (name("m.wplan"), name("s.bin"));
    stdout(&["compile", &model(), "-o", &plan, "--ctx", &POSITIONS.to_string()]);
    let exec = ["exec", &plan, "--tokens", "1", "-n", "1", "-o", "json", "--session", &file];
    json(&exec);
    std::fs::write(&file, lengthened(&std::fs::read(&file).unwrap(), POSITIONS - 64)).unwrap();

    let found = json(&exec);
    let memory = |it: &str| found["memory"][it].as_u64().unwrap();
    let saved = std::fs::metadata(&file).unwrap().len();
    assert!(saved > 48 << 20, "{saved} bytes are saved");
    assert!(saved < memory("needed_bytes") && memory("needed_bytes") < memory("peak_rss_bytes") + (32 << 20));
    assert!(
        memory("peak_rss_bytes") <= memory("needed_bytes") + (32 << 20),
        "{} bytes were resident, {} are stated",
        memory("peak_rss_bytes"),
        memory("needed_bytes")
    );
}

/// A saved session of one tile of positions, made one of `len` tokens whose states are zero.
fn lengthened(saved: &[u8], len: usize) -> Vec<u8> {
    let word = |at: usize| u32::from_le_bytes(saved[at..at + 4].try_into().unwrap()) as usize;
    let described = &saved[24..24 + word(8)];
    let tile = saved.len() - 24 - described.len() - 4 * word(12) - word(20) - 4;
    let len_word = u32::try_from(len).unwrap().to_le_bytes();
    let mut out = [&saved[..12], &len_word, &len_word, &[0; 4], described].concat();
    (0..len).for_each(|_| out.extend(1u32.to_le_bytes()));
    out.resize(out.len() + tile * len.div_ceil(32), 0);
    out.extend(waste_plan::file::crc32c(&out).to_le_bytes());
    out
}
