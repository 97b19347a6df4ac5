//! Poisoned execution: bytes whose value is dead hold a pattern that no step may read.
//!
//! Before a call all of scratch is poisoned, and after each step the places of the values that it was the last to read. Before each
//! step its operands are searched for the pattern, and after it its results for what is not finite. So a plan in which a value is read
//! from the wrong place, or after its place was given away, ends with the step and the operand at fault; a right plan gives the bits
//! that it always gives.
//!
//! The pattern is all ones: a NaN as f32 and as f16, −1 as i32, and in quantised rows a scale of NaN.
//!
//! Which values die where is for the caller to say, by the graph that the plan was made of: a plan's own steps say only where bytes are
//! read, and a misplaced read looks like a longer life.
//!
//! Deliberately absent: operands of steps in a loop over experts, which find a part of their rows filled in each turn (what follows the
//! loop is searched), and lookup tables.

use waste_plan::DType;
use waste_plan::schema::{Operand, Place, Plan, Program, StepKind};

use crate::error::RuntimeError;
use crate::look::{Onlooker, StepView, has_rows};
use crate::stream::ExpertSource;

/// The pattern, as a byte.
const PATTERN: u8 = 0xff;

/// A value that dies: who wrote it, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// The step that wrote it first.
    pub writer: usize,
    /// Its place, in scratch.
    pub place: Operand,
}

/// For each program and each of its steps, the values that no later step reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deaths(pub Vec<Vec<Vec<Death>>>);

/// The poison of a session.
#[derive(Debug)]
pub(crate) struct Poison {
    deaths: Deaths,
    scratch: u64,
    found: Option<RuntimeError>,
}

impl Poison {
    pub(crate) const fn new(plan: &Plan, deaths: Deaths) -> Self {
        Self { deaths, scratch: plan.memory.scratch, found: None }
    }

    /// The deaths in the running program.
    fn of(&self, view: &StepView<'_>) -> &[Vec<Death>] {
        self.deaths.0.get(view.number).map_or(&[], Vec::as_slice)
    }

    /// Whose dead value lies at the beginning of `operand` before step `at`, for people.
    fn whose(&self, view: &StepView<'_>, operand: &Operand) -> String {
        let dead = self.of(view).iter().enumerate().take(view.at).rev();
        let mut named = dead.flat_map(|(last, all)| all.iter().map(move |it| (last, it)));
        let Some((last, death)) = named.find(|(_, it)| covers(view.program, &it.place, operand)) else {
            return "which nobody wrote".to_owned();
        };
        let name = |at: usize| view.program.steps.get(at).map_or("", |it| it.kind.name());
        let (writer, by, until) = (death.writer, name(death.writer), name(last));
        format!("which step {writer} ({by}) wrote, and step {last} ({until}) was the last to read")
    }
}

impl Onlooker for Poison {
    fn before(&mut self, view: &StepView<'_>) {
        if view.at == 0 {
            // A call that was cancelled or failed has left what it found.
            self.found = None;
            view.exec.spaces.fill_scratch(0, self.scratch, PATTERN);
        }
        let step = view.step();
        if step.window || step.kind.moves_experts() || self.found.is_some() {
            return;
        }
        for (slot, operand) in step.reads.iter().enumerate() {
            let Some(row) = poisoned_row(view, operand) else { continue };
            let Place::Scratch(offset) = operand.place else { continue };
            let whose = self.whose(view, operand);
            let (at, name, op) = (view.at, step.kind.name(), step.op);
            let what = format!(
                "{}: step {at} ({name}, op {op}) reads dead bytes: operand {slot} at s[{offset:#x}], row {row}, {whose}",
                view.program.name
            );
            self.found = Some(RuntimeError::Poisoned { what });
            return;
        }
    }

    fn after(&mut self, view: &StepView<'_>) {
        let step = view.step();
        if self.found.is_none() && !step.window && !view.exec.is_finite(step) {
            let what = format!("the result of step {} ({}, op {})", view.at, step.kind.name(), step.op);
            self.found = Some(RuntimeError::NotFinite { what });
        }
        // Until its last turn is over, a loop over experts reads all of that again.
        let turns = matches!(step.kind, StepKind::ExpertRelease { .. });
        if turns && view.exec.experts.is_some_and(ExpertSource::has_more) {
            return;
        }
        for death in self.of(view).get(view.at).into_iter().flatten() {
            let Place::Scratch(offset) = death.place.place else { continue };
            let rows = death.place.rows.count(view.program.tokens, view.program.want);
            let bytes = death.place.row_bytes().unwrap_or(0);
            for row in 0..rows {
                view.exec.spaces.fill_scratch(offset + row * death.place.stride, bytes, PATTERN);
            }
        }
    }

    fn verdict(&mut self) -> Option<RuntimeError> {
        self.found.take()
    }
}

/// Whether `place` covers the first byte of `operand` in the largest call of `program`.
fn covers(program: &Program, place: &Operand, operand: &Operand) -> bool {
    let (Place::Scratch(start), Place::Scratch(at)) = (place.place, operand.place) else { return false };
    let span = place.span(place.rows.count(program.tokens, program.want)).unwrap_or(0);
    start <= at && at - start < span
}

/// The first row of `operand` that holds the pattern where a number should be.
fn poisoned_row(view: &StepView<'_>, operand: &Operand) -> Option<usize> {
    if !has_rows(operand) {
        return None;
    }
    let is_poison = |word: &[u8]| word.iter().all(|it| *it == PATTERN);
    let spaces = view.exec.spaces;
    let mut rows = 0..view.exec.call.rows(operand.rows);
    match operand.dtype {
        DType::F32 | DType::I32 => {
            rows.find(|row| spaces.row_bytes(operand, *row).chunks_exact(4).any(is_poison))
        }
        dtype => {
            let layout = dtype.fx()?;
            let n = operand.cols as usize;
            let scales = layout.scales_at(n)..layout.z_at(n);
            rows.find(|row| spaces.row_bytes(operand, *row)[scales.clone()].chunks_exact(4).any(is_poison))
        }
    }
}
