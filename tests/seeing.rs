//! What can be seen of a plan: the page, the timeline, the difference of two plans, and what the passes nearly did.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/page.rs"]
mod page;
#[path = "support/program.rs"]
mod program;
#[path = "support/samples.rs"]
mod samples;
#[path = "support/scratch.rs"]
mod scratch;

use std::path::{Path, PathBuf};

use page::{Page, elements};
use program::Waste;
use samples::{LLAMA, MODELS, compiled, model};
use scratch::Scratch;
use serde_json::Value;
use waste::compile::Compiled;
use waste::report::buffers::live_bytes;
use waste::report::{html, missed};

fn page_of(it: &Compiled) -> String {
    html::page(&it.plan, &it.ir, None).unwrap()
}

/// Plans of one model, compiled with different flags.
fn plans<const N: usize>(scratch: &Scratch, name: &str, flags: [&[&str]; N]) -> [PathBuf; N] {
    let mut at = 0;
    flags.map(|flags| {
        at += 1;
        let path = scratch.path().join(format!("{at}.wplan"));
        Waste::new(scratch).arg("compile").arg(model(name)).arg("-o").arg(&path).args(flags).run().ok();
        path
    })
}

fn snapshot(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots/seeing");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// The planner found the bound from the graph, before any buffer had a place; here it comes from the steps.
#[test]
fn buffers_read_off_the_steps_fill_scratch_as_the_planner_said() {
    for name in MODELS {
        let plan = compiled(name).plan;
        let most = plan.programs.iter().flat_map(live_bytes).max().unwrap();
        assert_eq!(most, plan.memory.scratch_lower_bound, "{name}");
    }
}

#[test]
fn the_page_holds_every_step() {
    for name in MODELS {
        let compiled = compiled(name);
        let page = Page::parse(&page_of(&compiled));
        for (program, at) in compiled.plan.programs.iter().zip(0..) {
            let steps = page.steps(at);
            assert_eq!(steps.len(), program.steps.len(), "{name} {}", program.name);
            for (shown, step) in steps.iter().zip(&program.steps) {
                let what = format!("{name}, {}: {shown} for {step:?}", program.name);
                assert_eq!(shown[0], step.kind.name(), "{what}");
                assert_eq!(shown[3], u8::from(step.barrier), "{what}");
                assert_eq!(
                    (&shown[5], &shown[6]),
                    (&step.tile.rows.into(), &step.tile.cols.into()),
                    "{what}"
                );
                assert_eq!(shown[7], step.op, "{what}");
                assert_eq!(shown[12].as_array().unwrap().len(), step.reads.len(), "{what}");
                assert_eq!(shown[13].as_array().unwrap().len(), step.writes.len(), "{what}");
                for (shown, write) in shown[13].as_array().unwrap().iter().zip(&step.writes) {
                    assert_eq!(
                        (&shown[2], &shown[4]),
                        (&write.dtype.name().into(), &write.cols.into()),
                        "{what}"
                    );
                }
            }
        }
    }
}

/// A value that a step reads was written by the step that the page draws a line from.
#[test]
fn lines_begin_where_the_bytes_were_written() {
    let page = Page::parse(&page_of(&compiled(LLAMA)));
    let steps = page.steps(0);
    let mut lines = 0;
    for (at, step) in steps.iter().enumerate() {
        for read in step[12].as_array().unwrap().iter().filter(|it| it[0] == "s") {
            let back = usize::try_from(read[6].as_u64().unwrap()).unwrap();
            assert!((1..=at).contains(&back), "#{at} reads what nobody wrote: {read}");
            let writes = steps[at - back][13].as_array().unwrap();
            let overlaps = |it: &Value| {
                let (start, cols) = (it[1].as_u64().unwrap(), it[4].as_u64().unwrap());
                it[0] == "s" && (start..start + cols.max(1) * 4).contains(&read[1].as_u64().unwrap())
            };
            assert!(writes.iter().any(overlaps), "#{at}: {read} is not of {writes:?}");
            lines += 1;
        }
    }
    assert!(steps.len() < lines + 10, "{lines} lines for {} steps", steps.len());
    // The choice and the check of finiteness read the logits, which lie in the caller's array.
    let head = steps.iter().rposition(|it| it[0] == "linear").unwrap();
    for (at, step) in steps.iter().enumerate().skip(head + 1) {
        assert_eq!((&step[12][0][0], &step[12][0][6]), (&"io".into(), &(at - head).into()), "{step}");
    }
}

#[test]
fn the_page_is_well_formed_and_needs_nothing_else() {
    for name in MODELS {
        let text = page_of(&compiled(name));
        assert_eq!(text, page_of(&compiled(name)), "{name}: the same plan, the same bytes");
        let elements = elements(&text).unwrap_or_else(|err| panic!("{name}: {err}"));
        let count = |tag: &str| elements.iter().filter(|it| it.tag == tag).count();
        assert_eq!((count("script"), count("style"), count("link"), count("img")), (2, 1, 0, 0));
        for (attribute, value) in elements.iter().flat_map(|it| &it.attributes) {
            assert!(attribute != "src" && !attribute.starts_with("on"), "{attribute}={value}");
            assert!(attribute != "href" || value.starts_with('#'), "{attribute}={value}");
        }
        for address in ["http://", "https://", "url(", "@import", "fetch(", "XMLHttpRequest", "innerHTML"] {
            assert!(!text.contains(address), "{name}: {address}");
        }
        assert!(text.len() < 200_000, "{name}: {} bytes", text.len());
    }
}

#[test]
fn a_hostile_name_stays_a_name() {
    let bad = "$0.</script><!--<script>alert(1)</script> & \"quoted\" \u{2028} '</title>";
    let mut it = compiled(LLAMA);
    bad.clone_into(&mut it.plan.model.name);
    bad.clone_into(&mut it.plan.weights[0].name);
    bad.clone_into(&mut it.plan.states[0].name);
    let text = page_of(&it);
    let scripts = elements(&text).unwrap().iter().filter(|it| it.tag == "script").count();
    assert_eq!(scripts, 2);
    let page = Page::parse(&text);
    assert_eq!(page.data["model"]["name"], bad);
    assert_eq!(page.name("weights", 0), bad);
    assert_eq!(page.name("states", 0), bad);
    for (weight, at) in it.plan.weights.iter().zip(0..) {
        assert_eq!(page.name("weights", at), weight.name);
    }
}

/// Sixty layers cost little more than six: what is equal is written once.
#[test]
fn equal_layers_are_written_once() {
    let it = compiled("models/kimi-rand-bf16");
    let page = Page::parse(&page_of(&it));
    for program in page.data["programs"].as_array().unwrap() {
        let (layers, groups) = (program["layers"].as_array().unwrap(), program["groups"].as_array().unwrap());
        assert!(groups.len() < layers.len(), "{} groups of {} layers", groups.len(), layers.len());
        let steps = program["steps"].as_u64().unwrap();
        let written: usize = groups.iter().map(|it| it["template"].as_array().unwrap().len()).sum();
        assert!((written as u64) < steps, "{written} of {steps} steps are written");
    }
}

#[test]
fn a_model_and_its_plan_have_the_same_page_and_a_profile_stands_in_it() {
    let scratch = Scratch::new("seeing-page");
    let sizes = ["--ctx", "64", "--chunk", "16"];
    let [plan] = plans(&scratch, LLAMA, [&sizes]);
    let dump = |target: &Path, flags: &[&str]| {
        Waste::new(&scratch).arg("dump").arg(target).arg("--html").args(flags).run()
    };
    let page = dump(&plan, &[]).ok().stdout;
    assert_eq!(page, dump(&model(LLAMA), &sizes).ok().stdout);
    assert!(Page::parse(&page).data["profile"].is_null());

    let bench = ["-p", "8", "-n", "3", "-r", "1", "--profile", "-o"];
    let profile = |form: &str| {
        let it = Waste::new(&scratch).arg("bench").arg(&plan).args(bench).arg(form).run().ok().stdout;
        let path = scratch.path().join(form);
        std::fs::write(&path, it).unwrap();
        path.to_str().unwrap().to_owned()
    };
    for form in ["json", "jsonl"] {
        let path = profile(form);
        let page = Page::parse(&dump(&plan, &["--profile", &path]).ok().stdout);
        let runs = page.data["profile"].as_array().unwrap();
        let programs: Vec<&str> = runs.iter().map(|it| it["program"].as_str().unwrap()).collect();
        assert_eq!(programs, ["prefill", "decode"]);
        for (run, at) in runs.iter().zip([1, 0]) {
            let nanos = |it: &Value| it.as_u64().unwrap();
            let steps: Vec<u64> = run["steps"].as_array().unwrap().iter().map(nanos).collect();
            let classes: u64 = run["classes"].as_array().unwrap().iter().map(|it| nanos(&it["ns"])).sum();
            assert_eq!(steps.len(), page.steps(at).len());
            assert_eq!(steps.iter().sum::<u64>(), classes, "every step is of one class");
        }
    }

    let [other] = plans(&scratch, "models/gpt2-rand-f32", [&sizes]);
    let path = scratch.path().join("json");
    dump(&other, &["--profile", path.to_str().unwrap()]).fails(1, "of another plan");
    std::fs::write(&path, "{}").unwrap();
    dump(&plan, &["--profile", path.to_str().unwrap()]).fails(1, "holds no profile");
    std::fs::write(&path, "nothing").unwrap();
    dump(&plan, &["--profile", path.to_str().unwrap()]).fails(1, "not JSON");
    Waste::new(&scratch).arg("dump").arg(&plan).args(["--profile", "json"]).run().fails(2, "--html");
}

/// A slice for every thread, call and step; slices of a thread follow each other; all tiles are there.
#[test]
fn a_timeline_holds_every_step_of_every_thread() {
    for (name, n_layers) in [(LLAMA, 0), ("containers/tiny-vq3r", 1)] {
        let scratch = Scratch::new("seeing-trace");
        let [plan] = plans(&scratch, name, [&["--ctx", "64", "--chunk", "16"]]);
        let path = scratch.path().join("t.json");
        let args = ["--tokens", "1 2 3 4 5", "-n", "4", "-t", "2", "-q", "-o", "json", "--trace"];
        let run = Waste::new(&scratch).arg("exec").arg(&plan).args(args).arg(&path).run().ok().json();
        let trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let counters = &run["counters"];
        let mut tiles = 0;
        for thread in 0..2 {
            let slices: Vec<&Value> =
                events.iter().filter(|it| it["ph"] == "X" && it["tid"] == thread).collect();
            let calls = 1 + slices.iter().map(|it| it["args"]["call"].as_u64().unwrap()).max().unwrap();
            assert_eq!(calls, counters["forwards_scheduled"]);
            assert!(slices.windows(2).all(|it| {
                it[0]["ts"].as_f64().unwrap() + it[0]["dur"].as_f64().unwrap()
                    <= it[1]["ts"].as_f64().unwrap() + 1e-3
            }));
            tiles += slices.iter().map(|it| it["args"]["tiles"].as_u64().unwrap()).sum::<u64>();
            let first = slices.iter().filter(|it| it["args"]["call"] == 0);
            assert!(first.clone().all(|it| it["cat"] == "prefill"));
            let steps: std::collections::BTreeSet<u64> =
                first.map(|it| it["args"]["step"].as_u64().unwrap()).collect();
            let shown =
                Page::parse(&Waste::new(&scratch).arg("dump").arg(&plan).arg("--html").run().ok().stdout);
            assert_eq!(steps.len(), shown.steps(1).len(), "{name}");
        }
        assert_eq!(tiles, counters["tiles"]);
        let counted =
            |name: &'static str| events.iter().filter(move |it| it["ph"] == "C" && it["name"] == name);
        assert!(counted("scratch").count() > 10);
        let read = counted("disk").map(|it| it["args"]["bytes"].as_u64().unwrap()).max();
        assert_eq!(read.is_some(), n_layers > 0, "{name}");
        if let Some(read) = read {
            let all = run["experts"]["bytes"].as_u64().unwrap();
            assert!(0 < read && read <= all, "{read} of {all}");
        }
    }
    let scratch = Scratch::new("seeing-trace-limit");
    let [plan] = plans(&scratch, LLAMA, [&["--ctx", "64", "--chunk", "16"]]);
    let args = ["--tokens", "1 2", "-n", "1", "-t", "1", "--max-mem", "8M", "--trace", "t.json"];
    Waste::new(&scratch).arg("exec").arg(&plan).args(args).run().fails(4, "with --trace");
}

#[test]
fn a_difference_names_what_was_lost() {
    let scratch = Scratch::new("seeing-diff");
    let (sizes, name) = (["--ctx", "64", "--chunk", "16"], "models/gpt2-rand-f32");
    let without = ["--ctx", "64", "--chunk", "16", "--disable-pass", "fuse-epilogue"];
    let [a, b] = plans(&scratch, name, [&sizes, &without]);
    let diff =
        |a: &Path, b: &Path, flags: &[&str]| Waste::new(&scratch).arg("diff").arg(a).arg(b).args(flags).run();
    assert_eq!(diff(&a, &a, &["--fail-above", "0"]).ok().stdout, "no difference\n");
    let text = diff(&a, &b, &[]).ok().stdout;
    assert!(text.contains("lost fuse-epilogue"), "{text}");
    snapshot("diff-gpt2-without-epilogues", &text);

    let worse = diff(&a, &b, &["--fail-above", "1%"]);
    worse.fails(3, "decode: steps (+");
    assert_eq!(worse.stdout, text, "what differs is printed before the verdict");
    // Less is no worse; and what grew by less than asked is let pass.
    diff(&b, &a, &["--fail-above", "1%"]).ok();
    diff(&a, &b, &["--fail-above", "1000%"]).ok();
    diff(&a, &b, &["--fail-above", "much"]).fails(2, "percentage");
    diff(&a, &model(name), &[]).fails(1, "not a plan");

    let value = diff(&a, &b, &["-o", "json"]).ok().json();
    let steps = value["totals"].as_array().unwrap().iter().find(|it| it["name"] == "decode: steps").unwrap();
    assert!(steps["a"].as_u64().unwrap() < steps["b"].as_u64().unwrap());
}

/// Another arithmetic and other caches: kernels, states and bytes a token.
#[test]
fn a_difference_counts_bytes_and_kernels() {
    let scratch = Scratch::new("seeing-diff-kernels");
    let [a, b] = plans(&scratch, LLAMA, [&["--ctx", "64"], &["--ctx", "64", "--kv", "f16"]]);
    let value = Waste::new(&scratch).arg("diff").args([&a, &b]).args(["-o", "json"]).run().ok().json();
    let pair = |list: &str, name: &str| {
        let all = value[list].as_array().unwrap();
        let it = all.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("{name} in {value}"));
        (it["a"].as_u64().unwrap(), it["b"].as_u64().unwrap())
    };
    let (before, after) = pair("totals", "states");
    assert_eq!(before, 2 * after);
    let (before, after) = pair("totals", "decode: bytes a token");
    assert!(after < before);
    let (_, gone) = pair("classes", "decode: attention f32");
    let (new, _) = pair("classes", "decode: attention f16");
    assert_eq!((gone, new), (0, 0));
}

