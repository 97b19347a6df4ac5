//! What a session learns about its experts, for the next session: how often each was used.
//!
//! Deliberately absent: the file that keeps it (`learned`, since it names the model).

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cache::ExpertCache;
use super::error::ExpertError;

/// An expert and how often it was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hot {
    /// The model's number of the layer.
    pub layer: u32,
    /// The expert.
    pub expert: u32,
    /// Uses.
    pub hits: u32,
}

/// Hottest first; equals by layer and expert, so that there is one order.
pub(crate) fn order(it: &Hot) -> (Reverse<u32>, u32, u32) {
    (Reverse(it.hits), it.layer, it.expert)
}

impl ExpertCache {
    /// Every expert that was used since the cache was opened, hottest first; equals by layer and expert.
    #[must_use]
    pub fn hot(&self) -> Vec<Hot> {
        let records = &self.shared.records;
        let core = self.shared.lock();
        let hot = |record| {
            let (bank, expert) = records.place(record);
            Hot { layer: bank.layer, expert, hits: core.slots.policy.uses(record) }
        };
        let mut list: Vec<Hot> = (0..records.len()).map(hot).filter(|it| 0 < it.hits).collect();
        list.sort_by_key(order);
        list
    }

    /// Learns `list`, and reads its hottest experts until no slot is empty; how many were read. For a cache that is not in
    /// use yet. Experts that do not exist are skipped, and so are records that cannot be read: whoever asks for one is told.
    ///
    /// # Errors
    /// [`ExpertError::Cancelled`] if `cancel` is set.
    pub fn warm(&self, list: &[Hot], cancel: &AtomicBool) -> Result<usize, ExpertError> {
        let shared = &*self.shared;
        let mut list: Vec<Hot> = list.iter().copied().filter(|it| 0 < it.hits).collect();
        list.sort_by_key(order);
        let total = list.iter().map(|it| u64::from(it.hits)).sum();
        let mut core = shared.lock();
        let good = core.reads.good;
        for it in &list {
            let Some(record) = shared.records.find(it.layer, it.expert) else { continue };
            core.slots.policy.learn(record, it.hits, total);
            core.slots.warm(record);
        }
        shared.queued.notify_all();
        // This thread reads too.
        while !cancel.load(Ordering::Relaxed) {
            core = match core.slots.start() {
                Some(slot) => shared.read(core, slot),
                None if core.slots.is_any_reading() => shared.sleep(core),
                None => return Ok(usize::try_from(core.reads.good - good).expect("at most the slots")),
            };
        }
        core.slots.abandon();
        Err(ExpertError::Cancelled)
    }
}
