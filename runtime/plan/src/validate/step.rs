//! What each step kind takes: number, dtypes and shapes of operands, and what may lie over what.

use super::{Checked, ensure, experts, space};
use crate::overlap::Runs;
use crate::schema::{
    Operand, Place, Plan, PortName, Program, Rows, State, StateKind, Step, StepKind, Weight,
};
use crate::{DType, Math, Packing};

/// Checks one step of `program`.
pub(super) fn check(plan: &Plan, program: &Program, step: &Step) -> Checked {
    for (name, operands, is_write) in [("read", &step.reads, false), ("write", &step.writes, true)] {
        for (slot, it) in operands.iter().enumerate() {
            space::operand(plan, program, it, is_write).map_err(|what| format!("{name} {slot}: {what}"))?;
        }
    }
    let n_reads = n_reads(&step.kind);
    let n_writes = step.kind.n_writes();
    ensure(step.reads.len() == n_reads && step.writes.len() == n_writes, || {
        let (name, reads, writes) = (step.kind.name(), step.reads.len(), step.writes.len());
        format!("{name} with {reads} reads and {writes} writes, expected {n_reads} and {n_writes}")
    })?;
    if step.kind.moves_experts() {
        return experts::moves(plan, step).map_err(|what| format!("{}: {what}", step.kind.name()));
    }
    let it = Operands { plan, step, y: &step.writes[0] };
    it.kind().map_err(|what| format!("{}: {what}", step.kind.name()))?;
    it.tile(program)?;
    apart(program, step)
}

const fn n_reads(kind: &StepKind) -> usize {
    match kind {
        StepKind::QuantAct { .. }
        | StepKind::Unary { .. }
        | StepKind::Argmax
        | StepKind::FiniteCheck
        | StepKind::L2Norm { .. }
        | StepKind::ExpertPrefetch { .. }
        | StepKind::ExpertWindow { .. }
        | StepKind::ExpertRelease { .. }
        | StepKind::ExpertSort { .. } => 1,
        StepKind::Embed
        | StepKind::Add
        | StepKind::Mul
        | StepKind::Glu { .. }
        | StepKind::RmsNorm { .. }
        | StepKind::Rope { .. }
        | StepKind::SelectRows
        | StepKind::Concat
        | StepKind::HeadLinear
        | StepKind::HeadLinearT
        | StepKind::LutBuild { .. }
        | StepKind::ExpertGather => 2,
        StepKind::LinearGlu { .. }
        | StepKind::KvAppend
        | StepKind::KdaGate { .. }
        | StepKind::GatedRmsNorm { .. } => 3,
        StepKind::ShortConv { .. }
        | StepKind::ExpertLinear { .. }
        | StepKind::ExpertLut { .. }
        | StepKind::ExpertSum => 4,
        StepKind::Attention { .. } | StepKind::ExpertGlu { .. } | StepKind::ExpertVq { .. } => 5,
        StepKind::KdaStep => 7,
        StepKind::LatentAttention { rope, .. } => 4 + *rope as usize,
        StepKind::AttnResMix { blocks, .. } => 3 + *blocks as usize,
        StepKind::RouteTopK { bias, .. } => 1 + *bias as usize,
        StepKind::Linear { bias, residual, .. } => 2 + *bias as usize + *residual as usize,
        StepKind::LayerNorm { bias, .. } => 2 + *bias as usize,
        StepKind::RopeAngles { factors, .. } => 1 + *factors as usize,
    }
}

/// A step whose operands are in bounds and of the right number.
pub(super) struct Operands<'p> {
    pub(super) plan: &'p Plan,
    pub(super) step: &'p Step,
    pub(super) y: &'p Operand,
}

