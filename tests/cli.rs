//! The program as a user runs it: verbs, streams, exit codes, one line of error.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/program.rs"]
mod program;
#[path = "support/scratch.rs"]
mod scratch;

use std::path::{Path, PathBuf};

use program::{Done, Waste, folder_with_tokenizer};
use scratch::Scratch;
use serde_json::Value;

/// A random Llama with float64 references.
const MODEL: &str = "llama-rand-gqa-untied-f32";

/// The id that ends its texts.
const EOS: u64 = 257;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models").join(MODEL)
}

/// A plan of the model in `scratch`, compiled with `flags`.
fn compile(scratch: &Scratch, flags: &[&str]) -> PathBuf {
    let path = scratch.path().join("m.wplan");
    Waste::new(scratch).args(["compile"]).arg(model()).arg("-o").arg(&path).args(flags).run().ok();
    path
}

fn exec(scratch: &Scratch, plan: &Path, flags: &[&str]) -> Done {
    Waste::new(scratch).args(["exec"]).arg(plan).args(flags).run()
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).collect()
}

/// Prompts of the references with the part of each continuation that no rounding can change.
fn references() -> Vec<(String, Vec<u64>)> {
    let oracle: Value = serde_json::from_slice(&std::fs::read(model().join("oracle.json")).unwrap()).unwrap();
    let row = |it: &Value| {
        let sure =
            it["gaps"].as_array().unwrap().iter().take_while(|gap| gap.as_f64().unwrap() > 1e-4).count();
        let prompt: Vec<String> = ids(&it["ids"]).iter().map(ToString::to_string).collect();
        (prompt.join(" "), ids(&it["greedy"])[..sure].to_vec())
    };
    oracle["prompts"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn a_compiled_plan_continues_as_the_references_do() {
    let scratch = Scratch::new("cli-continue");
    let plan = compile(&scratch, &["--batch", "3"]);
    let references = references();
    let mut flags = vec!["-o", "json", "-q"];
    let budgets: Vec<String> = references.iter().map(|it| it.1.len().to_string()).collect();
    for ((prompt, _), budget) in references.iter().zip(&budgets) {
        flags.extend(["--tokens", prompt, "-n", budget]);
    }
    let value = exec(&scratch, &plan, &flags).ok().json();
    let mut ended = 0;
    for (row, (_, greedy)) in value["prompts"].as_array().unwrap().iter().zip(&references) {
        assert!(greedy.len() > 8, "the reference is sure of {} ids only", greedy.len());
        // The references go on after an end of text; a generation does not.
        let end = greedy.iter().position(|id| *id == EOS);
        assert_eq!(ids(&row["ids"]), greedy[..end.unwrap_or(greedy.len())]);
        assert_eq!(row["stop"], if end.is_some() { "stop_id" } else { "budget" });
        ended += usize::from(end.is_some());
    }
    assert!((1..references.len()).contains(&ended), "both ways to end are seen");
    let text = exec(&scratch, &plan, &["--tokens", &references[0].0, "-n", "5", "-q"]).ok();
    let expected: Vec<String> = references[0].1[..5].iter().map(ToString::to_string).collect();
    assert_eq!(
        (text.stdout.as_str(), text.stderr.as_str()),
        (format!("{}\n", expected.join(" ")).as_str(), "")
    );
}

#[test]
fn no_forward_is_wasted() {
    let scratch = Scratch::new("cli-forwards");
    let plan = compile(&scratch, &["--batch", "2", "--chunk", "16"]);
    let forwards = |flags: &[&str]| {
        let value = exec(&scratch, &plan, &[&["-o", "json", "-q"], flags].concat()).ok().json();
        let counters = &value["counters"];
        assert_eq!(counters["forwards_scheduled"], counters["forwards_useful"]);
        assert_eq!(counters["allocations"], 0);
        (counters["forwards_useful"].as_u64().unwrap(), counters["tokens"].as_u64().unwrap())
    };
    assert_eq!(forwards(&["--tokens", "1 2 3", "-n", "0"]), (0, 0));
    assert_eq!(forwards(&["--tokens", "1 2 3", "-n", "1"]), (1, 3));
    assert_eq!(forwards(&["--tokens", "1 2 3", "-n", "4"]), (4, 6));
    // Two rows share every step; the one that ends first leaves the other alone.
    assert_eq!(forwards(&["--tokens", "1 2 3", "-n", "4", "--tokens", "4 5", "-n", "2"]), (4, 9));
    // A third waits for a row of its own.
    assert_eq!(forwards(&["--tokens", "1", "--tokens", "2", "--tokens", "3", "-n", "2"]), (4, 6));
}

#[test]
fn one_hash_however_it_runs() {
    let scratch = Scratch::new("cli-hash");
    let plan = compile(&scratch, &["--batch", "2", "--chunk", "64"]);
    let long: Vec<String> = (1..90).map(|it| it.to_string()).collect();
    let (a, b) = (long.join(" "), "7 8 9");
    let hashes = |flags: &[&str]| {
        let done = exec(&scratch, &plan, &[&["-n", "6", "--hash", "-q"], flags].concat()).ok();
        done.stderr.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let alone = [hashes(&["--tokens", &a, "-t", "1"]), hashes(&["--tokens", b, "-t", "1"])].concat();
    assert!(alone.len() == 2 && alone[0] != alone[1], "{alone:?}");
    assert!(alone.iter().all(|it| it.starts_with("logits sha256:") && it.len() == 14 + 64), "{alone:?}");
    for threads in ["1", "2", "3"] {
        for chunk in ["1", "7", "64"] {
            for backend in ["cpu", "cpu:portable"] {
                let how =
                    ["--tokens", &a, "--tokens", b, "-t", threads, "--chunk", chunk, "--backend", backend];
                assert_eq!(hashes(&how), alone, "{how:?}");
            }
        }
    }
}

#[test]
fn a_full_context_is_no_error() {
    let scratch = Scratch::new("cli-context");
    let plan = compile(&scratch, &["--ctx", "32"]);
    let done = exec(&scratch, &plan, &["--tokens", "1 2 3", "-n", "99", "--ignore-eos", "-o", "json"]).ok();
    let row = &done.json()["prompts"][0];
    // 32 positions hold all but the last id, which needs no position.
    assert_eq!((row["stop"].as_str(), ids(&row["ids"]).len()), (Some("context_full"), 30));
    assert!(done.stderr.contains("context of 32 positions is full"), "{}", done.stderr);
    let long: Vec<String> = (0..33).map(|it| it.to_string()).collect();
    exec(&scratch, &plan, &["--tokens", &long.join(" "), "-n", "0"])
        .fails(1, "prompt 1: 33 tokens, the plan has 32");
    let beyond = Waste::new(&scratch).arg("compile").arg(model()).args(["--ctx", "100000"]).run().ok();
    assert!(beyond.stderr.contains("100000 positions, the model was trained for"), "{}", beyond.stderr);
}

#[test]
fn failures_are_one_line_with_a_code() {
    let scratch = Scratch::new("cli-failures");
    let plan = compile(&scratch, &[]);
    let waste = |args: &[&str]| Waste::new(&scratch).args(args).run();
    waste(&["exce", "x"]).fails(2, "unrecognized subcommand 'exce' (did you mean 'exec'?)");
    waste(&["exec", "m.wplan", "--max-mme", "1G"]).fails(2, "'--max-mem'");
    waste(&["compile", "no-such-model"]).fails(1, "no-such-model: no such file or folder");
    waste(&["compile", "org/absent:Q4_0"]).fails(1, "nothing is downloaded");
    waste(&["exec", "absent.wplan", "--tokens", "1"]).fails(1, "absent.wplan");
    waste(&["dump", model().to_str().unwrap(), "--stage", "csse"]).fails(2, "no stage 'csse'");
    waste(&["compile", model().to_str().unwrap(), "--disable-pass", "csee"]).fails(2, "the nearest is 'cse'");
    waste(&["compile", model().to_str().unwrap(), "--max-mem", "64K"]).fails(4, "65536 are allowed");
    let exec = |flags: &[&str]| exec(&scratch, &plan, flags);
    let target = model().display().to_string();
    for flags in [&["run", &target, "hi", "--lookahead", "2"][..], &["compile", &target, "--lookahead", "2"]]
    {
        waste(flags).fails(1, "lookahead 2: nothing can be read ahead");
    }
    waste(&["compile", &target, "--lookahead", "4000000000"]).fails(2, "4000000000 is not in 0..=1024");
    waste(&["run", "Once upon a time"])
        .fails(2, "MODEL stands before PROMPT, as in waste run kimi-tiny 'Once");
    waste(&["eval", &target, "--kl", "b.npy"]).fails(2, "were not provided: --tokens <FILE>");
    exec(&["--tokens", "1", "-n", "-5"]).fails(2, "'-5' for '--max-tokens <N>': -5 is not in 0..");
    exec(&["-n", "1"]).fails(2, "nothing to continue");
    exec(&["--tokens", "1 x"]).fails(2, "'x' is no token id");
    exec(&["--tokens", "272"]).fails(1, "prompt 1: id 272 is outside the vocabulary of 272");
    exec(&["--tokens", ""]).fails(1, "prompt 1: no tokens");
    exec(&["-p", "text"]).fails(1, "no tokenizer");
    exec(&["--tokens", "1", "--temp", "-1"]).fails(2, "expected a finite number from 0");
    exec(&["--tokens", "1", "--max-mem", "64K"]).fails(4, "65536 are allowed");
    exec(&["--tokens", "1", "--backend", "gpu"]).fails(2, "cpu:TIER");
    exec(&["--tokens", "1", "-t", "0"]).fails(2, "0");
    exec(&["--tokens", "1", "--top-p", "0"]).fails(2, "above 0 and at most 1");
    exec(&["--tokens", "1", "--cpus", "4095"]).fails(2, "may not run on processor 4095");
}

#[test]
fn a_changed_byte_is_reported_before_any_token() {
    let scratch = Scratch::new("cli-damage");
    let plan = compile(&scratch, &[]);
    let bytes = std::fs::read(&plan).unwrap();
    let flipped = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x10;
        scratch.write("damaged.wplan", bytes)
    };
    // The weights are the last section.
    let done = exec(&scratch, &flipped(bytes.len() - 200), &["--tokens", "1 2", "-n", "3"]);
    done.fails(1, "is damaged: CRC-32C");
    assert_eq!(done.stdout, "");
    for at in [5, 70, 300] {
        let done = exec(&scratch, &flipped(at), &["--tokens", "1 2", "-n", "3"]);
        done.fails(1, "damaged.wplan");
        assert_eq!(done.stdout, "");
    }
}

#[test]
fn dumped_text_compiles_to_the_same_plan() {
    let scratch = Scratch::new("cli-dump");
    let plan = compile(&scratch, &[]);
    let text = Waste::new(&scratch).arg("dump").arg(model()).run().ok().stdout;
    let again = scratch.path().join("again.wplan");
    Waste::new(&scratch).args(["compile", "-", "-o"]).arg(&again).stdin(&text).run().ok();
    let shown =
        |path: &Path| Waste::new(&scratch).arg("dump").arg(path).args(["--stage", "plan"]).run().ok().stdout;
    assert_eq!(shown(&again), shown(&plan));
    let tokens = ["--tokens", "5 6 7", "-n", "4", "-q", "--hash"];
    let (first, second) = (exec(&scratch, &plan, &tokens).ok(), exec(&scratch, &again, &tokens).ok());
    assert_eq!((first.stdout, first.stderr), (second.stdout, second.stderr));
}

#[test]
fn every_stage_can_be_dumped() {
    let scratch = Scratch::new("cli-stages");
    let plan = compile(&scratch, &[]);
    let dump = |target: &Path, flags: &[&str]| {
        Waste::new(&scratch).arg("dump").arg(target).args(flags).run().ok().stdout
    };
    let last = dump(&model(), &["--stage", "final"]);
    assert_eq!(dump(&plan, &[]), last, "the plan's own graphs");
    assert_ne!(dump(&model(), &["--stage", "import"]), last);
    assert_eq!(dump(&model(), &["--stage", "select-layout"]), last);
    assert!(dump(&model(), &["--dot"]).starts_with("digraph waste {"));
    let passes = dump(&model(), &["--passes"]);
    assert!(passes.contains("fuse-epilogue") && passes.contains("rewrites"), "{passes}");
    assert_eq!(dump(&plan, &["--passes"]), passes);
    let printed = Waste::new(&scratch)
        .arg("compile")
        .arg(model())
        .args(["--print-ir-after=cse", "--timing"])
        .run()
        .ok();
    assert_eq!(printed.stderr.matches("; after cse").count(), 2, "cse runs twice");
    assert!(printed.stderr.contains("stage") && printed.stdout.is_empty());
}

#[test]
fn a_plan_states_its_memory_and_proves_itself() {
    let scratch = Scratch::new("cli-plan");
    let plan = compile(&scratch, &[]);
    let show =
        |target: &Path| Waste::new(&scratch).arg("plan").arg(target).args(["-o", "json"]).run().ok().json();
    let value = show(&plan);
    assert_eq!(value, show(&model()));
    let bytes = |name: &str| value[format!("{name}_bytes")].as_u64().unwrap();
    let fixed: u64 = ["weights", "states", "scratch", "io", "text"].into_iter().map(bytes).sum();
    assert_eq!(bytes("peak"), fixed + 16 * bytes("thread"));
    assert!(bytes("floor") <= fixed + bytes("thread"));
    assert_eq!(value["ctx"], 512, "what the model was trained for");
    let text = Waste::new(&scratch).arg("plan").arg(&plan).run().ok().stdout;
    assert!(text.contains("arena ÷ lower bound 1.00"), "{text}");
    let checked = Waste::new(&scratch).arg("check").arg(&plan).run().ok().stdout;
    assert!(checked.contains("steps and") && checked.contains("runs here on cpu:"), "{checked}");
}

/// A plan that left its weights in its model's files can be looked at without them, and not run.
#[test]
fn a_plan_can_be_looked_at_without_its_model() {
    let scratch = Scratch::new("cli-look");
    let folder = folder_with_tokenizer(&scratch, &model());
    let plan = scratch.path().join("outside.wplan");
    Waste::new(&scratch).arg("compile").arg(&folder).args(["--no-embed", "-o"]).arg(&plan).run().ok();
    let look = || {
        let verb = |args: &[&str]| Waste::new(&scratch).args(args).arg(&plan).run().ok().stdout;
        let text =
            [verb(&["plan"]), verb(&["dump"]), verb(&["dump", "--html"]), verb(&["dump", "--stage", "plan"])];
        let ids = Waste::new(&scratch).arg("tokenize").arg(&plan).stdin("one two").run().ok().stdout;
        Waste::new(&scratch).arg("diff").arg(&plan).arg(&plan).run().ok();
        (text, ids)
    };
    let before = look();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(look(), before);
    let failed = exec(&scratch, &plan, &["--tokens", "1 2"]);
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    assert!(failed.stderr.contains("model.safetensors"), "{}", failed.stderr);
}

#[test]
fn text_streams_and_ends_before_a_stop_string() {
    let scratch = Scratch::new("cli-text");
    let folder = folder_with_tokenizer(&scratch, &model());
    let run = |flags: &[&str], stdin: &str| {
        Waste::new(&scratch).arg("run").arg(&folder).args(flags).stdin(stdin).run().ok()
    };
    let json = |flags: &[&str]| run(&[flags, &["-o", "json", "-q", "--ignore-eos"]].concat(), "").json();
    let whole = json(&["-p", "ab", "-n", "24"]);
    let text = whole["prompts"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(ids(&whole["prompts"][0]["prompt_ids"]), [97, 98]);
    assert_eq!(
        run(&["-p", "ab", "-n", "24", "-q", "--ignore-eos"], "").stdout.trim_end_matches('\n'),
        text.trim_end_matches('\n')
    );
    assert_eq!(
        run(&["-p", "-", "-n", "24", "-o", "json", "-q", "--ignore-eos"], "ab").json()["prompts"],
        whole["prompts"]
    );
    // A stop string from the middle of the text ends it there.
    assert!(text.chars().count() > 9, "{text:?}");
    let middle: String = text.chars().skip(6).take(2).collect();
    let stopped = json(&["-p", "ab", "-n", "24", "--stop", &middle]);
    assert_eq!(stopped["prompts"][0]["text"].as_str().unwrap(), text.split(&middle).next().unwrap());
    assert_eq!(stopped["prompts"][0]["stop"], "stop_string");
    // An empty prompt begins with BOS.
    assert_eq!(ids(&json(&["-p", "", "-n", "1"])["prompts"][0]["prompt_ids"]), [256]);
    // The same seed draws the same text, another one another.
    let drawn =
        |seed: &str| json(&["-p", "ab", "-n", "24", "--temp", "1.5", "--seed", seed])["prompts"].clone();
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
    let prompts = scratch.write("prompts.txt", "ab\n\n{\"tokens\": [97, 98], \"n\": 3}\n");
    let value = json(&["--prompts", prompts.to_str().unwrap(), "-n", "24"]);
    assert_eq!(value["prompts"][0], whole["prompts"][0]);
    assert_eq!(ids(&value["prompts"][1]["ids"]), ids(&whole["prompts"][0]["ids"])[..3]);
}

#[test]
fn tokenize_prints_ids() {
    let scratch = Scratch::new("cli-tokenize");
    let folder = folder_with_tokenizer(&scratch, &model());
    let done = Waste::new(&scratch).arg("tokenize").arg(&folder).stdin("a<eos>é").run().ok();
    assert_eq!(done.stdout, "97 60 101 111 115 62 195 169\n", "control tokens in a text are characters");
    let file = scratch.write("text", "ab");
    let done = Waste::new(&scratch)
        .arg("tokenize")
        .arg(&folder)
        .arg("--file")
        .arg(file)
        .args(["-o", "json"])
        .run()
        .ok();
    assert_eq!(ids(&done.json()["ids"]), [97, 98]);
    assert_eq!(done.json()["tokens"][1]["text"], "b");
    Waste::new(&scratch).arg("tokenize").arg(model()).stdin("a").run().fails(1, "has no tokenizer");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let scratch = Scratch::new("cli-pipe");
    let mut child = Waste::new(&scratch).arg("dump").arg(model()).spawn();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    assert_eq!((done.status.code(), String::from_utf8_lossy(&done.stderr).as_ref()), (Some(0), ""));
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_was_printed() {
    use std::io::Read;
    let scratch = Scratch::new("cli-interrupt");
    let plan = compile(&scratch, &[]);
    // Far more than a test would wait for.
    let prompts = scratch.write("prompts", "{\"tokens\": [1, 2, 3]}\n".repeat(50_000));
    let flags = ["-n", "400", "--ignore-eos"];
    let mut child =
        Waste::new(&scratch).arg("exec").arg(&plan).arg("--prompts").arg(prompts).args(flags).spawn();
    let mut stdout = child.stdout.take().unwrap();
    let mut seen = [0; 4];
    stdout.read_exact(&mut seen).unwrap();
    let status = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(130));
    let first = [std::str::from_utf8(&seen).unwrap(), rest.lines().next().unwrap()].concat();
    assert!(first.split(' ').all(|it| it.parse::<u32>().is_ok()), "{first}");
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(stderr.contains("interrupted") && !stderr.contains("panic"), "{stderr}");
}

#[test]
fn help_is_reviewed() {
    let scratch = Scratch::new("cli-help");
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots/cli");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let verbs = [
        "compile", "exec", "run", "chat", "dump", "diff", "plan", "check", "tokenize", "bench", "bisect",
        "eval", "convert", "verify", "info",
    ];
    settings.bind(|| {
        insta::assert_snapshot!("help", Waste::new(&scratch).arg("--help").run().ok().stdout);
        for verb in verbs {
            let help = Waste::new(&scratch).args([verb, "--help"]).run().ok().stdout;
            insta::assert_snapshot!(format!("help-{verb}"), help);
        }
    });
}

/// Nothing is compiled or generated for a file that cannot be written.
#[test]
fn outputs_without_a_folder_are_refused_before_the_work() {
    let scratch = Scratch::new("cli-nowhere");
    let plan = compile(&scratch, &[]);
    let (plan, model) = (plan.to_str().unwrap(), model().display().to_string());
    let tokens = scratch.write("ids.txt", "1 2 3").display().to_string();
    for args in [
        &["compile", &model, "-o", "no/x"][..],
        &["exec", plan, "--tokens", "1", "--session", "no/x"],
        &["exec", plan, "--tokens", "1", "--trace", "no/x"],
        &["run", &model, "--tokens", "1", "--session", "no/x"],
        &["chat", plan, "--session", "no/x"],
        &["eval", &model, "--tokens", &tokens, "--logits", "no/x"],
        &["convert", &model, "-o", "no/x"],
        &["bench", plan, "--compare", "true", "--observations", "no/x"],
    ] {
        let done = Waste::new(&scratch).args(args).run();
        done.fails(1, "no/x: there is no folder 'no'");
        assert_eq!(done.stdout, "", "{args:?}");
    }
}

/// A plan is never written over a device or over the weights it comes from; sizes that a plan cannot have are refused.
#[test]
fn outputs_and_sizes_that_cannot_be_are_refused() {
    let dir = std::env::temp_dir().join(format!("waste-cli-outputs-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models/gpt2-rand-f32");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture.join(name), dir.join(name)).unwrap();
    }
    let waste = |args: &[&str]| {
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_waste"))
            .current_dir(&dir)
            .args(args)
            .output()
            .unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let before = std::fs::read(dir.join("model.safetensors")).unwrap();
    let (code, said) = waste(&["compile", ".", "-o", "model.safetensors"]);
    assert!(code == Some(1) && said.contains("holds weights of this model"), "{code:?} {said}");
    assert_eq!(std::fs::read(dir.join("model.safetensors")).unwrap(), before);
    std::fs::create_dir_all(dir.join("folder.wplan")).unwrap();
    let (code, said) = waste(&["compile", ".", "-o", "folder.wplan"]);
    assert!(code == Some(1) && said.contains("not a regular file"), "{code:?} {said}");
    assert_eq!(waste(&["compile", ".", "-o", "m.wplan"]).0, Some(0));
    for verb in ["plan", "dump", "bench"] {
        let (code, said) = waste(&[verb, "m.wplan", "--ctx", "7"]);
        assert!(code == Some(2) && said.contains("compiled for 96"), "{verb}: {code:?} {said}");
        let (code, said) = waste(&[verb, "m.wplan", "--batch", "4"]);
        assert!(code == Some(2) && said.contains("compiled for 1"), "{verb}: {code:?} {said}");
    }
    for verb in ["plan", "bench", "dump", "chat"] {
        let (code, said) = waste(&[verb, "m.wplan", "--lora", "adapter"]);
        assert!(
            code == Some(2) && said.contains("--lora: m.wplan is compiled already"),
            "{verb}: {code:?} {said}"
        );
    }
    let flags = [
        ("--math", "fixed16"),
        ("--kv", "f16"),
        ("--disable-pass", "cse"),
        ("--tables", "f32"),
        ("--rewrite-limit", "3"),
    ];
    for (flag, value) in flags {
        let (code, said) = waste(&["bench", "m.wplan", flag, value]);
        assert!(code == Some(2) && said.contains("m.wplan is compiled already"), "{flag}: {code:?} {said}");
    }
    let mut bytes = std::fs::read(dir.join("m.wplan")).unwrap();
    let last = bytes.len() - 200;
    bytes[last] ^= 1;
    std::fs::write(dir.join("m.wplan"), bytes).unwrap();
    let (code, said) = waste(&["check", "m.wplan"]);
    assert!(
        code == Some(3) && said.contains("m.wplan: weight '") && said.contains("damaged"),
        "{code:?} {said}"
    );
    std::fs::remove_dir_all(&dir).unwrap();
}
