//! Real files: direct and buffered reads, and what others do to a file in use.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::time::Duration;

use super::*;

const BYTES: usize = 12288;

fn cache(file: ExpertFile) -> ExpertCache {
    ExpertCache::open(vec![bank(2, Arc::new(file), BYTES as u32, 8)], options(2, 2)).unwrap()
}

fn error_of(cache: &ExpertCache, expert: u32) -> String {
    cache.acquire(2, expert, &RUN).unwrap_err().to_string()
}

/// Longer than the system's clock of files stands still.
fn tick() {
    std::thread::sleep(Duration::from_millis(30));
}

#[test]
fn direct_and_buffered_reads_bring_the_same_bytes() {
    let folder = Folder::new("same");
    // The last record ends inside a block.
    let path = folder.write("bank", &bank_bytes(8, BYTES)[..8 * BYTES - 1000]);
    for direct in [true, false] {
        let file = ExpertFile::open(&path, direct).unwrap();
        if !direct {
            assert_eq!(file.access().to_string(), "buffered (as asked for)");
        }
        let bank = Bank {
            layer: 0,
            file: Arc::new(file),
            offset: 0,
            stride: BYTES as u64,
            bytes: BYTES as u32 - 1000,
            experts: 8,
        };
        let cache = ExpertCache::open(vec![bank], options(3, 2)).unwrap();
        for expert in [7, 3, 0, 7, 1, 2, 4, 5, 6] {
            let found = cache.acquire(0, expert, &RUN).unwrap();
            assert!(*found == record(expert, BYTES)[..BYTES - 1000], "expert {expert}, direct: {direct}");
        }
    }
}

#[test]
fn what_is_no_file_cannot_be_opened() {
    let folder = Folder::new("none");
    for path in [folder.0.clone(), folder.0.join("missing")] {
        let found = ExpertFile::open(&path, true).unwrap_err().to_string();
        assert!(found.starts_with(&path.display().to_string()), "{found}");
    }
}

#[test]
fn a_file_replaced_by_renaming_is_still_read_as_it_was() {
    let folder = Folder::new("renamed");
    let path = folder.write("bank", &bank_bytes(8, BYTES));
    let cache = cache(ExpertFile::open(&path, true).unwrap());
    drop(cache.acquire(2, 0, &RUN).unwrap());
    tick();
    std::fs::rename(folder.write("other", &vec![0; 8 * BYTES]), &path).unwrap();
    for expert in 0..8 {
        assert!(*cache.acquire(2, expert, &RUN).unwrap() == *record(expert, BYTES));
    }
}

#[test]
fn a_file_written_in_place_is_reported_and_a_retry_reads_it_as_it_is() {
    let folder = Folder::new("written");
    let path = folder.write("bank", &bank_bytes(8, BYTES));
    let cache = cache(ExpertFile::open(&path, true).unwrap());
    drop(cache.acquire(2, 0, &RUN).unwrap());
    tick();
    let mut other = OpenOptions::new().write(true).open(&path).unwrap();
    other.seek(SeekFrom::Start(5 * BYTES as u64)).unwrap();
    other.write_all(&record(5, BYTES)).unwrap();
    let found = error_of(&cache, 5);
    assert!(found.contains("expert 5 of layer 2 at 0xf000: the file was changed"), "{found}");
    assert!(*cache.acquire(2, 5, &RUN).unwrap() == *record(5, BYTES));
    tick();
    other.set_len(6 * BYTES as u64).unwrap();
    assert!(error_of(&cache, 6).ends_with("73728 bytes, 98304 before"));
    assert!(error_of(&cache, 6).ends_with("the file ends at 0x12000, the record at 0x15000 (truncated?)"));
    assert!(*cache.acquire(2, 4, &RUN).unwrap() == *record(4, BYTES));
}

#[test]
fn many_share_a_file_and_one_has_it_alone() {
    let folder = Folder::new("locks");
    let path = folder.write("bank", &bank_bytes(2, BYTES));
    for direct in [true, false] {
        let open = || ExpertFile::open(&path, direct).unwrap();
        let (first, second) = (open(), open());
        first.lock(false).unwrap();
        second.lock(false).unwrap();
        let found = open().lock(true).unwrap_err().to_string();
        assert!(
            found.starts_with(&path.display().to_string()) && found.contains("others are reading"),
            "{found}"
        );
        drop((first, second));
        let alone = open();
        alone.lock(true).unwrap();
        for other in [false, true] {
            assert!(open().lock(other).is_err(), "alone: {other}");
        }
        drop(alone);
        open().lock(true).unwrap();
    }
}

#[test]
fn a_probe_reads_whole_records_at_random() {
    let folder = Folder::new("probe");
    let path = folder.write("bank", &bank_bytes(8, BYTES));
    let file = Arc::new(ExpertFile::open(&path, true).unwrap());
    let options = ProbeOptions { readers: 2, rounds: 3, round: Duration::from_millis(5), seed: 1 };
    let found = probe(&[bank(1, file.clone(), BYTES as u32, 8)], &options).unwrap();
    let (low, high) = found.spread();
    assert_eq!(found.gb_per_s.len(), 3);
    assert!(0.0 < low && low <= found.median() && found.median() <= high, "{found:?}");
    assert!(6 <= found.reads() && found.bytes == found.reads() * BYTES as u64, "{found:?}");
    let (half, most) = (found.latency(0.5), found.latency(1.0));
    assert!(Duration::ZERO < half && half <= most && most <= found.time, "{half:?} {most:?}");
    assert!(0.0 < found.reads_per_s());
    assert!(
        probe(&[bank(1, file, BYTES as u32, 9)], &options).unwrap_err().to_string().contains("truncated")
    );
    assert!(probe(&[], &options).unwrap_err().to_string().contains("at least one record"));

    // All records of all banks, and nothing else.
    let shim = Shim::new(bank_bytes(8, BYTES), 4096);
    let seen = Arc::new(Mutex::new(std::collections::BTreeSet::new()));
    let log = Arc::clone(&seen);
    shim.set(move |_, offset, room| {
        log.lock().unwrap().insert((offset, room));
        None
    });
    let halves = [0, 4].map(|first| Bank {
        offset: first * BYTES as u64,
        ..bank(u32::try_from(first).unwrap(), shim.clone(), BYTES as u32, 4)
    });
    probe(&halves, &options).unwrap();
    let all = (0..8).map(|it| (it * BYTES as u64, BYTES)).collect();
    let seen = seen.lock().unwrap().clone();
    assert!(!seen.is_empty() && seen.is_subset(&all), "{seen:?}");
    shim.set(|call, _, _| (call == 5).then(|| Err(io::Error::other("gone"))));
    assert!(probe(&halves, &options).unwrap_err().to_string().ends_with(": gone"));
}
