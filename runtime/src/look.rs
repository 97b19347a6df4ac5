//! Looking on: what a step reads and writes, seen and changed between the steps of a call.
//!
//! With an onlooker every step begins and ends at a barrier: thread 0 looks, the others wait. That is slow and meant for finding faults;
//! the bits of the steps themselves stay the same.
//!
//! Invariant: an onlooker runs only while no thread is inside a step, so it may write what steps write.
//!
//! Deliberately absent: states and lookup tables. What a cache holds was a step's operand before, and tables are another form of one.

use std::sync::Mutex;

use waste_kernels::FxRows;
use waste_plan::DType;
use waste_plan::schema::{Operand, Place, Program, Step};

use crate::error::RuntimeError;
use crate::exec::Exec;
use crate::team::Member;

/// Whoever looks on.
pub(crate) trait Onlooker: Send {
    /// Before a step, which has done nothing yet.
    fn before(&mut self, _: &StepView<'_>) {}
    /// After a step, before any other.
    fn after(&mut self, view: &StepView<'_>);
    /// What was found wrong in the call.
    fn verdict(&mut self) -> Option<RuntimeError> {
        None
    }
}

/// A function that looks at the results of each step.
pub(crate) struct After<'f>(pub(crate) &'f mut (dyn FnMut(&StepView<'_>) + Send));

impl Onlooker for After<'_> {
    fn after(&mut self, view: &StepView<'_>) {
        (self.0)(view);
    }
}

/// Lets thread 0 look on while the others wait. After a panic there is nothing to see.
pub(crate) fn look(
    member: &mut Member<'_>,
    onlooker: &Mutex<&mut dyn Onlooker>,
    f: impl FnOnce(&mut dyn Onlooker),
) {
    member.barrier();
    if member.index == 0 && !member.is_panicked() {
        member.guarded(|| f(&mut **onlooker.lock().expect("only thread 0 looks on")));
    }
    member.barrier();
}

/// Numbers or ids of a result, row by row.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Numbers; those of quantised activations are what the integers stand for.
    F32(Vec<f32>),
    /// Ids, places and the like.
    I32(Vec<i32>),
}

/// One step of a call, between this step and the next.
pub struct StepView<'a> {
    pub(crate) exec: &'a Exec<'a>,
    pub(crate) program: &'a Program,
    /// The number of the program.
    pub(crate) number: usize,
    pub(crate) at: usize,
}

impl std::fmt::Debug for StepView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepView").field("program", &self.program.name).field("at", &self.at).finish()
    }
}

impl StepView<'_> {
    /// The program that runs.
    #[must_use]
    pub const fn program(&self) -> &Program {
        self.program
    }

    /// The index of the step.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.at
    }

    /// The step.
    #[must_use]
    pub fn step(&self) -> &Step {
        &self.program.steps[self.at]
    }

    /// Result `slot` as it lies in memory; `None` for states and lookup tables, and where there is no such result.
    #[must_use]
    pub fn result(&self, slot: usize) -> Option<Values> {
        let operand = self.step().writes.get(slot).filter(|it| has_rows(it))?;
        let rows = 0..self.exec.call.rows(operand.rows);
        match operand.dtype {
            DType::F32 => Some(Values::F32(
                rows.flat_map(|it| self.exec.spaces.f32_row(operand, it)).copied().collect(),
            )),
            DType::I32 => Some(Values::I32(
                rows.flat_map(|it| self.exec.spaces.i32_row(operand, it)).copied().collect(),
            )),
            dtype => {
                dtype.fx()?;
                let x = self.exec.spaces.fx_rows(operand, rows.clone());
                Some(Values::F32(rows.flat_map(|it| dequantised(&x, it)).collect()))
            }
        }
    }

    /// Puts `values` in the place of result `slot`, rounded to its element type; nothing where [`Self::result`] has nothing, or other
    /// values than these.
    pub fn replace(&self, slot: usize, values: &Values) {
        let Some(operand) = self.step().writes.get(slot).filter(|it| has_rows(it)) else { return };
        let (rows, cols) = (self.exec.call.rows(operand.rows), operand.cols as usize);
        match values {
            Values::F32(x) if x.len() == rows * cols => {
                for (t, x) in x.chunks_exact(cols).enumerate() {
                    if operand.dtype == DType::F32 {
                        self.exec.spaces.tile(operand, t..t + 1, 0..cols).row_mut(0).copy_from_slice(x);
                    } else if operand.dtype.fx().is_some() {
                        let mut row = self.exec.spaces.fx_row_mut(operand, t);
                        self.exec.quantise_into(x, operand.dtype, &mut row);
                    }
                }
            }
            Values::I32(x) if x.len() == rows * cols && operand.dtype == DType::I32 => {
                for (t, x) in x.chunks_exact(cols).enumerate() {
                    self.exec.spaces.i32_row_mut(operand, t).copy_from_slice(x);
                }
            }
            Values::F32(_) | Values::I32(_) => {}
        }
    }
}

/// Whether an operand lies in scratch or io.
pub(crate) const fn has_rows(operand: &Operand) -> bool {
    matches!(operand.place, Place::Scratch(_) | Place::Io(_))
}

/// What the integers of row `t` stand for, computed in f64 and rounded once.
fn dequantised(x: &FxRows<'_>, t: usize) -> Vec<f32> {
    let group = x.layout().padded(1);
    let value = |i: usize| {
        let q = (0..x.layout().planes).fold(0i32, |q, p| q * 256 + i32::from(x.plane(t, p)[i]));
        #[expect(clippy::cast_possible_truncation, reason = "the one rounding to f32")]
        {
            (f64::from(q) * f64::from(x.xs(t)[i / group])) as f32
        }
    };
    (0..x.n()).map(value).collect()
}
