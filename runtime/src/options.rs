//! What a session is opened with, what it is fed, and what it counts.

use waste_kernels::CpuFeatures;

use crate::stream::ExpertOptions;

/// How a session runs.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Threads, at least 1.
    pub threads: usize,
    /// Processors to pin threads to, by thread; empty: wherever the system puts them. The first is the caller's, who is pinned
    /// only while a step runs.
    pub cpus: Vec<usize>,
    /// What the kernels may use of the processor: [`CpuFeatures::detect`], or less.
    pub cpu: CpuFeatures,
    /// Refuse to open above this many bytes.
    pub max_mem: Option<u64>,
    /// Check the CRC of every weight before the first result.
    pub verify: bool,
    /// Check every result of every step, to name the first that is not finite.
    pub check_finite: bool,
    /// Measure each step.
    pub profile: bool,
    /// How experts are streamed, if the plan has any in files.
    pub experts: ExpertOptions,
}

impl Default for SessionOptions {
    /// One thread wherever the system puts it, the best kernels, weights verified, no limit of memory.
    fn default() -> Self {
        Self {
            threads: 1,
            cpus: Vec::new(),
            cpu: CpuFeatures::detect(),
            max_mem: None,
            verify: true,
            check_finite: false,
            profile: false,
            experts: ExpertOptions::default(),
        }
    }
}

/// One token of a batch: `(row, id)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The sequence it belongs to.
    pub row: u32,
    /// Its id.
    pub id: u32,
}

/// What a session has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps started: prefill chunks and decode steps.
    pub forwards_scheduled: u64,
    /// Steps accepted.
    pub forwards_useful: u64,
    /// Tokens accepted.
    pub tokens: u64,
    /// Barriers that threads met at.
    pub barriers: u64,
    /// Tiles carried out, by all threads.
    pub tiles: u64,
    /// Bytes of packed weights multiplied with: by the plan, and of experts those that had a token.
    pub weight_bytes: u64,
    /// Bytes of caches read and written, by the plan.
    pub state_bytes: u64,
    /// Allocations that threads of the session made in steps; 0 where
    /// [`CountingAllocator`](crate::sys::CountingAllocator) is not installed.
    pub allocations: u64,
}
