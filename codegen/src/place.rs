//! Offsets of buffer classes in the scratch arena.
//!
//! Greedy heuristics are tried, the smallest result is kept. While none reaches the lower bound, what lies above it goes first and
//! the rest is placed again; if that does not help either and the instance is small, a bounded exact search tries to.
//! Deterministic: ties by class id, rounds and the search bounded by work, never by time.

use crate::liveness::{Interval, lower_bound};

/// Where each class lies, how large the arena is, and what found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) offsets: Vec<u64>,
    pub(crate) bytes: u64,
    pub(crate) heuristic: &'static str,
}

/// Classes up to which the exact search is tried, and its node limit.
const EXACT_CLASSES: usize = 64;
const EXACT_NODES: usize = 200_000;

/// Pairs of classes that may be compared while what lies too high goes first: a few milliseconds.
const BUMPED_PAIRS: usize = 8_000_000;

/// Places all classes.
pub(crate) fn place(intervals: &[Interval]) -> Placement {
    let bound = lower_bound(intervals);
    let by_size = by_size(intervals);
    let mut by_start: Vec<usize> = (0..intervals.len()).collect();
    by_start.sort_by_key(|i| (intervals[*i].start, std::cmp::Reverse(intervals[*i].bytes), *i));
    let sized = greedy(intervals, &by_size, Fit::Lowest, "size");
    let tries = [
        sized.clone(),
        greedy(intervals, &by_start, Fit::Lowest, "start"),
        greedy(intervals, &by_start, Fit::BestGap, "gap"),
    ];
    let mut best =
        tries.into_iter().reduce(|a, b| if b.bytes < a.bytes { b } else { a }).expect("three tries");
    if best.bytes > bound {
        best = bumped(intervals, by_size.clone(), sized, bound, best);
    }
    if best.bytes > bound && intervals.len() <= EXACT_CLASSES {
        return exact(intervals, &by_size, bound, best);
    }
    best
}

#[derive(Clone, Copy)]
enum Fit {
    Lowest,
    BestGap,
}

fn overlap(a: &Interval, b: &Interval) -> bool {
    a.start <= b.end && b.start <= a.end
}

fn greedy(intervals: &[Interval], order: &[usize], fit: Fit, heuristic: &'static str) -> Placement {
    let mut offsets = vec![0; intervals.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(order.len());
    for &class in order {
        let gaps = gaps(intervals, &offsets, &placed, class);
        let need = intervals[class].bytes;
        let fitting = gaps.iter().filter(|gap| gap.1 >= need);
        let gap = match fit {
            Fit::Lowest => fitting.min_by_key(|gap| gap.0),
            Fit::BestGap => fitting.min_by_key(|gap| (gap.1, gap.0)),
        };
        offsets[class] = gap.expect("the last gap has no end").0;
        placed.push(class);
    }
    let bytes = arena_bytes(intervals, &offsets);
    Placement { offsets, bytes, heuristic }
}

/// The largest classes first.
fn by_size(intervals: &[Interval]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(intervals[*i].bytes), intervals[*i].start, *i));
    order
}

/// Greedy again and again after `last`, which was placed in `order`: classes that reached above the bound go to the front, since what
/// comes first gets its place.
fn bumped(
    intervals: &[Interval],
    mut order: Vec<usize>,
    mut last: Placement,
    bound: u64,
    mut best: Placement,
) -> Placement {
    let rounds = BUMPED_PAIRS / (intervals.len() * intervals.len()).max(1);
    for _ in 1..rounds {
        let is_high = |i: &usize| last.offsets[*i] + intervals[*i].bytes > bound;
        let (high, rest): (Vec<usize>, Vec<usize>) = order.iter().partition(|it| is_high(it));
        order = [high, rest].concat();
        last = greedy(intervals, &order, Fit::Lowest, "bumped");
        if last.bytes < best.bytes {
            best = last.clone();
        }
        if best.bytes <= bound {
            break;
        }
    }
    best
}

fn arena_bytes(intervals: &[Interval], offsets: &[u64]) -> u64 {
    intervals.iter().zip(offsets).map(|(it, offset)| offset + it.bytes).max().unwrap_or(0)
}

