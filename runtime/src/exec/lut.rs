//! Lookup tables of vector-quantised experts: building them slab by slab, looking up, and bringing records in.

use std::ops::Range;

use waste_plan::schema::{Operand, Place, Step, StepKind};
use waste_plan::vq::{ROW_BLOCK, SLAB, VEC_DIM, VQ_TOKENS};
use waste_plan::{LutLayout, Tables, VqCode};

use super::experts::{chunks, n_experts};
use super::linear::X;
use super::{Exec, Part};
use crate::arena::f32s;
use crate::stream::Matrix;

/// Slabs that hold columns `cols` of the inputs, as ranges of positions.
fn slabs(cols: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let positions = cols.start / VEC_DIM..cols.end.div_ceil(VEC_DIM);
    positions.clone().step_by(SLAB).map(move |at| at..positions.end.min(at + SLAB))
}

fn weight_id(operand: &Operand) -> u32 {
    match operand.place {
        Place::Weight(id) => id,
        Place::Scratch(_) | Place::Io(_) | Place::State(_) => panic!("{:?} is no weight", operand.place),
    }
}

/// The index stream of `record` from the first row of a tile on, and the scales of the tile's rows.
fn rows_of<'r>(record: &'r Matrix<'_>, part: &Part, code: VqCode, k: usize) -> (&'r [u8], &'r [u8]) {
    let of_block = k / VEC_DIM * ROW_BLOCK * code.position_bytes();
    let indices = &record.indices()[part.cols.start / ROW_BLOCK * of_block..];
    (indices, &record.scales()[2 * part.cols.start..2 * part.cols.end])
}

impl Exec<'_> {
    /// Some rows, some slabs.
    pub(super) fn lut_build(&self, step: &Step, part: &Part, (code, tables): (VqCode, Tables)) {
        let (x, out) = (&step.reads[0], &step.writes[0]);
        let books = f32s(self.spaces.weight_of(&step.reads[1]));
        let layout = LutLayout { code, tables };
        for row in part.rows.clone() {
            let x = self.spaces.f32_row(x, row);
            for positions in slabs(part.cols.clone()) {
                let at = layout.slab_at(positions.start);
                let bytes = at..at + layout.row_bytes(positions.len() * VEC_DIM);
                let out = self.spaces.lut_bytes_mut(out, row, bytes);
                match tables {
                    Tables::Fixed24 => self.table.lut_build_fixed24(code, x, books, positions, out),
                    Tables::Fixed16 => self.table.lut_build_fixed16(code, x, books, positions, out),
                    Tables::F32 => self.table.lut_build_f32(code, x, books, positions, out),
                    Tables::Container => self.table.lut_build_container(code, x, books, positions, out),
                }
            }
        }
    }

    /// One expert, some of its rows, all its pairs. A slab of tables is applied to all those rows while it is in the cache.
    pub(super) fn expert_lut(&self, step: &Step, part: &Part, gather: bool, scratch: &mut [f32]) {
        let [tables, bank, order, groups] = &step.reads[..] else { unreachable!("validated reads") };
        let layout = tables.dtype.lut().expect("validated tables");
        let k = bank.cols as usize;
        let Some((range, record)) = self.record(step, part, (bank, order, groups)) else { return };
        let (indices, scales) = rows_of(&record, part, layout.code, k);
        let sums = &mut scratch[..part.cols.len()];
        for p in range {
            let row = self.source_row(order, tables, p, gather);
            let bytes = self.spaces.row_bytes(tables, row);
            sums.fill(0.0);
            for positions in slabs(0..k) {
                let slab = &bytes[layout.slab_at(positions.start)..];
                match layout.tables {
                    Tables::Fixed24 => {
                        self.table.lut_apply_fixed24(layout.code, slab, indices, positions, k, sums)
                    }
                    Tables::Fixed16 => {
                        self.table.lut_apply_fixed16(layout.code, slab, indices, positions, k, sums)
                    }
                    Tables::F32 => self.table.lut_apply_f32(layout.code, slab, indices, positions, k, sums),
                    Tables::Container => {
                        self.table.lut_apply_container(layout.code, slab, indices, positions, k, sums);
                    }
                }
            }
            let mut y = self.spaces.tile(&step.writes[0], p..p + 1, part.cols.clone());
            self.table.lut_scale(scales, sums, y.row_mut(0));
        }
    }

    /// One expert, some of its rows, all its pairs, a few at a time: their tables are made in scratch.
    pub(super) fn expert_vq(
        &self,
        step: &Step,
        part: &Part,
        (layout, gather): (LutLayout, bool),
        scratch: &mut [f32],
    ) {
        let [x, bank, order, groups, books] = &step.reads[..] else { unreachable!("validated reads") };
        let Some((range, record)) = self.record(step, part, (bank, order, groups)) else { return };
        let (indices, scales) = rows_of(&record, part, layout.code, bank.cols as usize);
        let books = f32s(self.spaces.weight_of(books));
        let (scratch, gathered) = scratch.split_at_mut(layout.linear_scratch(part.cols.len()));
        for rows in chunks(range, VQ_TOKENS) {
            let X::F32(x) = self.pair_rows((x, order, gather), rows.clone(), gathered) else {
                unreachable!("validated reads")
            };
            let mut y = self.spaces.tile(&step.writes[0], rows, part.cols.clone());
            let (table, code) = (self.table, layout.code);
            let y = &mut y;
            match layout.tables {
                Tables::Fixed24 => table.vq_linear_fixed24(code, &x, books, indices, scales, scratch, y),
                Tables::Fixed16 => table.vq_linear_fixed16(code, &x, books, indices, scales, scratch, y),
                Tables::F32 => table.vq_linear_f32(code, &x, books, indices, scales, scratch, y),
                Tables::Container => table.vq_linear_container(code, &x, books, indices, scales, scratch, y),
            }
        }
    }

    /// The pairs of the expert of a tile and its matrix, which is counted; `None` if the expert has no pairs.
    fn record(
        &self,
        step: &Step,
        part: &Part,
        (bank, order, groups): (&Operand, &Operand, &Operand),
    ) -> Option<(Range<usize>, Matrix<'_>)> {
        let (experts, pairs) = (n_experts(step, self.call), self.call.rows(order.rows));
        let (expert, range) = self.group(groups, part.rows.start, experts, pairs)?;
        // A record that is not there has failed the step already.
        let record = self.experts?.record(weight_id(bank), expert)?;
        self.count_expert(part, record.indices().len() + record.scales().len());
        Some((range, record))
    }

    /// Prefetches, opens a window or lets it go; also after the step was stopped, so that all threads leave the loop together.
    pub(super) fn move_experts(&self, step: &Step) {
        let Some(source) = self.experts else { return };
        let read = &step.reads[0];
        match step.kind {
            StepKind::ExpertPrefetch { bank, speculative } => {
                let k = read.cols as usize;
                let rows = self.call.rows(read.rows);
                let ids = |t| &self.spaces.i32_row(read, t)[..k];
                if speculative {
                    let by_rank = (0..k).flat_map(|rank| (0..rows).map(move |t| ids(t)[rank]));
                    source.speculate(bank, by_rank);
                } else {
                    source.prefetch(bank, (0..rows).map(ids));
                }
            }
            StepKind::ExpertWindow { bank, .. } => {
                source.open_window(bank, self.spaces.i32_row(read, 0), self.cancel);
            }
            StepKind::ExpertRelease { bank, .. } => source.release_window(bank, self.spaces.i32_row(read, 0)),
            _ => unreachable!("called for steps that move experts"),
        }
    }
}
