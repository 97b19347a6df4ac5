//! Latent attention: matrices of single heads, and attention over the latents that all heads share.
//!
//! Rows of a query are `token · heads + head`; the rows of one head are `heads` rows apart.

use std::ops::Range;

use half::f16;
use waste_plan::DType;
use waste_plan::schema::{KV_TILE, Operand, Place, Rows, Step};

use super::attention::{MAX_QUERIES, state_id};
use super::linear::columns_of;
use super::{Exec, Part, heads, runs};

/// The rows of head `head` of an operand with `heads` rows a token, as an operand with a row a token.
fn of_head(it: &Operand, head: usize, heads: usize) -> Operand {
    let shift = head as u64 * it.stride;
    let place = match it.place {
        Place::Scratch(at) => Place::Scratch(at + shift),
        Place::Io(at) => Place::Io(at + shift),
        Place::Weight(_) | Place::State(_) => panic!("{:?} has no rows", it.place),
    };
    Operand { place, rows: Rows::Tokens(1), stride: it.stride * heads as u64, ..*it }
}

/// The heads that columns `cols` of all heads' results touch, and which columns of each.
fn by_head(cols: Range<usize>, width: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    (cols.start / width..cols.end.div_ceil(width)).map(move |head| {
        let first = head * width;
        (head, cols.start.max(first) - first..cols.end.min(first + width) - first)
    })
}

impl Exec<'_> {
    /// Some tokens, some columns of all heads' results.
    pub(super) fn head_linear(&self, step: &Step, part: Part) {
        let (x, bank, out) = (&step.reads[0], &step.reads[1], &step.writes[0]);
        let (n, packing) = (heads(step, self.call), self.spaces.packing_of(bank));
        for (head, cols) in by_head(part.cols, out.cols as usize) {
            let x = self.activations(&of_head(x, head, n), part.rows.clone());
            let w = columns_of(self.spaces.matrix_of(bank, head), packing, bank.cols as usize, &cols);
            let mut y = self.spaces.tile(&of_head(out, head, n), part.rows.clone(), cols);
            self.multiply(packing, w, &x, &mut y);
        }
    }

    /// Some tokens, some heads' whole results: columns are summed together.
    pub(super) fn head_linear_t(&self, step: &Step, part: Part) {
        let (x, bank, out) = (&step.reads[0], &step.reads[1], &step.writes[0]);
        let n = heads(step, self.call);
        for (head, cols) in by_head(part.cols, out.cols as usize) {
            let w = self.spaces.matrix_of(bank, head);
            let x = self.spaces.f32_rows(&of_head(x, head, n), part.rows.clone());
            let mut y = self.spaces.tile(&of_head(out, head, n), part.rows.clone(), cols);
            for t in 0..y.rows() {
                match bank.dtype {
                    DType::F16 => self.table.head_linear_t_f16(w, x.row(t), y.row_mut(t)),
                    DType::BF16 => self.table.head_linear_t_bf16(w, x.row(t), y.row_mut(t)),
                    _ => self.table.head_linear_t_f32(w, x.row(t), y.row_mut(t)),
                }
            }
        }
    }

    /// Some queries: cut where the sequence changes, since each has its own cache.
    pub(super) fn latent_attention(
        &self,
        step: &Step,
        part: Part,
        (scale, heads, rope): (f32, usize, bool),
        scratch: &mut [f32],
    ) {
        let (q, cache) = (&step.reads[0], state_id(&step.reads[1]));
        let shape = self.spaces.cache_shape(cache);
        let tokens = part.rows.start / heads..part.rows.end.div_ceil(heads);
        let rows = self.spaces.i32s(&step.reads[2], tokens.end);
        let positions = self.spaces.i32s(&step.reads[3], tokens.end);
        for (row, run) in runs(rows, tokens, usize::MAX) {
            let first = part.rows.start.max(run.start * heads);
            let last = part.rows.end.min(run.end * heads);
            for start in (first..last).step_by(MAX_QUERIES) {
                let queries = start..last.min(start + MAX_QUERIES);
                let mut n_pos = [0u32; MAX_QUERIES];
                let n_pos = &mut n_pos[..queries.len()];
                for (n, query) in n_pos.iter_mut().zip(queries.clone()) {
                    *n = u32::try_from(positions[query / heads] + 1).expect("the session checks positions");
                }
                let most = n_pos.iter().copied().max().unwrap_or(0).next_multiple_of(KV_TILE) as usize;
                let at = shape.head_at(row, 0);
                let range = at..at + most * shape.width;
                let x = self.spaces.f32_rows(q, queries.clone());
                let turned = if rope {
                    self.spaces.f32_rows(&step.reads[4], queries.clone())
                } else {
                    x.columns(0..0)
                };
                let mut y = self.spaces.tile(&step.writes[0], queries, part.cols.clone());
                if step.reads[1].dtype == DType::F16 {
                    let cache = self.spaces.state::<f16>(cache, range);
                    self.table.latent_attention_f16(&x, &turned, n_pos, cache, scale, scratch, &mut y);
                } else {
                    let cache = self.spaces.state::<f32>(cache, range);
                    self.table.latent_attention_f32(&x, &turned, n_pos, cache, scale, scratch, &mut y);
                }
            }
        }
    }
}
