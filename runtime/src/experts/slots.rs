//! What each slot of the cache holds and who uses it: one pure state machine, without threads, files or clocks.
//!
//! The cache drives it under a lock; the simulator drives it with reads that end at once; a test drives it through every
//! interleaving of a few threads.
//!
//! ```text
//!            take               start / pin           finish(true)
//!   Empty ─────────▶ Queued ───────────────▶ Reading ─────────────▶ Ready
//!     ▲                │ victim                 │ finish(false)       │ victim
//!     └────────────────┴──────── no pins ── Failed (pins > 0) ────────┘
//! ```
//!
//! Invariants
//! - a record is in at most one slot, and `index` says in which;
//! - a slot that is pinned, held, being read or failed is never a victim: its class is `Busy`;
//! - read-ahead never takes a slot that is promised to a step (prefetched, not yet pinned); a pin may, so no step waits for a
//!   promise that nobody keeps;
//! - the victim is found in constant time: slots are kept in one dense list a class.

use super::counters::Uses;
use super::policy::{Eviction, Policy};
use super::queue::{Origin, Queue};

/// No slot.
const NONE: u32 = u32::MAX;

/// Where a slot is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    Empty,
    /// Its read waits for a reader.
    Queued,
    /// Somebody is reading it, exclusively.
    Reading,
    /// It holds its record.
    Ready,
    /// Its read failed, and those who waited for it have not all left.
    Failed,
}

/// What may be done with a slot that is wanted for another record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Class {
    /// Nothing is lost.
    Free,
    /// A record that may be wanted again.
    Evictable,
    /// A speculative read that has not begun.
    Speculated,
    /// A step will ask for it.
    Promised,
    /// Somebody uses it.
    Busy,
}

const CLASSES: usize = 5;

/// Whose slots may be taken for another record, in this order: for speculation, for a prefetch, for a pin.
const BY_SPECULATION: &[Class] = &[Class::Free, Class::Evictable];
const BY_PREFETCH: &[Class] = &[Class::Free, Class::Evictable, Class::Speculated];
const BY_PIN: &[Class] = &[Class::Free, Class::Evictable, Class::Speculated, Class::Promised];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    pub(super) state: State,
    /// What it holds or will hold; of no meaning where it is empty.
    pub(super) record: u32,
    /// Guards and waiting threads.
    pub(super) pins: u32,
    /// Pins without a guard: see [`Slots::keep`].
    pub(super) holds: u32,
    /// A step announced that it will pin it.
    is_promised: bool,
    /// Why it was read, until the first pin.
    origin: Option<Origin>,
    class: Class,
    /// Place in the list of its class.
    at: u32,
}

/// What a pin found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pin {
    /// Pinned, and the record is there.
    Ready(u32),
    /// Pinned, and another thread reads it: wait for [`Slots::outcome`].
    Wait(u32),
    /// Pinned, and the caller must read it and call [`Slots::finish`].
    Read(u32),
    /// Not pinned: no slot can be had until some read ends. Ask again then.
    Later,
    /// Not pinned: every slot is in use.
    Full,
}

/// The slots.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    /// Slot of each record, or `NONE`.
    index: Vec<u32>,
    slots: Vec<Slot>,
    /// Slots of each class.
    members: [Vec<u32>; CLASSES],
    queue: Queue,
    pub(super) policy: Policy,
    pub(super) uses: Uses,
}

impl Slots {
    /// `slots` empty slots for records 0 … `records` − 1.
    pub(super) fn new(slots: u32, records: u32, eviction: Eviction) -> Self {
        let empty = |at| Slot {
            state: State::Empty,
            record: 0,
            pins: 0,
            holds: 0,
            is_promised: false,
            origin: None,
            class: Class::Free,
            at,
        };
        let mut members: [Vec<u32>; CLASSES] = std::array::from_fn(|_| Vec::with_capacity(slots as usize));
        members[Class::Free as usize].extend(0..slots);
        Self {
            index: vec![NONE; records as usize],
            slots: (0..slots).map(empty).collect(),
            members,
            queue: Queue::new(slots),
            policy: Policy::new(slots as usize, records as usize, eviction),
            uses: Uses::default(),
        }
    }

