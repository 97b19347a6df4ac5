//! Machines of many kinds, read from the texts of their files in `tests/machines`.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use super::*;

/// Each line of a description is `PATH: TEXT`; lines of one path make one file.
fn machine(name: &str) -> Machine {
    let path = format!("{}/tests/machines/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let mut files: BTreeMap<&str, String> = BTreeMap::new();
    for line in text.lines().filter(|it| !it.starts_with('#')) {
        let (path, text) = line.split_once(": ").unwrap();
        *files.entry(path).or_default() += &format!("{text}\n");
    }
    Machine::read(&|path| files.get(path).cloned())
}

/// Physical cores, fast cores, and what is printed about threads.
fn facts(name: &str) -> (usize, usize, String) {
    let it = machine(name);
    (it.physical_cores(), it.fast_cores(), it.default_threads().to_string())
}

#[test]
fn threads_by_default_are_what_cores_affinity_and_quota_allow() {
    let expected = [
        ("rk3588", 8, 4, "threads 4 (of 8; fast cores)"),
        ("alder-lake", 12, 8, "threads 8 (of 20; fast cores)"),
        ("clocks-only", 6, 2, "threads 2 (of 6; fast cores)"),
        ("smt-server", 8, 8, "threads 8 (of 16; physical cores)"),
        ("smt-taskset", 8, 8, "threads 2 (of 16; physical cores)"),
        ("pod-v2", 16, 16, "threads 4 (of 16; cgroup quota 4.0)"),
        ("docker-v1", 8, 8, "threads 2 (of 8; cgroup quota 1.5)"),
        ("unlimited-v1", 2, 2, "threads 2 (of 2)"),
        ("cpuset-v2", 8, 8, "threads 3 (of 16; physical cores)"),
        ("little-only", 8, 4, "threads 2 (of 8; affinity)"),
        ("garbage", 4, 4, "threads 4 (of 4)"),
    ];
    for (name, cores, fast, threads) in expected {
        assert_eq!(facts(name), (cores, fast, threads.to_owned()), "{name}");
    }
}

#[test]
fn threads_are_pinned_only_where_cores_differ() {
    let cpus = |name| machine(name).default_threads().cpus;
    assert_eq!(cpus("rk3588"), [4, 5, 6, 7]);
    assert_eq!(cpus("alder-lake"), [0, 2, 4, 6, 8, 10, 12, 14]);
    assert_eq!(cpus("clocks-only"), [0, 1]);
    for name in ["smt-server", "smt-taskset", "pod-v2", "unlimited-v1", "little-only", "garbage"] {
        assert!(cpus(name).is_empty(), "{name}");
    }
}

#[test]
fn a_cpuset_is_told_from_an_affinity() {
    assert!(machine("cpuset-v2").has_cpuset);
    assert!(!machine("smt-taskset").has_cpuset);
}

#[test]
fn memory_is_the_smallest_of_all_limits() {
    let memory = |name| {
        let it = machine(name);
        (it.ram, it.memory_limit, it.usable_ram())
    };
    assert_eq!(memory("pod-v2"), (Some(65_000_000 << 10), Some(7 << 30), Some(7 << 30)));
    assert_eq!(memory("docker-v1"), (Some(16_000_000 << 10), Some(2 << 30), Some(2 << 30)));
    assert_eq!(memory("unlimited-v1"), (Some(24_500_000 << 10), None, Some(24_500_000 << 10)));
    assert_eq!(memory("garbage"), (None, None, None));
    assert_eq!(machine("docker-v1").available, Some(9_000_000 << 10));
}

#[test]
fn quotas_are_the_smallest_of_all_levels() {
    assert_eq!(machine("pod-v2").quota, Some(4.0));
    assert_eq!(machine("docker-v1").quota, Some(1.5));
    assert_eq!(machine("unlimited-v1").quota, None);
    assert_eq!(machine("garbage").quota, None);
}

#[test]
fn a_system_without_such_files_has_the_processors_that_the_standard_library_counts() {
    let it = Machine::read(&|_| None);
    let count = std::thread::available_parallelism().unwrap().get();
    assert_eq!(it.default_threads(), Threads { count, cpus: vec![], of: count, limit: None });
    assert_eq!((it.physical_cores(), it.ram, it.quota, it.cpu_name), (count, None, None, None));
}

#[test]
fn the_processor_is_named() {
    assert_eq!(machine("alder-lake").cpu_name.as_deref(), Some("12th Gen Intel(R) Core(TM) i7-12700"));
}

#[test]
fn lists_of_processors_are_strict() {
    let list = |it| parse_cpu_list(it).map(Vec::from_iter);
    assert_eq!(list("0-2,7\n"), Some(vec![0, 1, 2, 7]));
    assert_eq!(list("3"), Some(vec![3]));
    for wrong in ["", "a", "3-1", "1,,2", "-1", "0-", "0-99999999", "1 2"] {
        assert_eq!(list(wrong), None, "{wrong}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn this_machine_is_consistent() {
    let it = Machine::detect();
    let threads = it.default_threads();
    assert!(0 < threads.count && threads.count <= it.cpus.len());
    assert!(it.fast_cores() <= it.physical_cores() && it.physical_cores() <= it.cpus.len());
    assert!(it.usable_ram() <= it.ram);
}

#[cfg(target_os = "linux")]
#[test]
fn the_peak_grows_with_what_is_touched_and_can_be_reset() {
    let before = peak_rss().unwrap();
    let touched = std::hint::black_box(vec![1u8; 64 << 20]);
    let peak = peak_rss().unwrap();
    assert!(before.max(64 << 20) <= peak);
    drop(touched);
    assert!(!reset_peak_rss() || peak_rss().unwrap() + (32 << 20) < peak);
}
