//! Linears: packed weight blocks times activations, then the epilogue on the tile while it is in the first-level cache.

use std::ops::Range;

use waste_kernels::{FxRowMut, FxRows, KernelTable, RowsF32, TileMut};
use waste_plan::schema::{Operand, Place, Plan, Situ, Step, StepKind};
use waste_plan::{Act, DType, FX_GROUP, LANES, Packing};

use super::{Exec, Part, act_kernel};
use crate::arena::bytes_of_mut;

/// Which kernel multiplies weights of a packing with activations of a dtype; `None` if there is none.
pub(crate) fn has_kernel(packing: Packing, x: DType) -> bool {
    match packing {
        Packing::W8 | Packing::W4 | Packing::W4M => x == DType::F32 || x.fx().is_some(),
        Packing::F32 | Packing::F16 | Packing::BF16 => x == DType::F32,
        Packing::Plain | Packing::Columns | Packing::Record => false,
        _ => packing.units().is_some() && (x == DType::F32 || x.fx().is_some()),
    }
}

/// The packing of every linear of `plan` for which there is no kernel, by weight index.
pub(crate) fn missing_kernels(plan: &Plan) -> Vec<(usize, DType)> {
    let steps = plan.programs.iter().flat_map(|it| &it.steps);
    let linears = steps.filter(|it| {
        matches!(
            it.kind,
            StepKind::Linear { .. }
                | StepKind::LinearGlu { .. }
                | StepKind::HeadLinear
                | StepKind::ExpertLinear { .. }
                | StepKind::ExpertGlu { .. }
        )
    });
    linears
        .filter_map(|step| match step.reads[1].place {
            Place::Weight(id) => Some((id as usize, step.reads[0].dtype)),
            Place::Scratch(_) | Place::Io(_) | Place::State(_) => None,
        })
        .filter(|(id, x)| !has_kernel(plan.weights[*id].packing, *x))
        .collect()
}

/// What a linear multiplies: rows of f32, or of activations quantised to a dtype.
pub(super) enum X<'a> {
    F32(RowsF32<'a>),
    Fx(FxRows<'a>, DType),
}

/// The packed blocks that hold rows `cols` of a weight with k inputs.
pub(super) fn columns_of<'a>(w: &'a [u8], packing: Packing, k: usize, cols: &Range<usize>) -> &'a [u8] {
    let block = packing.block_bytes(k);
    &w[cols.start / LANES * block..cols.end.div_ceil(LANES) * block]
}

