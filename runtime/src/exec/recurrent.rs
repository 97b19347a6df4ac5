//! Recurrent layers: short convolutions and the delta rule, with the norms and gates around them.
//!
//! A row's state has two halves (numerics §5): a step reads the accepted one and writes the other. A row whose first token of the
//! call has position 0 begins from zeros, whatever its halves hold.

use waste_kernels::{STATE_COLS, TileMut};
use waste_plan::Act;
use waste_plan::schema::{MAX_HEAD_COLS, Operand, RING_COLS, Step};

use super::attention::state_id;
use super::{Exec, Part, act_kernel, runs};

/// Most tokens of one run: a recurrence takes all of them.
const ALL: usize = usize::MAX;

impl Exec<'_> {
    /// Where the accepted half of a row's state begins, and where the other one does; `elems` elements each.
    fn halves_at(&self, row: usize, elems: usize) -> (usize, usize) {
        let accepted = self.halves[row];
        ((row * 2 + accepted) * elems, (row * 2 + 1 - accepted) * elems)
    }

    /// Whether the row of a run begins in this call.
    fn is_first(&self, pos: &Operand, at: usize) -> bool {
        self.spaces.i32s(pos, at + 1)[at] == 0
    }

    pub(super) fn short_conv(&self, step: &Step, part: Part, act: Act, scratch: &mut [f32]) {
        let (x, w, out) = (&step.reads[0], &step.reads[1], &step.writes[0]);
        let id = state_id(&step.writes[1]);
        let (taps, channels) = (w.cols as usize, x.cols as usize);
        let past = taps - 1;
        let weights = crate::arena::f32s(self.spaces.weight_of(w));
        let rows = self.spaces.i32s(&step.reads[2], part.rows.end);
        for (row, run) in runs(rows, part.rows, ALL) {
            let (from, to) = self.halves_at(row, past * channels);
            let is_first = self.is_first(&step.reads[3], run.start);
            for start in part.cols.clone().step_by(RING_COLS as usize) {
                let cols = start..part.cols.end.min(start + RING_COLS as usize);
                let (at, len) = (start * past, cols.len() * past);
                let next = self.spaces.state_mut::<f32>(id, to + at..to + at + len);
                let mut y = self.spaces.tile(out, run.clone(), cols.clone());
                let x = self.spaces.f32_rows(x, run.clone()).columns(cols.clone());
                let w = &weights[cols.start * taps..cols.end * taps];
                let ring = if is_first {
                    scratch[..len].fill(0.0);
                    &scratch[..len]
                } else {
                    self.spaces.state::<f32>(id, from + at..from + at + len)
                };
                self.table.short_conv(&x, w, taps, ring, next, &mut y);
                if let Some(act) = act_kernel(act) {
                    (0..y.rows()).for_each(|t| self.table.unary(act, y.row_mut(t)));
                }
            }
        }
    }

    /// Some heads, all tokens: each block of columns is walked token by token while it is in the first-level cache.
    pub(super) fn kda_step(&self, step: &Step, part: Part, scratch: &mut [f32]) {
        let id = state_id(&step.writes[1]);
        let [q, k, v, decay, beta, row, pos] = &step.reads[..] else { unreachable!("validated reads") };
        let heads = beta.cols as usize;
        let (dk, dv) = (k.cols as usize / heads, v.cols as usize / heads);
        let rows = self.spaces.i32s(row, part.rows.end);
        for (row, run) in runs(rows, part.rows, ALL) {
            let (from, to) = self.halves_at(row, heads * dk * dv);
            let is_first = self.is_first(pos, run.start);
            for head in part.cols.start / dv..part.cols.end / dv {
                let keys = head * dk..(head + 1) * dk;
                let of = |it: &Operand| self.spaces.f32_rows(it, run.clone()).columns(keys.clone());
                let (q, k, decay) = (of(q), of(k), of(decay));
                let betas = self.spaces.f32_rows(beta, run.clone());
                let scratch = &mut scratch[..run.len()];
                scratch.iter_mut().enumerate().for_each(|(t, it)| *it = betas.row(t)[head]);
                for start in (0..dv).step_by(STATE_COLS) {
                    let cols = head * dv + start..head * dv + dv.min(start + STATE_COLS);
                    let (at, len) = (head * dk * dv + start * dk, cols.len() * dk);
                    let next = self.spaces.state_mut::<f32>(id, to + at..to + at + len);
                    let last = (!is_first).then(|| self.spaces.state::<f32>(id, from + at..from + at + len));
                    let v = self.spaces.f32_rows(v, run.clone()).columns(cols.clone());
                    let mut o: TileMut<'_> = self.spaces.tile(&step.writes[0], run.clone(), cols);
                    self.table.kda_step(&q, &k, &v, &decay, scratch, last, next, &mut o);
                }
            }
        }
    }

    /// Each group of `dim` columns of each row through `f`, with the group's number.
    fn per_head(&self, step: &Step, part: &Part, dim: usize, f: impl Fn(usize, &mut [f32])) {
        self.copy_unless_in_place(step, part);
        let mut y = self.spaces.tile(&step.writes[0], part.rows.clone(), part.cols.clone());
        for t in 0..y.rows() {
            for (group, y) in y.row_mut(t).chunks_exact_mut(dim).enumerate() {
                f(part.cols.start / dim + group, y);
            }
        }
    }

    pub(super) fn l2_norm(&self, step: &Step, part: &Part, dim: usize, (eps, scale): (f32, f32)) {
        self.per_head(step, part, dim, |_, y| with_copy(y, |x, y| self.table.l2_norm(x, eps, scale, y)));
    }

    pub(super) fn kda_gate(&self, step: &Step, part: &Part, lower_bound: f32) {
        let (a_log, bias) = (self.spaces.f32_row(&step.reads[1], 0), self.spaces.f32_row(&step.reads[2], 0));
        let dim = bias.len() / a_log.len();
        self.per_head(step, part, dim, |head, y| {
            let bias = &bias[head * dim..(head + 1) * dim];
            with_copy_by(y, |at, x, y| {
                self.table.kda_gate(x, &bias[at..at + x.len()], a_log[head], lower_bound, y);
            });
        });
    }

    /// The result may lie over x or over the gate, so that both are copied head by head.
    pub(super) fn gated_rms_norm(&self, step: &Step, part: &Part, eps: f32) {
        let (x, gate, w) = (&step.reads[0], &step.reads[1], self.spaces.f32_row(&step.reads[2], 0));
        let mut copies = [[0f32; GROUP]; 2];
        let [x_copy, gate_copy] = &mut copies;
        for t in part.rows.clone() {
            for start in part.cols.clone().step_by(w.len()) {
                let cols = start..start + w.len();
                let (x_copy, gate_copy) = (&mut x_copy[..w.len()], &mut gate_copy[..w.len()]);
                x_copy.copy_from_slice(&self.spaces.f32_row(x, t)[cols.clone()]);
                gate_copy.copy_from_slice(&self.spaces.f32_row(gate, t)[cols.clone()]);
                let mut y = self.spaces.tile(&step.writes[0], t..t + 1, cols);
                self.table.gated_rms_norm(x_copy, gate_copy, w, eps, y.row_mut(0));
            }
        }
    }
}

/// Columns that are copied to the stack at a time: no head that is normed is wider.
const GROUP: usize = MAX_HEAD_COLS as usize;

/// Calls `f` with a copy of `y` and `y`.
fn with_copy(y: &mut [f32], f: impl Fn(&[f32], &mut [f32])) {
    let mut copy = [0f32; GROUP];
    let copy = &mut copy[..y.len()];
    copy.copy_from_slice(y);
    f(copy, y);
}

/// As [`with_copy`], element-wise work in pieces of any length; `f` gets where each begins.
fn with_copy_by(y: &mut [f32], f: impl Fn(usize, &[f32], &mut [f32])) {
    for (i, y) in y.chunks_mut(GROUP).enumerate() {
        with_copy(y, |x, y| f(i * GROUP, x, y));
    }
}
