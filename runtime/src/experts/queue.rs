//! Reads that wait for a reader: demanded ones in order, then speculative ones in order.
//!
//! Two lists threaded through the slots, so that an entry leaves from anywhere in constant time and nothing is ever
//! allocated. A slot is in at most one of them.

/// Why a record is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// A step will use it.
    Demand,
    /// A step may use it.
    Speculation,
    /// An earlier session used it often.
    Warming,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Link {
    prev: u32,
    next: u32,
}

/// The queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queue {
    /// A link a slot, then the two heads: each list is a ring through its head.
    links: Vec<Link>,
}

impl Queue {
    pub(super) fn new(slots: u32) -> Self {
        Self { links: (0..slots + 2).map(|it| Link { prev: it, next: it }).collect() }
    }

    fn head(&self, origin: Origin) -> u32 {
        let slots = u32::try_from(self.links.len() - 2).expect("made from a u32");
        slots + u32::from(origin != Origin::Demand)
    }

    /// Appends `slot`, which is in no list.
    pub(super) fn push(&mut self, slot: u32, origin: Origin) {
        let head = self.head(origin);
        let last = self.links[head as usize].prev;
        self.links[slot as usize] = Link { prev: last, next: head };
        self.links[last as usize].next = slot;
        self.links[head as usize].prev = slot;
    }

    /// Takes `slot` out of its list, if it is in one.
    pub(super) fn remove(&mut self, slot: u32) {
        let Link { prev, next } = self.links[slot as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        self.links[slot as usize] = Link { prev: slot, next: slot };
    }

    /// The slot to read next, which leaves the queue.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let first =
            |origin| Some(self.links[self.head(origin) as usize].next).filter(|it| *it != self.head(origin));
        let slot = first(Origin::Demand).or_else(|| first(Origin::Speculation))?;
        self.remove(slot);
        Some(slot)
    }
}