/// Free (offset, length) between the placed classes that live together with `class`; the last one is endless.
fn gaps(intervals: &[Interval], offsets: &[u64], placed: &[usize], class: usize) -> Vec<(u64, u64)> {
    let mut busy: Vec<(u64, u64)> = placed
        .iter()
        .filter(|it| overlap(&intervals[**it], &intervals[class]))
        .map(|it| (offsets[*it], offsets[*it] + intervals[*it].bytes))
        .collect();
    busy.sort_unstable();
    let mut gaps = Vec::with_capacity(busy.len() + 1);
    let mut end = 0;
    for (from, to) in busy {
        if from > end {
            gaps.push((end, from - end));
        }
        end = end.max(to);
    }
    gaps.push((end, u64::MAX));
    gaps
}

/// Depth-first search over which class comes next, each at the lowest gap that holds it, until the bound is met.
fn exact(intervals: &[Interval], order: &[usize], bound: u64, best: Placement) -> Placement {
    let mut search = Search { intervals, order, bound, best, nodes: 0 };
    let mut placed = Vec::with_capacity(order.len());
    search.descend(&mut placed, &mut vec![0; intervals.len()], 0);
    search.best
}

struct Search<'a> {
    intervals: &'a [Interval],
    order: &'a [usize],
    bound: u64,
    best: Placement,
    nodes: usize,
}

impl Search<'_> {
    fn descend(&mut self, placed: &mut Vec<usize>, offsets: &mut Vec<u64>, bytes: u64) {
        self.nodes += 1;
        if bytes >= self.best.bytes || self.nodes > EXACT_NODES || self.best.bytes == self.bound {
            return;
        }
        if placed.len() == self.intervals.len() {
            self.best = Placement { offsets: offsets.clone(), bytes, heuristic: "search" };
            return;
        }
        for at in 0..self.order.len() {
            let class = self.order[at];
            if placed.contains(&class) {
                continue;
            }
            let need = self.intervals[class].bytes;
            let gaps = gaps(self.intervals, offsets, placed, class);
            let gap = gaps.iter().find(|gap| gap.1 >= need).expect("the last gap has no end");
            offsets[class] = gap.0;
            placed.push(class);
            self.descend(placed, offsets, bytes.max(gap.0 + need));
            placed.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(start: usize, end: usize, bytes: u64) -> Interval {
        Interval { start, end, bytes }
    }

    #[test]
    fn live_classes_never_share_a_byte_and_chains_meet_the_bound() {
        let chain: Vec<Interval> =
            (0..200).map(|i| interval(i, i + 1, 64 * (1 + (i as u64 * 7) % 5))).collect();
        let placement = place(&chain);
        for (i, a) in chain.iter().enumerate() {
            for (j, b) in chain.iter().enumerate().take(i) {
                let (x, y) = (placement.offsets[i], placement.offsets[j]);
                assert!(!overlap(a, b) || x + a.bytes <= y || y + b.bytes <= x, "classes {i} and {j}");
            }
        }
        assert_eq!(placement.bytes, lower_bound(&chain), "{}", placement.heuristic);
    }

    /// Buffers as a decoder's layers make them, wide and narrow ones over each other, more than the exact search takes.
    #[test]
    fn what_lies_too_high_goes_first() {
        let mut state = 1u64;
        let mut next = |n: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32 % n
        };
        let mut reached = [0, 0];
        for _ in 0..50 {
            let case: Vec<Interval> = (0..100)
                .map(|_| {
                    let start = next(60) as usize;
                    interval(start, start + next(6) as usize, 64 * (1 + u64::from(next(9))))
                })
                .collect();
            let bound = lower_bound(&case);
            let by_size = greedy(&case, &by_size(&case), Fit::Lowest, "size");
            let placed = place(&case);
            assert!(placed.bytes <= by_size.bytes);
            reached[0] += usize::from(by_size.bytes == bound);
            reached[1] += usize::from(placed.bytes == bound);
        }
        assert!(reached[1] >= 40 && reached[1] > reached[0] + 10, "{reached:?}");
    }

    #[test]
    fn the_exact_search_beats_the_greedy_ones() {
        // Greedy by size puts the two large ones apart; the bound needs them interleaved with the small ones.
        let case = [
            interval(0, 2, 64 * 3),
            interval(1, 4, 64 * 2),
            interval(3, 6, 64 * 3),
            interval(5, 7, 64 * 2),
            interval(0, 0, 64 * 2),
            interval(7, 7, 64 * 3),
        ];
        assert_eq!(place(&case).bytes, lower_bound(&case));
    }
}
