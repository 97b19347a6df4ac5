//! Everything that a file can do to a reader: the right bytes, or one clear line and a later retry that succeeds.

use io::ErrorKind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::*;

const BYTES: u32 = 8192;

/// A check that knows what records hold, as a checksum would.
fn checked(mut it: ExpertCacheOptions) -> ExpertCacheOptions {
    it.check =
        Box::new(
            |_, expert, bytes| {
                if bytes == record(expert, bytes.len()) { Ok(()) } else { Err("checksum".to_owned()) }
            },
        );
    it
}

fn shim() -> Arc<Shim> {
    Shim::new(bank_bytes(6, BYTES as usize), 4096)
}

fn assert_good(cache: &ExpertCache, expert: u32) {
    let found = cache.acquire(1, expert, &RUN).unwrap();
    assert!(*found == *record(expert, BYTES as usize), "expert {expert}");
}

fn line(cache: &ExpertCache, expert: u32) -> String {
    cache.acquire(1, expert, &RUN).unwrap_err().to_string()
}

#[test]
fn short_reads_and_interruptions_are_continued() {
    for (alignment, short) in [(4096, 4096), (4096, 5000), (4096, 100), (1, 1), (1, 4097)] {
        let file = Shim::new(bank_bytes(6, BYTES as usize), alignment);
        file.set(move |call, _, _| match call % 3 {
            0 => Some(Err(ErrorKind::Interrupted.into())),
            1 => Some(Ok(short)),
            _ => None,
        });
        let cache = open(&file, BYTES, 6, options(6, 2));
        assert_eq!(cache.prefetch(1, &[4, 2]), 2);
        for expert in 0..6 {
            assert_good(&cache, expert);
        }
        assert_eq!(cache.counters().failures, 0, "reads of {short}");
    }
}

#[test]
fn records_need_not_begin_at_a_block() {
    for alignment in [1, 512, 4096] {
        let mut bytes = vec![7; 100];
        bytes.extend(bank_bytes(5, 5000));
        let file = Shim::new(bytes, alignment);
        let bank = Bank { layer: 3, file, offset: 100, stride: 5000, bytes: 5000, experts: 5 };
        let cache = ExpertCache::open(vec![bank], options(2, 1)).unwrap();
        cache.prefetch(3, &[4, 0]);
        for expert in [4, 0, 1, 2, 3, 4] {
            let found = cache.acquire(3, expert, &RUN).unwrap();
            assert!(*found == *record(expert, 5000), "expert {expert} in blocks of {alignment}");
        }
    }
}

#[test]
fn an_unreadable_record_is_named_and_not_for_ever() {
    for readers in [0, 2] {
        let file = shim();
        let third = 2 * u64::from(BYTES);
        file.set(move |_, offset, _| (offset == third).then(|| Err(io::Error::from_raw_os_error(5))));
        let cache = open(&file, BYTES, 6, options(3, readers));
        cache.prefetch(1, &[0, 1, 2]);
        assert_good(&cache, 0);
        assert_good(&cache, 1);
        let found = line(&cache, 2);
        let reason = io::Error::from_raw_os_error(5);
        assert_eq!(found, format!("experts-L1.bin: expert 2 of layer 1 at 0x4000: {reason}"));
        assert_good(&cache, 3);
        file.set(|_, _, _| None);
        assert_good(&cache, 2);
    }
}

#[test]
fn a_truncated_bank_is_refused_at_open_and_named_at_a_read() {
    let file = shim();
    let cache = open(&file, BYTES, 6, options(2, 1));
    file.bytes.lock().unwrap().truncate(0xa100);
    assert_good(&cache, 4);
    assert_eq!(
        line(&cache, 5),
        "experts-L1.bin: expert 5 of layer 1 at 0xa000: the file ends at 0xa100, the record at 0xc000 (truncated?)"
    );
    let banks = vec![bank(1, Arc::clone(&file) as Arc<dyn ReadAt>, BYTES, 6)];
    assert_eq!(
        ExpertCache::open(banks, options(2, 1)).unwrap_err().to_string(),
        "experts-L1.bin: experts of layer 1: end at 0xc000, the file at 0xa100 (truncated?)"
    );
    *file.bytes.lock().unwrap() = bank_bytes(6, BYTES as usize);
    assert_good(&cache, 5);
}

#[test]
fn a_flipped_byte_is_found_by_a_check_and_only_by_one() {
    let file = shim();
    let flip = || file.bytes.lock().unwrap()[3 * BYTES as usize + 5000] ^= 1;
    flip();
    let trusting = open(&file, BYTES, 6, options(2, 2));
    let cache = open(&file, BYTES, 6, checked(options(2, 2)));
    assert_eq!(cache.prefetch(1, &[3, 2]), 2);
    settle(&cache);
    assert_eq!(line(&cache, 3), "experts-L1.bin: expert 3 of layer 1 at 0x6000: checksum");
    assert_eq!(trusting.acquire(1, 3, &RUN).unwrap()[5000], record(3, BYTES as usize)[5000] ^ 1);
    flip();
    assert_good(&cache, 3);
    assert_eq!(cache.counters().failures, 2, "the prefetch and the request");
}

