//! Guards, read-ahead and counters with real threads.

use std::time::{Duration, Instant};

use super::super::policy::below;
use super::*;

const BYTES: u32 = 4096;

fn small(slots: usize, readers: usize) -> ExpertCache {
    open(&Shim::new(bank_bytes(16, BYTES as usize), 512), BYTES, 16, options(slots, readers))
}

#[test]
fn a_pinned_record_stays_and_a_full_cache_says_so() {
    let cache = small(2, 1);
    let a = cache.acquire(1, 0, &RUN).unwrap();
    let b = cache.acquire(1, 1, &RUN).unwrap();
    let again = cache.acquire(1, 1, &RUN).unwrap();
    let full = cache.acquire(1, 2, &RUN).unwrap_err();
    assert_eq!(full.to_string(), "all 2 experts of the cache are in use");
    assert_eq!(cache.prefetch(1, &[3]), 0);
    drop(b);
    assert!(cache.acquire(1, 2, &RUN).is_err(), "a second guard still pins it");
    drop(again);
    drop(cache.acquire(1, 2, &RUN).unwrap());
    assert!(*a == *record(0, BYTES as usize));
    assert!(cache.peek(1, 1).is_none() && cache.peek(1, 2).is_some());
}

#[test]
fn a_kept_record_stays_until_it_is_released() {
    let cache = small(1, 0);
    cache.acquire(1, 4, &RUN).unwrap().keep();
    assert!(cache.acquire(1, 5, &RUN).is_err());
    let shared = cache.peek(1, 4).unwrap();
    assert!(cache.release(1, 4));
    assert!(!cache.release(1, 4), "a guard is not a hold");
    assert!(cache.acquire(1, 5, &RUN).is_err());
    drop(shared);
    cache.acquire(1, 5, &RUN).unwrap().keep();
    cache.abandon();
    drop(cache.acquire(1, 6, &RUN).unwrap());
}

#[test]
fn threads_share_what_one_acquired() {
    let cache = small(2, 1);
    let pinned = [cache.acquire(1, 3, &RUN).unwrap(), cache.acquire(1, 9, &RUN).unwrap()];
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                assert!(*pinned[0] == *record(3, BYTES as usize));
                assert!(*cache.peek(1, 9).unwrap() == *record(9, BYTES as usize));
            });
        }
    });
}

#[test]
fn a_prefetch_starts_what_fits_and_keeps_what_is_here() {
    let cache = small(4, 2);
    drop(cache.acquire(1, 0, &RUN).unwrap());
    drop(cache.acquire(1, 9, &RUN).unwrap());
    assert_eq!(cache.prefetch(1, &[1, 2, 3, 0, 5]), 4, "a free slot twice, then record 9's");
    settle(&cache);
    assert_eq!(cache.counters().reads, 5);
    assert_eq!(cache.prefetch(1, &[5]), 0, "everything is promised");
    for expert in [1, 2, 3, 0] {
        assert!(*cache.acquire(1, expert, &RUN).unwrap() == *record(expert, BYTES as usize));
    }
    let found = cache.counters();
    assert_eq!((found.reads, found.misses, found.hits, found.evictions), (5, 5, 1, 1));
    assert_eq!(cache.prefetch(1, &[5]), 1, "promises are kept once");
}

#[test]
fn a_request_breaks_promises_that_nobody_keeps() {
    let cache = small(2, 1);
    assert_eq!(cache.prefetch(1, &[0, 1]), 2);
    settle(&cache);
    drop(cache.acquire(1, 2, &RUN).unwrap());
    assert_eq!(cache.counters().evictions, 1);
    cache.abandon();
    assert_eq!(cache.prefetch(1, &[5, 6]), 2, "abandoned, nothing is promised");
}

#[test]
fn speculation_is_counted_apart() {
    let cache = small(4, 1);
    assert_eq!(cache.speculate(1, &[0, 1, 2]), 3);
    settle(&cache);
    cache.prefetch(1, &[1, 4]);
    for expert in [1, 4, 1] {
        drop(cache.acquire(1, expert, &RUN).unwrap());
    }
    let found = cache.counters();
    assert_eq!((found.speculative_reads, found.speculative_hits), (3, 1));
    assert_eq!((found.hits, found.misses, found.reads), (1, 1, 4));
    assert_eq!(found.bytes, 4 * u64::from(BYTES));
    // Nothing that is pinned, promised or guessed leaves for speculation.
    let _pinned = cache.acquire(1, 4, &RUN).unwrap();
    cache.prefetch(1, &[1]);
    assert_eq!(cache.speculate(1, &[7, 8, 9]), 0);
    cache.withdraw(1, &[0, 2]);
    assert_eq!(cache.speculate(1, &[7, 8, 9]), 2);
    settle(&cache);
    assert!(cache.peek(1, 1).is_some() && cache.peek(1, 4).is_some());
    // Of the five that were guessed one was used, two are here, and two gave way.
    let found = cache.counters();
    assert_eq!((found.speculative_reads, found.speculative_hits, found.speculative_losses), (5, 1, 2));
}