impl<'p> Operands<'p> {
    fn kind(&self) -> Checked {
        match &self.step.kind {
            StepKind::Embed => {
                let table = self.weight(1)?;
                let is_known =
                    table.packing == Packing::Plain || Packing::of(table.dtype) == Some(table.packing);
                ensure(is_known, || format!("a table packed as {}", table.packing.name()))?;
                let ids = if self.port(0, PortName::Pos).is_ok() {
                    u64::from(self.plan.options.ctx)
                } else {
                    self.port(0, PortName::Token)?;
                    u64::from(self.plan.model.vocab)
                };
                ensure(table.rows >= ids, || format!("a table of {} rows for {ids} ids", table.rows))?;
                self.result(DType::F32, Rows::Tokens(1), table.cols)
            }
            StepKind::QuantAct { math } => {
                let x = self.f32(0)?;
                self.result(produced(Some(*math))?, x.rows, x.cols.into())
            }
            StepKind::Linear { bias, residual, .. } => self.linear(*bias, *residual),
            StepKind::LinearGlu { quant, .. } => {
                let (x, gate) = (&self.step.reads[0], self.matrix(0, 1)?);
                let up = self.matrix(0, 2)?;
                let is_same = (up.rows, up.dtype) == (gate.rows, gate.dtype);
                ensure(is_same, || "gate and up differ in rows or dtype".into())?;
                self.result(produced(*quant)?, x.rows, gate.rows)
            }
            StepKind::Add | StepKind::Mul | StepKind::Glu { .. } => {
                let (lhs, rhs) = (self.f32(0)?, self.f32(1)?);
                ensure((lhs.rows, lhs.cols) == (rhs.rows, rhs.cols), || {
                    "operands of different shapes".into()
                })?;
                self.result(DType::F32, lhs.rows, lhs.cols.into())
            }
            StepKind::Unary { .. } => {
                let x = self.f32(0)?;
                self.result(DType::F32, x.rows, x.cols.into())
            }
            StepKind::RmsNorm { eps, quant } => self.norm(*eps, false, *quant),
            StepKind::LayerNorm { eps, bias, quant } => self.norm(*eps, *bias, *quant),
            StepKind::RopeAngles { freqs, factors } => {
                self.port(0, PortName::Pos)?;
                ensure(freqs.iter().all(|it| it.is_finite()), || "a frequency is not finite".into())?;
                if *factors {
                    self.vector(1, freqs.len() as u64)?;
                }
                self.result(DType::F32, Rows::Tokens(1), 2 * freqs.len() as u64)
            }
            StepKind::Rope { head_dim, skip, .. } => {
                let (x, angles) = (self.f32(0)?, self.f32(1)?);
                let is_each = angles.rows == Rows::Tokens(1) && matches!(x.rows, Rows::Tokens(_));
                ensure(is_each, || "angles of other rows".into())?;
                let is_heads = *head_dim > 0 && x.cols.is_multiple_of(*head_dim);
                ensure(is_heads, || format!("{} columns are no heads of {head_dim}", x.cols))?;
                let end = skip.checked_add(angles.cols);
                let turns = angles.cols.is_multiple_of(2) && end.is_some_and(|it| it <= *head_dim);
                ensure(turns, || format!("{} angles from {skip} in heads of {head_dim}", angles.cols))?;
                self.result(DType::F32, x.rows, x.cols.into())
            }
            StepKind::KvAppend => self.kv_append(),
            StepKind::Attention { heads, scale } => self.attention(*heads, *scale),
            StepKind::SelectRows => {
                let x = self.f32(0)?;
                self.port(1, PortName::Want)?;
                ensure(x.rows == Rows::Tokens(1), || "rows to choose from that are no tokens".into())?;
                self.result(DType::F32, Rows::Want(1), x.cols.into())
            }
            StepKind::Argmax | StepKind::FiniteCheck => {
                let x = self.f32(0)?;
                self.result(DType::I32, x.rows, 1)
            }
            _ => self.family(),
        }
    }

