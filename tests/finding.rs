//! Tools that find faults of plans and differences of models: poisoned execution, bisection, divergence, comparison.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/finding_hidden.rs"]
mod hidden;
#[path = "support/program.rs"]
mod program;
#[path = "support/samples.rs"]
mod samples;
#[path = "support/scratch.rs"]
mod scratch;

use std::path::Path;

use program::Waste;
use samples::{LLAMA, MODELS, model};
use scratch::Scratch;
use serde_json::Value;
use waste::progress::Silent;
use waste::report::buffers::buffers;
use waste::report::lifetimes::deaths;
use waste_ir::parse_module;
use waste_plan::DType;
use waste_plan::file::{PlanWriter, WeightsAt};
use waste_plan::schema::{Place, Plan, Rows};
use waste_plan::validate::validate;
use waste_runtime::weights::WeightBuffer;
use waste_runtime::{Death, Deaths, ExpertOptions, LoadedPlan, RuntimeError, Session, SessionOptions, Token};

fn loaded(name: &str) -> LoadedPlan {
    samples::compiled(name).load(&Silent).unwrap()
}

fn session(loaded: &LoadedPlan, threads: usize, slots: Option<u64>) -> Session {
    let experts = ExpertOptions { slots, ..ExpertOptions::default() };
    let options = SessionOptions { threads, verify: false, experts, ..SessionOptions::default() };
    Session::open(loaded, &options).unwrap()
}

fn deaths_of(loaded: &LoadedPlan) -> Deaths {
    deaths(&parse_module(loaded.ir()).unwrap(), loaded.plan()).unwrap()
}

/// The bits of the logits after a full chunk, a short one, and two single tokens.
fn bits(session: &mut Session) -> Result<Vec<u32>, RuntimeError> {
    let ids: Vec<u32> = (0..22).map(|it| (it * 7 + 3) % session.plan().model.vocab).collect();
    let mut bits = Vec::new();
    for part in [&ids[..16], &ids[16..20], &ids[20..21], &ids[21..]] {
        let batch: Vec<Token> = part.iter().map(|id| Token { row: 0, id: *id }).collect();
        session.step(&batch, &[u32::try_from(part.len()).unwrap() - 1])?;
        bits.extend(session.logits(0).iter().map(|it| it.to_bits()));
    }
    Ok(bits)
}

#[test]
fn a_right_plan_has_the_same_bits_when_poisoned() {
    for name in MODELS {
        let loaded = loaded(name);
        let expected = bits(&mut session(&loaded, 1, None)).unwrap();
        let deaths = deaths_of(&loaded);
        let died: usize = deaths.0.iter().flatten().map(Vec::len).sum();
        assert!(died > 20, "{name}: only {died} values die");
        for threads in [1, 2] {
            let mut poisoned = session(&loaded, threads, None);
            poisoned.poison(deaths.clone());
            let found = bits(&mut poisoned).unwrap_or_else(|err| panic!("{name}: {err}"));
            assert!(found == expected, "{name}, {threads} threads");
        }
    }
}

/// A loop over experts whose cache holds few of them runs several times: what it reads in a later turn is not dead after the first.
#[test]
fn a_loop_that_turns_often_survives_poison() {
    let loaded = loaded("containers/tiny-vq3r");
    let expected = bits(&mut session(&loaded, 1, None)).unwrap();
    let mut poisoned = session(&loaded, 2, Some(2));
    poisoned.poison(deaths_of(&loaded));
    assert!(bits(&mut poisoned).unwrap() == expected);
}

/// `loaded` with another plan.
fn with_plan(loaded: &LoadedPlan, plan: Plan) -> LoadedPlan {
    let mut weights = WeightBuffer::new(plan.memory.weights).unwrap();
    let bytes = weights.bytes_mut();
    for (index, weight) in plan.weights.iter().enumerate() {
        let at = usize::try_from(weight.offset).unwrap();
        let packed = loaded.weight(index);
        bytes[at..at + packed.len()].copy_from_slice(packed);
    }
    LoadedPlan::from_parts(plan, weights, loaded.ir(), loaded.text()).unwrap()
}