    /// Bytes that `new` takes from the system.
    pub(super) fn needed_bytes(slots: u64, records: u64) -> u64 {
        let slot = size_of::<Slot>() + (CLASSES + 4) * size_of::<u32>();
        slots
            .saturating_mul(slot as u64)
            .saturating_add(records.saturating_mul(size_of::<u32>() as u64))
            .saturating_add(Policy::needed_bytes(slots, records))
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slot that holds or will hold `record`.
    pub(super) fn find(&self, record: u32) -> Option<u32> {
        Some(self.index[record as usize]).filter(|it| *it != NONE)
    }

    pub(super) fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    fn edit(&mut self, slot: u32, change: impl FnOnce(&mut Slot)) {
        let it = &mut self.slots[slot as usize];
        change(it);
        let class = match it.state {
            State::Empty => Class::Free,
            State::Reading | State::Failed => Class::Busy,
            State::Queued | State::Ready if 0 < it.pins + it.holds => Class::Busy,
            State::Queued | State::Ready if it.is_promised => Class::Promised,
            State::Queued => Class::Speculated,
            State::Ready => Class::Evictable,
        };
        let (from, at) = (it.class, it.at);
        if class == from {
            return;
        }
        self.members[from as usize].swap_remove(at as usize);
        if let Some(moved) = self.members[from as usize].get(at as usize) {
            self.slots[*moved as usize].at = at;
        }
        let to = &mut self.members[class as usize];
        let at = u32::try_from(to.len()).expect("fewer members than slots");
        to.push(slot);
        let it = &mut self.slots[slot as usize];
        (it.class, it.at) = (class, at);
    }

    /// Announces that a step will pin `records`, in this order: those that are here may no longer be evicted by read-ahead,
    /// and reads of the others are queued while slots can be had. Of those that are here only so many are kept that half
    /// the slots remain for reading. How many of `records`, from the first on, are here or queued.
    pub(super) fn prefetch(&mut self, records: impl Iterator<Item = u32> + Clone) -> usize {
        let mut room = (self.slots.len() / 2).max(1);
        for record in records.clone() {
            let Some(slot) = self.find(record) else { continue };
            if self.slot(slot).state == State::Queued {
                self.queue.remove(slot);
                self.queue.push(slot, Origin::Demand);
            } else if room == 0 {
                continue;
            } else {
                room -= 1;
            }
            self.edit(slot, |it| it.is_promised = true);
        }
        self.read_ahead(records, Origin::Demand)
    }

    /// Queues reads of `records` that a step may pin, while slots can be had. How many were queued.
    pub(super) fn speculate(&mut self, records: impl Iterator<Item = u32> + Clone) -> usize {
        let before = self.uses.speculative_reads;
        self.read_ahead(records, Origin::Speculation);
        usize::try_from(self.uses.speculative_reads - before).expect("fewer reads than slots")
    }

    /// Queues a read of `record` into an empty slot. False if there is none.
    pub(super) fn warm(&mut self, record: u32) -> bool {
        self.find(record).is_some()
            || !self.members[Class::Free as usize].is_empty() && self.queue_read(record, Origin::Warming)
    }

    fn read_ahead(&mut self, records: impl Iterator<Item = u32>, origin: Origin) -> usize {
        let mut n = 0;
        for record in records {
            if self.find(record).is_none() && !self.queue_read(record, origin) {
                break;
            }
            n += 1;
        }
        n
    }

    fn queue_read(&mut self, record: u32, origin: Origin) -> bool {
        let classes = if origin == Origin::Demand { BY_PREFETCH } else { BY_SPECULATION };
        let Some(slot) = self.take(record, origin, classes) else { return false };
        self.queue.push(slot, origin);
        self.edit(slot, |it| {
            it.state = State::Queued;
            it.is_promised = origin == Origin::Demand;
        });
        self.uses.speculative_reads += u64::from(origin == Origin::Speculation);
        true
    }

    /// An empty slot, or a victim's, made that of `record`. Its state is still `Empty`.
    fn take(&mut self, record: u32, origin: Origin, classes: &[Class]) -> Option<u32> {
        let slot = classes.iter().find_map(|class| match (class, &self.members[*class as usize]) {
            (Class::Free, free) => free.last().copied(),
            (_, candidates) => self.policy.victim(candidates),
        })?;
        let old = *self.slot(slot);
        if old.state != State::Empty {
            self.forget(slot);
            self.queue.remove(slot);
            self.uses.evictions += u64::from(old.state == State::Ready);
        }
        self.index[record as usize] = slot;
        self.policy.place(slot, record);
        self.edit(slot, |it| {
            *it = Slot { record, origin: Some(origin), state: State::Empty, is_promised: false, ..*it }
        });
        Some(slot)
    }

    /// The record of `slot` is no longer there.
    fn forget(&mut self, slot: u32) {
        let record = self.slot(slot).record;
        self.index[record as usize] = NONE;
    }

    /// Pins `record` for use: it stays where it is until [`Slots::unpin`]. Counts a use of it.
    pub(super) fn pin(&mut self, record: u32) -> Pin {
        let (slot, found) = match self.find(record) {
            Some(slot) => (slot, self.slot(slot).state),
            None => match self.take(record, Origin::Demand, BY_PIN) {
                Some(slot) => (slot, State::Empty),
                None => return if self.is_any_ending() { Pin::Later } else { Pin::Full },
            },
        };
        self.queue.remove(slot);
        match self.slot(slot).origin {
            None => self.uses.hits += 1,
            Some(Origin::Warming) => {
                self.uses.hits += 1;
                self.uses.warm_hits += 1;
            }
            Some(Origin::Speculation) => self.uses.speculative_hits += 1,
            Some(Origin::Demand) => self.uses.misses += 1,
        }
        self.policy.touch(slot, record);
        self.edit(slot, |it| {
            it.pins += 1;
            it.is_promised = false;
            it.origin = None;
            if matches!(it.state, State::Empty | State::Queued) {
                it.state = State::Reading;
            }
        });
        match found {
            State::Ready => Pin::Ready(slot),
            State::Reading => Pin::Wait(slot),
            State::Empty | State::Queued => Pin::Read(slot),
            State::Failed => unreachable!("the index does not know failed slots"),
        }
    }

    /// Whether a busy slot will be free or evictable without anybody unpinning a record that is there. Asked only where
    /// all slots are busy, which are few then.
    fn is_any_ending(&self) -> bool {
        self.slots.iter().any(|it| match it.state {
            State::Reading => it.pins + it.holds == 0,
            State::Failed => true,
            State::Empty | State::Queued | State::Ready => false,
        })
    }

    /// Whether any read is in flight; for opening only, since it looks at every slot.
    pub(super) fn is_any_reading(&self) -> bool {
        self.slots.iter().any(|it| it.state == State::Reading)
    }

    /// Pins `record` once more if it is there. Counts nothing.
    pub(super) fn peek(&mut self, record: u32) -> Option<u32> {
        let slot = self.find(record).filter(|it| self.slot(*it).state == State::Ready)?;
        self.edit(slot, |it| it.pins += 1);
        Some(slot)
    }

    /// The next read in the queue, which the caller must carry out and [`Slots::finish`].
    pub(super) fn start(&mut self) -> Option<u32> {
        let slot = self.queue.pop()?;
        self.edit(slot, |it| it.state = State::Reading);
        Some(slot)
    }

    /// The read of `slot` ended.
    pub(super) fn finish(&mut self, slot: u32, is_good: bool) {
        debug_assert_eq!(self.slot(slot).state, State::Reading, "slot {slot}");
        if is_good {
            return self.edit(slot, |it| it.state = State::Ready);
        }
        self.forget(slot);
        self.edit(slot, |it| it.state = if it.pins == 0 { State::Empty } else { State::Failed });
    }

    /// Whether the record is there, for one who waits for `slot`; `None` while it is being read.
    pub(super) fn outcome(&self, slot: u32) -> Option<bool> {
        match self.slot(slot).state {
            State::Ready => Some(true),
            State::Failed => Some(false),
            State::Empty | State::Queued | State::Reading => None,
        }
    }

    /// Gives a pin back.
    pub(super) fn unpin(&mut self, slot: u32) {
        self.edit(slot, |it| {
            it.pins -= 1;
            if it.state == State::Failed && it.pins == 0 {
                it.state = State::Empty;
            }
        });
    }

    /// Turns a pin into a hold, which [`Slots::release`] gives back.
    pub(super) fn keep(&mut self, slot: u32) {
        self.edit(slot, |it| (it.pins, it.holds) = (it.pins - 1, it.holds + 1));
    }

    /// Gives a hold of `record` back. False if there is none.
    pub(super) fn release(&mut self, record: u32) -> bool {
        let Some(slot) = self.find(record).filter(|it| 0 < self.slot(*it).holds) else { return false };
        self.edit(slot, |it| it.holds -= 1);
        true
    }

    /// Forgets what a failed or cancelled step announced and held: promises, holds and queued reads.
    pub(super) fn abandon(&mut self) {
        while let Some(slot) = self.queue.pop() {
            self.forget(slot);
            self.edit(slot, |it| it.state = State::Empty);
        }
        for slot in 0..self.len() {
            let slot = u32::try_from(slot).expect("counted in u32");
            self.edit(slot, |it| (it.holds, it.is_promised) = (0, false));
        }
    }

    /// Panics unless the lists and the index agree with the slots.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut n = 0;
        for (class, members) in self.members.iter().enumerate() {
            n += members.len();
            for (at, slot) in members.iter().enumerate() {
                let it = self.slot(*slot);
                assert_eq!((it.class as usize, it.at as usize), (class, at), "slot {slot}");
            }
        }
        assert_eq!(n, self.len(), "every slot is in one list");
        for (record, slot) in self.index.iter().enumerate().filter(|it| *it.1 != NONE) {
            let it = self.slot(*slot);
            assert_eq!(it.record as usize, record, "slot {slot}");
            assert!(!matches!(it.state, State::Empty | State::Failed), "slot {slot}");
        }
        let is_left = |it: &Slot| it.state == State::Failed && it.pins == 0;
        assert!(!self.slots.iter().any(is_left), "a failed slot that nobody waits for");
        let known = |it: &&Slot| !matches!(it.state, State::Empty | State::Failed);
        let records = self.index.iter().filter(|it| **it != NONE).count();
        assert_eq!(self.slots.iter().filter(known).count(), records, "every record is in one slot");
        let mut queue = self.queue.clone();
        let queued: Vec<u32> = std::iter::from_fn(|| queue.pop()).collect();
        let is_queued = |it: &&Slot| it.state == State::Queued;
        assert!(queued.iter().all(|it| self.slot(*it).state == State::Queued), "{queued:?}");
        assert_eq!(self.slots.iter().filter(is_queued).count(), queued.len(), "{queued:?}");
    }
}
