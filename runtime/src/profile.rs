//! Measured time by step, summed over calls: what `bench --profile` prints by op class.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use waste_plan::schema::Plan;

/// Nanoseconds and calls of every step.
#[derive(Debug)]
pub struct Profile {
    epoch: Instant,
    /// Nanoseconds of thread 0 in each step, barriers before and behind it included, per program.
    steps: Vec<Vec<AtomicU64>>,
    /// Calls, tokens and wanted rows of each program.
    calls: Vec<Calls>,
}

/// How often a program ran, and over how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Calls.
    pub calls: u64,
    /// Tokens of all calls.
    pub tokens: u64,
    /// Wanted rows of all calls.
    pub want: u64,
}

impl Profile {
    pub(crate) fn new(plan: &Plan) -> Self {
        let steps =
            plan.programs.iter().map(|it| it.steps.iter().map(|_| AtomicU64::new(0)).collect()).collect();
        Self { epoch: Instant::now(), steps, calls: vec![Calls::default(); plan.programs.len()] }
    }

    pub(crate) fn clock(&self, program: usize) -> Clock<'_> {
        Clock { epoch: self.epoch, steps: &self.steps[program] }
    }

    pub(crate) fn count(&mut self, program: usize, tokens: u32, want: u32) {
        let it = &mut self.calls[program];
        it.calls += 1;
        it.tokens += u64::from(tokens);
        it.want += u64::from(want);
    }

    /// Nanoseconds of each step of `program`, all calls together.
    #[must_use]
    pub fn nanos(&self, program: usize) -> Vec<u64> {
        self.steps[program].iter().map(|it| it.load(Ordering::Relaxed)).collect()
    }

    /// How often `program` ran.
    #[must_use]
    pub fn calls(&self, program: usize) -> Calls {
        self.calls[program]
    }
}

/// Times the steps of one call. With a clock every step has a barrier before it and one behind it, so thread 0's time from before the
/// one to behind the other holds all that any thread does of the step.
pub(crate) struct Clock<'a> {
    epoch: Instant,
    steps: &'a [AtomicU64],
}

impl Clock<'_> {
    pub(crate) fn start(&self, member: usize) -> u64 {
        if member == 0 { self.now() } else { 0 }
    }

    pub(crate) fn stop(&self, step: usize, member: usize, started: u64) {
        if member == 0 {
            self.steps[step].fetch_add(self.now() - started, Ordering::Relaxed);
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
