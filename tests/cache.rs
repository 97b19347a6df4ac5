//! Plans that `waste run` keeps between runs: found, shared, made anew.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/program.rs"]
mod program;
#[path = "support/scratch.rs"]
mod scratch;

use std::path::{Path, PathBuf};

use program::{Done, Waste};
use scratch::Scratch;

/// A model's folder of its own in `scratch`, so that it can be changed.
fn model(scratch: &Scratch) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models/llama-rand-gqa-untied-f32");
    let copy = scratch.path().join("model");
    std::fs::create_dir(&copy).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(name), copy.join(name)).unwrap();
    }
    copy
}

fn run(scratch: &Scratch, model: &Path, flags: &[&str]) -> Done {
    let usual = ["--tokens", "1 2", "-n", "3", "--hash"];
    Waste::new(scratch).arg("run").arg(model).args(usual).args(flags).run().ok()
}

/// Files of the cache, in order.
fn entries(scratch: &Scratch, ending: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(scratch.path().join("cache")).unwrap().map(|it| it.unwrap().path());
    let mut all: Vec<_> = all.filter(|it| it.to_string_lossy().ends_with(ending)).collect();
    all.sort();
    all
}

#[test]
fn run_compiles_once() {
    let scratch = Scratch::new("cache-once");
    let model = model(&scratch);
    let quiet = || {
        let done = run(&scratch, &model, &["-q"]);
        (done.stdout, done.stderr)
    };
    let first = quiet();
    let plan = entries(&scratch, ".wplan");
    let made = std::fs::metadata(&plan[0]).unwrap().modified().unwrap();
    assert_eq!(quiet(), first);
    assert_eq!((entries(&scratch, ".wplan"), entries(&scratch, ".json").len()), (plan.clone(), 1));
    // Touched but equal: the same plan under a second key.
    let touched = std::fs::File::options().append(true).open(model.join("model.safetensors")).unwrap();
    touched.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(quiet(), first);
    assert_eq!((entries(&scratch, ".wplan"), entries(&scratch, ".json").len()), (plan.clone(), 2));
    assert_eq!(std::fs::metadata(&plan[0]).unwrap().modified().unwrap(), made, "written once");
    // Changed: compiled anew.
    let mut bytes = std::fs::read(model.join("model.safetensors")).unwrap();
    let last = bytes.len() - 2;
    bytes[last] ^= 1;
    std::fs::write(model.join("model.safetensors"), bytes).unwrap();
    quiet();
    assert_eq!(entries(&scratch, ".wplan").len(), 2);
}

#[test]
fn a_damaged_plan_is_compiled_anew() {
    let scratch = Scratch::new("cache-damaged");
    let model = model(&scratch);
    let first = run(&scratch, &model, &["-q"]);
    let plan = &entries(&scratch, ".wplan")[0];
    let whole = std::fs::read(plan).unwrap();
    // A weight's byte: seen by its checksum, after opening. A byte of the header: seen on opening.
    for at in [whole.len() - 100, 5] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(plan, bytes).unwrap();
        let again = run(&scratch, &model, &[]);
        assert_eq!(again.stdout, first.stdout);
        assert!(at == 5 || again.stderr.contains("is damaged: "), "{}", again.stderr);
        assert!(again.stderr.contains(first.stderr.trim()), "the same hash: {}", again.stderr);
        assert!(std::fs::read(plan).unwrap() == whole, "the same plan as before");
    }
}

/// A plan names the files of its experts: it serves the container where it is, not one that was moved or converted anew.
#[test]
fn a_container_has_its_own_plan_where_it_is() {
    let scratch = Scratch::new("cache-container");
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/containers/tiny-vq4p");
    let [here, there] = ["a", "b"].map(|it| scratch.path().join(it));
    std::fs::create_dir(&here).unwrap();
    for file in std::fs::read_dir(from).unwrap().map(|it| it.unwrap()) {
        std::fs::copy(file.path(), here.join(file.file_name())).unwrap();
    }
    let first = run(&scratch, &here, &["-q"]);
    // Touched, and whole.
    let touched = std::fs::File::options().append(true).open(here.join("experts-L1.bin")).unwrap();
    touched.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(run(&scratch, &here, &["-q"]).stderr, first.stderr);
    assert_eq!(entries(&scratch, ".wplan").len(), 1);
    std::fs::rename(&here, &there).unwrap();
    assert_eq!(run(&scratch, &there, &["-q"]).stderr, first.stderr);
    assert_eq!(entries(&scratch, ".wplan").len(), 2);
    // A header that says something else: another record.
    let bank = there.join("experts-L2.bin");
    let mut bytes = std::fs::read(&bank).unwrap();
    bytes[36] ^= 1;
    std::fs::write(&bank, bytes).unwrap();
    run(&scratch, &there, &["-q"]);
    assert_eq!(entries(&scratch, ".wplan").len(), 3);
}
