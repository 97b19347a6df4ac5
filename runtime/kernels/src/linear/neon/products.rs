//! NEON alone: products of bytes in words. A register of sums is two rows by four inputs (nibbles) or by two (bytes), so a
//! column takes eight of them and three columns 24.
//!
//! Nibbles: a word adds up one input of the 8 quads of a group, at most 8 · 15 · 128 = 15,360. Bytes: two products may
//! be 2^15, so each is taken into its pair's i32 at once; |Σ| ≤ 32 · 2^14.

use std::arch::aarch64::{
    int8x16_t, int16x8_t, int32x4_t, vdupq_n_f32, vdupq_n_s16, vdupq_n_s32, vget_low_s8, vmlal_high_s8,
    vmlal_s8, vmull_high_s8, vmull_s8, vpadalq_s16, vpaddlq_s16, vpaddq_s32,
};

use waste_plan::{LANES, Packing};

use super::{Block, Sums, eight, finish, halves, tier};
use crate::cpu::Isa;
use crate::linear::check;
use crate::linear::parts::{GROUPS, Part, SPAN, TOKENS, Token};
use crate::linear::portable::{Codes, GROUP, W4, W4M, W8};
use crate::neon::{load_lanes, splat_4, store_lanes};
use crate::table::{Entry, KernelTable};
use crate::view::{FxRows, TileMut, with_lanes};

tier!(Isa::Neon, target_feature(enable = "neon"), 3);

/// The plane sums of a group of `T` tokens.
#[inline]
#[target_feature(enable = "neon")]
fn sums<C: Codes, const P: usize, const T: usize>(lines: &[[u8; 64]], parts: [&Part<P>; T]) -> [Sums<P>; T] {
    if matches!(C::PACKING, Packing::W8) {
        add_up::<C, P, T, _>(
            lines,
            parts,
            vdupq_n_s32(0),
            |sums, codes, x| pairs(sums, codes, x),
            |pairs| pairs,
        )
    } else {
        add_up::<C, P, T, _>(
            lines,
            parts,
            vdupq_n_s16(0),
            |sums, codes, x| words(sums, codes, x),
            |words| vpaddlq_s16(words),
        )
    }
}

/// Adds a group's products to registers of two rows each, which start from `zero`; `paired` makes them two i32 a row.
#[inline]
#[target_feature(enable = "neon")]
fn add_up<C: Codes, const P: usize, const T: usize, R: Copy>(
    lines: &[[u8; 64]],
    parts: [&Part<P>; T],
    zero: R,
    add: impl Fn([R; 2], int8x16_t, int8x16_t) -> [R; 2],
    paired: impl Fn(R) -> int32x4_t,
) -> [Sums<P>; T] {
    let mut wide = [[[[zero; 2]; 4]; P]; T];
    for j in 0..GROUP / 8 {
        for (half, codes) in eight::<C>(lines, j).into_iter().enumerate() {
            for (wide, part) in wide.iter_mut().zip(parts) {
                for (wide, quads) in wide.iter_mut().zip(&part.quads) {
                    let x = splat_4(quads[2 * j + half]);
                    for (wide, codes) in wide.iter_mut().zip(codes) {
                        *wide = add(*wide, codes, x);
                    }
                }
            }
        }
    }
    wide.map(|it| it.map(|it| it.map(|[a, b]| vpaddq_s32(paired(a), paired(b)))))
}

/// Adds the products of bytes to two i32 a row.
#[inline]
#[target_feature(enable = "neon")]
fn pairs(sums: [int32x4_t; 2], codes: int8x16_t, x: int8x16_t) -> [int32x4_t; 2] {
    let low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
    [vpadalq_s16(sums[0], low), vpadalq_s16(sums[1], vmull_high_s8(codes, x))]
}

/// Adds the products of nibbles to four words a row.
#[inline]
#[target_feature(enable = "neon")]
fn words(sums: [int16x8_t; 2], codes: int8x16_t, x: int8x16_t) -> [int16x8_t; 2] {
    [vmlal_s8(sums[0], vget_low_s8(codes), vget_low_s8(x)), vmlal_high_s8(sums[1], codes, x)]
}
