//! Every dependence that can cross threads has a barrier between its two steps.
//!
//! Tiles are claimed by whichever thread comes first, so between two barriers any two steps may run at once, in either
//! order. Within one step, `validate` has shown that the result lies over an operand only tile by tile.

use waste_plan::schema::{Plan, Program, Step, StepKind};

use super::MAX_FAULTS;
use super::error::{CheckError, Fault};
use super::operands::{Space, bytes};
use super::runmap::RunMap;

/// What the steps since the last barrier read and wrote in one space, by step.
struct Accesses {
    reads: RunMap<usize>,
    writes: RunMap<usize>,
}

/// Reports pairs of steps between the same barriers that conflict.
pub(super) fn check(plan: &Plan, program: &Program, errors: &mut Vec<CheckError>) {
    let mut spaces = [const { Accesses { reads: RunMap::new(), writes: RunMap::new() } }; 3];
    for (step, it) in program.steps.iter().enumerate() {
        if errors.len() >= MAX_FAULTS {
            return;
        }
        let is_edge =
            |it: &Step| matches!(it.kind, StepKind::ExpertWindow { .. } | StepKind::ExpertRelease { .. });
        let after_window = step
            .checked_sub(1)
            .is_some_and(|at| matches!(program.steps[at].kind, StepKind::ExpertWindow { .. }));
        if (is_edge(it) || after_window) && !it.barrier {
            errors.push(CheckError::step(&program.name, step, Fault::NoMeeting));
        }
        if it.barrier {
            for seen in &mut spaces {
                seen.reads.clear();
                seen.writes.clear();
            }
        }
        let race = |access, other, other_access| {
            CheckError::step(&program.name, step, Fault::Race { access, other, other_access })
        };
        for operand in &it.reads {
            let Some((space, runs)) = bytes(plan, program, operand) else { continue };
            let seen = &mut spaces[index(space)];
            errors
                .extend(seen.writes.overlapping(&runs).map(|(_, _, other)| race("reads", *other, "writes")));
            seen.reads.insert(runs, step);
        }
        for operand in &it.writes {
            let Some((space, runs)) = bytes(plan, program, operand) else { continue };
            let seen = &mut spaces[index(space)];
            let readers = seen.reads.overlapping(&runs).filter(|it| *it.2 != step);
            errors.extend(readers.map(|(_, _, other)| race("writes", *other, "reads")));
            errors
                .extend(seen.writes.overlapping(&runs).map(|(_, _, other)| race("writes", *other, "writes")));
            seen.writes.insert(runs, step);
        }
    }
}

const fn index(space: Space) -> usize {
    match space {
        Space::Scratch => 0,
        Space::Io => 1,
        Space::State => 2,
    }
}
