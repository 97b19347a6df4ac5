//! Which op of a plan computes something else than its graph says: each op run on the reference's own inputs.
//!
//! A reference has a tensor for every value of a call. After each step its results are compared with the reference's and then replaced by
//! them, rounded to their element type: so an op's error is its own, whatever the ops before it did. A second run without replacing
//! shows what becomes of all errors together; the ratio is the *amplification*.
//!
//! The error of numbers is relative, ‖found − expected‖ ÷ ‖expected‖ (Frobenius); of ids it is the part that differs.
//!
//! Deliberately absent: recurrent states, which stay the plan's own, made of the reference's inputs; lookup tables, whose reader is
//! compared instead; and steps in a loop over experts that runs more than once.

use waste_ir::Graph;
use waste_ir::interp::{CallValues, Tensor};
use waste_plan::schema::Step;
use waste_plan::{Math, Tables};
use waste_runtime::{StepView, Values};

use super::lifetimes::op_of;

/// The errors of one step, the largest of its results and of all calls.
#[derive(Clone, Debug, PartialEq)]
pub struct OpError {
    /// The program.
    pub program: String,
    /// The step.
    pub step: usize,
    /// On the reference's inputs.
    pub own: f64,
    /// On the plan's own values.
    pub together: f64,
}

/// Which of the two runs is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Results are replaced by the reference's.
    Own,
    /// Results stay.
    Together,
}

/// All errors, in the order in which steps first ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors(pub Vec<OpError>);

impl Errors {
    /// Takes in the step that `view` shows, whose graph and values are the reference's.
    pub fn see(&mut self, view: &StepView<'_>, graph: &Graph, values: &CallValues, mode: Mode) {
        let Ok(op) = op_of(graph, view.step()) else { return };
        if view.step().kind.moves_experts() {
            return;
        }
        for (slot, result) in op.results.iter().enumerate() {
            let (Some(found), Some(expected)) = (view.result(slot), values.get(*result)) else { continue };
            let Some(error) = error(&found, expected) else { continue };
            self.add(view, error, mode);
            if mode == Mode::Own {
                view.replace(slot, &rounded(expected));
            }
        }
    }

    fn add(&mut self, view: &StepView<'_>, error: f64, mode: Mode) {
        let (program, step) = (&view.program().name, view.index());
        let at = self.0.iter().position(|it| it.step == step && it.program == *program);
        let at = at.unwrap_or_else(|| {
            self.0.push(OpError { program: program.clone(), step, own: 0.0, together: 0.0 });
            self.0.len() - 1
        });
        let it = match mode {
            Mode::Own => &mut self.0[at].own,
            Mode::Together => &mut self.0[at].together,
        };
        *it = larger(*it, error);
    }

    /// The first op whose own error is above `tolerance`.
    #[must_use]
    pub fn first_over(&self, tolerance: f64) -> Option<&OpError> {
        self.0.iter().find(|it| is_over(it.own, tolerance))
    }

    /// The op with the largest error of its own.
    #[must_use]
    pub fn largest(&self) -> Option<&OpError> {
        self.0.iter().max_by(|a, b| a.own.total_cmp(&b.own))
    }
}

/// The larger error; NaN is the largest of all.
#[must_use]
pub const fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// Whether `error` is above `tolerance`; NaN is.
#[must_use]
pub fn is_over(error: f64, tolerance: f64) -> bool {
    error.is_nan() || tolerance < error
}

/// The distance of what was found from the reference; `None` if they have different sizes.
fn error(found: &Values, expected: &Tensor) -> Option<f64> {
    match found {
        Values::F32(found) => {
            let expected = expected.f64s();
            (found.len() == expected.len()).then(|| relative(found, expected))
        }
        Values::I32(found) => {
            let expected = expected.i32s();
            let differing = found.iter().zip(expected).filter(|(a, b)| a != b).count();
            let n = super::units::float(found.len().max(1) as u64);
            (found.len() == expected.len()).then(|| super::units::float(differing as u64) / n)
        }
    }
}

