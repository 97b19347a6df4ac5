//! This machine's own arithmetic: the roof of ops that do not wait for memory.
//!
//! Each thread runs the f32 matrix kernel of a tier over and over on operands that fit its first cache. The best pass of each counts.
//! Integer kernels may do more operations a second than that.

use std::time::{Duration, Instant};

use waste_kernels::{CpuFeatures, KernelTable, RowsF32, TileMut};

use crate::arena::bytes_of;
use crate::sys::pin_thread;

/// Inputs, outputs and rows of the product: 16 KiB of weights, 16 KiB of activations.
const K: usize = 128;
const N: usize = 32;
const ROWS: usize = 32;

/// Products of a pass: about a millisecond.
const PASS: usize = 200;

/// f32 operations a second of `threads` threads together, on the processors `cpus` where that is not empty, measured for about `time`.
#[must_use]
pub fn peak_flops(cpu: CpuFeatures, threads: usize, cpus: &[usize], time: Duration) -> f64 {
    let table = KernelTable::new(cpu);
    let measure = |thread: usize| {
        if let Some(cpu) = cpus.get(thread) {
            pin_thread(*cpu);
        }
        best_rate(&table, time)
    };
    std::thread::scope(|scope| {
        let measure = &measure;
        let all: Vec<_> = (0..threads.max(1)).map(|it| scope.spawn(move || measure(it))).collect();
        all.into_iter().map(|it| it.join().expect("multiplying does not panic")).sum()
    })
}

/// Operations a second of the best pass of this thread.
fn best_rate(table: &KernelTable, time: Duration) -> f64 {
    let (w, x) = (vec![0.5f32; N * K], vec![0.25f32; ROWS * K]);
    let mut y = vec![0.0f32; ROWS * N];
    let begin = Instant::now();
    let mut best = Duration::MAX;
    while begin.elapsed() < time || best == Duration::MAX {
        let started = Instant::now();
        for _ in 0..PASS {
            let rows = RowsF32::new(std::hint::black_box(&x), ROWS, K, K);
            table.linear_f32_f32(bytes_of(&w), K, &rows, &mut TileMut::from_slice(&mut y, ROWS, N, N));
            std::hint::black_box(&mut y);
        }
        best = best.min(started.elapsed());
    }
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let flops = (2 * K * N * ROWS * PASS) as f64;
    flops / best.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_rate_of_this_world() {
        let rate = peak_flops(CpuFeatures::detect(), 2, &[], Duration::from_millis(5));
        assert!(rate.is_finite() && 1e6 < rate && rate < 1e14, "{rate} operations a second");
    }
}