#[test]
fn a_changed_file_is_reported_once_to_whoever_asks() {
    let file = shim();
    let cache = open(&file, BYTES, 6, options(3, 1));
    assert_good(&cache, 0);
    *file.changed.lock().unwrap() = Some("it was written to".to_owned());
    // A read that nobody waits for does not use the report up.
    cache.prefetch(1, &[1]);
    settle(&cache);
    assert_good(&cache, 0);
    assert_eq!(
        line(&cache, 2),
        "experts-L1.bin: expert 2 of layer 1 at 0x4000: the file was changed while it was in use: it was written to"
    );
    assert_good(&cache, 2);
}

#[test]
fn a_panicking_check_is_an_error() {
    let calls = Arc::new(AtomicU32::new(0));
    let mut it = options(2, 1);
    let counted = Arc::clone(&calls);
    it.check = Box::new(move |_, _, _| {
        assert!(0 < counted.fetch_add(1, Ordering::Relaxed), "a bug in the check");
        Ok(())
    });
    let cache = open(&shim(), BYTES, 6, it);
    assert!(line(&cache, 0).ends_with("its check panicked"));
    assert_good(&cache, 0);
}

#[test]
fn every_waiting_thread_learns_of_a_failure() {
    let file = shim();
    file.set(|_, _, _| {
        std::thread::sleep(Duration::from_millis(20));
        Some(Err(ErrorKind::Other.into()))
    });
    let cache = open(&file, BYTES, 6, options(1, 1));
    cache.prefetch(1, &[0]);
    std::thread::scope(|scope| {
        let ask = || line(&cache, 0);
        let asking: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        for it in asking {
            assert!(it.join().unwrap().starts_with("experts-L1.bin: expert 0 of layer 1 at 0x0: "));
        }
    });
    file.set(|_, _, _| None);
    assert_good(&cache, 0);
}

#[test]
fn a_request_ends_when_it_is_cancelled() {
    let file = shim();
    let (release, gate) = std::sync::mpsc::channel::<()>();
    file.set(move |_, _, _| {
        let _released = gate.recv();
        None
    });
    let cache = open(&file, BYTES, 6, options(2, 2));
    cache.prefetch(1, &[0, 1]);
    while cache.shared.lock().slots.clone().start().is_some() {
        std::thread::yield_now();
    }
    let cancel = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // One waits for the read, the other for a slot.
        let (cache, cancel) = (&cache, &cancel);
        let asking = [0, 2].map(|expert| scope.spawn(move || cache.acquire(1, expert, cancel).map(drop)));
        std::thread::sleep(Duration::from_millis(30));
        let is_any_finished = asking.iter().any(|it| it.is_finished());
        cancel.store(true, Ordering::Relaxed);
        assert!(!is_any_finished, "neither can be served");
        for it in asking {
            assert!(matches!(it.join().unwrap(), Err(ExpertError::Cancelled)));
        }
    });
    assert!(matches!(cache.acquire(1, 0, &cancel), Err(ExpertError::Cancelled)));
    drop(release);
    assert_good(&cache, 1);
    assert_good(&cache, 0);
}

#[test]
fn banks_that_cannot_be_are_refused() {
    let file = shim();
    let good = bank(1, file, BYTES, 6);
    let refused = |change: &dyn Fn(&mut Bank)| {
        let mut it = good.clone();
        change(&mut it);
        ExpertCache::open(vec![it], options(2, 0)).unwrap_err().to_string()
    };
    assert!(refused(&|it| it.experts = 7).contains("truncated?"));
    assert!(refused(&|it| it.experts = 0).contains("0 records"));
    assert!(refused(&|it| it.bytes = 0).contains("of 0 bytes"));
    assert!(refused(&|it| it.stride = 10).contains("10 apart"));
    assert!(refused(&|it| it.offset = 1).contains("truncated?"));
    assert!(refused(&|it| it.offset = u64::MAX - 5).contains("overflow"));
    assert!(refused(&|it| it.stride = u64::MAX / 2).contains("overflow"));
    assert!(refused(&|it| it.layer = 1 << 20).contains("layer 1048576"));
    let twice = ExpertCache::open(vec![good.clone(), good.clone()], options(2, 0)).unwrap_err().to_string();
    assert_eq!(twice, "layer 1: has two banks");
    assert!(ExpertCache::open(vec![good.clone()], options(0, 0)).is_err());
    assert!(ExpertCache::open(Vec::new(), options(1, 0)).is_err());
    let cache = ExpertCache::open(vec![good], options(2, 1)).unwrap();
    assert_eq!(cache.acquire(1, 6, &RUN).unwrap_err().to_string(), "there is no expert 6 of layer 1");
    assert_eq!(cache.acquire(2, 0, &RUN).unwrap_err().to_string(), "there is no expert 0 of layer 2");
    assert_eq!((cache.prefetch(1, &[0, 9, 1]), cache.prefetch(9, &[0])), (1, 0));
    assert!(cache.peek(7, 0).is_none() && !cache.release(7, 0));
}
