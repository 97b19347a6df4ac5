//! The suites `parse` and `verify` of `tests/filetests`.
//!
//! - `parse/*.wir`: verified modules in canonical text; printing what was parsed gives the same bytes.
//! - `verify/*.wir`: text with `; error: <text>` at the end of each offending line, once per error, in order. Each error must be
//!   about its line and contain its text, and no other error may be found.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::PathBuf;

use waste_ir::{VerifyError, parse_module, print_module, verify};

/// The files of a suite: name and text.
fn suite(name: &str) -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/filetests").join(name);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().path()).collect();
    files.retain(|it| it.extension().is_some_and(|it| it == "wir"));
    files.sort();
    assert!(!files.is_empty(), "no case in {}", folder.display());
    files
        .iter()
        .map(|it| (it.file_name().unwrap().to_string_lossy().into(), fs::read_to_string(it).unwrap()))
        .collect()
}

#[test]
fn parse() {
    let mut failures = String::new();
    for (name, text) in suite("parse") {
        match parse_module(&text) {
            Err(error) => failures += &format!("{name}: {error}\n"),
            Ok(module) => {
                if let Err(errors) = verify(&module) {
                    failures += &format!("{name}: {}\n", errors[0]);
                }
                let printed = print_module(&module);
                let changed = printed.lines().zip(text.lines()).find(|(new, old)| new != old);
                if let Some((new, old)) = changed {
                    failures += &format!("{name}: printed\n{new}\n  where the file has\n{old}\n");
                } else if printed != text {
                    failures += &format!("{name}: printed {} bytes of {}\n", printed.len(), text.len());
                }
            }
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

#[test]
fn verify_errors() {
    let mut failures = String::new();
    for (name, text) in suite("verify") {
        let expected = expectations(&text);
        assert!(!expected.is_empty(), "{name} expects no error");
        let module = parse_module(&text).unwrap_or_else(|it| panic!("{name}: {it}"));
        let found = verify(&module).err().unwrap_or_default();
        let matched = found.iter().zip(&expected).take_while(|(error, (code, text))| fits(error, code, text));
        let matched = matched.count();
        if matched < expected.len().max(found.len()) {
            failures +=
                &format!("{name}: error {matched}\n  expected {:?}\n  found    ", expected.get(matched));
            failures += &found.get(matched).map_or("nothing".to_owned(), ToString::to_string);
            failures += "\n";
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

/// The errors that a text announces: code of the line, text of the error.
fn expectations(text: &str) -> Vec<(&str, &str)> {
    let mut all = Vec::new();
    for line in text.lines() {
        let mut parts = line.split("; error: ");
        let code = parts.next().unwrap().trim().trim_end_matches('{').trim();
        all.extend(parts.map(|it| (code, it.trim())));
    }
    all
}

fn fits(error: &VerifyError, code: &str, text: &str) -> bool {
    let place = match code.strip_prefix("return ") {
        Some(outputs) => outputs.contains(&error.context),
        None => code == error.context,
    };
    place && format!("{} (rule {})", error.message, error.rule).contains(text)
}