/// ‖found − expected‖ ÷ ‖expected‖; the norm of `found` where nothing is expected.
pub(super) fn relative(found: &[f32], expected: &[f64]) -> f64 {
    let apart: f64 = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    let size: f64 = expected.iter().map(|it| it * it).sum();
    if size == 0.0 { apart.sqrt() } else { (apart / size).sqrt() }
}

/// The reference's values as a step may hold them.
fn rounded(it: &Tensor) -> Values {
    if !it.i32s().is_empty() {
        return Values::I32(it.i32s().to_vec());
    }
    #[expect(clippy::cast_possible_truncation, reason = "the one rounding to f32")]
    Values::F32(it.f64s().iter().map(|it| *it as f32).collect())
}

/// The error that a plan of this arithmetic may have: what each mode keeps, for any one op and for the logits.
///
/// f32 and fixed24 keep 1e-5, fixed16 5e-4, fixed8 and the tables of containers 5e-2; a cache in f16 adds its own rounding.
#[must_use]
pub fn tolerance<'s>(math: Math, kv_is_f16: bool, steps: impl IntoIterator<Item = &'s Step>) -> f64 {
    use waste_plan::schema::StepKind;
    let of_acts = |it: &Step| match it.reads.iter().chain(&it.writes).find(|it| it.dtype.fx().is_some()) {
        // The option says nothing of a plan without integer weights.
        None => 0.0,
        Some(_) => match math {
            Math::F32 | Math::Fixed24 => 0.0,
            Math::Fixed16 => 5e-4,
            Math::Fixed8 => 5e-2,
        },
    };
    let of_tables = |it: &Step| match it.kind {
        StepKind::LutBuild { tables, .. } | StepKind::ExpertVq { tables, .. } => match tables {
            Tables::Fixed24 | Tables::F32 => 0.0,
            Tables::Fixed16 => 5e-4,
            Tables::Container => 5e-2,
        },
        _ => 0.0,
    };
    let least = if kv_is_f16 { 1e-3 } else { 1e-5 };
    steps.into_iter().map(|it| f64::max(of_acts(it), of_tables(it))).fold(least, f64::max)
}

#[cfg(test)]
mod tests {
    use waste_plan::DType;
    use waste_plan::schema::{Operand, Place, Rows, StepKind, Tile};

    use super::*;

    #[test]
    fn numbers_have_a_relative_error_and_ids_a_part() {
        let x = Tensor::matrix(2, vec![3.0, 4.0]);
        assert_eq!(error(&Values::F32(vec![3.0, 4.0]), &x), Some(0.0));
        assert_eq!(error(&Values::F32(vec![3.0, 3.0]), &x), Some(0.2));
        assert_eq!(error(&Values::F32(vec![3.0]), &x), None);
        assert!(error(&Values::F32(vec![f32::NAN, 4.0]), &x).is_some_and(|it| is_over(it, 1.0)));
        assert_eq!(error(&Values::F32(vec![2.0]), &Tensor::matrix(1, vec![0.0])), Some(2.0));
        let ids = Tensor::ids(&[1, 2, 3, 4]);
        assert_eq!(error(&Values::I32(vec![1, 2, 4, 3]), &ids), Some(0.5));
    }

    #[test]
    fn the_loosest_mode_decides() {
        let act = |dtype: DType| {
            let place =
                Operand { place: Place::Scratch(0), dtype, rows: Rows::Fixed(1), cols: 128, stride: 0 };
            Step {
                kind: StepKind::QuantAct { math: Math::Fixed8 },
                reads: vec![Operand { dtype: DType::F32, ..place }],
                writes: vec![place],
                tile: Tile { rows: 1, cols: 128 },
                barrier: false,
                window: false,
                op: 0,
            }
        };
        let (rounded, plain) = (act(DType::Fx8), act(DType::F32));
        assert_eq!(tolerance(Math::Fixed24, false, [&rounded]), 1e-5);
        assert_eq!(tolerance(Math::Fixed24, true, [&rounded]), 1e-3);
        assert_eq!(tolerance(Math::Fixed8, true, [&plain, &rounded]), 5e-2);
        // Where no activation is rounded, the option loosens nothing.
        assert_eq!(tolerance(Math::Fixed8, false, [&plain]), 1e-5);
    }
}
