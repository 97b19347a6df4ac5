//! Where a graph value must lie, given where its base was written: views are arithmetic on that place.

use waste_ir::{Def, Dim, Graph, Op, SymId, ValueId};
use waste_plan::DType;
use waste_plan::overlap::Runs;
use waste_plan::schema::{Operand, Place, Plan, Program, Rows};

/// The symbols that count tokens and wanted rows in one graph.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbols {
    pub(super) tokens: Option<SymId>,
    pub(super) want: Option<SymId>,
}

impl Symbols {
    /// Read off the inputs: T counts `token`, R counts `want`.
    pub(super) fn of(graph: &Graph) -> Self {
        let sym = |name| match graph.input(name).map(|it| graph.ty(it).shape.dims()) {
            Some([Dim::Scaled { sym, mul: 1 }]) => Some(*sym),
            _ => None,
        };
        Self { tokens: sym("token"), want: sym("want") }
    }

    /// Rows of a dimension, if it counts tokens or wanted rows or is known.
    pub(super) fn rows(self, dim: Dim) -> Option<Rows> {
        match dim {
            Dim::Const(n) => Some(Rows::Fixed(n)),
            Dim::Scaled { sym, mul } if Some(sym) == self.tokens => Some(Rows::Tokens(mul)),
            Dim::Scaled { sym, mul } if Some(sym) == self.want => Some(Rows::Want(mul)),
            Dim::Scaled { .. } => None,
        }
    }

    /// Dtype, rows and columns of a value: ids are one column, vectors of known length one row, states a row a vector.
    pub(super) fn matrix(self, graph: &Graph, value: ValueId) -> Option<(DType, Rows, u32)> {
        let ty = graph.ty(value);
        let (rows, cols) = match *ty.shape.dims() {
            [dim @ Dim::Scaled { .. }] => (self.rows(dim)?, 1),
            [Dim::Const(n)] => (Rows::Fixed(1), n),
            [dim, Dim::Const(cols)] => (self.rows(dim)?, cols),
            [Dim::Const(bank), Dim::Const(n), Dim::Const(cols)] => (Rows::Fixed(bank.checked_mul(n)?), cols),
            [Dim::Const(b), Dim::Const(s), Dim::Const(heads), Dim::Const(d)] => {
                (Rows::Fixed(b.checked_mul(s)?.checked_mul(heads)?), d)
            }
            _ => return None,
        };
        Some((ty.dtype, rows, cols))
    }
}

/// The value that `value` is a view of, after any number of views; itself if it is none.
pub(super) fn base(graph: &Graph, value: ValueId) -> ValueId {
    let mut at = value;
    while let Some((_, x)) = view(graph, at) {
        at = x;
    }
    at
}

/// The view op that makes `value`, and what it views.
fn view(graph: &Graph, value: ValueId) -> Option<(&Op, ValueId)> {
    let Def::Op(op, _) = graph.values[value].def else { return None };
    let data = graph.ops.get(op)?;
    if data.op.is_view() { Some((&data.op, data.optional(0)?)) } else { None }
}

/// The operand that `value` must be if its base was written as `at`; `None` if its views cannot be had there.
pub(super) fn expected(graph: &Graph, value: ValueId, at: Operand) -> Option<Operand> {
    let mut views = Vec::new();
    let mut inner = value;
    while let Some((op, x)) = view(graph, inner) {
        views.push(op);
        inner = x;
    }
    views.into_iter().rev().try_fold(at, |at, op| through(op, at))
}

fn through(op: &Op, at: Operand) -> Option<Operand> {
    match *op {
        Op::Slice { start, len } => {
            let shift = 4 * u64::from(start);
            let place = match at.place {
                Place::Scratch(offset) => Place::Scratch(offset.checked_add(shift)?),
                Place::Io(offset) => Place::Io(offset.checked_add(shift)?),
                Place::Weight(_) | Place::State(_) => return None,
            };
            Some(Operand { place, cols: len, ..at })
        }
        Op::Reshape { cols } => {
            // Rows of another width only make sense where no gap lies between rows.
            if at.row_bytes()? != at.stride || cols == 0 {
                return None;
            }
            let fold = |n: u32| {
                let elems = u64::from(n) * u64::from(at.cols);
                if elems.is_multiple_of(cols.into()) {
                    u32::try_from(elems / u64::from(cols)).ok()
                } else {
                    None
                }
            };
            let rows = match at.rows {
                Rows::Fixed(n) => Rows::Fixed(fold(n)?),
                Rows::Tokens(n) => Rows::Tokens(fold(n)?),
                Rows::Want(n) => Rows::Want(fold(n)?),
            };
            Some(Operand { rows, cols, stride: 4 * u64::from(cols), ..at })
        }
        _ => None,
    }
}

/// The three spaces in which steps write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Scratch,
    Io,
    State,
}

/// The bytes of an operand at the largest T and R; `None` for weights, which nobody writes.
pub(super) fn bytes(plan: &Plan, program: &Program, it: &Operand) -> Option<(Space, Runs)> {
    let runs = |offset| Runs::of(it, offset, program.tokens, program.want);
    match it.place {
        Place::Scratch(offset) => Some((Space::Scratch, runs(offset)?)),
        Place::Io(offset) => Some((Space::Io, runs(offset)?)),
        Place::State(id) => {
            let state = plan.states.get(id as usize)?;
            Some((Space::State, Runs::new(state.offset, 1, state.bytes, state.bytes)?))
        }
        Place::Weight(_) => None,
    }
}

/// One past the last byte of scratch that any step of `program` touches.
pub(super) fn scratch_end(program: &Program) -> u64 {
    let operands = program.steps.iter().flat_map(|it| it.reads.iter().chain(&it.writes));
    let ends = operands.filter_map(|it| match it.place {
        Place::Scratch(offset) => Runs::of(it, offset, program.tokens, program.want).map(|it| it.end()),
        Place::Io(_) | Place::Weight(_) | Place::State(_) => None,
    });
    ends.max().unwrap_or(0)
}
