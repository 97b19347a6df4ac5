//! What a plan needs and moves, in bytes: the sums that a session is opened and counts by.

use std::collections::BTreeSet;

use waste_plan::schema::{Place, Plan, Program, State, StateKind, StepKind};

/// Bytes of packed weights that `program` multiplies with, each counted once; experts are counted as they are used.
pub(crate) fn weight_bytes(plan: &Plan, program: &Program) -> u64 {
    let linears = program.steps.iter().filter(|it| {
        matches!(
            it.kind,
            StepKind::Linear { .. }
                | StepKind::LinearGlu { .. }
                | StepKind::HeadLinear
                | StepKind::HeadLinearT
        )
    });
    let ids = linears.flat_map(|it| &it.reads).filter_map(|it| match it.place {
        Place::Weight(id) => Some(id),
        Place::Scratch(_) | Place::Io(_) | Place::State(_) => None,
    });
    let ids: BTreeSet<u32> = ids.collect();
    ids.iter().map(|id| plan.weights[*id as usize].bytes).sum()
}

/// Bytes of a recurrent state that a call reads and writes for each row.
pub(crate) fn recurrent_bytes(state: &State) -> u64 {
    let is_recurrent = state.kind == StateKind::Recurrent;
    if is_recurrent { state.bytes / u64::from(state.shape[0]).max(1) } else { 0 }
}

/// Bytes of one position of a cache.
pub(crate) fn position_bytes(state: &State) -> u64 {
    if state.kind == StateKind::Recurrent {
        return 0;
    }
    state.bytes / (u64::from(state.shape[0]) * u64::from(state.shape[1])).max(1)
}

/// Bytes of a session with this many threads.
#[must_use]
pub fn needed_bytes(plan: &Plan, threads: usize) -> u64 {
    needed_bytes_with(plan, threads, None)
}

/// Bytes of a session with this many threads, and this many records in the expert cache (`None`: as planned).
#[must_use]
pub fn needed_bytes_with(plan: &Plan, threads: usize, expert_slots: Option<u64>) -> u64 {
    let memory = &plan.memory;
    let slot = memory.experts.checked_div(memory.expert_slots).unwrap_or(0);
    let experts = slot.saturating_mul(expert_slots.unwrap_or(memory.expert_slots));
    let fixed = [memory.weights, memory.states, memory.scratch, memory.io, memory.text, experts];
    fixed.iter().fold(memory.thread.saturating_mul(threads.max(1) as u64), |sum, it| sum.saturating_add(*it))
}
