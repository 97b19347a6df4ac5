//! The cache: appending keys and values, and attention over them.
//!
//! A state is `[row][head][tile of 32 positions]`, a tile `[d][32]` for keys and `[32][d]` for values (numerics §3).

use half::f16;
use waste_kernels::attention::KvTiles;
use waste_kernels::{RowsF32, TileMut};
use waste_plan::DType;
use waste_plan::schema::{KV_TILE, Operand, Place, State, StateKind, Step};

use super::{Exec, Part, runs};

/// Most queries of one kernel call: bounds a small array on the stack.
pub(super) const MAX_QUERIES: usize = 64;

/// The geometry of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheShape {
    pub(crate) positions: usize,
    pub(crate) heads: usize,
    pub(crate) width: usize,
    pub(crate) kind: StateKind,
}

impl CacheShape {
    /// The geometry of a validated state.
    pub(crate) fn of(state: &State) -> Self {
        let [_, positions, heads, width] = state.shape.map(|it| it as usize);
        Self { positions, heads, width, kind: state.kind }
    }

    /// Elements of one head of one row.
    fn head_elems(self) -> usize {
        self.positions * self.width
    }

    /// Where head `head` of row `row` begins.
    pub(super) fn head_at(self, row: usize, head: usize) -> usize {
        (row * self.heads + head) * self.head_elems()
    }
}

pub(super) fn state_id(operand: &Operand) -> u32 {
    match operand.place {
        Place::State(id) => id,
        Place::Scratch(_) | Place::Io(_) | Place::Weight(_) => panic!("{:?} is no state", operand.place),
    }
}

impl Exec<'_> {
    pub(super) fn kv_append(&self, step: &Step, part: Part) {
        let (x, row, pos, out) = (&step.reads[0], &step.reads[1], &step.reads[2], &step.writes[0]);
        let id = state_id(out);
        let shape = self.spaces.cache_shape(id);
        let rows = self.spaces.i32s(row, part.rows.end);
        let positions = self.spaces.i32s(pos, part.rows.end);
        let index = |it: i32| usize::try_from(it).expect("the session checks rows and positions");
        for t in part.rows {
            let (row, pos) = (index(rows[t]), index(positions[t]));
            let x = self.spaces.f32_row(x, t);
            for (head, x) in x.chunks_exact(shape.width).enumerate() {
                let tile = KV_TILE as usize * shape.width;
                let at = shape.head_at(row, head) + pos / KV_TILE as usize * tile;
                let lane = pos % KV_TILE as usize;
                match (out.dtype, shape.kind) {
                    (DType::F16, StateKind::Keys) => {
                        self.table.kv_write_k_f16(self.spaces.state_mut::<f16>(id, at..at + tile), lane, x);
                    }
                    (DType::F16, StateKind::Values) => {
                        self.table.kv_write_v_f16(self.spaces.state_mut::<f16>(id, at..at + tile), lane, x);
                    }
                    (_, StateKind::Keys) => {
                        self.table.kv_write_k_f32(self.spaces.state_mut::<f32>(id, at..at + tile), lane, x);
                    }
                    (_, StateKind::Values) => {
                        self.table.kv_write_v_f32(self.spaces.state_mut::<f32>(id, at..at + tile), lane, x);
                    }
                    (_, StateKind::Recurrent) => unreachable!("validated caches"),
                }
            }
        }
    }

    /// One query head, some tokens: cut where the row changes, since each row has its own cache.
    pub(super) fn attention(&self, step: &Step, part: Part, scale: f32, heads: usize, scratch: &mut [f32]) {
        let (row, pos) = (&step.reads[3], &step.reads[4]);
        let rows = self.spaces.i32s(row, part.rows.end);
        let positions = self.spaces.i32s(pos, part.rows.end);
        for (row, run) in runs(rows, part.rows, MAX_QUERIES) {
            let mut n_pos = [0u32; MAX_QUERIES];
            for (n, pos) in n_pos.iter_mut().zip(&positions[run.clone()]) {
                *n = u32::try_from(*pos + 1).expect("the session checks positions");
            }
            let block = Queries { step, run: run.clone(), row, n_pos: &n_pos[..run.len()], scale, heads };
            let width = step.writes[0].cols as usize / heads;
            for head in part.cols.start / width..part.cols.end / width {
                self.attend(&block, head, scratch);
            }
        }
    }

    fn attend(&self, it: &Queries<'_>, head: usize, scratch: &mut [f32]) {
        let (q, k, v) = (&it.step.reads[0], &it.step.reads[1], &it.step.reads[2]);
        let (k_shape, v_shape) = (self.spaces.cache_shape(state_id(k)), self.spaces.cache_shape(state_id(v)));
        let cols = head * v_shape.width..(head + 1) * v_shape.width;
        let kv_head = head / (it.heads / k_shape.heads);
        let most = it.n_pos.iter().copied().max().unwrap_or(0).next_multiple_of(KV_TILE) as usize;
        let k_at = k_shape.head_at(it.row, kv_head);
        let v_at = v_shape.head_at(it.row, kv_head);
        let k_range = k_at..k_at + most * k_shape.width;
        let v_range = v_at..v_at + most * v_shape.width;
        let all = self.spaces.f32_rows(q, it.run.clone());
        let queries: RowsF32<'_> = all.columns(head * k_shape.width..(head + 1) * k_shape.width);
        let mut out: TileMut<'_> = self.spaces.tile(&it.step.writes[0], it.run.clone(), cols);
        if k.dtype == DType::F16 {
            let (k, v) =
                (self.spaces.state::<f16>(state_id(k), k_range), self.spaces.state(state_id(v), v_range));
            self.table.attention_f16(&queries, it.n_pos, &KvTiles { k, v }, it.scale, scratch, &mut out);
        } else {
            let (k, v) =
                (self.spaces.state::<f32>(state_id(k), k_range), self.spaces.state(state_id(v), v_range));
            self.table.attention_f32(&queries, it.n_pos, &KvTiles { k, v }, it.scale, scratch, &mut out);
        }
    }
}

/// Consecutive tokens of one row, one query head.
struct Queries<'a> {
    step: &'a Step,
    run: std::ops::Range<usize>,
    row: usize,
    n_pos: &'a [u32],
    scale: f32,
    heads: usize,
}