#[test]
fn a_demanded_read_overtakes_speculation() {
    let file = Shim::new(bank_bytes(16, BYTES as usize), 1);
    let order = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&order);
    let (release, gate) = std::sync::mpsc::channel::<()>();
    file.set(move |_, offset, _| {
        log.lock().unwrap().push(offset / u64::from(BYTES));
        let _released = gate.recv();
        None
    });
    let cache = open(&file, BYTES, 16, options(8, 1));
    cache.speculate(1, &[0]);
    while order.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
    cache.speculate(1, &[1, 2, 3]);
    cache.prefetch(1, &[7, 3, 8]);
    drop(release);
    settle(&cache);
    assert_eq!(*order.lock().unwrap(), [0, 3, 7, 8, 1, 2]);
}

#[test]
fn time_is_split_into_waiting_and_overlap() {
    let file = Shim::new(bank_bytes(16, BYTES as usize), 1);
    let read = Duration::from_millis(30);
    file.set(move |_, _, _| {
        std::thread::sleep(read);
        None
    });
    let cache = open(&file, BYTES, 16, options(4, 1));
    let (before, begin) = (cache.counters(), Instant::now());
    drop(cache.acquire(1, 0, &RUN).unwrap());
    let synchronous = cache.counters().since(&before);
    assert!(read <= synchronous.waiting && synchronous.overlapped < read / 2, "{synchronous:?}");
    cache.prefetch(1, &[1, 2]);
    settle(&cache);
    drop(cache.acquire(1, 1, &RUN).unwrap());
    drop(cache.acquire(1, 2, &RUN).unwrap());
    let (found, wall) = (cache.counters().since(&before), begin.elapsed());
    assert!(2 * read <= found.overlapped && found.overlapped <= found.reading, "{found:?}");
    assert!(found.overlapped + synchronous.waiting <= wall, "{found:?} in {wall:?}");
    assert!(found.waiting < synchronous.waiting + read / 2, "{found:?}");
    let overlap = found.overlap(wall);
    assert!(0.0 < overlap && overlap < 1.0, "{overlap}");
}

#[test]
fn many_threads_see_only_whole_records() {
    for (slots, readers) in [(5, 2), (12, 1), (5, 0)] {
        let file = Shim::new(bank_bytes(16, BYTES as usize), 512);
        file.set(|call, _, room| match call % 11 {
            3 => Some(Err(io::ErrorKind::Interrupted.into())),
            5 => Some(Ok(room / 2)),
            7 => Some(Err(io::Error::other("now and then"))),
            _ => None,
        });
        let cache = open(&file, BYTES, 16, options(slots, readers));
        let work = |thread: u64| {
            let (mut state, mut failures) = (thread, 0);
            for _ in 0..600 {
                let mut some = || below(&mut state, 16) as u32;
                let (a, b, c) = (some(), some(), some());
                match below(&mut state, 8) {
                    0 => drop(cache.speculate(1, &[a, b])),
                    1 | 2 => drop(cache.prefetch(1, &[a, b, c])),
                    3 if thread == 0 => cache.abandon(),
                    _ => {}
                }
                match cache.acquire(1, a, &RUN) {
                    Ok(found) => assert!(*found == *record(a, BYTES as usize), "expert {a}"),
                    Err(error) => {
                        assert!(error.to_string().ends_with("now and then"), "{error}");
                        failures += 1;
                    }
                }
                if let Some(found) = cache.peek(1, b) {
                    assert!(*found == *record(b, BYTES as usize), "expert {b}");
                }
            }
            failures
        };
        let failures: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|it| scope.spawn(move || work(it))).collect();
            threads.into_iter().map(|it| it.join().unwrap()).sum()
        });
        settle(&cache);
        cache.shared.lock().slots.check();
        let found = cache.counters();
        assert_eq!(found.hits + found.misses + found.speculative_hits, 4 * 600);
        assert!(0 < failures && 0 < found.failures && 0 < found.evictions, "{found:?}");
    }
}
