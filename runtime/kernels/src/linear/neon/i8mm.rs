//! `smmla`: two rows times two columns over eight inputs, four sums a register. Two quads of codes, zipped, are eight
//! inputs of two rows; three pairs of columns times eight pairs of rows are 24 registers of sums, which are sorted at
//! the end of a group. |Σ| ≤ 32 · 2^14.
//!
//! A single token has too few columns: it goes the way of `dotprod`.

use std::arch::aarch64::{
    int8x16_t, int32x4_t, vcombine_s8, vcreate_s8, vdupq_n_f32, vdupq_n_s32, vreinterpretq_s8_s32,
    vreinterpretq_s32_s8, vuzp1q_s32, vuzp2q_s32, vzip1q_s32, vzip2q_s32,
};
use std::arch::asm;

use waste_plan::LANES;

use super::dotprod;
use super::{Block, Sums, eight, finish, halves, tier};
use crate::cpu::Isa;
use crate::linear::check;
use crate::linear::parts::{GROUPS, Part, SPAN, TOKENS, Token};
use crate::linear::portable::{Codes, GROUP, W4, W4M, W8};
use crate::neon::{load_lanes, store_lanes};
use crate::table::{Entry, KernelTable};
use crate::view::{FxRows, TileMut, with_lanes};

tier!(Isa::I8mm, target_feature(enable = "neon,dotprod,i8mm"), 6);

/// Pairs of columns: planes of tokens, token by token.
const PAIRS: usize = 3;

/// The plane sums of a group of `T` tokens.
#[inline]
#[target_feature(enable = "neon,dotprod,i8mm")]
fn sums<C: Codes, const P: usize, const T: usize>(lines: &[[u8; 64]], parts: [&Part<P>; T]) -> [Sums<P>; T] {
    if T * P != 2 * PAIRS {
        return dotprod::sums::<C, P, T>(lines, parts);
    }
    let mut squares = [[[vdupq_n_s32(0); 2]; 4]; PAIRS];
    for j in 0..GROUP / 8 {
        let [low, high] = eight::<C>(lines, j);
        let x: [int8x16_t; PAIRS] =
            [pair::<P, T>(parts, 0, j), pair::<P, T>(parts, 1, j), pair::<P, T>(parts, 2, j)];
        for (i, (low, high)) in low.into_iter().zip(high).enumerate() {
            let [two, other_two] = zip(low, high);
            for (squares, x) in squares.iter_mut().zip(x) {
                squares[i] = [smmla(squares[i][0], two, x), smmla(squares[i][1], other_two, x)];
            }
        }
    }
    let mut res = [[[vdupq_n_s32(0); 4]; P]; T];
    for (i, [two, other_two]) in squares.as_flattened().iter().enumerate() {
        let (pair, rows) = (i / 4, i % 4);
        let (even, odd) = (2 * pair, 2 * pair + 1);
        res[even / P][even % P][rows] = vuzp1q_s32(*two, *other_two);
        res[odd / P][odd % P][rows] = vuzp2q_s32(*two, *other_two);
    }
    res
}

/// Inputs 8j … 8j + 7 of a pair of columns.
#[inline]
#[target_feature(enable = "neon")]
fn pair<const P: usize, const T: usize>(parts: [&Part<P>; T], pair: usize, j: usize) -> int8x16_t {
    let column = |c: usize| {
        let [a, b] = parts[c / P].quads[c % P].as_chunks::<2>().0[j].map(u32::from_le_bytes);
        vcreate_s8(u64::from(b) << 32 | u64::from(a))
    };
    vcombine_s8(column(2 * pair), column(2 * pair + 1))
}

/// Eight inputs of rows 0 and 1 and of rows 2 and 3, from two quads of four rows.
#[inline]
#[target_feature(enable = "neon")]
fn zip(low: int8x16_t, high: int8x16_t) -> [int8x16_t; 2] {
    let (low, high) = (vreinterpretq_s32_s8(low), vreinterpretq_s32_s8(high));
    [vreinterpretq_s8_s32(vzip1q_s32(low, high)), vreinterpretq_s8_s32(vzip2q_s32(low, high))]
}

/// sum + rows times columns. The intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod,i8mm")]
fn smmla(sum: int32x4_t, rows: int8x16_t, columns: int8x16_t) -> int32x4_t {
    let mut res = sum;
    // SAFETY: the function has the instruction's feature, and it touches nothing but its registers.
    unsafe {
        asm!("smmla {res:v}.4s, {rows:v}.16b, {columns:v}.16b", res = inout(vreg) res, rows = in(vreg) rows,
            columns = in(vreg) columns, options(pure, nomem, nostack, preserves_flags));
    }
    res
}
