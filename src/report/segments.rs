//! Which stretch of a plan computes something else than a reference's hidden states say.
//!
//! A *segment* is the steps of a program between two stated points (see `hidden`). The plan runs on the reference's own state: at each point
//! what the plan has is compared with the reference's and then replaced by it, rounded to its element type, so the error of a segment is its
//! own. A second run without replacing shows what becomes of all errors together.
//!
//! The error of a segment is the largest of any token's row: ‖found − expected‖ ÷ ‖expected‖. Rows are kept apart because a model's first
//! token may have a state a thousand times as large as the others'.
//!
//! Deliberately absent: caches and recurrent states, which stay the plan's own, made of the reference's inputs.

use std::ops::Range;

use waste_plan::schema::{Plan, Program, Rows};
use waste_runtime::{StepView, Values};

use super::bisect::{Mode, is_over, larger, relative};
use super::hidden::{Boundary, Hidden, Point, boundaries};
use super::layers::{Layer, layers};

/// The steps between two points, and what they err.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// The program.
    pub program: String,
    /// Where the reference's state was put in; `None`: it begins with the tokens.
    pub from: Option<Point>,
    /// What is compared.
    pub to: Boundary,
    /// Its first step; `to.step` is the last.
    pub first: usize,
    /// The layers of its first and its last step.
    pub layers: [Layer; 2],
    /// On the reference's state: the error, and the position of the token that has it.
    pub own: Option<(f64, usize)>,
    /// On the plan's own values.
    pub together: Option<f64>,
}

impl Segment {
    /// The error on the reference's state; 0 where the program did not run.
    #[must_use]
    pub fn own_error(&self) -> f64 {
        self.own.map_or(0.0, |it| it.0)
    }
}

/// The segments of all programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Segments(pub Vec<Segment>);

impl Segments {
    /// Those of `plan` between the points that are stated.
    #[must_use]
    pub fn of(plan: &Plan, hidden: &Hidden) -> Self {
        Self(plan.programs.iter().flat_map(|it| of_program(plan, it, hidden)).collect())
    }

    /// Takes in the step that `view` shows, in a call of the tokens at `positions` that wants the logits of the last.
    pub fn see(&mut self, view: &StepView<'_>, hidden: &Hidden, positions: &Range<usize>, mode: Mode) {
        let is_here = |it: &&mut Segment| it.to.step == view.index() && it.program == view.program().name;
        let Some(segment) = self.0.iter_mut().find(is_here) else { return };
        let (slot, point) = (segment.to.slot, segment.to.point);
        let (Some(Values::F32(found)), Some(stated)) = (view.result(slot), hidden.points.get(&point)) else {
            return;
        };
        let rows = match view.step().writes[slot].rows {
            Rows::Want(_) => positions.end - 1..positions.end,
            Rows::Tokens(_) | Rows::Fixed(_) => positions.clone(),
        };
        let Some(expected) = rows.clone().map(|it| stated.row(it)).collect::<Option<Vec<_>>>() else {
            return;
        };
        let cols = expected.first().map_or(0, |it| it.len());
        if cols == 0 || found.len() != cols * expected.len() {
            return;
        }
        let errors =
            found.chunks_exact(cols).zip(&expected).map(|(found, expected)| relative(found, expected));
        for (error, position) in errors.zip(rows) {
            segment.add(error, position, mode);
        }
        if mode == Mode::Own {
            #[expect(clippy::cast_possible_truncation, reason = "the one rounding to f32")]
            let values = expected.iter().flat_map(|it| it.iter()).map(|it| *it as f32).collect();
            view.replace(slot, &Values::F32(values));
        }
    }

    /// Those that ran.
    pub fn seen(&self) -> impl Iterator<Item = &Segment> {
        self.0.iter().filter(|it| it.own.is_some())
    }

    /// The first segment whose own error is above `tolerance`: by its place in the model, then by program.
    #[must_use]
    pub fn first_over(&self, tolerance: f64) -> Option<&Segment> {
        self.seen().filter(|it| is_over(it.own_error(), tolerance)).min_by_key(|it| it.to.point)
    }

    /// The segment with the largest error of its own.
    #[must_use]
    pub fn largest(&self) -> Option<&Segment> {
        self.seen().max_by(|a, b| a.own_error().total_cmp(&b.own_error()))
    }

    /// The last point that was compared, and its error on the plan's own values.
    #[must_use]
    pub fn end(&self) -> Option<(Point, f64)> {
        let last = self.seen().map(|it| it.to.point).max()?;
        let errors = self.seen().filter(|it| it.to.point == last).filter_map(|it| it.together);
        Some((last, errors.fold(0.0, larger)))
    }
}

impl Segment {
    fn add(&mut self, error: f64, position: usize, mode: Mode) {
        match mode {
            Mode::Own if self.own.is_none_or(|it| is_over(error, it.0)) => self.own = Some((error, position)),
            Mode::Own => {}
            Mode::Together => self.together = Some(larger(self.together.unwrap_or(0.0), error)),
        }
    }
}

fn of_program(plan: &Plan, program: &Program, hidden: &Hidden) -> Vec<Segment> {
    let layers = layers(plan, program);
    let mut boundaries = boundaries(plan, program);
    boundaries.retain(|it| hidden.points.contains_key(&it.point));
    let mut all: Vec<Segment> = Vec::new();
    for to in boundaries {
        let (from, first) = all.last().map_or((None, 0), |it| (Some(it.to.point), it.to.step + 1));
        // What all layers share may be computed after the first state.
        let of_layer = |it: &usize| from.is_none() || layers[*it] != Layer::Begin;
        let begins = (first..=to.step).find(of_layer).unwrap_or(to.step);
        all.push(Segment {
            program: program.name.clone(),
            from,
            to,
            first,
            layers: [layers[begins], layers[to.step]],
            own: None,
            together: None,
        });
    }
    all
}
