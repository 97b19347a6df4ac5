//! Memory of slots, and the guards under which it is used.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{PoisonError, RwLockReadGuard};

use super::cache::Shared;
use crate::arena::{ALIGN, Buffer};
use crate::error::RuntimeError;

/// Memory of one slot.
pub(super) struct Memory {
    pub(super) buffer: Buffer,
    /// Where the record is in it.
    pub(super) record: Range<usize>,
}

impl Memory {
    pub(super) fn new(bytes: u64) -> Result<Self, RuntimeError> {
        Ok(Self { buffer: Buffer::new(bytes, "the expert cache")?, record: 0..0 })
    }

    /// What `new` takes from the system.
    pub(super) fn needed_bytes(bytes: u64) -> u64 {
        bytes.saturating_add(ALIGN as u64 + size_of::<std::sync::RwLock<Self>>() as u64)
    }
}

/// A record that stays where it is while this lives. Threads may share it.
///
/// It begins at a page of memory if it begins at one of its file; else as far into one as in the file, or, where reads are
/// buffered, at a page.
#[derive(Debug)]
pub struct Pinned<'a> {
    // Dropped in this order: the memory is let go before the pin is given back.
    memory: RwLockReadGuard<'a, Memory>,
    pin: PinGuard<'a>,
}

struct PinGuard<'a> {
    shared: &'a Shared,
    slot: u32,
}

impl fmt::Debug for PinGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}", self.slot)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.record.len())
    }
}

impl Deref for Pinned<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.buffer.bytes()[self.memory.record.clone()]
    }
}

impl<'a> Pinned<'a> {
    /// The guard of a slot that the caller pinned and whose record is there.
    pub(super) fn new(shared: &'a Shared, slot: u32) -> Self {
        let pin = PinGuard { shared, slot };
        let memory = shared.memory[slot as usize].read().unwrap_or_else(PoisonError::into_inner);
        Self { memory, pin }
    }

    /// Leaves the record pinned after this guard, until [`ExpertCache::release`](super::ExpertCache::release) or
    /// [`ExpertCache::abandon`](super::ExpertCache::abandon).
    pub fn keep(self) {
        let Self { memory, pin } = self;
        drop(memory);
        pin.shared.lock().slots.keep(pin.slot);
        std::mem::forget(pin);
    }
}

impl Drop for PinGuard<'_> {
    fn drop(&mut self) {
        self.shared.lock().slots.unpin(self.slot);
        self.shared.ended.notify_all();
    }
}
