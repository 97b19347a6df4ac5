//! When each buffer class holds something that is still needed.

use waste_plan::ids::{EntityRef, SecondaryMap};

use crate::lower::Lowered;
use crate::memory::{ClassId, Space};

/// Steps `start ..= end` in which a class is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) bytes: u64,
}

/// The interval of each class, by class id. Every class is written by some step, so none is empty.
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
    let interval = |class: ClassId| {
        let (start, end) = seen[class].expect("a class is made for the result of a step");
        Interval { start, end, bytes: lowered.map.classes[class].bytes }
    };
    (0..lowered.map.classes.len()).map(ClassId::new).map(interval).collect()
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
