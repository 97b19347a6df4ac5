//! Offsets of buffer classes in the scratch arena.
//!
//! Three greedy heuristics are tried, the smallest result is kept; if none reaches the lower bound and the instance is small,
//! a bounded exact search tries to. Deterministic: ties by class id, the search bounded by nodes, never by time.

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

/// Places all classes.
pub(crate) fn place(intervals: &[Interval]) -> Placement {
    let bound = lower_bound(intervals);
    let mut by_size: Vec<usize> = (0..intervals.len()).collect();
    by_size.sort_by_key(|i| (std::cmp::Reverse(intervals[*i].bytes), intervals[*i].start, *i));
    let mut by_start: Vec<usize> = (0..intervals.len()).collect();
    by_start.sort_by_key(|i| (intervals[*i].start, std::cmp::Reverse(intervals[*i].bytes), *i));
    let tries = [
        greedy(intervals, &by_size, Fit::Lowest, "size"),
        greedy(intervals, &by_start, Fit::Lowest, "start"),
        greedy(intervals, &by_start, Fit::BestGap, "gap"),
    ];
    let best = tries.into_iter().reduce(|a, b| if b.bytes < a.bytes { b } else { a }).expect("three tries");
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
