//! Vector-quantised matrices made up, and the rows that multiply them.

use std::ops::Range;

use waste_kernels::{KernelTable, RowsF32, TileMut};
use waste_plan::vq::{VEC_DIM, decode_row};
use waste_plan::{LutLayout, Tables, VqCode};

use super::{Bytes, Rng};

type Build = fn(&KernelTable, VqCode, &[f32], &[f32], Range<usize>, &mut [u8]);
type Apply = fn(&KernelTable, VqCode, &[u8], &[u8], Range<usize>, usize, &mut [f32]);

type Linear = fn(&KernelTable, VqCode, &RowsF32<'_>, &[f32], &[u8], &[u8], &mut [f32], &mut TileMut<'_>);

/// A build, its apply, and the linear that is made of both.
#[derive(Clone, Copy)]
pub struct Lut {
    pub build_name: &'static str,
    pub apply_name: &'static str,
    pub tables: Tables,
    pub build: Build,
    pub apply: Apply,
    pub linear_name: &'static str,
    pub linear: Linear,
}

macro_rules! lut {
    ($build:ident, $apply:ident, $linear:ident, $tables:ident) => {
        Lut {
            build_name: stringify!($build),
            apply_name: stringify!($apply),
            tables: Tables::$tables,
            build: KernelTable::$build,
            apply: KernelTable::$apply,
            linear_name: stringify!($linear),
            linear: KernelTable::$linear,
        }
    };
}

pub const LUTS: [Lut; 4] = [
    lut!(lut_build_fixed24, lut_apply_fixed24, vq_linear_fixed24, Fixed24),
    lut!(lut_build_fixed16, lut_apply_fixed16, vq_linear_fixed16, Fixed16),
    lut!(lut_build_f32, lut_apply_f32, vq_linear_f32, F32),
    lut!(lut_build_container, lut_apply_container, vq_linear_container, Container),
];

/// A matrix `[rows, k]` without scales.
pub struct Matrix {
    pub code: VqCode,
    pub rows: usize,
    pub k: usize,
    pub indices: Vec<u8>,
    /// `f32[stages][entries][8]`.
    pub books: Vec<f32>,
    /// `f32[stages][8][entries]`.
    pub transposed: Vec<f32>,
}

impl Matrix {
    /// Random indices, among them runs of one entry; stages shrink as those of residual codebooks do.
    pub fn random(code: VqCode, rows: usize, k: usize, rng: &mut Rng) -> Self {
        let bytes = code.index_bytes(rows as u64, k as u64).expect("a small matrix") as usize;
        let mut indices: Vec<u8> = (0..bytes).map(|_| rng.next() as u8).collect();
        for run in indices.chunks_mut(100).step_by(7) {
            run.fill([0, 0xff][rng.below(2)]);
        }
        let of_stage = code.entries() * VEC_DIM;
        let size = |i: usize| 0.6f32.powi((i / of_stage) as i32);
        let books: Vec<f32> = (0..code.books_len()).map(|i| size(i) * rng.normal()).collect();
        let transposed = |i: usize| {
            let (stage, d, c) = (i / of_stage, i % of_stage / code.entries(), i % code.entries());
            books[stage * of_stage + c * VEC_DIM + d]
        };
        let transposed = (0..books.len()).map(transposed).collect();
        Self { code, rows, k, indices, books, transposed }
    }

    pub fn positions(&self) -> usize {
        self.k / VEC_DIM
    }

    /// The tables of a range of positions, written over stale bytes.
    pub fn build(&self, table: &KernelTable, lut: Lut, x: &[f32], positions: Range<usize>) -> Bytes {
        let layout = LutLayout { code: self.code, tables: lut.tables };
        let mut tables = Bytes::zeroed(layout.row_bytes(positions.len() * VEC_DIM));
        tables.fill(0xa5);
        (lut.build)(table, self.code, x, &self.transposed, positions, &mut tables);
        tables
    }

    /// Adds what a range of positions contributes to all rows.
    pub fn add(&self, table: &KernelTable, lut: Lut, x: &[f32], positions: Range<usize>, acc: &mut [f32]) {
        let tables = self.build(table, lut, x, positions.clone());
        (lut.apply)(table, self.code, &tables, &self.indices, positions, self.k, acc);
    }

    /// Σ over all positions, for every row.
    pub fn apply(&self, table: &KernelTable, lut: Lut, x: &[f32]) -> Vec<f32> {
        let mut acc = vec![0.0; self.rows];
        self.add(table, lut, x, 0..self.positions(), &mut acc);
        acc
    }

    /// `tokens` rows of x times the whole matrix, by one call, over stale scratch; `scales` are f16.
    pub fn linear(&self, table: &KernelTable, lut: Lut, x: &[f32], scales: &[u8]) -> Vec<f32> {
        let tokens = x.len() / self.k;
        let layout = LutLayout { code: self.code, tables: lut.tables };
        let mut scratch = vec![f32::NAN; layout.linear_scratch(self.rows)];
        let mut y = vec![9.0; tokens * self.rows];
        let mut tile = TileMut::from_slice(&mut y, tokens, self.rows, self.rows);
        let x = RowsF32::new(x, tokens, self.k, self.k);
        (lut.linear)(table, self.code, &x, &self.transposed, &self.indices, scales, &mut scratch, &mut tile);
        y
    }

    /// The same by the reference decode, in f64.
    pub fn exact(&self, x: &[f32]) -> Vec<f64> {
        let mut row = vec![0.0; self.k];
        let mut dot = |r: usize| {
            decode_row(self.code, &self.indices, &self.books, 1.0, r, self.k, &mut row);
            row.iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum()
        };
        (0..self.rows).map(&mut dot).collect()
    }
}
