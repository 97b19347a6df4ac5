//! What holds for the tree as a whole: dependency edges, file sizes, where unsafe may stand, what files may name.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Who may import whom: the table of README's code map.
const EDGES: [(&str, &str, &[&str]); 7] = [
    ("waste-plan", "runtime/plan", &[]),
    ("waste-kernels", "runtime/kernels", &["waste-plan"]),
    ("waste-runtime", "runtime", &["waste-plan", "waste-kernels"]),
    ("waste-ir", "ir", &["waste-plan"]),
    ("waste-passes", "passes", &["waste-ir", "waste-plan"]),
    ("waste-codegen", "codegen", &["waste-ir", "waste-plan"]),
    ("waste", ".", &["waste-plan", "waste-ir", "waste-passes", "waste-codegen", "waste-runtime"]),
];

/// The only places where unsafe code may stand.
const UNSAFE: [&str; 5] = [
    "runtime/kernels/",
    "runtime/src/arena.rs",
    "runtime/src/team.rs",
    "runtime/src/sys",
    "runtime/src/weights.rs",
];

/// Lines at which a source file is too long to find one's way in.
const MAX_LINES: usize = 600;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Files below `folder` whose name ends in `ending`, without build outputs, relative to the root, sorted.
fn files(folder: &str, ending: &str) -> Vec<String> {
    fn walk(at: &Path, ending: &str, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && name != ".git" {
                walk(&path, ending, out);
            } else if name.ends_with(ending) {
                out.push(path);
            }
        }
    }
    let mut out = Vec::new();
    walk(&root().join(folder), ending, &mut out);
    let mut out: Vec<String> =
        out.iter().map(|it| it.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/")).collect();
    out.sort();
    out
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// Whether a file is a test, bench or example: longer files are allowed there.
fn is_test(path: &str) -> bool {
    ["tests/", "benches/", "examples/"]
        .iter()
        .any(|it| path.starts_with(it) || path.contains(&format!("/{it}")))
        || path.ends_with("/tests.rs")
        || path.ends_with("_tests.rs")
}

#[test]
fn crates_import_only_what_the_table_allows() {
    for (name, folder, allowed) in EDGES {
        let manifest = read(&format!("{folder}/Cargo.toml"));
        let section = manifest.split("\n[dependencies]").nth(1).unwrap_or("");
        let section = section.split("\n[").next().unwrap();
        let found: BTreeSet<&str> = section
            .lines()
            .filter_map(|it| it.split(['.', ' ', '=']).next())
            .filter(|it| it.starts_with("waste-"))
            .collect();
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        assert!(found.is_subset(&allowed), "{name} imports {found:?}, allowed are {allowed:?}");
    }
}

#[test]
fn source_files_stay_readable() {
    let long: Vec<String> = files(".", ".rs")
        .into_iter()
        .filter(|it| !is_test(it))
        .map(|it| (read(&it).lines().count(), it))
        .filter(|it| it.0 > MAX_LINES)
        .map(|(lines, it)| format!("{it}: {lines} lines"))
        .collect();
    assert!(long.is_empty(), "over {MAX_LINES} lines: {long:#?}");
}

#[test]
fn unsafe_stands_only_where_the_table_says() {
    let is_unsafe = |line: &str| {
        let code = line.split("//").next().unwrap();
        code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl")
    };
    for path in files(".", ".rs") {
        let allowed =
            UNSAFE.iter().any(|it| path.starts_with(it)) || path == "tests/tidy.rs" || is_test(&path);
        let found = read(&path).lines().any(is_unsafe);
        assert!(allowed || !found, "{path} has unsafe code");
    }
}

#[test]
fn every_crate_without_unsafe_forbids_it() {
    for folder in ["ir", "passes", "codegen", "runtime/plan", "."] {
        let lib = read(&format!("{folder}/src/lib.rs"));
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{folder}/src/lib.rs");
    }
}

#[test]
fn only_main_ends_the_process_and_only_env_reads_variables() {
    for path in files(".", ".rs").into_iter().filter(|it| !is_test(it) && it != "src/main.rs") {
        let text = read(&path);
        assert!(!text.contains("process::exit"), "{path} ends the process");
        if path != "src/env.rs" {
            let reads = ["env::var(", "env::var_os(", "env::vars("].iter().any(|it| text.contains(it));
            assert!(!reads, "{path} reads the environment");
        }
    }
}

#[test]
fn every_pass_snapshot_belongs_to_a_case() {
    for snapshot in files("snapshots/passes", ".snap") {
        let parts: Vec<&str> = snapshot.trim_end_matches(".snap").split('/').collect();
        if let ["snapshots", "passes", pass, case] = parts[..] {
            let source = format!("tests/filetests/passes/{pass}/{case}.wir");
            assert!(root().join(&source).exists(), "{snapshot} has no {source}");
        }
    }
}

#[test]
fn no_file_names_a_package_registry() {
    let hosts =
        ["crates".to_owned() + ".io/", "pypi".to_owned() + ".org", "registry.npmjs".to_owned() + ".org"];
    for ending in [".rs", ".md", ".toml", ".sh", ".yml"] {
        for path in files(".", ending) {
            let text = read(&path);
            assert!(!hosts.iter().any(|it| text.contains(it)), "{path} names a registry's host");
        }
    }
}
