//! The corpus replayed, whole and damaged: no input may panic.
#![allow(clippy::print_stdout, reason = "tests, which show where they are")]

use std::collections::BTreeSet;
use std::path::Path;

use waste_fuzz::{TARGETS, clean};

/// Damaged copies of each seed.
const MUTANTS: u64 = 24;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("a corpus").map(|it| it.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|it| std::fs::read(it).expect("a seed")).collect()
}

/// SplitMix64.
fn noise(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn no_seed_and_no_damaged_seed_panics() {
    let mut state = 3;
    for (name, run) in TARGETS {
        // Shown with a panic, and only then.
        println!("{name}");
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for seed in seeds.iter().filter(|it| !it.is_empty()) {
            run(seed);
            for _ in 0..MUTANTS {
                let mut mutant = seed.clone();
                let at = noise(&mut state) as usize % mutant.len();
                match noise(&mut state) % 3 {
                    0 => mutant[at] = noise(&mut state) as u8,
                    1 => mutant.truncate(at),
                    _ => drop(mutant.remove(at)),
                }
                run(&mutant);
            }
        }
    }
    clean();
}

/// A target that one of the lists lacks would never run at night.
#[test]
fn the_manifest_and_the_workflow_name_every_target() {
    let expected: BTreeSet<&str> = TARGETS.iter().map(|it| it.0).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = |path: &str, before: &str, after: &str| {
        let text = std::fs::read_to_string(root.join(path)).expect("a file of this repository");
        let lines = text.lines().filter_map(|it| it.strip_prefix(before)?.strip_suffix(after));
        lines.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    for found in [
        named("Cargo.toml", "path = \"fuzz_targets/", ".rs\""),
        named("../../.github/workflows/fuzz.yml", "          - ", ""),
    ] {
        assert!(found.iter().map(String::as_str).eq(expected.iter().copied()), "{found:?}");
    }
}
