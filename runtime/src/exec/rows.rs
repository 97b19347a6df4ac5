//! Steps that work row by row.

use waste_kernels::FxRowMut;
use waste_plan::schema::{Operand, Step};
use waste_plan::{DType, LANES, Packing, RopeStyle, UnaryKind};

use super::{Exec, Part};

impl Exec<'_> {
    /// Row `ids[t]` of the table, from a packed block or a plain row.
    pub(super) fn embed(&self, step: &Step, part: Part) {
        let (ids, table) = (&step.reads[0], &step.reads[1]);
        let w = self.spaces.weight_of(table);
        let k = table.cols as usize;
        let packing = self.spaces.packing_of(table);
        let ids = self.spaces.i32s(ids, part.rows.end);
        let mut y = self.spaces.tile(&step.writes[0], part.rows.clone(), 0..k);
        for (t, id) in ids[part.rows].iter().enumerate() {
            let id = usize::try_from(*id).expect("the session checks ids");
            let out = y.row_mut(t);
            if packing == Packing::Plain {
                let bytes = w.len() / self.call.rows(table.rows);
                self.plain_row(table.dtype, &w[id * bytes..(id + 1) * bytes], out);
                continue;
            }
            let bytes = packing.block_bytes(k);
            let block = &w[id / LANES * bytes..][..bytes];
            match packing {
                Packing::F32 => self.table.embed_f32(block, k, id % LANES, out),
                Packing::F16 => self.table.embed_f16(block, k, id % LANES, out),
                Packing::BF16 => self.table.embed_bf16(block, k, id % LANES, out),
                Packing::W8 => self.table.embed_w8(block, k, id % LANES, out),
                Packing::W4 => self.table.embed_w4(block, k, id % LANES, out),
                Packing::W4M => self.table.embed_w4m(block, k, id % LANES, out),
                Packing::Plain | Packing::Columns | Packing::Record => unreachable!("no blocks of rows"),
                units => self.table.embed_units(units, block, k, id % LANES, out),
            }
        }
    }

    fn plain_row(&self, dtype: DType, row: &[u8], out: &mut [f32]) {
        match dtype {
            DType::F16 => self.table.embed_plain_f16(row, out),
            DType::BF16 => self.table.embed_plain_bf16(row, out),
            _ => dtype.decode(row, out),
        }
    }

    pub(super) fn quant_act(&self, step: &Step, part: Part) {
        for t in part.rows {
            self.quantise(self.spaces.f32_row(&step.reads[0], t), &step.writes[0], t);
        }
    }

    /// One row to the quantised form that `out` has.
    fn quantise(&self, x: &[f32], out: &Operand, row: usize) {
        self.quantise_into(x, out.dtype, &mut self.spaces.fx_row_mut(out, row));
    }

    /// One row to the quantised form `dtype`.
    pub(crate) fn quantise_into(&self, x: &[f32], dtype: DType, y: &mut FxRowMut<'_>) {
        match dtype {
            DType::Fx24 => self.table.quant_act_fx24(x, y),
            DType::Fx16 => self.table.quant_act_fx16(x, y),
            _ => self.table.quant_act_fx8(x, y),
        }
    }

    /// y = f(lhs, rhs) row by row; the result may lie over either operand.
    pub(super) fn binary(&self, step: &Step, part: Part, f: impl Fn(&[f32], &[f32], &mut [f32])) {
        let (lhs, rhs, out) = (&step.reads[0], &step.reads[1], &step.writes[0]);
        let in_place = [lhs, rhs].into_iter().position(|it| it.place == out.place);
        let cols = out.cols as usize;
        for t in part.rows {
            let mut y = self.spaces.tile(out, t..t + 1, 0..cols);
            let y = y.row_mut(0);
            match in_place {
                None => f(self.spaces.f32_row(lhs, t), self.spaces.f32_row(rhs, t), y),
                Some(slot) => self.over_operand(slot, (lhs, rhs), t, y, &f),
            }
        }
    }

    /// The in-place form, through a small copy: operand `slot` is `y` itself.
    fn over_operand(
        &self,
        slot: usize,
        (lhs, rhs): (&Operand, &Operand),
        t: usize,
        y: &mut [f32],
        f: &impl Fn(&[f32], &[f32], &mut [f32]),
    ) {
        const CHUNK: usize = 256;
        let other = self.spaces.f32_row(if slot == 0 { rhs } else { lhs }, t);
        let mut copy = [0f32; CHUNK];
        for (y, other) in y.chunks_mut(CHUNK).zip(other.chunks(CHUNK)) {
            let copy = &mut copy[..y.len()];
            copy.copy_from_slice(y);
            if slot == 0 { f(copy, other, y) } else { f(other, copy, y) }
        }
    }

    pub(super) fn unary(&self, step: &Step, part: Part, kind: UnaryKind) {
        self.copy_unless_in_place(step, &part);
        let mut y = self.spaces.tile(&step.writes[0], part.rows, part.cols);
        for t in 0..y.rows() {
            self.table.unary(kind, y.row_mut(t));
        }
    }

    /// Brings operand 0 to where the result is, for kernels that work in place.
    pub(super) fn copy_unless_in_place(&self, step: &Step, part: &Part) {
        let (x, out) = (&step.reads[0], &step.writes[0]);
        if x.place == out.place {
            return;
        }
        let mut y = self.spaces.tile(out, part.rows.clone(), part.cols.clone());
        for (i, t) in part.rows.clone().enumerate() {
            y.row_mut(i).copy_from_slice(&self.spaces.f32_row(x, t)[part.cols.clone()]);
        }
    }

    pub(super) fn rms_norm(&self, step: &Step, part: Part, eps: f32, quant: bool, scratch: &mut [f32]) {
        let w = self.spaces.f32_row(&step.reads[1], 0);
        self.norm(step, part, quant, scratch, |x, y| self.table.rms_norm(x, w, eps, y));
    }

    pub(super) fn layer_norm(
        &self,
        step: &Step,
        part: Part,
        eps: f32,
        (bias, quant): (bool, bool),
        scratch: &mut [f32],
    ) {
        let w = self.spaces.f32_row(&step.reads[1], 0);
        let n = step.reads[0].cols as usize;
        let (zeros, scratch) = scratch.split_at_mut(if bias { 0 } else { n });
        zeros.fill(0.0);
        let b = if bias { self.spaces.f32_row(&step.reads[2], 0) } else { &*zeros };
        self.norm(step, part, quant, scratch, |x, y| self.table.layer_norm(x, w, b, eps, y));
    }

    /// A norm of each row, quantised at once if asked for.
    fn norm(
        &self,
        step: &Step,
        part: Part,
        quant: bool,
        scratch: &mut [f32],
        f: impl Fn(&[f32], &mut [f32]),
    ) {
        let (x, out) = (&step.reads[0], &step.writes[0]);
        for t in part.rows {
            let x = self.spaces.f32_row(x, t);
            if quant {
                let y = &mut scratch[..x.len()];
                f(x, y);
                self.quantise(y, out, t);
            } else {
                f(x, self.spaces.tile(out, t..t + 1, 0..x.len()).row_mut(0));
            }
        }
    }

    /// cos and sin of pos · freq, in f64 by `libm`, rounded once.
    pub(super) fn rope_angles(&self, step: &Step, part: Part, freqs: &[f64], factors: bool) {
        let pos = self.spaces.i32s(&step.reads[0], part.rows.end);
        let factors = factors.then(|| self.spaces.f32_row(&step.reads[1], 0));
        let mut y = self.spaces.tile(&step.writes[0], part.rows.clone(), part.cols);
        for (t, pos) in pos[part.rows].iter().enumerate() {
            let (cos, sin) = y.row_mut(t).split_at_mut(freqs.len());
            for (i, freq) in freqs.iter().enumerate() {
                let freq = factors.map_or(*freq, |it| freq / f64::from(it[i]));
                let (s, c) = libm::sincos(f64::from(*pos) * freq);
                #[expect(clippy::cast_possible_truncation, reason = "the one rounding to f32")]
                {
                    (cos[i], sin[i]) = (c as f32, s as f32);
                }
            }
        }
    }

    /// Rows may be several a token; `skip`: elements before the part of a head that turns.
    pub(super) fn rope(&self, step: &Step, part: Part, (head_dim, skip): (usize, usize), style: RopeStyle) {
        self.copy_unless_in_place(step, &part);
        let each = self.call.rows(step.writes[0].rows) / self.call.rows(step.reads[1].rows).max(1);
        let mut y = self.spaces.tile(&step.writes[0], part.rows.clone(), part.cols);
        for (i, t) in part.rows.enumerate() {
            let angles = self.spaces.f32_row(&step.reads[1], t / each.max(1));
            let (cos, sin) = angles.split_at(angles.len() / 2);
            // The kernels turn the first elements of a head; the last head ends with its own.
            let x = &mut y.row_mut(i)[skip..];
            let turn = |x: &mut [f32], head_dim: usize| match style {
                RopeStyle::Half => self.table.rope_half(x, head_dim, cos, sin),
                RopeStyle::Pair => self.table.rope_pair(x, head_dim, cos, sin),
            };
            if skip == 0 {
                turn(x, head_dim);
                continue;
            }
            for head in x.chunks_mut(head_dim) {
                let len = angles.len().min(head.len());
                turn(&mut head[..len], len);
            }
        }
    }

    pub(super) fn concat(&self, step: &Step, part: Part) {
        let (lhs, rhs) = (&step.reads[0], &step.reads[1]);
        let mut y = self.spaces.tile(&step.writes[0], part.rows.clone(), part.cols);
        for (i, t) in part.rows.enumerate() {
            let (left, right) = y.row_mut(i).split_at_mut(lhs.cols as usize);
            left.copy_from_slice(self.spaces.f32_row(lhs, t));
            right.copy_from_slice(self.spaces.f32_row(rhs, t));
        }
    }

    pub(super) fn attn_res_mix(&self, step: &Step, part: Part, eps: f32, blocks: bool) {
        let (norm, proj) = (self.spaces.f32_row(&step.reads[1], 0), self.spaces.f32_row(&step.reads[2], 0));
        let mut y = self.spaces.tile(&step.writes[0], part.rows.clone(), part.cols);
        for (i, t) in part.rows.enumerate() {
            let x = self.spaces.f32_row(&step.reads[0], t);
            let blocks = if blocks { self.spaces.f32_row(&step.reads[3], t) } else { &[] };
            self.table.attn_res_mix(blocks, x, norm, proj, eps, y.row_mut(i));
        }
    }

    pub(super) fn select_rows(&self, step: &Step, part: Part) {
        let want = self.spaces.i32s(&step.reads[1], part.rows.end);
        let mut y = self.spaces.tile(&step.writes[0], part.rows.clone(), part.cols);
        for (i, t) in want[part.rows].iter().enumerate() {
            let t = usize::try_from(*t).expect("the session checks wanted rows");
            y.row_mut(i).copy_from_slice(self.spaces.f32_row(&step.reads[0], t));
        }
    }

    pub(super) fn argmax(&self, step: &Step, part: Part) {
        for t in part.rows {
            let best = self.table.argmax_f32(self.spaces.f32_row(&step.reads[0], t));
            *self.spaces.i32_mut(&step.writes[0], t) =
                i32::try_from(best.id).expect("a vocabulary fits in i32");
        }
    }

    pub(super) fn finite_check(&self, step: &Step, part: Part) {
        for t in part.rows {
            let bad = self.table.first_non_finite(self.spaces.f32_row(&step.reads[0], t));
            *self.spaces.i32_mut(&step.writes[0], t) = i32::from(bad.is_none());
        }
    }
}
