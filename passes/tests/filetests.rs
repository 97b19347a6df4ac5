//! Every case of every pass: `tests/filetests/passes/PASS/CASE.wir` against `snapshots/passes/PASS/CASE.snap`.
//!
//! Around each case: the text parses and verifies before and after, the printed result parses back, the pass tells the truth about
//! having changed something, a second run changes nothing, a spent budget of rewrites leaves an optional pass without effect, and
//! the evaluator agrees as the pass declares.
//! A `; math: NAME` or `; tables: NAME` line among the comments at the top chooses the arithmetic.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::path::Path;

use bumpalo::Bump;
use support::{assert_equal_outputs, evaluate_case, verified};
use waste_ir::{Module, parse_module, print_module};
use waste_passes::{Changed, Entry, PassCx, pipeline};
use waste_plan::{Math, Tables};

#[test]
fn pass_cases() {
    insta::glob!("../../tests/filetests", "passes/*/*.wir", |path| {
        let pass = path.parent().and_then(Path::file_name).unwrap().to_str().unwrap();
        let case = path.file_stem().unwrap().to_str().unwrap();
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path(format!("../../snapshots/passes/{pass}"));
        settings.set_prepend_module_to_snapshot(false);
        settings.remove_snapshot_suffix();
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(case, before_after(pass, path)));
    });
}

#[test]
fn every_pass_has_cases() {
    for entry in support::all_passes() {
        let folder = format!("{}/../tests/filetests/passes/{}", env!("CARGO_MANIFEST_DIR"), entry.name);
        assert!(Path::new(&folder).join("basic.wir").is_file(), "{folder} has no basic.wir");
    }
}

fn before_after(pass: &str, path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let before = verified(parse_module(&text).unwrap_or_else(|it| panic!("{}: {it}", path.display())));
    let chosen = |key: &str| text.lines().find_map(|it| it.strip_prefix(key)).unwrap_or("fixed24");
    let math = Math::from_name(chosen("; math: ")).unwrap();
    let math = (math, Tables::from_name(chosen("; tables: ")).unwrap());
    let entries = support::all_passes();
    let entry = entries.iter().find(|it| it.name == pass).unwrap();

    let (after, report) = run_once(entry, &before, math, None);
    assert_eq!(report.changed.is_yes(), print_module(&after) != print_module(&before), "{pass} lies");
    let reparsed = parse_module(&print_module(&after)).unwrap();
    assert_eq!(print_module(&reparsed), print_module(&after));
    let (wanted, found) = (evaluate_case(&before), evaluate_case(&after));
    assert_equal_outputs(&wanted, &found, entry.numerics, path.to_str().unwrap());
    let (again, second) = run_once(entry, &after, math, None);
    assert_eq!(second.changed, Changed::No, "{pass} is not idempotent");
    assert_eq!(print_module(&again), print_module(&after), "{pass} is not idempotent");
    if !entry.mandatory {
        let (untouched, none) = run_once(entry, &before, math, Some(0));
        assert_eq!((none.changed, none.rewrites), (Changed::No, 0), "{pass} ignores its budget");
        assert_eq!(print_module(&untouched), print_module(&before));
    }

    let mut out = format!("; before\n{}; after\n", print_module(&before));
    out.push_str(if report.changed.is_yes() { &report.text } else { "; the same\n" });
    out + &report.summary
}

struct Report {
    changed: Changed,
    rewrites: u32,
    text: String,
    summary: String,
}

fn run_once(entry: &Entry, module: &Module, math: (Math, Tables), budget: Option<u32>) -> (Module, Report) {
    let scratch = Bump::new();
    let mut cx = PassCx::new(entry.name, math, &scratch, budget);
    let mut module = module.clone();
    let changed = entry.run(&mut module, &mut cx).unwrap();
    let module = verified(module);
    let mut summary = format!("; rewrites: {}\n", cx.rewrites());
    for miss in cx.near_misses() {
        summary += &format!("; missed {} x: {}\n;   first at: {}\n", miss.count, miss.reason, miss.first);
    }
    let report = Report { changed, rewrites: cx.rewrites(), text: print_module(&module), summary };
    (module, report)
}

#[test]
fn printed_pipeline() {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../snapshots/passes");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let entries = pipeline(&support::options()).unwrap();
    settings.bind(|| insta::assert_snapshot!("pipeline", waste_passes::print_pipeline(&entries)));
}
