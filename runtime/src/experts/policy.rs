//! Which record leaves the cache: the least frequently and recently used of a sample.
//!
//! Every use of a record adds 1 to its score, and scores halve over a fixed number of requests. A score stays with its record
//! when the record leaves the cache, so an expert that is asked for again and again comes to stay even where the cache is
//! smaller than what one token needs. Kept as a logarithm relative to a fixed instant, a score is one number that changes
//! only when its record is used:
//!
//! ```text
//! rank = log2(score at the last use) + last use / half-life          (time counts requests)
//! ```
//!
//! and the order of two ranks is the order of the decayed scores at any time (LRFU: Lee et al., IEEE Trans. Computers 50(12),
//! 2001, with F(x) = 2^(−x / half-life)). A victim is the least rank of 16 candidates drawn at random: no heap to keep, no
//! scan. Deterministic: the generator has a fixed seed, and ties go to the lower slot.
//!
//! Deliberately absent: what a slot holds and whether it may leave; that is `slots`.

/// Candidates looked at for one victim.
const SAMPLE: usize = 16;

/// Requests over which a score halves, in slots of the cache: the best or within a point of it on routing traces of two
/// models at a tenth, a quarter and half of their banks.
const HALF_LIFE: f64 = 4.0;

/// How a victim is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Eviction {
    /// Least decayed number of uses.
    Lfru,
    /// Longest unused: what a page cache does, for comparison.
    Lru,
}

/// Ranks of records and slots.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    eviction: Eviction,
    half_life: f64,
    /// Requests so far.
    now: u64,
    /// Rank at the last use of each record; −∞ before the first.
    ranks: Vec<f64>,
    /// Uses of each record, for the learned list.
    uses: Vec<u32>,
    /// Rank of what each slot holds. A record that was read ahead counts here as if used when it was asked for.
    slots: Vec<f64>,
    random: u64,
}

impl Policy {
    pub(super) fn new(slots: usize, records: usize, eviction: Eviction) -> Self {
        Self {
            eviction,
            half_life: HALF_LIFE * slots.max(1) as f64,
            now: 0,
            ranks: vec![f64::NEG_INFINITY; records],
            uses: vec![0; records],
            slots: vec![f64::NEG_INFINITY; slots],
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Bytes that `new` takes from the system.
    pub(super) fn needed_bytes(slots: u64, records: u64) -> u64 {
        let record = (size_of::<f64>() + size_of::<u32>()) as u64;
        records.saturating_mul(record).saturating_add(slots.saturating_mul(size_of::<f64>() as u64))
    }

    /// The rank of `record` if it were used now.
    fn rank_if_used(&self, record: u32) -> f64 {
        let now = self.now as f64 / self.half_life;
        match self.eviction {
            Eviction::Lfru => libm::log2(1.0 + libm::exp2(self.ranks[record as usize] - now)) + now,
            Eviction::Lru => now,
        }
    }

    /// `slot` now holds `record`, which somebody is expected to use.
    pub(super) fn place(&mut self, slot: u32, record: u32) {
        self.slots[slot as usize] = self.rank_if_used(record);
    }

    /// `record`, in `slot`, is used.
    pub(super) fn touch(&mut self, slot: u32, record: u32) {
        let rank = self.rank_if_used(record);
        (self.ranks[record as usize], self.slots[slot as usize]) = (rank, rank);
        self.uses[record as usize] = self.uses[record as usize].saturating_add(1);
        self.now += 1;
    }

    /// The least rank of a sample of `candidates`, if there are any.
    pub(super) fn victim(&mut self, candidates: &[u32]) -> Option<u32> {
        let least = |a: u32, b: u32| {
            let (x, y) = (self.slots[a as usize], self.slots[b as usize]);
            if (y, b) < (x, a) { b } else { a }
        };
        if candidates.len() <= SAMPLE {
            return candidates.iter().copied().reduce(least);
        }
        let mut random = self.random;
        let sampled = (0..SAMPLE).map(|_| candidates[below(&mut random, candidates.len())]).reduce(least);
        self.random = random;
        sampled
    }

    /// Uses of `record` since the cache was opened.
    pub(super) fn uses(&self, record: u32) -> u32 {
        self.uses[record as usize]
    }

    /// Takes over what earlier sessions learned: `uses` of `record`, out of `total` of all records. Its score becomes what
    /// so frequent a record has in the long run: half-life / ln 2 times its share.
    pub(super) fn learn(&mut self, record: u32, uses: u32, total: u64) {
        let share = f64::from(uses) / total.max(1) as f64;
        let score = share * self.half_life / std::f64::consts::LN_2;
        self.ranks[record as usize] = libm::log2(score) + self.now as f64 / self.half_life;
    }
}

/// The next number below `n` of a 64-bit linear congruential generator (Knuth's MMIX constants), from its upper half.
pub(super) fn below(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (((*state >> 32) * n as u64) >> 32) as usize
}
