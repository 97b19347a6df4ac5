//! The definition. Its tables are the entries as f32 or i32 `[v][stage][entry]`, then the scales.

use std::ops::Range;

use waste_plan::vq::{ROW_BLOCK, VEC_DIM};
use waste_plan::{LutLayout, Tables, VqCode};

use super::{Code, Vq2r, Vq3r, Vq4p, by_code, by_parts, check_apply, inputs, token_by_token};
use crate::bytes::{Plain, cast, cast_mut};
use crate::half16::f16_to_f32;
use crate::linear::portable::half_at;
use crate::quant_act::portable::{round, step};
use crate::view::{RowsF32, TileMut};

macro_rules! rows {
    ($($build:ident, $apply:ident, $linear:ident: $tables:ident, $applying:ident;)+) => {
        $(#[inline(always)]
        pub(crate) fn $build(
            code: VqCode, x: &[f32], books: &[f32], positions: Range<usize>, out: &mut [u8],
        ) {
            by_code!(code, build(Tables::$tables, x, books, positions, out));
        }
        #[inline(always)]
        pub(crate) fn $apply(
            code: VqCode, tables: &[u8], indices: &[u8], positions: Range<usize>, k: usize, acc: &mut [f32],
        ) {
            by_code!(code, $applying(Tables::$tables, tables, indices, positions, k, acc));
        }
        #[inline(always)]
        pub(crate) fn $linear(
            code: VqCode, x: &RowsF32<'_>, books: &[f32], indices: &[u8], scales: &[u8], scratch: &mut [f32],
            y: &mut TileMut<'_>,
        ) {
            by_parts!($tables, $build, $apply: code, x, books, indices, scales, scratch, y);
        })+
    };
}

rows! {
    lut_build_fixed24, lut_apply_fixed24, vq_linear_fixed24: Fixed24, apply_fixed;
    lut_build_fixed16, lut_apply_fixed16, vq_linear_fixed16: Fixed16, apply_fixed;
    lut_build_f32, lut_apply_f32, vq_linear_f32: F32, apply_f32;
    lut_build_container, lut_apply_container, vq_linear_container: Container, apply_fixed;
}

#[inline(always)]
pub(crate) fn lut_scale(scales: &[u8], acc: &[f32], y: &mut [f32]) {
    assert_eq!((scales.len(), acc.len()), (2 * y.len(), y.len()), "a scale and a sum for every row");
    for (i, (y, acc)) in y.iter_mut().zip(acc).enumerate() {
        *y = f16_to_f32(half_at(scales, i)) * acc;
    }
}

#[inline(always)]
fn build<C: Code>(tables: Tables, x: &[f32], books: &[f32], positions: Range<usize>, out: &mut [u8]) {
    let layout = LutLayout { code: C::CODE, tables };
    let x = inputs(layout, x, books, &positions, out);
    let (entries, scales) = out.split_at_mut(layout.entry_bytes(x.len()));
    let scales = cast_mut(&mut scales[..4 * layout.scales(x.len())]);
    let blocks = cast_mut(entries).chunks_mut(tables.block() * C::ENTRIES);
    for (b, (x, table)) in x.chunks(tables.block()).zip(blocks).enumerate() {
        for (x, table) in x.iter().zip(table.chunks_exact_mut(C::ENTRIES)) {
            products::<C>(x, books, table);
        }
        if let Some(q_max) = tables.q_max() {
            scales[b] = quantise(table, q_max);
        }
    }
}

/// The tables of one position.
#[inline(always)]
fn products<C: Code>(x: &[f32; VEC_DIM], books: &[f32], table: &mut [f32]) {
    for (book, table) in books.chunks_exact(VEC_DIM * C::BOOK).zip(table.chunks_exact_mut(C::BOOK)) {
        table.fill(0.0);
        for (x, of_dim) in x.iter().zip(book.chunks_exact(C::BOOK)) {
            for (t, c) in table.iter_mut().zip(of_dim) {
                *t = x.mul_add(*c, *t);
            }
        }
    }
}