impl Exec<'_> {
    pub(super) fn linear(
        &self,
        step: &Step,
        part: Part,
        (act, bias, residual): (Act, bool, bool),
        scratch: &mut [f32],
    ) {
        let out = &step.writes[0];
        if !residual {
            let mut y = self.spaces.tile(out, part.rows.clone(), part.cols.clone());
            self.product(step, 1, &part, &mut y);
            self.bias_act(step, &part, (act, bias), &mut y);
            return;
        }
        // The result may lie over the residual, so the product goes to scratch first.
        let (rows, cols) = (part.rows.len(), part.cols.len());
        let mut product = TileMut::from_slice(&mut scratch[..rows * cols], rows, cols, cols);
        self.product(step, 1, &part, &mut product);
        self.bias_act(step, &part, (act, bias), &mut product);
        let residual = &step.reads[2 + usize::from(bias)];
        let is_in_place = residual.place == out.place;
        let mut y = self.spaces.tile(out, part.rows.clone(), part.cols.clone());
        for t in 0..rows {
            if is_in_place {
                self.table.add_assign(y.row_mut(t), product.row_mut(t));
            } else {
                let residual = &self.spaces.f32_row(residual, part.rows.start + t)[part.cols.clone()];
                self.table.add(product.row_mut(t), residual, y.row_mut(t));
            }
        }
    }

    /// Scratch: both products, and for a quantised result one row of each form.
    pub(super) fn linear_glu(
        &self,
        step: &Step,
        part: Part,
        (act, situ, quant): (Act, Situ, bool),
        scratch: &mut [f32],
    ) {
        let (rows, cols) = (part.rows.len(), part.cols.len());
        let (gate, scratch) = scratch.split_at_mut(rows * cols);
        let (up, scratch) = scratch.split_at_mut(rows * cols);
        let mut gate = TileMut::from_slice(gate, rows, cols, cols);
        self.product(step, 1, &part, &mut gate);
        let mut up = TileMut::from_slice(up, rows, cols, cols);
        self.product(step, 2, &part, &mut up);
        let out = &step.writes[0];
        if !quant {
            let mut y = self.spaces.tile(out, part.rows, part.cols);
            (0..rows).for_each(|t| self.glu((act, situ), gate.row_mut(t), up.row_mut(t), y.row_mut(t)));
            return;
        }
        let (y, fx) = scratch.split_at_mut(cols.next_multiple_of(LANES));
        for t in 0..rows {
            self.glu((act, situ), gate.row_mut(t), up.row_mut(t), &mut y[..cols]);
            self.quantise_groups(&y[..cols], out, (part.rows.start + t, part.cols.start), fx);
        }
    }

    /// Quantises whole groups of a row: columns from `start` on, through a row of their own in `fx`.
    pub(super) fn quantise_groups(
        &self,
        x: &[f32],
        out: &Operand,
        (row, start): (usize, usize),
        fx: &mut [f32],
    ) {
        let layout = out.dtype.fx().expect("a validated fx operand");
        let n = out.cols as usize;
        let bytes = &mut bytes_of_mut(fx)[..layout.row_bytes(x.len())];
        self.quantise_into(x, out.dtype, &mut FxRowMut::new(bytes, x.len(), layout));
        let padded = layout.padded(x.len());
        let copy = |to: usize, from: usize, len: usize| {
            self.spaces.fx_bytes_mut(out, row, to..to + len).copy_from_slice(&bytes[from..from + len]);
        };
        for plane in 0..layout.planes {
            copy(plane * layout.padded(n) + start, plane * padded, padded);
            let sums = layout.sums_at(n) + (plane * layout.padded(n) + start) / 16 * 2;
            copy(sums, layout.sums_at(x.len()) + plane * padded / 16 * 2, padded / 16 * 2);
        }
        copy(layout.scales_at(n) + start / FX_GROUP * 4, layout.scales_at(x.len()), padded / FX_GROUP * 4);
        copy(layout.z_at(n) + start / 32 * 4, layout.z_at(x.len()), padded / 32 * 4);
    }

    fn bias_act(&self, step: &Step, part: &Part, (act, bias): (Act, bool), y: &mut TileMut<'_>) {
        let bias = bias.then(|| &self.spaces.f32_row(&step.reads[2], 0)[part.cols.clone()]);
        let act = act_kernel(act);
        if bias.is_none() && act.is_none() {
            return;
        }
        for t in 0..y.rows() {
            if let Some(bias) = bias {
                self.table.add_assign(y.row_mut(t), bias);
            }
            if let Some(act) = act {
                self.table.unary(act, y.row_mut(t));
            }
        }
    }

    /// y = x · wᵀ for the weight at read `slot`, rows and columns of `part`.
    fn product(&self, step: &Step, slot: usize, part: &Part, y: &mut TileMut<'_>) {
        let (x, weight) = (&step.reads[0], &step.reads[slot]);
        let k = x.cols as usize;
        let packing = self.spaces.packing_of(weight);
        let w = columns_of(self.spaces.weight_of(weight), packing, k, &part.cols);
        self.multiply(packing, w, &self.activations(x, part.rows.clone()), y);
    }

    /// Rows of an operand that a linear multiplies.
    pub(super) fn activations(&self, x: &Operand, rows: Range<usize>) -> X<'_> {
        if x.dtype == DType::F32 {
            X::F32(self.spaces.f32_rows(x, rows))
        } else {
            X::Fx(self.spaces.fx_rows(x, rows), x.dtype)
        }
    }

    /// y = x · wᵀ over the packed blocks `w`.
    pub(super) fn multiply(&self, packing: Packing, w: &[u8], x: &X<'_>, y: &mut TileMut<'_>) {
        let table: &KernelTable = self.table;
        let (x, dtype) = match x {
            X::F32(x) => {
                let k = x.cols();
                return match packing {
                    Packing::F32 => table.linear_f32_f32(w, k, x, y),
                    Packing::F16 => table.linear_f16_f32(w, k, x, y),
                    Packing::BF16 => table.linear_bf16_f32(w, k, x, y),
                    Packing::W8 => table.linear_w8_f32(w, k, x, y),
                    Packing::W4 => table.linear_w4_f32(w, k, x, y),
                    Packing::W4M => table.linear_w4m_f32(w, k, x, y),
                    Packing::Plain | Packing::Columns | Packing::Record => unreachable!("resolved at open"),
                    units => table.linear_units_f32(units, w, k, x, y),
                };
            }
            X::Fx(x, dtype) => (x, *dtype),
        };
        let k = x.n();
        match (packing, dtype) {
            (Packing::W8, DType::Fx24) => table.linear_w8_fixed24(w, k, x, y),
            (Packing::W8, DType::Fx16) => table.linear_w8_fixed16(w, k, x, y),
            (Packing::W8, DType::Fx8) => table.linear_w8_fixed8(w, k, x, y),
            (Packing::W4, DType::Fx24) => table.linear_w4_fixed24(w, k, x, y),
            (Packing::W4, DType::Fx16) => table.linear_w4_fixed16(w, k, x, y),
            (Packing::W4, DType::Fx8) => table.linear_w4_fixed8(w, k, x, y),
            (Packing::W4M, DType::Fx24) => table.linear_w4m_fixed24(w, k, x, y),
            (Packing::W4M, DType::Fx16) => table.linear_w4m_fixed16(w, k, x, y),
            (Packing::W4M, DType::Fx8) => table.linear_w4m_fixed8(w, k, x, y),
            (units, DType::Fx24) => table.linear_units_fixed24(units, w, k, x, y),
            (units, DType::Fx16) => table.linear_units_fixed16(units, w, k, x, y),
            (units, DType::Fx8) => table.linear_units_fixed8(units, w, k, x, y),
            _ => unreachable!("resolved at open"),
        }
    }
}
