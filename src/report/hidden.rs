//! Hidden states that a reference states, and where a plan has the same ones.
//!
//! The convention, of arrays by name; T tokens, L layers, `h` the width of the hidden state:
//!
//! | array | shape | what |
//! |---|---|---|
//! | `ids` | integers `[T]` | the tokens, from position 0 |
//! | `hidden.0` | floats `[T, h]` | what the first layer reads: the embedding, with positions where they are added |
//! | `hidden.K` | floats `[T, h]` | what layer K − 1 hands on, for K from 1 to L |
//! | `hidden.(L+1)` | floats `[T, h]` | the final norm, which transformers gives as the last of its hidden states |
//! | `logits` | floats `[T, vocab]` | logits |
//!
//! Any of the states and the logits may be missing; directions of size 1 may stand before T. Other arrays are not compared.
//!
//! A plan has a hidden state where one step of a layer writes one f32 value of that width which a later layer reads; the layers are those
//! that `layers` finds.

use std::collections::BTreeMap;
use std::fmt;

use waste_plan::DType;
use waste_plan::schema::{Operand, Place, Plan, PortName, Program, Rows, Step, StepKind};

use super::buffers::writers;
use super::layers::{Layer, layers};
use super::npy::shape_text;
use super::npz::Npz;

/// What a reference may state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// `hidden.K`.
    Hidden(u32),
    /// `logits`.
    Logits,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hidden(k) => write!(f, "hidden.{k}"),
            Self::Logits => f.write_str("logits"),
        }
    }
}

/// Where a program has what a reference may state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// What it is.
    pub point: Point,
    /// The step that writes it.
    pub step: usize,
    /// Which of that step's results it is.
    pub slot: usize,
}

/// The boundaries of `program`, in the order of its steps. A layer that hands on no single state has none.
#[must_use]
pub fn boundaries(plan: &Plan, program: &Program) -> Vec<Boundary> {
    let layers = layers(plan, program);
    let Some(width) = width(program) else { return Vec::new() };
    let last = last_layer(&layers);
    let mut all: Vec<Boundary> = Vec::new();
    let read_later = read_in_later_layers(program, &layers);
    for (at, step) in program.steps.iter().enumerate().filter(|it| read_later[it.0]) {
        let point = match layers[at] {
            Layer::Begin if !matches!(step.kind, StepKind::RopeAngles { .. }) => Point::Hidden(0),
            Layer::Number(n) => Point::Hidden(n + 1),
            Layer::Begin | Layer::End => continue,
        };
        let is_state =
            |it: &&Operand| it.dtype == DType::F32 && it.cols == width && it.rows == Rows::Tokens(1);
        if let Some(slot) = step.writes.iter().position(|it| is_state(&it)) {
            all.push(Boundary { point, step: at, slot });
        }
    }
    let points: Vec<Point> = all.iter().map(|it| it.point).collect();
    all.retain(|it| points.iter().filter(|point| **point == it.point).count() == 1);
    let is_norm = |it: &Step| {
        matches!(it.kind, StepKind::RmsNorm { .. } | StepKind::LayerNorm { .. }) && it.writes[0].cols == width
    };
    let end = (0..program.steps.len()).find(|at| layers[*at] == Layer::End && is_norm(&program.steps[*at]));
    let norm = end.zip(last).map(|(step, n)| Boundary { point: Point::Hidden(n + 2), step, slot: 0 });
    let port = plan.ports.iter().find(|it| it.name == PortName::Logits).map(|it| Place::Io(it.offset));
    let head = program.steps.iter().enumerate().find_map(|(step, it)| {
        let slot = it.writes.iter().position(|it| Some(it.place) == port)?;
        Some(Boundary { point: Point::Logits, step, slot })
    });
    all.extend(norm.into_iter().chain(head));
    all
}

/// The number of the last layer.
fn last_layer(layers: &[Layer]) -> Option<u32> {
    let number = |it: &Layer| if let Layer::Number(n) = it { Some(*n) } else { None };
    layers.iter().filter_map(number).max()
}

/// The width of the hidden state: that of an embedding.
fn width(program: &Program) -> Option<u32> {
    let embed = program.steps.iter().find(|it| it.kind == StepKind::Embed)?;
    embed.writes.first().map(|it| it.cols)
}

/// For each step whether one of a later layer reads what it wrote.
fn read_in_later_layers(program: &Program, layers: &[Layer]) -> Vec<bool> {
    let mut found = vec![false; program.steps.len()];
    for (reader, writers) in writers(program).iter().enumerate() {
        for writer in writers.iter().flatten() {
            found[*writer] |= layers[*writer] < layers[reader];
        }
    }
    found
}

/// Numbers of a matrix, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Rowed {
    cols: usize,
    values: Vec<f64>,
}

impl Rowed {
    /// Row `index`.
    #[must_use]
    pub fn row(&self, index: usize) -> Option<&[f64]> {
        let start = index.checked_mul(self.cols)?;
        self.values.get(start..start.checked_add(self.cols)?)
    }
}

/// A reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Hidden {
    /// The tokens, from position 0.
    pub ids: Vec<u32>,
    /// What it states of them.
    pub points: BTreeMap<Point, Rowed>,
    /// Arrays that are not compared, with the reason.
    pub ignored: Vec<String>,
}

