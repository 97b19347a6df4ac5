//! Where threads must meet: before a step that touches bytes which another step since the last barrier writes,
//! or that writes bytes which another step since then reads.
//!
//! Tiles of one step are claimed by any thread, so every dependence between two steps may cross threads.

use waste_plan::schema::{Operand, Place, Step, StepKind};

/// Sets `barrier` on every step that needs one. The first step needs none: the team starts together.
pub(crate) fn place_barriers(steps: &mut [Step], most: impl Fn(&Operand) -> u64) {
    let mut since = 0;
    for at in 0..steps.len() {
        // What a window brings in, and the end of a loop, concern every thread.
        let is_loop =
            |it: &Step| matches!(it.kind, StepKind::ExpertWindow { .. } | StepKind::ExpertRelease { .. });
        let is_edge = is_loop(&steps[at])
            || at.checked_sub(1).is_some_and(|it| matches!(steps[it].kind, StepKind::ExpertWindow { .. }));
        let conflict =
            is_edge || steps[since..at].iter().any(|earlier| conflicts(earlier, &steps[at], &most));
        steps[at].barrier = conflict;
        if conflict {
            since = at;
        }
    }
}

fn conflicts(earlier: &Step, later: &Step, most: &impl Fn(&Operand) -> u64) -> bool {
    let touch = |a: &[Operand], b: &[Operand]| a.iter().any(|a| b.iter().any(|b| overlap(a, b, most)));
    touch(&earlier.writes, &later.reads)
        || touch(&earlier.writes, &later.writes)
        || touch(&earlier.reads, &later.writes)
}

/// Whether two operands may share a byte. Exact for equal strides up to the ends of the rows; else by spans.
fn overlap(a: &Operand, b: &Operand, most: &impl Fn(&Operand) -> u64) -> bool {
    let (a_at, b_at) = match (a.place, b.place) {
        (Place::Scratch(a), Place::Scratch(b)) | (Place::Io(a), Place::Io(b)) => (a, b),
        (Place::State(a), Place::State(b)) => return a == b,
        _ => return false,
    };
    let span = |it: &Operand| it.span(most(it)).unwrap_or(u64::MAX);
    if a_at.saturating_add(span(a)) <= b_at || b_at.saturating_add(span(b)) <= a_at {
        return false;
    }
    match (a.row_bytes(), b.row_bytes()) {
        (Some(a_row), Some(b_row))
            if a.stride == b.stride && a_row.max(b_row) <= a.stride && a.stride > 0 =>
        {
            let apart = (b_at as i128 - a_at as i128).rem_euclid(i128::from(a.stride));
            let apart = u64::try_from(apart).expect("a residue of a u64");
            apart < a_row || apart + b_row > a.stride
        }
        _ => true,
    }
}
