//! Tables of words: an entry is one load, and what limits a processor is finding out which. Three of four index bytes
//! are taken from a register, where they cost arithmetic, and one from memory, where it costs a load.
//!
//! A few rows are summed at a time over the positions of a piece, which is most of L1; all blocks of rows pass over it
//! before the next one. So speed depends on how many rows a call has: 64 rows get a good half of what 1024 get.

use std::arch::asm;
use std::ops::Range;

use waste_plan::vq::ROW_BLOCK;
use waste_plan::{LutLayout, Tables};

use super::super::portable::parts;
use super::super::{Code, check_apply, with_block};
use super::BLOCKS;
use crate::avx2::prefetch;

/// Positions of a piece.
pub(super) const PIECE: usize = 8;

/// Fixed-point tables of 256 entries and `S` stages, `R` rows at a time: with more, sums would leave the registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn fixed<C: Code, const S: usize, const R: usize>(
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
    for (indices, acc) in indices.chunks(BLOCKS * of_rows).zip(acc.chunks_mut(BLOCKS * ROW_BLOCK)) {
        let indices = &indices[..acc.len().div_ceil(ROW_BLOCK) * of_rows];
        for (b, (block, xs)) in entries.chunks(tables.block() * C::ENTRIES).zip(scales).enumerate() {
            let mut sums = [[0; ROW_BLOCK]; BLOCKS];
            for (p, piece) in block.chunks(PIECE * C::ENTRIES).enumerate() {
                let at = (positions.start + b * tables.block() + p * PIECE) * C::POSITION;
                let len = piece.len() / C::ENTRIES * C::POSITION;
                for (indices, sums) in indices.chunks_exact(of_rows).zip(&mut sums) {
                    let indices = &indices[at..][..len];
                    (0..len).step_by(64).for_each(|line| prefetch(indices, of_rows + line));
                    add::<S, R>(indices, piece.as_chunks().0.as_chunks().0, sums);
                }
            }
            for (acc, sum) in acc.iter_mut().zip(sums.as_flattened()) {
                *acc = (*sum as f32).mul_add(*xs, *acc);
            }
        }
    }
}

/// Looks up some fours of the indices of `R` rows.
macro_rules! look_up_fours {
    ($fours:ident, $table:ident, $acc:ident: $($i:literal)+) => { $({
        let four: &[u8; 4] = &$fours[$i];
        // Read before the word: the compiler would take it from there, at the price of one instruction more.
        let third = four[2];
        let word = u32::from_le_bytes(*four);
        look_up::<S, R, { 4 * $i }>(word as u8, $table, &mut $acc);
        look_up::<S, R, { 4 * $i + 1 }>((word >> 8) as u8, $table, &mut $acc);
        look_up::<S, R, { 4 * $i + 2 }>(third, $table, &mut $acc);
        look_up::<S, R, { 4 * $i + 3 }>((word >> 24) as u8, $table, &mut $acc);
    })+ };
}

/// Adds some positions of 64 rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add<const S: usize, const R: usize>(
    indices: &[u8],
    tables: &[[[i32; 256]; S]],
    sums: &mut [i32; ROW_BLOCK],
) {
    for (g, sums) in sums.as_chunks_mut::<R>().0.iter_mut().enumerate() {
        let mut acc = *sums;
        for (indices, table) in indices.chunks_exact(ROW_BLOCK * S).zip(tables) {
            let (fours, _) = indices[g * R * S..][..R * S].as_chunks();
            look_up_fours!(fours, table, acc: 0 1 2);
            if R * S > 12 {
                look_up_fours!(fours, table, acc: 3);
            }
        }
        *sums = acc;
    }
}

/// Adds entry `i` of stage `I % S` to the sum of row `I / S`.
///
/// Left to itself, the compiler would collect the entries of many rows in one register and add them there: a tenth to a
/// fifth slower on Zen 3.
#[inline(always)]
fn look_up<const S: usize, const R: usize, const I: usize>(
    i: u8,
    table: &[[i32; 256]; S],
    acc: &mut [i32; R],
) {
    // SAFETY: stage I % S is one of S, and a byte is the number of one of 256 entries; the instruction reads that word.
    unsafe {
        asm!(
            "add {sum:e}, dword ptr [{table} + 4*{i} + {stage}]",
            sum = inout(reg) acc[I / S],
            table = in(reg) table,
            i = in(reg) usize::from(i),
            stage = const I % S * size_of::<[i32; 256]>(),
            options(pure, readonly, nostack),
        );
    }
}

/// Tables of floats of any code of 256 entries, in the order of the container.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn floats<C: Code, const S: usize>(
    bytes: &[u8],
    indices: &[u8],
    positions: Range<usize>,
    k: usize,
    acc: &mut [f32],
) {
    pieces_of_floats::<C>(bytes, indices, positions, k, acc, |indices, piece, acc| {
        let tables: &[[[f32; 256]; S]] = piece.as_chunks().0.as_chunks().0;
        let (numbers, _) = indices.as_chunks::<S>();
        let (numbers, _) = numbers.as_chunks::<ROW_BLOCK>();
        add_floats(tables, |v, row, stage| numbers[v][row][stage], acc);
    });
}

/// Cuts the work into pieces of positions and blocks of rows: `f` gets indices, entries and sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn pieces_of_floats<C: Code>(
    bytes: &[u8],
    indices: &[u8],
    positions: Range<usize>,
    k: usize,
    acc: &mut [f32],
    f: impl Fn(&[u8], &[f32], &mut [f32; ROW_BLOCK]),
) {
    let layout = LutLayout { code: C::CODE, tables: Tables::F32 };
    let of_rows = check_apply(layout, bytes, indices, &positions, k, acc.len());
    let (entries, _) = parts::<f32>(layout, positions.len(), bytes);
    for (indices, acc) in indices.chunks(BLOCKS * of_rows).zip(acc.chunks_mut(BLOCKS * ROW_BLOCK)) {
        for (p, piece) in entries.chunks(PIECE * C::ENTRIES).enumerate() {
            let at = (positions.start + p * PIECE) * C::POSITION;
            let len = piece.len() / C::ENTRIES * C::POSITION;
            for (indices, acc) in indices.chunks_exact(of_rows).zip(acc.chunks_mut(ROW_BLOCK)) {
                let indices = &indices[at..][..len];
                (0..len).step_by(64).for_each(|line| prefetch(indices, of_rows + line));
                with_block(acc, |acc| f(indices, piece, acc));
            }
        }
    }
}

/// Adds some positions of 64 rows; `number` tells the entry of a position, row and stage.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_floats<const E: usize, const S: usize>(
    tables: &[[[f32; E]; S]],
    number: impl Fn(usize, usize, usize) -> u8,
    acc: &mut [f32; ROW_BLOCK],
) {
    for (g, acc) in acc.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let mut sums = *acc;
        for (v, table) in tables.iter().enumerate() {
            for (i, sum) in sums.iter_mut().enumerate() {
                let number = |stage| usize::from(number(v, g * 8 + i, stage)) % E;
                let mut t = table[0][number(0)];
                for s in 1..S {
                    t += table[s][number(s)];
                }
                *sum += t;
            }
        }
        *acc = sums;
    }
}