#[test]
fn missed_fusions_say_what_to_do() {
    let scratch = Scratch::new("seeing-missed");
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/kimi-tiny");
    let report = Waste::new(&scratch).args(["dump", "--passes"]).arg(tiny).run().ok().stdout;
    snapshot("passes-kimi-tiny", &report);
    let [plan] = plans(&scratch, LLAMA, [&[]]);
    let report = Waste::new(&scratch).args(["dump", "--passes"]).arg(&plan).run().ok().stdout;
    assert!(report.ends_with("no fusion was nearly made and refused\n"), "{report}");
}

/// Every reason that a pass has given in its cases comes with what would have to change.
#[test]
fn there_is_advice_for_every_refusal() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots/passes");
    let mut reasons = std::collections::BTreeSet::new();
    for pass in std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).filter(|it| it.is_dir()) {
        for case in std::fs::read_dir(pass).unwrap() {
            let text = std::fs::read_to_string(case.unwrap().path()).unwrap();
            let lines =
                text.lines().filter(|it| it.starts_with("; missed")).filter_map(|it| it.split_once(" x: "));
            reasons.extend(lines.map(|it| it.1.split("; first at").next().unwrap().to_owned()));
        }
    }
    assert!(reasons.len() > 12, "{reasons:?}");
    let unknown: Vec<&String> = reasons.iter().filter(|it| missed::change(it).is_none()).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
