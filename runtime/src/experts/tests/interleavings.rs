//! Every interleaving of a few requests, read-aheads, readers and failing reads over a few slots.

use std::collections::HashSet;

use super::super::policy::Eviction;
use super::super::slots::{Pin, Slots, State};

#[derive(Clone, Copy, Debug)]
enum Op {
    Prefetch(&'static [u32]),
    Speculate(&'static [u32]),
    Withdraw(&'static [u32]),
    /// Pin, wait for the record, use it, unpin.
    Use(u32),
    /// Use the second while the first is pinned; give the second up if there is no slot for it.
    UseBoth(u32, u32),
    /// Use and keep, to be given back by `Release`.
    Keep(u32),
    Release(u32),
    Abandon,
}

/// What a thread is at within its op: what it has pinned last, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Begin,
    Waiting(u32),
    Reading(u32),
    Using(u32),
}

#[derive(Clone, Debug)]
struct Actor {
    ops: &'static [Op],
    at: At,
    /// The slot that `UseBoth` has pinned first.
    first: Option<u32>,
}

#[derive(Clone, Debug)]
struct World {
    slots: Slots,
    actors: Vec<Actor>,
    /// What each reader is reading: slot and the record that it was told to read.
    readers: Vec<Option<(u32, u32)>>,
    /// Which record's bytes are in each slot.
    content: Vec<Option<u32>>,
    failures_left: u32,
}

impl World {
    fn new(slots: u32, readers: usize, failures_left: u32, programs: &[&'static [Op]]) -> Self {
        Self {
            slots: Slots::new(slots, 4, Eviction::Lfru),
            actors: programs.iter().map(|ops| Actor { ops, at: At::Begin, first: None }).collect(),
            readers: vec![None; readers],
            content: vec![None; slots as usize],
            failures_left,
        }
    }

    /// All states after one more event.
    fn successors(&self) -> Vec<Self> {
        let mut out = Vec::new();
        for at in 0..self.actors.len() {
            out.extend(self.actor_steps(at));
        }
        for at in 0..self.readers.len() {
            out.extend(self.reader_steps(at));
        }
        out
    }

    fn reader_steps(&self, at: usize) -> Vec<Self> {
        let mut next = self.clone();
        let Some((slot, record)) = self.readers[at] else {
            let Some(slot) = next.slots.start() else { return Vec::new() };
            next.readers[at] = Some((slot, next.slots.slot(slot).record));
            next.content[slot as usize] = None;
            return vec![next];
        };
        next.readers[at] = None;
        next.ends(slot, record)
    }

    /// A read ends well, or badly.
    fn ends(self, slot: u32, record: u32) -> Vec<Self> {
        assert_eq!((self.slots.slot(slot).state, self.slots.slot(slot).record), (State::Reading, record));
        let mut good = self.clone();
        good.content[slot as usize] = Some(record);
        good.slots.finish(slot, true);
        let mut out = vec![good];
        if 0 < self.failures_left {
            let mut bad = self;
            bad.failures_left -= 1;
            bad.slots.finish(slot, false);
            out.push(bad);
        }
        out
    }

    fn actor_steps(&self, at: usize) -> Vec<Self> {
        let actor = &self.actors[at];
        let Some((op, rest)) = actor.ops.split_first() else { return Vec::new() };
        let mut next = self.clone();
        let record = match (op, actor.first) {
            (Op::Use(it) | Op::Keep(it) | Op::UseBoth(it, _), None) | (Op::UseBoth(_, it), Some(_)) => *it,
            (Op::Prefetch(list), _) => {
                next.slots.prefetch(list.iter().copied());
                return vec![next.with(at, rest, At::Begin)];
            }
            (Op::Speculate(list), _) => {
                next.slots.speculate(list.iter().copied());
                return vec![next.with(at, rest, At::Begin)];
            }
            (Op::Withdraw(list), _) => {
                next.slots.withdraw(list.iter().copied());
                return vec![next.with(at, rest, At::Begin)];
            }
            (Op::Release(record), _) => {
                next.slots.release(*record);
                return vec![next.with(at, rest, At::Begin)];
            }
            (Op::Abandon, _) => {
                next.slots.abandon();
                return vec![next.with(at, rest, At::Begin)];
            }
            (Op::Use(_) | Op::Keep(_), Some(_)) => unreachable!("only UseBoth pins twice"),
        };
        match actor.at {
            At::Begin => match next.slots.pin(record) {
                Pin::Ready(slot) => vec![next.with(at, actor.ops, At::Using(slot))],
                Pin::Wait(slot) => vec![next.with(at, actor.ops, At::Waiting(slot))],
                Pin::Read(slot) => {
                    next.content[slot as usize] = None;
                    vec![next.with(at, actor.ops, At::Reading(slot))]
                }
                Pin::Later => Vec::new(),
                Pin::Full => {
                    let slots = (0..self.content.len()).map(|it| next.slots.slot(it as u32));
                    assert!(slots.into_iter().all(|it| 0 < it.pins + it.holds), "full, but not in use");
                    // Whoever holds a slot must not insist on a second one.
                    if actor.first.is_some() { vec![next.give_up(at, rest)] } else { Vec::new() }
                }
            },
            At::Reading(slot) => next
                .ends(slot, record)
                .into_iter()
                .map(|it| it.with(at, actor.ops, At::Waiting(slot)))
                .collect(),
            At::Waiting(slot) => match next.slots.outcome(slot) {
                None => Vec::new(),
                Some(true) => vec![next.with(at, actor.ops, At::Using(slot))],
                Some(false) => {
                    next.slots.unpin(slot);
                    vec![next.give_up(at, rest)]
                }
            },
            At::Using(slot) => {
                assert_eq!(self.content[slot as usize], Some(record), "{actor:?}");
                match (op, actor.first) {
                    (Op::UseBoth(..), None) => {
                        next.actors[at].first = Some(slot);
                        vec![next.with(at, actor.ops, At::Begin)]
                    }
                    (Op::Keep(_), _) => {
                        next.slots.keep(slot);
                        vec![next.with(at, rest, At::Begin)]
                    }
                    _ => {
                        next.slots.unpin(slot);
                        vec![next.give_up(at, rest)]
                    }
                }
            }
        }
    }

    fn with(mut self, at: usize, ops: &'static [Op], state: At) -> Self {
        let actor = &mut self.actors[at];
        (actor.ops, actor.at) = (ops, state);
        self
    }

    /// Ends an op, giving back the first of two pins.
    fn give_up(mut self, at: usize, rest: &'static [Op]) -> Self {
        if let Some(first) = self.actors[at].first.take() {
            self.slots.unpin(first);
        }
        self.with(at, rest, At::Begin)
    }

    /// What must hold at any time.
    fn check(&self) {
        self.slots.check();
        for (slot, content) in self.content.iter().enumerate() {
            let it = self.slots.slot(slot as u32);
            let pinned = |actor: &Actor| {
                let at = match actor.at {
                    At::Begin => None,
                    At::Waiting(at) | At::Reading(at) | At::Using(at) => Some(at),
                };
                [at, actor.first].into_iter().flatten().filter(|it| *it as usize == slot).count()
            };
            let pins: usize = self.actors.iter().map(pinned).sum();
            assert_eq!(it.pins as usize, pins, "pins of slot {slot}");
            if it.state == State::Ready {
                assert_eq!(*content, Some(it.record), "slot {slot}");
            }
            let reads = self.readers.iter().flatten().filter(|it| it.0 as usize == slot).count()
                + self.actors.iter().filter(|it| it.at == At::Reading(slot as u32)).count();
            assert_eq!(reads, usize::from(it.state == State::Reading), "reads of slot {slot}");
        }
    }

    fn is_done(&self) -> bool {
        self.actors.iter().all(|it| it.ops.is_empty())
    }
}

/// Walks every state once; how many there are.
fn explore(world: World) -> usize {
    let mut seen = HashSet::new();
    let mut open = vec![world];
    while let Some(mut world) = open.pop() {
        // Counts differ by path and decide nothing.
        world.slots.uses = Default::default();
        if !seen.insert(format!("{world:?}")) {
            continue;
        }
        world.check();
        let next = world.successors();
        assert!(!next.is_empty() || world.is_done(), "stuck: {world:#?}");
        open.extend(next);
    }
    seen.len()
}

#[test]
fn no_interleaving_breaks_a_pin_or_gets_stuck() {
    use Op::{Abandon, Keep, Prefetch, Release, Speculate, Use, UseBoth, Withdraw};
    let explored = [
        // A step and another thread's, with a failing read.
        explore(World::new(
            2,
            2,
            1,
            &[&[Prefetch(&[0, 1]), Use(0), Use(1)], &[Speculate(&[2]), Use(2), Use(0)]],
        )),
        // One slot for everything.
        explore(World::new(
            1,
            1,
            1,
            &[&[Prefetch(&[0, 1]), Use(0), Use(1)], &[Speculate(&[1]), Use(1), Use(0)]],
        )),
        // No readers.
        explore(World::new(2, 0, 1, &[&[Use(0), Use(1), Use(2)], &[Use(2), Use(1), Use(0)]])),
        // Promises that nobody keeps, and an abandoned step.
        explore(World::new(
            2,
            1,
            1,
            &[&[Prefetch(&[0, 1]), Abandon, Use(2)], &[Prefetch(&[3]), Use(1), Use(3)]],
        )),
        // Two pins at a time, and holds.
        explore(World::new(2, 1, 0, &[&[Prefetch(&[0, 1]), UseBoth(0, 1)], &[UseBoth(1, 2)]])),
        explore(World::new(2, 1, 1, &[&[Keep(0), Use(1), Release(0)], &[Speculate(&[2]), Use(1), Use(2)]])),
        // Guesses that come true, that do not, and that are withdrawn while they are read.
        explore(World::new(
            2,
            1,
            1,
            &[&[Speculate(&[0, 1]), Withdraw(&[1]), Speculate(&[2]), Use(0)], &[Use(1), Abandon, Use(2)]],
        )),
        // Three threads.
        explore(World::new(2, 1, 1, &[&[Prefetch(&[0]), Use(0)], &[Use(1), Use(2)], &[Use(0)]])),
    ];
    // Fewer would mean that the exploration is not one.
    assert!(explored.iter().all(|it| 100 < *it), "{explored:?}");
}

#[test]
fn an_unpinned_read_is_never_a_victim() {
    let mut slots = Slots::new(1, 2, Eviction::Lfru);
    slots.speculate([0].into_iter());
    let slot = slots.start().unwrap();
    assert_eq!(slots.pin(1), Pin::Later);
    slots.finish(slot, true);
    assert_eq!(slots.pin(1), Pin::Read(slot));
    assert_eq!(slots.pin(0), Pin::Full);
}