impl Hidden {
    /// Reads what `npz` states, as the convention of this module has it, and what `plan` has too.
    ///
    /// # Errors
    /// If there are no ids or no hidden states, or an array has another shape, type or values than a reference of this plan.
    pub fn read(npz: &mut Npz, plan: &Plan) -> Result<Self, String> {
        let ids = ids(npz, plan)?;
        let program = plan.programs.first().ok_or("the plan has no program")?;
        let width = width(program).ok_or("the plan embeds no tokens: it has no hidden state")?;
        let end = last_layer(&layers(plan, program)).map_or(0, |it| it + 2);
        let known: Vec<Point> =
            plan.programs.iter().flat_map(|it| boundaries(plan, it)).map(|it| it.point).collect();
        let names: Vec<String> = npz.arrays().keys().filter(|it| *it != IDS).cloned().collect();
        let mut hidden = Self { ids, points: BTreeMap::new(), ignored: Vec::new() };
        for name in names {
            let (point, cols) = match point_of(&name) {
                Some(Point::Hidden(k)) if end < k => {
                    return Err(format!(
                        "array '{name}': the plan has {} layers, so hidden.{end} is the last",
                        end - 1
                    ));
                }
                Some(point @ Point::Hidden(_)) => (point, width),
                Some(point @ Point::Logits) => (point, plan.model.vocab),
                None => {
                    hidden.ignored.push(format!(
                        "array '{}' is neither ids, hidden.K nor logits",
                        crate::formats::shown(&name)
                    ));
                    continue;
                }
            };
            if !known.contains(&point) {
                hidden.ignored.push(format!("array '{name}': the plan has no single value there"));
                continue;
            }
            let values = hidden.matrix(npz, &name, cols)?;
            hidden.points.insert(point, values);
        }
        if hidden.points.is_empty() {
            return Err("no array 'hidden.K' and no 'logits' that the plan has too".into());
        }
        Ok(hidden)
    }

    /// The array `name`, which must be T × `cols`, all numbers.
    fn matrix(&self, npz: &mut Npz, name: &str, cols: u32) -> Result<Rowed, String> {
        let expected = [self.ids.len() as u64, u64::from(cols)];
        let found = &npz.arrays()[name].shape;
        if squeezed(found, 2) != Some(&expected[..]) {
            let (found, expected) = (shape_text(found), shape_text(&expected));
            return Err(format!(
                "array '{name}' has shape {found}, expected {expected}: tokens × columns of the plan"
            ));
        }
        let values = npz.floats(name).map_err(|err| err.to_string())?;
        match values.iter().position(|it| !it.is_finite()) {
            Some(at) => Err(format!("array '{name}': row {} holds what is no number", at / cols as usize)),
            None => Ok(Rowed { cols: cols as usize, values }),
        }
    }
}

/// The array of token ids.
const IDS: &str = "ids";

fn ids(npz: &mut Npz, plan: &Plan) -> Result<Vec<u32>, String> {
    let header = npz.arrays().get(IDS).ok_or("no array 'ids': the token ids of the hidden states")?;
    let ctx = plan.options.ctx;
    match squeezed(&header.shape, 1) {
        Some([0]) => return Err("array 'ids' holds none".into()),
        Some([n]) if u64::from(ctx) < *n => {
            return Err(format!("array 'ids' holds {n} tokens, the plan has {ctx} positions"));
        }
        Some(_) => {}
        None => {
            return Err(format!(
                "array 'ids' has shape {}, expected one row of ids",
                shape_text(&header.shape)
            ));
        }
    }
    let vocab = plan.model.vocab;
    let found = npz.integers(IDS).map_err(|err| err.to_string())?;
    let checked = |id: i64| {
        let known = u32::try_from(id).ok().filter(|it| *it < vocab);
        known.ok_or_else(|| format!("array 'ids': token {id} of a vocabulary of {vocab}"))
    };
    found.into_iter().map(checked).collect()
}

fn point_of(name: &str) -> Option<Point> {
    match name.strip_prefix("hidden.") {
        // `hidden.01` would be another name for a state.
        Some(k) => k.parse().ok().map(Point::Hidden).filter(|it| it.to_string() == name),
        None => (name == "logits").then_some(Point::Logits),
    }
}

/// The last `n` directions of a shape, if all before them have size 1.
fn squeezed(shape: &[u64], n: usize) -> Option<&[u64]> {
    let (before, rest) = shape.split_at_checked(shape.len().checked_sub(n)?)?;
    before.iter().all(|it| *it == 1).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_shapes_of_the_convention() {
        assert_eq!(point_of("hidden.12"), Some(Point::Hidden(12)));
        assert_eq!(point_of("logits"), Some(Point::Logits));
        for other in ["hidden.01", "hidden.", "hidden.-1", "hidden", "logits.0", "Logits"] {
            assert_eq!(point_of(other), None, "{other}");
        }
        assert_eq!(squeezed(&[1, 7, 3], 2), Some(&[7, 3][..]));
        assert_eq!(squeezed(&[1], 1), Some(&[1][..]));
        assert_eq!(squeezed(&[2, 7, 3], 2), None);
        assert_eq!(squeezed(&[7], 2), None);
        assert!(Point::Hidden(9) < Point::Logits);
    }
}