/// Plans of which one step of the prefill program reads a value that is dead, from bytes that hold nothing else by then; and the step.
fn misplaced_reads(loaded: &LoadedPlan, deaths: &Deaths) -> Vec<(Plan, usize)> {
    let at = loaded.plan().programs.iter().position(|it| it.name == "prefill").unwrap();
    let program = &loaded.plan().programs[at];
    let alive = buffers(program);
    let mut found = Vec::new();
    for (index, step) in program.steps.iter().enumerate() {
        let is_read = |slot: &usize| {
            let it = &step.reads[*slot];
            matches!(it.place, Place::Scratch(_)) && it.dtype == DType::F32 && it.rows == Rows::Tokens(1)
        };
        let Some(slot) = (0..step.reads.len()).find(is_read) else { continue };
        let size = step.reads[slot].span(u64::from(program.tokens)).unwrap();
        let is_free = |it: &&Death| {
            let Place::Scratch(offset) = it.place.place else { return false };
            let room = it.place.span(it.place.rows.count(program.tokens, program.want)).unwrap();
            let meets = alive.iter().filter(|it| it.live.contains(&index));
            let is_apart =
                meets.into_iter().all(|it| it.offset + it.bytes <= offset || offset + size <= it.offset);
            room >= size && is_apart
        };
        let Some(place) = deaths.0[at][..index].iter().flatten().find(is_free).map(|it| it.place.place)
        else {
            continue;
        };
        let mut plan = loaded.plan().clone();
        plan.programs[at].steps[index].reads[slot].place = place;
        if validate(&plan).is_ok() {
            found.push((plan, index));
        }
    }
    found
}

#[test]
fn a_misplaced_read_is_named() {
    let right = loaded(LLAMA);
    let deaths = deaths_of(&right);
    let wrong = misplaced_reads(&right, &deaths);
    assert!(wrong.len() > 5, "{} plans", wrong.len());
    for (plan, step) in wrong {
        let loaded = with_plan(&right, plan);
        // Without poison nobody complains.
        assert!(bits(&mut session(&loaded, 1, None)).is_ok(), "step {step}");
        let mut poisoned = session(&loaded, 2, None);
        poisoned.poison(deaths_of(&loaded));
        let said = bits(&mut poisoned).unwrap_err().to_string();
        assert!(
            said.starts_with(&format!("prefill: step {step} (")) && said.contains("dead"),
            "{step}: {said}"
        );
    }
}

#[test]
fn exec_poisons_on_demand() {
    let scratch = Scratch::new("finding-exec");
    let plan = compiled(&scratch, LLAMA);
    let run = |extra: &[&str]| {
        let args = ["exec", &plan, "--tokens", "1 2 3", "-n", "4", "--hash"];
        Waste::new(&scratch).args(args).args(extra).run().ok()
    };
    let (plain, poisoned) = (run(&[]), run(&["--poison", "-t", "2"]));
    assert_eq!(plain.stdout, poisoned.stdout);
    let hash = |it: &str| it.lines().find(|it| it.contains("sha256:")).unwrap().to_owned();
    assert_eq!(hash(&plain.stderr), hash(&poisoned.stderr));
}

/// A plan file of a model of tests/data.
fn compiled(scratch: &Scratch, name: &str) -> String {
    let path = scratch.path().join("m.wplan");
    let args = ["--ctx", "64", "--chunk", "16", "-o"];
    Waste::new(scratch).arg("compile").arg(model(name)).args(args).arg(&path).run().ok();
    path.display().to_string()
}

#[test]
fn every_op_of_a_right_plan_is_within_tolerance() {
    for name in MODELS {
        let scratch = Scratch::new("finding-bisect-right");
        let plan = compiled(&scratch, name);
        let args = ["bisect", &plan, "-o", "json", "--against"];
        let found = Waste::new(&scratch).args(args).arg(model(name)).run().ok().json();
        let ops = found["ops"].as_array().unwrap();
        assert!(ops.len() > 30 && found["first_over"].is_null(), "{name}: {} ops", ops.len());
        for program in ["decode", "prefill"] {
            assert!(ops.iter().any(|it| it["program"] == program), "{name}: {program}");
        }
        let logits = found["logits"].as_f64().unwrap();
        assert!(0.0 < logits && logits < 1e-5, "{name}: logits {logits:.1e}");
        assert!(0.0 < found["amplification"].as_f64().unwrap(), "{name}");
    }
}

/// Merged adapters are part of the reference; without them the files are not those of the plan.
#[test]
fn a_plan_with_merged_adapters_is_right() {
    let scratch = Scratch::new("finding-bisect-lora");
    let plan = scratch.path().join("m.wplan");
    let adapter = model("adapters/llama-patterns");
    let base = || Waste::new(&scratch);
    base().arg("compile").arg(model(LLAMA)).arg("--lora").arg(&adapter).arg("-o").arg(&plan).run().ok();
    let bisect = || base().arg("bisect").arg(&plan).arg("--against").arg(model(LLAMA));
    let found = bisect().args(["-o", "json", "--lora"]).arg(&adapter).run().ok().json();
    assert!(found["first_over"].is_null() && found["logits"].as_f64().unwrap() < 1e-5, "{found}");
    bisect().run().fails(1, "adapter_model.safetensors'; an adapter is given with --lora");
}

