//! Hit rates of a cache on a routing trace, without a disk: the state machine of the real cache, whose reads end at once.
//!
//! Deliberately absent: time, speculation, and reads that have not ended when the next request comes. Those move single hits,
//! not rates.

use std::collections::BTreeMap;

use super::counters::share;
use super::policy::Eviction;
use super::slots::{Pin, Slots};

/// What one layer of one token, or of one chunk, asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The layer.
    pub layer: u32,
    /// Its experts, in the order of their use.
    pub experts: Vec<u32>,
}

/// What a cache would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simulated {
    /// Requests: experts of all steps.
    pub requests: u64,
    /// Requests that would find their record because of an earlier one; all others are reads.
    pub hits: u64,
}

impl Simulated {
    /// Share of requests that are hits, 0 … 1; 0 if there are none.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        share(self.hits as f64, self.requests as f64)
    }
}

/// Walks `steps` as a session does, prefetching each and then using one expert after the other, with a cache of `slots`
/// records that is empty at first. With no slots nothing is ever found.
#[must_use]
pub fn simulate(steps: &[Step], slots: usize, eviction: Eviction) -> Simulated {
    let mut records = BTreeMap::new();
    let mut number = |layer, expert| {
        let n = u32::try_from(records.len()).expect("fewer experts than 2^32");
        *records.entry((layer, expert)).or_insert(n)
    };
    let numbered: Vec<Vec<u32>> =
        steps.iter().map(|step| step.experts.iter().map(|it| number(step.layer, *it)).collect()).collect();
    let n = u32::try_from(records.len()).expect("fewer experts than 2^32");
    let requests = numbered.iter().map(|it| it.len() as u64).sum();
    // A cache that holds all of them evicts nothing, however large it is.
    let slots = u32::try_from(slots).unwrap_or(n).min(n);
    let mut cache = Slots::new(slots, n, eviction);
    for step in &numbered {
        walk(&mut cache, step);
    }
    Simulated { requests, hits: cache.uses.hits }
}

fn walk(cache: &mut Slots, step: &[u32]) {
    cache.prefetch(step.iter().copied());
    while let Some(slot) = cache.start() {
        cache.finish(slot, true);
    }
    for record in step {
        match cache.pin(*record) {
            Pin::Ready(slot) => cache.unpin(slot),
            Pin::Read(slot) => {
                cache.finish(slot, true);
                cache.unpin(slot);
            }
            // Without slots.
            Pin::Full => {}
            Pin::Wait(_) | Pin::Later => unreachable!("every read has ended"),
        }
    }
}
