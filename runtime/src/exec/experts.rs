//! Mixtures of experts: routing, the sort of (token, expert) pairs, and steps over the pairs.
//!
//! Pairs lie by expert, then token. Invariant: an index that was computed by a step is bounded when it is followed, so that a
//! forged plan, which may never have computed it, gets wrong numbers and no fault.

use std::ops::Range;

use waste_kernels::{FxRows, RouteRule, RowsF32, TileMut};
use waste_plan::schema::{GATHER_ROWS, Operand, Situ, Step, StepKind};
use waste_plan::{Act, LANES};

use super::linear::{X, columns_of};
use super::{Exec, Part, act_kernel};
use crate::arena::{Call, bytes_of, bytes_of_mut, i32s_of_mut};

/// Experts of the bank that a step reads.
pub(super) fn n_experts(step: &Step, call: Call) -> usize {
    call.rows(step.reads[1].rows) / step.writes[0].cols as usize
}

/// A computed index, bounded by `n`.
fn bounded(index: i32, n: usize) -> usize {
    usize::try_from(index).unwrap_or(0).min(n.saturating_sub(1))
}

fn number(n: usize) -> i32 {
    i32::try_from(n).expect("pairs of a call are below 2^31")
}

impl Exec<'_> {
    pub(super) fn route_top_k(&self, step: &Step, part: Part, scratch: &mut [f32]) {
        let StepKind::RouteTopK { scoring, groups, keep, renorm, scale, bias } = step.kind else {
            unreachable!("called for this kind")
        };
        let rule = RouteRule { scoring, groups: groups as usize, keep: keep as usize, renorm, scale };
        let bias = bias.then(|| self.spaces.f32_row(&step.reads[1], 0));
        let (ids, weights) = (&step.writes[0], &step.writes[1]);
        for t in part.rows {
            let logits = self.spaces.f32_row(&step.reads[0], t);
            let scratch = &mut scratch[..2 * logits.len()];
            let mut weights = self.spaces.tile(weights, t..t + 1, 0..weights.cols as usize);
            let ids = self.spaces.i32_row_mut(ids, t);
            self.table.route_top_k(logits, bias, &rule, scratch, ids, weights.row_mut(0));
        }
    }

    /// A counting sort, by one thread: there are few pairs.
    pub(super) fn expert_sort(&self, step: &Step, experts: usize, scratch: &mut [f32]) {
        let (ids, k) = (&step.reads[0], step.reads[0].cols as usize);
        let tokens = self.call.rows(ids.rows);
        let n = tokens * k;
        let (order, slots) =
            (self.spaces.i32s_mut(&step.writes[0], n), self.spaces.i32s_mut(&step.writes[2], n));
        let groups = self.spaces.i32_row_mut(&step.writes[1], 0);
        let expert_of = |t: usize, rank: usize| bounded(self.spaces.i32_row(ids, t)[rank], experts);

        let (starts, filled) = i32s_of_mut(scratch).split_at_mut(experts + 1);
        let filled = &mut filled[..tokens];
        starts.fill(0);
        filled.fill(0);
        for t in 0..tokens {
            (0..k).for_each(|rank| starts[expert_of(t, rank) + 1] += 1);
        }
        let mut at = 0;
        for e in 0..experts {
            let (first, count) = (starts[e], starts[e + 1]);
            if count > 0 {
                groups[2 * at] = number(e);
                groups[2 * at + 1] = first;
                at += 1;
            }
            starts[e + 1] += first;
        }
        for end in groups[2 * at..].chunks_exact_mut(2) {
            (end[0], end[1]) = (number(experts), number(n));
        }
        for t in 0..tokens {
            for rank in 0..k {
                let next = &mut starts[expert_of(t, rank)];
                order[bounded(*next, n)] = number(t * k + rank);
                *next += 1;
            }
        }
        for (p, place) in order.iter().enumerate() {
            let t = bounded(*place, n) / k;
            slots[t * k + bounded(filled[t], k)] = number(p);
            filled[t] += 1;
        }
    }

    pub(super) fn expert_gather(&self, step: &Step, part: Part) {
        let (x, order) = (&step.reads[0], &step.reads[1]);
        let mut y = self.spaces.tile(&step.writes[0], part.rows.clone(), part.cols);
        for (i, p) in part.rows.enumerate() {
            let row = self.source_row(order, x, p, true);
            y.row_mut(i).copy_from_slice(self.spaces.f32_row(x, row));
        }
    }

    /// The row of x that pair `p` reads: its token's, or its own.
    pub(super) fn source_row(&self, order: &Operand, x: &Operand, p: usize, gather: bool) -> usize {
        if !gather {
            return p;
        }
        let (pairs, tokens) = (self.call.rows(order.rows), self.call.rows(x.rows));
        let each = (pairs / tokens.max(1)).max(1);
        bounded(self.spaces.i32s(order, pairs)[p] / number(each), tokens)
    }

    /// The expert and the pairs of group `index`, if it has any.
    pub(super) fn group(
        &self,
        groups: &Operand,
        index: usize,
        experts: usize,
        pairs: usize,
    ) -> Option<(usize, Range<usize>)> {
        let it = self.spaces.i32_row(groups, 0);
        let expert = usize::try_from(it[2 * index]).ok().filter(|it| *it < experts)?;
        let bound = |at: i32| usize::try_from(at).unwrap_or(0).min(pairs);
        let range = bound(it[2 * index + 1])..bound(it[2 * index + 3]);
        (range.start < range.end).then_some((expert, range))
    }

    /// Rows `pairs` of what a linear reads, side by side in scratch if they do not lie so.
    pub(super) fn pair_rows<'a>(
        &'a self,
        (x, order, gather): (&Operand, &Operand, bool),
        pairs: Range<usize>,
        scratch: &'a mut [f32],
    ) -> X<'a> {
        let first = self.source_row(order, x, pairs.start, gather);
        if !gather || pairs.len() == 1 {
            return self.activations(x, first..first + pairs.len());
        }
        let stride = self.spaces.row_bytes(x, first).len().next_multiple_of(64);
        let rows = pairs.len();
        let bytes = &mut bytes_of_mut(scratch)[..rows * stride];
        for (to, p) in bytes.chunks_exact_mut(stride).zip(pairs) {
            let from = self.spaces.row_bytes(x, self.source_row(order, x, p, gather));
            to[..from.len()].copy_from_slice(from);
        }
        let cols = x.cols as usize;
        match x.dtype.fx() {
            Some(layout) => {
                let bytes = bytes_of(&scratch[..rows * stride / 4]);
                X::Fx(FxRows::new(bytes, rows, cols, stride, layout), x.dtype)
            }
            None => X::F32(RowsF32::new(&scratch[..rows * stride / 4], rows, cols, stride / 4)),
        }
    }

    /// One expert, some columns, all its pairs: a few at a time.
    pub(super) fn expert_linear(
        &self,
        step: &Step,
        part: &Part,
        (act, gather): (Act, bool),
        scratch: &mut [f32],
    ) {
        let [x, bank, order, groups] = &step.reads[..] else { unreachable!("validated reads") };
        let (experts, pairs) = (n_experts(step, self.call), self.call.rows(order.rows));
        let Some((expert, range)) = self.group(groups, part.rows.start, experts, pairs) else { return };
        let packing = self.spaces.packing_of(bank);
        let w = self.spaces.matrix_of(bank, expert);
        self.count_expert(part, w.len());
        let w = columns_of(w, packing, bank.cols as usize, &part.cols);
        for rows in chunks(range, GATHER_ROWS as usize) {
            let x = self.pair_rows((x, order, gather), rows.clone(), scratch);
            let mut y = self.spaces.tile(&step.writes[0], rows, part.cols.clone());
            self.multiply(packing, w, &x, &mut y);
            if let Some(act) = act_kernel(act) {
                (0..y.rows()).for_each(|t| self.table.unary(act, y.row_mut(t)));
            }
        }
    }

    /// Scratch: both products, for a quantised result one row of each form, then gathered rows.
    pub(super) fn expert_glu(
        &self,
        step: &Step,
        part: &Part,
        (act, situ, quant, gather): (Act, Situ, bool, bool),
        scratch: &mut [f32],
    ) {
        let [x, gate_bank, up_bank, order, groups] = &step.reads[..] else { unreachable!("validated reads") };
        let (experts, pairs) = (n_experts(step, self.call), self.call.rows(order.rows));
        let Some((expert, range)) = self.group(groups, part.rows.start, experts, pairs) else { return };
        for bank in [gate_bank, up_bank] {
            self.count_expert(part, self.spaces.matrix_of(bank, expert).len());
        }
        let (cols, most) = (part.cols.len(), GATHER_ROWS as usize);
        let (gate, scratch) = scratch.split_at_mut(most * cols);
        let (up, scratch) = scratch.split_at_mut(most * cols);
        let (row, scratch) = scratch.split_at_mut(cols.next_multiple_of(LANES));
        let out = &step.writes[0];
        let fx = out.dtype.fx().map_or(0, |it| it.row_bytes(cols) / 4);
        let (fx, scratch) = scratch.split_at_mut(fx);
        for rows in chunks(range, GATHER_ROWS as usize) {
            let x = self.pair_rows((x, order, gather), rows.clone(), scratch);
            let n = rows.len();
            let mut gate = TileMut::from_slice(&mut gate[..n * cols], n, cols, cols);
            let mut up = TileMut::from_slice(&mut up[..n * cols], n, cols, cols);
            for (bank, y) in [(gate_bank, &mut gate), (up_bank, &mut up)] {
                let packing = self.spaces.packing_of(bank);
                let w =
                    columns_of(self.spaces.matrix_of(bank, expert), packing, bank.cols as usize, &part.cols);
                self.multiply(packing, w, &x, y);
            }
            if quant {
                for (t, p) in rows.enumerate() {
                    self.glu((act, situ), gate.row_mut(t), up.row_mut(t), &mut row[..cols]);
                    self.quantise_groups(&row[..cols], out, (p, part.cols.start), fx);
                }
            } else {
                let mut y = self.spaces.tile(out, rows, part.cols.clone());
                (0..n).for_each(|t| self.glu((act, situ), gate.row_mut(t), up.row_mut(t), y.row_mut(t)));
            }
        }
    }

    /// y = Σ fma(weight, x, ·) over a token's pairs, ascending by expert, from 0 (numerics §1).
    pub(super) fn expert_sum(&self, step: &Step, part: Part) {
        let [x, weights, order, slots] = &step.reads[..] else { unreachable!("validated reads") };
        let (k, pairs) = (weights.cols as usize, self.call.rows(order.rows));
        let (order, slots) = (self.spaces.i32s(order, pairs), self.spaces.i32s(slots, pairs));
        let mut y = self.spaces.tile(&step.writes[0], part.rows.clone(), part.cols);
        for (i, t) in part.rows.enumerate() {
            let weights = self.spaces.f32_row(weights, t);
            let y = y.row_mut(i);
            y.fill(0.0);
            for slot in &slots[t * k..(t + 1) * k] {
                let p = bounded(*slot, pairs);
                let weight = weights[bounded(order[p], pairs) % k];
                self.table.add_scaled(y, weight, self.spaces.f32_row(x, p));
            }
        }
    }
}

/// `range` in pieces of `step` rows, which are gathered together.
pub(super) fn chunks(range: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(step).map(move |at| at..range.end.min(at + step))
}
