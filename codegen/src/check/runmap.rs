//! Strided byte ranges with a payload each, found by what they overlap.

use std::collections::BTreeMap;

use waste_plan::overlap::Runs;

/// Entries by their first byte. Entries may overlap one another.
#[derive(Debug)]
pub(super) struct RunMap<T> {
    entries: BTreeMap<(u64, u32), (Runs, T)>,
    next: u32,
    longest: u64,
}

/// Names an entry of a [`RunMap`]; stays unique after the entry is gone.
pub(super) type EntryKey = (u64, u32);

impl<T> RunMap<T> {
    pub(super) const fn new() -> Self {
        Self { entries: BTreeMap::new(), next: 0, longest: 0 }
    }

    /// Forgets all entries.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.longest = 0;
    }

    pub(super) fn insert(&mut self, runs: Runs, payload: T) -> EntryKey {
        let key = (runs.start(), self.next);
        self.next += 1;
        self.longest = self.longest.max(runs.end() - runs.start());
        self.entries.insert(key, (runs, payload));
        key
    }

    pub(super) fn get(&self, key: EntryKey) -> Option<&T> {
        self.entries.get(&key).map(|it| &it.1)
    }

    pub(super) fn get_mut(&mut self, key: EntryKey) -> Option<&mut T> {
        self.entries.get_mut(&key).map(|it| &mut it.1)
    }

    pub(super) fn remove(&mut self, key: EntryKey) -> Option<T> {
        self.entries.remove(&key).map(|it| it.1)
    }

    /// The entries that share a byte with `runs`, by first byte. None begins more than the longest entry before it.
    pub(super) fn overlapping<'a>(
        &'a self,
        runs: &'a Runs,
    ) -> impl Iterator<Item = (EntryKey, &'a Runs, &'a T)> {
        let first = (runs.start().saturating_sub(self.longest), 0);
        let near = self.entries.range(first..(runs.end(), 0));
        near.filter(|(_, (it, _))| it.overlaps(runs)).map(|(key, (it, payload))| (*key, it, payload))
    }
}
