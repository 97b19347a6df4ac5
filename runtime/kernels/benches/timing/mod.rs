//! The clock of the benches: the thread's own processor time, in many short samples.
#![allow(unreachable_pub, reason = "shared by path")]

/// Samples of a measurement, of about 0.3 ms each.
pub const SAMPLES: usize = 101;

/// Seconds of a call over the samples.
pub struct Times {
    pub best: f64,
    pub median: f64,
    /// Interquartile range over the median.
    pub spread: f64,
}

pub fn time(mut once: impl FnMut()) -> Times {
    once();
    let start = now();
    once();
    let n = (0.0003 / (now() - start).max(1e-9)).ceil().max(1.0) as u32;
    let mut samples: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            let start = now();
            (0..n).for_each(|_| once());
            (now() - start) / f64::from(n)
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    let median = samples[SAMPLES / 2];
    let spread = (samples[SAMPLES * 3 / 4] - samples[SAMPLES / 4]) / median;
    Times { best: samples[0], median, spread }
}

/// Processor time of this thread in seconds.
fn now() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
