//! `sdot`: four products and a sum a lane, which is a row. A register of codes is its operand as it stands in memory; the
//! other one is a quad of a token's plane, four times. Six columns are 24 registers of sums. |Σ| ≤ 32 · 2^14.

use std::arch::aarch64::{int8x16_t, int32x4_t, vdupq_n_f32, vdupq_n_s32};
use std::arch::asm;

use waste_plan::LANES;

use super::{Block, Sums, eight, finish, halves, tier};
use crate::cpu::Isa;
use crate::linear::check;
use crate::linear::parts::{GROUPS, Part, SPAN, TOKENS, Token};
use crate::linear::portable::{Codes, GROUP, W4, W4M, W8};
use crate::neon::{load_lanes, splat_4, store_lanes};
use crate::table::{Entry, KernelTable};
use crate::view::{FxRows, TileMut, with_lanes};

tier!(Isa::Dotprod, target_feature(enable = "neon,dotprod"), 6);

/// The plane sums of a group of `T` tokens.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn sums<C: Codes, const P: usize, const T: usize>(
    lines: &[[u8; 64]],
    parts: [&Part<P>; T],
) -> [Sums<P>; T] {
    let mut res = [[[vdupq_n_s32(0); 4]; P]; T];
    for j in 0..GROUP / 8 {
        for (half, codes) in eight::<C>(lines, j).into_iter().enumerate() {
            for (sums, part) in res.iter_mut().zip(parts) {
                for (sums, quads) in sums.iter_mut().zip(&part.quads) {
                    let x = splat_4(quads[2 * j + half]);
                    for (sum, codes) in sums.iter_mut().zip(codes) {
                        *sum = sdot(*sum, codes, x);
                    }
                }
            }
        }
    }
    res
}

/// sum + the products of four bytes, lane by lane. The intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(sum: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    let mut res = sum;
    // SAFETY: the function has the instruction's feature, and it touches nothing but its registers.
    unsafe {
        asm!("sdot {res:v}.4s, {codes:v}.16b, {x:v}.16b", res = inout(vreg) res, codes = in(vreg) codes,
            x = in(vreg) x, options(pure, nomem, nostack, preserves_flags));
    }
    res
}
