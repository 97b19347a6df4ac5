//! Sessions of the sample plan, whose weights are zero: whose thread is left alone, and which saved sessions are refused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use waste_plan::file::crc32c;
use waste_plan::text::parse;
use waste_runtime::weights::WeightBuffer;
use waste_runtime::{LoadedPlan, Session, SessionOptions, Token};

/// One attention block for 64 positions of one row.
fn tiny() -> LoadedPlan {
    let plan = parse(include_str!("../plan/testdata/tiny.plan.txt")).unwrap();
    let weights = WeightBuffer::new(plan.memory.weights).unwrap();
    LoadedPlan::from_parts(plan, weights, "", "".as_bytes()).unwrap()
}

fn open(loaded: &LoadedPlan, cpus: &[usize]) -> Session {
    let options = SessionOptions { threads: 2, cpus: cpus.to_vec(), verify: false, ..Default::default() };
    Session::open(loaded, &options).unwrap()
}

const TOKEN: Token = Token { row: 0, id: 1 };

/// A folder of its own for a test.
fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("waste-sessions-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A caller may have two sessions, and more after them: none narrows where its thread and those that it starts may run.
#[cfg(target_os = "linux")]
#[test]
fn a_caller_is_pinned_only_while_a_step_runs() {
    let allowed = || {
        let set = rustix::thread::sched_getaffinity(None).unwrap();
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|it| set.is_set(*it)).collect::<Vec<_>>()
    };
    let before = allowed();
    let [first, .., last] = before[..] else { return };
    let loaded = tiny();
    let (mut one, mut other) = (open(&loaded, &[first]), open(&loaded, &[last]));
    for _ in 0..2 {
        for (session, cpu) in [(&mut one, first), (&mut other, last)] {
            let mut seen = Vec::new();
            session.step_seen(&[TOKEN], &[0], &mut |_| seen.push(allowed())).unwrap();
            assert!(seen.len() > 10 && seen.iter().all(|it| *it == [cpu]), "{seen:?}");
            assert_eq!(allowed(), before);
        }
    }
    // A thread of the team without a processor of its own may run wherever the caller may.
    let list =
        |status: &str| status.lines().find(|it| it.starts_with("Cpus_allowed_list")).unwrap().to_owned();
    let here = list(&std::fs::read_to_string("/proc/thread-self/status").unwrap());
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let team: Vec<String> = tasks
        .filter_map(|it| std::fs::read_to_string(it.unwrap().path().join("status")).ok())
        .filter(|it| it.starts_with("Name:\twaste-1\n"))
        .map(|it| list(&it))
        .collect();
    assert!(2 <= team.len() && team.iter().all(|it| *it == here), "{team:?}, here {here}");
    drop(one);
    assert_eq!(allowed(), before);
}

/// What a forged file says of itself is believed neither before nor after its sum is right.
#[test]
fn a_saved_session_is_refused_whole_wherever_it_is_cut_or_forged() {
    let (loaded, folder) = (tiny(), folder("forged"));
    let file = folder.join("s.bin");
    let mut saved = open(&loaded, &[]);
    saved.step(&[TOKEN], &[0]).unwrap();
    saved.step(&[TOKEN], &[0]).unwrap();
    saved.save_with(0, &[1, 1, 3], b"a note", &file).unwrap();
    let good = std::fs::read(&file).unwrap();

    let mut session = open(&loaded, &[]);
    session.step(&[TOKEN], &[0]).unwrap();
    let mut refused = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let message = session.restore(0, &file).unwrap_err().to_string();
        assert_eq!(session.len(0), 1, "{message}");
        message
    };
    for end in (0..good.len()).filter(|it| *it < 64 || it.is_multiple_of(61)) {
        refused(&good[..end]);
    }
    let summed = |body: &[u8]| [body, &crc32c(body).to_le_bytes()].concat();
    let body = &good[..good.len() - 4];
    let word = |at: usize, n: u32| summed(&[&body[..at], &n.to_le_bytes(), &body[at + 4..]].concat());
    let cases = [
        (word(8, u32::MAX), "it ends within its description"),
        (word(12, 1 << 24), "it ends within its tokens"),
        (word(12, u32::MAX), "has 4294967295 tokens, at most 16777216 are possible"),
        (word(16, 4), "has 4 accepted tokens of 3, the plan has 64 positions"),
        (word(20, 1 << 26), "it ends within its note"),
        (word(20, u32::MAX), "has a note of 4294967295 bytes, at most 67108864 are possible"),
        (summed(&[body, &[0]].concat()), "bytes of states, expected"),
        (word(28, 0), "is of another model: "),
    ];
    for (bytes, expected) in cases {
        let message = refused(&bytes);
        assert!(message.contains(expected), "{message}");
    }
    let message = session.restore(0, &folder).unwrap_err().to_string();
    assert!(message.contains("is no regular file"), "{message}");

    std::fs::write(&file, &good).unwrap();
    assert_eq!(session.restore_with(0, &file).unwrap(), (vec![1, 1, 3], b"a note".to_vec()));
    assert_eq!(session.len(0), 2);
    std::fs::remove_dir_all(folder).unwrap();
}