/// A plan of LLAMA with `value` for the first number of a late matrix, and that matrix's name.
fn with_weight(scratch: &Scratch, value: f32) -> (String, String) {
    let right = LoadedPlan::open(Path::new(&compiled(scratch, LLAMA))).unwrap();
    let plan = right.plan();
    let is_late = |name: &str| name.contains("layers.1.") && name.contains("o_proj");
    let changed = plan.weights.iter().position(|it| is_late(&it.name)).unwrap();
    let path = scratch.path().join("wrong.wplan");
    let mut writer = PlanWriter::create(&path, plan, right.ir(), right.text(), WeightsAt::Inside).unwrap();
    for index in 0..plan.weights.len() {
        let mut bytes = right.weight(index).to_vec();
        if index == changed {
            bytes[..4].copy_from_slice(&value.to_le_bytes());
        }
        writer.weight(index, &bytes).unwrap();
    }
    writer.finish().unwrap();
    (path.display().to_string(), plan.weights[changed].name.clone())
}

/// The logits are not finite then: what was found before is said all the same.
#[test]
fn a_weight_that_is_no_number_is_found_by_name() {
    let scratch = Scratch::new("finding-bisect-nan");
    let (plan, name) = with_weight(&scratch, f32::NAN);
    let done =
        Waste::new(&scratch).args(["bisect", &plan, "-o", "json", "--against"]).arg(model(LLAMA)).run();
    done.fails(3, &name);
    let found = done.json();
    assert!(found["first_over"]["name"].as_str().unwrap().contains(&name), "{found}");
    assert!(found["first_over"]["own"].is_null() && found["logits"].is_null(), "JSON has no NaN: {found}");
}

#[test]
fn a_changed_weight_is_found_by_name() {
    let scratch = Scratch::new("finding-bisect-wrong");
    let (plan_name, weight) = with_weight(&scratch, 1.0);
    let run = |form: &str| {
        let args = ["bisect", &plan_name, "-o", form, "--against"];
        Waste::new(&scratch).args(args).arg(model(LLAMA)).run()
    };
    let done = run("json");
    done.fails(3, &weight);
    let found = done.json();
    let first = &found["first_over"];
    assert!(first["name"].as_str().unwrap().contains(&weight), "{first}");
    // Only the ops that read it are wrong on their own, one a program; the logits are wrong because of them.
    let over = found["ops"].as_array().unwrap().iter().filter(|it| it["own"].as_f64().unwrap() > 1e-5);
    assert_eq!(over.count(), 2, "{found}");
    assert!(found["logits"].as_f64().unwrap() > 1e-5, "{found}");
    assert!(run("text").stdout.contains("end to end: logits "));
    // A model of other files is no reference.
    let other = ["bisect", &plan_name, "--against"];
    let done = Waste::new(&scratch).args(other).arg(model("models/gpt2-rand-f32")).run();
    done.fails(1, "the plan was compiled from files of");
}

#[test]
fn divergence_is_nothing_from_itself_and_little_from_rounded_caches() {
    let scratch = Scratch::new("finding-kl");
    let ids: Vec<String> = (0..40).map(|it| ((it * 37 + 5) % 250).to_string()).collect();
    let tokens = scratch.write("ids.txt", ids.join(" "));
    let base = scratch.path().join("base.npy");
    let eval = |extra: &[&str]| {
        Waste::new(&scratch).arg("eval").arg(model(LLAMA)).arg("--tokens").arg(&tokens).args(extra)
    };
    eval(&["--logits"]).arg(&base).run().ok();
    let same = eval(&["-o", "json", "--chunk", "7", "--kl"]).arg(&base).run().ok().json();
    assert_eq!((&same["positions"], &same["kl"], &same["kl_max"]), (&40.into(), &0.0.into(), &0.0.into()));
    assert_eq!((&same["top1"], &same["top10"]), (&1.0.into(), &1.0.into()));
    let rounded = eval(&["-o", "json", "--kv", "f16", "--kl"]).arg(&base).run().ok().json();
    let kl = rounded["kl"].as_f64().unwrap();
    assert!(0.0 < kl && kl < 1e-4 && kl <= rounded["kl_max"].as_f64().unwrap(), "{rounded}");
    let text = eval(&["--kl"]).arg(&base).run().ok().stdout;
    assert!(
        text.starts_with("KL = 0.000000 ± 0.000000 nats") && text.contains("top-10 agreement = 100.00"),
        "{text}"
    );

    let fewer = scratch.write("fewer.txt", "1 2 3");
    let done = Waste::new(&scratch)
        .arg("eval")
        .arg(model(LLAMA))
        .arg("--tokens")
        .arg(fewer)
        .arg("--kl")
        .arg(&base)
        .run();
    done.fails(1, "base.npy: an array <f4 (40, 272), expected <f4 (3, 272)");
    let broken = scratch.write("broken.npy", &std::fs::read(&base).unwrap()[..300]);
    eval(&["--kl"]).arg(broken).run().fails(1, "broken.npy: ");
}

