//! What the cache did, in numbers.

use std::time::{Duration, Instant};

/// What became of requests, counted by the state machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Uses {
    pub(super) hits: u64,
    pub(super) warm_hits: u64,
    pub(super) misses: u64,
    pub(super) speculative_hits: u64,
    pub(super) speculative_reads: u64,
    pub(super) evictions: u64,
}

/// Counters of an expert cache since it was opened.
///
/// Every request is one of `hits`, `speculative_hits` and `misses`, whether or not its read was good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests for a record that was in the cache, or being read, because of an earlier request or a learned list.
    pub hits: u64,
    /// Of the hits, those that a learned list is the only reason for: the first request of each record that was warmed.
    pub warm_hits: u64,
    /// Requests for a record that was there, or being read, only because of speculation: the first request of each.
    pub speculative_hits: u64,
    /// Requests whose record was read for them, by a prefetch or on the spot.
    pub misses: u64,
    /// Reads that speculation queued; those without a `speculative_hit` were for nothing.
    pub speculative_reads: u64,
    /// Records that left the cache for another.
    pub evictions: u64,
    /// Reads that succeeded.
    pub reads: u64,
    /// Reads that failed.
    pub failures: u64,
    /// Bytes of records that successful reads brought.
    pub bytes: u64,
    /// Time in which at least one thread waited for a record.
    pub waiting: Duration,
    /// Time in which at least one read was in flight.
    pub reading: Duration,
    /// Time in which at least one read was in flight and nobody waited.
    pub overlapped: Duration,
}

impl Counters {
    /// Share of requests that found their record because of an earlier request, 0 … 1; 0 if there were none.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        share(self.hits as f64, (self.hits + self.speculative_hits + self.misses) as f64)
    }

    /// 10⁹ bytes a second of records, over the time in which a read was in flight; 0 if none was.
    #[must_use]
    pub fn gb_per_s(&self) -> f64 {
        share(self.bytes as f64 / 1e9, self.reading.as_secs_f64())
    }

    /// Share of the time not spent waiting in which a read was in flight, 0 … 1, in a run that took `wall` and whose
    /// counters these are (see [`Counters::since`]).
    #[must_use]
    pub fn overlap(&self, wall: Duration) -> f64 {
        share(self.overlapped.as_secs_f64(), wall.saturating_sub(self.waiting).as_secs_f64())
    }

    /// What was counted after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            hits: self.hits - earlier.hits,
            warm_hits: self.warm_hits - earlier.warm_hits,
            speculative_hits: self.speculative_hits - earlier.speculative_hits,
            misses: self.misses - earlier.misses,
            speculative_reads: self.speculative_reads - earlier.speculative_reads,
            evictions: self.evictions - earlier.evictions,
            reads: self.reads - earlier.reads,
            failures: self.failures - earlier.failures,
            bytes: self.bytes - earlier.bytes,
            waiting: self.waiting - earlier.waiting,
            reading: self.reading - earlier.reading,
            overlapped: self.overlapped - earlier.overlapped,
        }
    }
}

pub(super) fn share(part: f64, whole: f64) -> f64 {
    if 0.0 < whole { part / whole } else { 0.0 }
}

/// Adds up how long reads were in flight and threads waited.
#[derive(Debug)]
pub(super) struct Clock {
    last: Instant,
    reads: u32,
    waits: u32,
    waiting: Duration,
    reading: Duration,
    overlapped: Duration,
}

/// What begins or ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Activity {
    Read,
    Wait,
}

impl Clock {
    pub(super) fn new() -> Self {
        let zero = Duration::ZERO;
        Self { last: Instant::now(), reads: 0, waits: 0, waiting: zero, reading: zero, overlapped: zero }
    }

    /// Accounts for the time since the last event.
    fn advance(&mut self) {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.last);
        self.last = now;
        if 0 < self.waits {
            self.waiting += passed;
        }
        if 0 < self.reads {
            self.reading += passed;
        }
        if 0 < self.reads && self.waits == 0 {
            self.overlapped += passed;
        }
    }

    fn count(&mut self, activity: Activity) -> &mut u32 {
        match activity {
            Activity::Read => &mut self.reads,
            Activity::Wait => &mut self.waits,
        }
    }

    pub(super) fn begin(&mut self, activity: Activity) {
        self.advance();
        *self.count(activity) += 1;
    }

    pub(super) fn end(&mut self, activity: Activity) {
        self.advance();
        *self.count(activity) -= 1;
    }

    /// The times so far, and the given counts.
    pub(super) fn counters(&mut self, uses: Uses, reads: Reads) -> Counters {
        self.advance();
        Counters {
            hits: uses.hits,
            warm_hits: uses.warm_hits,
            speculative_hits: uses.speculative_hits,
            misses: uses.misses,
            speculative_reads: uses.speculative_reads,
            evictions: uses.evictions,
            reads: reads.good,
            failures: reads.failed,
            bytes: reads.bytes,
            waiting: self.waiting,
            reading: self.reading,
            overlapped: self.overlapped,
        }
    }
}

/// How reads ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reads {
    pub(super) good: u64,
    pub(super) failed: u64,
    pub(super) bytes: u64,
}
