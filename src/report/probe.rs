//! This machine's own reading speed: the roof that a decode step is measured against.
//!
//! Each thread sums its share of a working set over and over; all start a pass together, and a pass ends with the last. The
//! best pass counts: it is what the machine can do when nobody disturbs it. A set that fits a cache measures that cache, as it
//! should: a model of the same size would live there too.
//!
//! Deliberately absent: writing, and latency. Plain sums, which the compiler turns into vector loads.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use waste_runtime::sys::pin_thread;

use super::units::float;

/// A pass reads at least this much, so that meeting at its ends costs nothing.
const PASS_BYTES: u64 = 64 << 20;

/// A working set, shared out to threads.
#[derive(Debug)]
pub struct Probe {
    shares: Vec<Vec<u64>>,
    /// A processor for each thread; empty: wherever the system puts them.
    cpus: Vec<usize>,
    bytes: u64,
}

impl Probe {
    /// A set of `bytes` bytes (at least a cache line a thread), every share first touched by its own thread.
    ///
    /// # Panics
    /// If the system has not so much memory: ask for what a session just had.
    #[must_use]
    pub fn new(bytes: u64, threads: usize, cpus: &[usize]) -> Self {
        let words = usize::try_from(bytes / 8).unwrap_or(usize::MAX).div_ceil(threads.max(1)).max(8);
        let fill = |thread: usize| {
            pin(cpus, thread);
            (0..words as u64).map(|it| it ^ thread as u64).collect::<Vec<u64>>()
        };
        let shares = std::thread::scope(|scope| {
            let fills: Vec<_> = (0..threads.max(1)).map(|it| scope.spawn(move || fill(it))).collect();
            fills.into_iter().map(|it| it.join().expect("filling memory does not panic")).collect()
        });
        Self { shares, cpus: cpus.to_vec(), bytes: (words * 8 * threads.max(1)) as u64 }
    }

    /// Bytes of the working set.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads for about `time`; bytes a second of the best pass.
    #[must_use]
    pub fn measure(&self, time: Duration) -> f64 {
        let meet = Barrier::new(self.shares.len());
        let is_over = AtomicBool::new(false);
        let sweeps = PASS_BYTES.div_ceil(self.bytes);
        let read = |thread: usize, words: &[u64]| {
            pin(&self.cpus, thread);
            let begin = Instant::now();
            let mut best = Duration::MAX;
            while !is_over.load(Ordering::SeqCst) {
                meet.wait();
                let started = Instant::now();
                for _ in 0..sweeps {
                    black_box(sum(black_box(words)));
                }
                if thread == 0 && time <= begin.elapsed() {
                    is_over.store(true, Ordering::SeqCst);
                }
                meet.wait();
                best = best.min(started.elapsed());
            }
            best
        };
        let best = std::thread::scope(|scope| {
            let read = &read;
            let shares = self.shares.iter().enumerate();
            let threads: Vec<_> = shares.map(|(i, it)| scope.spawn(move || read(i, it))).collect();
            threads.into_iter().map(|it| it.join().expect("reading memory does not panic")).max()
        });
        let best = best.unwrap_or(Duration::MAX).max(Duration::from_nanos(1));
        float(self.bytes * sweeps) / best.as_secs_f64()
    }
}

fn pin(cpus: &[usize], thread: usize) {
    if let Some(cpu) = cpus.get(thread) {
        pin_thread(*cpu);
    }
}

/// The sum of all words, in lanes that do not wait for each other.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 16];
    let (lines, rest) = words.as_chunks::<16>();
    for line in lines {
        lanes.iter_mut().zip(line).for_each(|(lane, word)| *lane = lane.wrapping_add(*word));
    }
    lanes.iter().chain(rest).fold(0, |sum, it| sum.wrapping_add(*it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let words: Vec<u64> = (1..=1003).collect();
        assert_eq!(sum(&words), 1003 * 1004 / 2);
        assert_eq!(sum(&[]), 0);
    }

    #[test]
    fn a_probe_covers_its_set_and_ends() {
        for threads in [1, 2, 3] {
            let probe = Probe::new(1 << 20, threads, &[]);
            assert!((1 << 20) <= probe.bytes() && probe.bytes() < (1 << 20) + 64 * threads as u64);
            let speed = probe.measure(Duration::from_millis(5));
            assert!(speed.is_finite() && 1e6 < speed && speed < 1e13, "{speed} bytes a second");
        }
    }
}