/// Replaces a block of floats by the bits of its integers; their scale.
#[inline(always)]
fn quantise(table: &mut [f32], q_max: i32) -> f32 {
    let amax = f32::from_bits(table.iter().fold(0, |max, t| max.max(t.abs().to_bits())));
    let (xs, inverse) = step(amax, q_max);
    match inverse {
        Some(inverse) => table.iter_mut().for_each(|t| {
            let q = round(*t * inverse).clamp(-q_max, q_max);
            *t = f32::from_bits(q.cast_unsigned());
        }),
        None => table.fill(f32::from_bits(0)),
    }
    xs
}

/// The entries of a range of positions, and the scales.
#[inline(always)]
pub(super) fn parts<T: Plain>(layout: LutLayout, positions: usize, tables: &[u8]) -> (&[T], &[f32]) {
    let (entries, scales) = tables.split_at(layout.entry_bytes(positions));
    (cast(entries), cast(&scales[..4 * layout.scales(positions)]))
}

#[inline(always)]
fn apply_fixed<C: Code>(
    tables: Tables,
    bytes: &[u8],
    indices: &[u8],
    positions: Range<usize>,
    k: usize,
    acc: &mut [f32],
) {
    let layout = LutLayout { code: C::CODE, tables };
    let of_rows = check_apply(layout, bytes, indices, &positions, k, acc.len());
    let (entries, scales) = parts::<i32>(layout, positions.len(), bytes);
    let tables = || entries.chunks(layout.tables.block() * C::ENTRIES).zip(scales);
    for (indices, acc) in indices.chunks_exact(of_rows).zip(acc.chunks_mut(ROW_BLOCK)) {
        let indices = &indices[positions.start * C::POSITION..positions.end * C::POSITION];
        for (indices, (table, xs)) in indices.chunks(layout.tables.block() * C::POSITION).zip(tables()) {
            for (acc, sum) in acc.iter_mut().zip(sums::<C>(indices, table)) {
                #[expect(clippy::cast_precision_loss, reason = "rounded to nearest even, as defined")]
                let sum = sum as f32;
                *acc = sum.mul_add(*xs, *acc);
            }
        }
    }
}

/// Σ q of the rows of a block over a block of positions.
#[inline(always)]
fn sums<C: Code>(indices: &[u8], table: &[i32]) -> [i32; ROW_BLOCK] {
    let mut sums = [0; ROW_BLOCK];
    for (indices, table) in indices.chunks_exact(C::POSITION).zip(table.chunks_exact(C::ENTRIES)) {
        for (sum, indices) in sums.iter_mut().zip(indices.chunks_exact(C::BYTES)) {
            looked_up::<C, _>(indices, table, |q| *sum += q);
        }
    }
    sums
}

#[inline(always)]
fn apply_f32<C: Code>(
    tables: Tables,
    bytes: &[u8],
    indices: &[u8],
    positions: Range<usize>,
    k: usize,
    acc: &mut [f32],
) {
    let layout = LutLayout { code: C::CODE, tables };
    let of_rows = check_apply(layout, bytes, indices, &positions, k, acc.len());
    let (entries, _) = parts::<f32>(layout, positions.len(), bytes);
    for (indices, acc) in indices.chunks_exact(of_rows).zip(acc.chunks_mut(ROW_BLOCK)) {
        let indices = indices[positions.start * C::POSITION..].chunks_exact(C::POSITION);
        for (indices, table) in indices.zip(entries.chunks_exact(C::ENTRIES)) {
            for (acc, indices) in acc.iter_mut().zip(indices.chunks_exact(C::BYTES)) {
                // The neutral element of addition is −0: 0 + (−0) = 0.
                let mut sum = -0.0;
                looked_up::<C, _>(indices, table, |t| sum += t);
                *acc += sum;
            }
        }
    }
}

/// The entries that the indices of one position and row name, one a stage.
#[inline(always)]
fn looked_up<C: Code, T: Copy>(indices: &[u8], table: &[T], mut f: impl FnMut(T)) {
    let numbers = C::CODE.unpack(indices);
    for stage in 0..C::STAGES {
        f(table[stage * C::BOOK + usize::from(numbers[stage])]);
    }
}