    fn linear(&self, bias: bool, residual: bool) -> Checked {
        let (x, w) = (&self.step.reads[0], self.matrix(0, 1)?);
        if bias {
            self.vector(2, w.rows)?;
        }
        if residual {
            let it = self.f32(2 + usize::from(bias))?;
            ensure(it.rows == x.rows && u64::from(it.cols) == w.rows, || {
                "a residual of another shape".into()
            })?;
        }
        self.result(DType::F32, x.rows, w.rows)
    }

    fn norm(&self, eps: f32, bias: bool, quant: Option<Math>) -> Checked {
        let x = self.f32(0)?;
        ensure(eps.is_finite() && eps >= 0.0, || format!("eps = {eps}"))?;
        self.vector(1, x.cols.into())?;
        if bias {
            self.vector(2, x.cols.into())?;
        }
        self.result(produced(quant)?, x.rows, x.cols.into())
    }

    fn kv_append(&self) -> Checked {
        let x = self.f32(0)?;
        self.port(1, PortName::Row)?;
        self.port(2, PortName::Pos)?;
        let state = self.state(self.y)?;
        ensure(state.kind != StateKind::Recurrent, || "appends to a recurrent state".into())?;
        let cols = u64::from(state.shape[2]) * u64::from(state.shape[3]);
        let fits = x.rows == Rows::Tokens(1) && u64::from(x.cols) == cols;
        ensure(fits, || format!("appends {:?} rows of {} to a cache of {cols} columns", x.rows, x.cols))
    }

    fn attention(&self, heads: u32, scale: f32) -> Checked {
        let q = self.f32(0)?;
        let (k, v) = (self.state(&self.step.reads[1])?, self.state(&self.step.reads[2])?);
        self.port(3, PortName::Row)?;
        self.port(4, PortName::Pos)?;
        ensure((k.kind, v.kind) == (StateKind::Keys, StateKind::Values), || {
            "caches of the wrong kinds".into()
        })?;
        ensure(k.shape[..3] == v.shape[..3], || "caches of different shapes".into())?;
        ensure(scale.is_finite(), || format!("scale = {scale}"))?;
        let [_, _, kv_heads, d] = k.shape;
        ensure(heads > 0 && heads.is_multiple_of(kv_heads), || format!("{heads} heads over {kv_heads}"))?;
        let cols = u64::from(heads) * u64::from(d);
        let fits = q.rows == Rows::Tokens(1) && u64::from(q.cols) == cols;
        ensure(fits, || format!("{:?} rows of {} columns for {heads} heads of {d}", q.rows, q.cols))?;
        self.result(DType::F32, Rows::Tokens(1), u64::from(heads) * u64::from(v.shape[3]))
    }

