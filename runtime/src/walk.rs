//! The way of one thread through a program: the tiles of a step, and the step after it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use waste_plan::schema::{Step, StepKind};

use crate::exec::Exec;

/// The step after step `at`: of the end of a loop over experts its beginning, while experts are left. All threads decide alike, since
/// the answer was settled before the last barrier.
pub(crate) fn next_step(exec: &Exec<'_>, steps: &[Step], claims: &[AtomicUsize], at: usize) -> usize {
    match (&steps[at].kind, exec.experts) {
        // Everybody has left the steps before these two, and nobody is at them again before the next barrier.
        (StepKind::ExpertWindow { body, .. }, Some(_)) => {
            claims[at + *body as usize].store(0, Ordering::Relaxed);
            at + 1
        }
        (StepKind::ExpertRelease { body, .. }, Some(experts)) if experts.has_more() => {
            let window = at - *body as usize;
            claims[window..at].iter().for_each(|it| it.store(0, Ordering::Relaxed));
            window
        }
        _ => at + 1,
    }
}

/// Claims and carries out tiles of one step until none is left; returns how many.
pub(crate) fn claim_tiles(
    exec: &Exec<'_>,
    step: &Step,
    claim: &AtomicUsize,
    scratch: &mut [f32],
    cancel: &AtomicBool,
) -> usize {
    let mut done = 0;
    let n = exec.n_tiles(step);
    let stops = !step.kind.moves_experts();
    loop {
        let index = claim.fetch_add(1, Ordering::Relaxed);
        if index >= n || (stops && cancel.load(Ordering::Relaxed)) {
            return done;
        }
        exec.tile(step, index, scratch);
        done += 1;
    }
}