#[cfg(unix)]
#[test]
fn another_program_is_compared_in_turn() {
    let scratch = Scratch::new("finding-compare");
    let record = "[{\\\"n_prompt\\\": 8, \\\"n_gen\\\": 0, \\\"avg_ts\\\": 0.5}]";
    let script = format!("#!/bin/sh\necho ran >> runs.log\nsleep 0.01\necho \"{record}\"\n");
    scratch.write("fake.sh", script);
    let bench = |command: &str| {
        Waste::new(&scratch).arg("bench").arg(model(LLAMA)).args([
            "-p",
            "8",
            "-n",
            "0",
            "-r",
            "1",
            "-t",
            "1",
            "--rounds",
            "2",
            "--compare",
            command,
        ])
    };
    let table = bench("sh fake.sh").args(["--observations", "seen.json"]).run().ok().stdout;
    let row: Vec<&str> =
        table.lines().find(|it| it.contains("pp8")).unwrap().split('|').map(str::trim).collect();
    assert_eq!((row[3], row[5], row[6]), ("0.50", "4", "faster"), "{table}");
    assert_eq!(row[8], "1.000 (1.000 – 1.000)", "{table}");

    let seen: Value =
        serde_json::from_slice(&std::fs::read(scratch.path().join("seen.json")).unwrap()).unwrap();
    let all = seen["observations"].as_array().unwrap();
    let sides: String = all.iter().map(|it| it["side"].as_str().unwrap()).collect();
    assert_eq!(sides, "ababbaabba");
    assert_eq!(all.iter().filter(|it| it["warm_up"] == true).count(), 2);
    assert!(all.iter().all(|it| it["records"][0]["avg_ts"].as_f64().unwrap() > 0.0));
    assert!(all.iter().filter(|it| it["side"] == "b").all(|it| it["seconds"].as_f64().unwrap() >= 0.01));
    assert_eq!(std::fs::read_to_string(scratch.path().join("runs.log")).unwrap().lines().count(), 5);
    assert_eq!(seen["results"][0]["verdict"], "faster");

    // A program without records is compared by the time it takes.
    let wall = bench("sleep 0").args(["-o", "json"]).run().ok().json();
    assert_eq!((&wall[0]["test"], &wall[0]["verdict"]), (&"runs/s".into(), &"slower".into()), "{wall}");
    bench("exit 7").run().fails(1, "exit 7: ");
    let late = bench("sleep 1000 | cat").args(["--compare-timeout", "1"]).run();
    late.fails(1, "ended after 1 seconds: --compare-timeout allows more");
    bench(" ").run().fails(2, "--compare needs a command");
}

/// What was started is ended with the comparison.
#[cfg(unix)]
#[test]
fn an_interrupted_comparison_leaves_nothing_behind() {
    let scratch = Scratch::new("finding-compare-interrupt");
    let (pid, args) = (scratch.path().join("pid"), ["-p", "1", "-n", "0", "-r", "1", "-t", "1", "--compare"]);
    let bench = Waste::new(&scratch).arg("bench").arg(model(LLAMA)).args(args);
    let child = bench.arg("echo $$ > new; mv new pid; sleep 1000; echo").spawn();
    let started = std::time::Instant::now();
    while !pid.exists() {
        assert!(started.elapsed().as_secs() < 120, "it does not start");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let pid = std::fs::read_to_string(pid).unwrap().trim().to_owned();
    let kill =
        |args: &[&str]| std::process::Command::new("kill").args(args).output().unwrap().status.success();
    assert!(kill(&["-0", &pid]) && kill(&["-INT", &child.id().to_string()]));
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(130), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(!kill(&["-0", &pid]), "the shell still runs");
}

#[test]
fn a_profile_says_what_is_possible() {
    let scratch = Scratch::new("finding-roofline");
    let bench = |form: &str| {
        let args = ["-p", "0", "-n", "4", "-r", "1", "-t", "1", "--profile", "-o", form];
        Waste::new(&scratch).arg("bench").arg(model(LLAMA)).args(args).run().ok()
    };
    let profile = &bench("json").json()[0]["profile"][0];
    let classes = profile["classes"].as_array().unwrap();
    let least: f64 = classes.iter().map(|it| it["least_ns"].as_f64().unwrap()).sum();
    let possible = profile["possible_ts"].as_f64().unwrap();
    assert!((possible * least / 4e9 - 1.0).abs() < 1e-9, "{possible} tokens/s in {least} ns");
    assert!(classes.iter().all(|it| ["memory", "arithmetic"].contains(&it["bound"].as_str().unwrap())));
    let text = bench("md").stdout;
    assert!(text.contains("tokens/s on this machine (") && text.contains("% of possible"), "{text}");
}
