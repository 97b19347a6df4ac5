//! When each buffer class holds something that is still needed.

use waste_plan::ids::{EntityRef, SecondaryMap};
use waste_plan::schema::StepKind;

use crate::lower::{Lowered, OpenStep};
use crate::memory::{ClassId, Space};

/// Steps `start ..= end` in which a class is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) bytes: u64,
}

/// The interval of each class, by class id. Every class is written by some step, so none is empty.
///
/// A loop over experts runs its body several times, each time for other rows: what it writes and a later step reads is live from the
/// loop's beginning, what it reads and an earlier step wrote until the loop's end.
pub(crate) fn liveness(lowered: &Lowered<'_>) -> Vec<Interval> {
    let mut seen: SecondaryMap<ClassId, Option<(usize, usize)>> = SecondaryMap::new(None);
    for (at, step) in lowered.steps.iter().enumerate() {
        for loc in step.reads.iter().chain(&step.writes) {
            if let Space::Class(class) = loc.space {
                let start = seen[class].map_or(at, |it| it.0);
                seen[class] = Some((start, at));
            }
        }
    }
    let loops = loops(lowered);
    let interval = |class: ClassId| {
        let (mut start, mut end) = seen[class].expect("a class is made for the result of a step");
        for (first, last) in &loops {
            if (first..=last).contains(&&start) && end > *last {
                start = *first;
            }
            if start < *first && (first..=last).contains(&&end) {
                end = *last;
            }
        }
        Interval { start, end, bytes: lowered.map.classes[class].bytes }
    };
    (0..lowered.map.classes.len()).map(ClassId::new).map(interval).collect()
}

/// First and last step of each loop over experts, in order.
fn loops(lowered: &Lowered<'_>) -> Vec<(usize, usize)> {
    let steps = lowered.steps.iter().enumerate();
    let window = |(at, step): (usize, &OpenStep)| match step.kind {
        StepKind::ExpertWindow { body, .. } => Some((at, at + body as usize)),
        _ => None,
    };
    steps.filter_map(window).collect()
}

/// The most bytes live at one step: no placement can be smaller.
pub(crate) fn lower_bound(intervals: &[Interval]) -> u64 {
    let steps = intervals.iter().map(|it| it.end + 1).max().unwrap_or(0);
    let mut change = vec![0i128; steps + 1];
    for it in intervals {
        change[it.start] += i128::from(it.bytes);
        change[it.end + 1] -= i128::from(it.bytes);
    }
    let mut live = 0;
    let most = change.iter().map(|it| {
        live += it;
        live
    });
    u64::try_from(most.max().unwrap_or(0)).expect("live bytes are a sum of u64 that fits")
}