    /// Read `slot` as an f32 matrix in scratch or io.
    pub(super) fn f32(&self, slot: usize) -> Result<&'p Operand, String> {
        let it = &self.step.reads[slot];
        let is_strided = matches!(it.place, Place::Scratch(_) | Place::Io(_));
        ensure(is_strided && it.dtype == DType::F32, || format!("read {slot} is no f32 activation"))?;
        Ok(it)
    }

    pub(super) fn weight(&self, slot: usize) -> Result<&'p Weight, String> {
        let Place::Weight(id) = self.step.reads[slot].place else {
            return Err(format!("read {slot} is no weight"));
        };
        self.plan.weights.get(id as usize).ok_or_else(|| format!("weight {id} is not there"))
    }

    /// Read `slot` as a plain f32 vector of `n`.
    pub(super) fn vector(&self, slot: usize, n: u64) -> Checked {
        let it = self.weight(slot)?;
        let found = (it.packing, it.dtype, it.bank, it.rows, it.cols);
        let is_vector = found == (Packing::Plain, DType::F32, 1, 1, n);
        ensure(is_vector, || format!("read {slot} is no plain f32[{n}]"))
    }

    /// Read `w` as a packed matrix that multiplies the activations at read `x`.
    fn matrix(&self, x: usize, w: usize) -> Result<&'p Weight, String> {
        let it = self.bank(x, w)?;
        ensure(it.bank == 1, || format!("read {w} is a bank of {}", it.bank))?;
        Ok(it)
    }

    /// As [`Self::matrix`], or a bank of such.
    pub(super) fn bank(&self, x: usize, w: usize) -> Result<&'p Weight, String> {
        let (x, it) = (&self.step.reads[x], self.weight(w)?);
        let is_strided = matches!(x.place, Place::Scratch(_) | Place::Io(_));
        let is_act = x.dtype == DType::F32 || (x.dtype.fx().is_some() && it.dtype.is_integer_weight());
        ensure(is_strided && is_act, || format!("{} times {}", x.dtype.name(), it.dtype.name()))?;
        ensure(Packing::of(it.dtype) == Some(it.packing), || {
            format!("a matrix packed as {}", it.packing.name())
        })?;
        ensure(u64::from(x.cols) == it.cols, || format!("{} columns times a matrix of {}", x.cols, it.cols))?;
        Ok(it)
    }

    pub(super) fn state(&self, it: &Operand) -> Result<&'p State, String> {
        let Place::State(id) = it.place else { return Err("a cache that is no state".into()) };
        self.plan.states.get(id as usize).ok_or_else(|| format!("state {id} is not there"))
    }

    /// Read `slot` is the whole of the caller's `name`.
    pub(super) fn port(&self, slot: usize, name: PortName) -> Checked {
        let at = self.plan.ports.iter().find(|it| it.name == name).map(|it| Place::Io(it.offset));
        let is_port = at == Some(self.step.reads[slot].place);
        ensure(is_port, || format!("read {slot} is not the port {}", name.name()))
    }

    pub(super) fn result(&self, dtype: DType, rows: Rows, cols: u64) -> Checked {
        Self::is_result(self.y, dtype, rows, cols)
    }

    /// `y` is an activation of this dtype and shape.
    pub(super) fn is_result(y: &Operand, dtype: DType, rows: Rows, cols: u64) -> Checked {
        let is_strided = matches!(y.place, Place::Scratch(_) | Place::Io(_));
        let fits = is_strided && (y.dtype, y.rows, u64::from(y.cols)) == (dtype, rows, cols);
        ensure(fits, || {
            let found = (y.dtype.name(), y.rows, y.cols);
            format!(
                "writes {} of {:?} × {}, expected {} of {rows:?} × {cols}",
                found.0,
                found.1,
                found.2,
                dtype.name()
            )
        })
    }
}

/// f32, or the quantised form that `quant` asks for.
pub(super) fn produced(quant: Option<Math>) -> Result<DType, String> {
    quant.map_or(Ok(DType::F32), |math| math.act_dtype().ok_or_else(|| "quantises to f32".into()))
}

/// The result lies over no operand, or exactly over one that the kind allows.
fn apart(program: &Program, step: &Step) -> Checked {
    let meet = |y: &Operand, x: &Operand| {
        let (a, b) = match (y.place, x.place) {
            (Place::Scratch(a), Place::Scratch(b)) | (Place::Io(a), Place::Io(b)) => (a, b),
            _ => return false,
        };
        let runs = |it, at| Runs::of(it, at, program.tokens, program.want);
        runs(y, a).zip(runs(x, b)).is_none_or(|(y, x)| y.overlaps(&x))
    };
    for (write, y) in step.writes.iter().enumerate() {
        for (slot, x) in step.reads.iter().enumerate() {
            let is_same = (y.place, y.stride, y.dtype, y.cols) == (x.place, x.stride, x.dtype, x.cols);
            let may_lie_over = write == 0 && step.kind.in_place().contains(&slot);
            ensure((is_same && may_lie_over) || !meet(y, x), || format!("writes over read {slot}"))?;
        }
        let other = step.writes[..write].iter().position(|it| meet(y, it));
        ensure(other.is_none(), || format!("writes {write} and {other:?} share bytes"))?;
    }
    Ok(())
}
