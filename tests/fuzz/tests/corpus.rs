//! The corpus replayed, whole and damaged: no input may panic.

use std::path::Path;

use waste_fuzz::TARGETS;

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
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for seed in seeds {
            run(&seed);
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
}
