//! Tables of byte planes: `tbl` looks 16 rows up in 64 entries, and four of them in 256: each gives 0, or leaves what was
//! there, where a number is none of its quarter.
//!
//! The numbers of 64 rows over a block of positions are unpacked first (`ld3` takes three bytes of 16 rows apart), so that
//! the tables of a stage stay in 16 registers for all rows, and a plane's sums in eight: words, as a block is at most 32
//! positions of four stages, so a sum is at most 128 · 255 < 2^15.

use std::arch::aarch64::{
    uint8x16_t, uint8x16x4_t, uint16x8_t, vaddq_s32, vaddw_high_u8, vaddw_u8, vandq_u8, vcvtq_f32_s32,
    vdupq_n_f32, vdupq_n_s32, vdupq_n_u8, vdupq_n_u16, vfmaq_f32, vget_low_u8, vget_low_u16, vld1q_u8_x4,
    vld2q_u8, vld3q_u8, vmovl_high_u16, vmovl_u16, vorrq_u8, vqtbl4q_u8, vqtbx4q_u8, vreinterpretq_s32_u32,
    vshlq_n_u8, vshlq_s32, vshrq_n_u8, vsubq_u8,
};
use std::ops::Range;

use waste_plan::vq::ROW_BLOCK;
use waste_plan::{LutLayout, Tables};

use super::super::portable::parts;
use super::super::{Code, bias, check_apply, with_block};
use crate::neon::{load_bytes, load_ps, store_bytes, store_ps};

/// The most positions that a block has.
const POSITIONS: usize = Tables::Container.block();
/// The most stages that a code has.
const STAGES: usize = 4;

/// The numbers of a block's positions and stages, 64 rows each.
type Numbers = [[[u8; ROW_BLOCK]; STAGES]; POSITIONS];
/// Sums of 64 rows.
type Words = [[uint16x8_t; 2]; ROW_BLOCK / 16];

/// Fixed-point tables of `S` stages of `E` entries in `P` planes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn apply<C: Code, const S: usize, const E: usize, const P: usize>(
    tables: Tables,
    bytes: &[u8],
    indices: &[u8],
    positions: Range<usize>,
    k: usize,
    acc: &mut [f32],
) {
    let layout = LutLayout { code: C::CODE, tables };
    let of_rows = check_apply(layout, bytes, indices, &positions, k, acc.len());
    let (_, scales) = parts::<i32>(layout, positions.len(), bytes);
    let blocks = bytes.chunks(layout.entry_bytes(tables.block()));
    let mut numbers = [[[0; ROW_BLOCK]; STAGES]; POSITIONS];
    for (b, (block, xs)) in blocks.zip(scales).enumerate() {
        let first = positions.start + b * tables.block();
        let n = tables.block().min(positions.end - first);
        let planes = &block.as_chunks::<E>().0.as_chunks::<P>().0.as_chunks::<S>().0[..n];
        for (indices, acc) in indices.chunks_exact(of_rows).zip(acc.chunks_mut(ROW_BLOCK)) {
            unpack::<C>(&indices[first * C::POSITION..][..n * C::POSITION], &mut numbers);
            with_block(acc, |acc| {
                let mut sums = [[[vdupq_n_u16(0); 2]; ROW_BLOCK / 16]; P];
                for (p, sums) in sums.iter_mut().enumerate() {
                    *sums = add_up::<S, E, P>(&numbers, planes, p);
                }
                finish(&sums, S * n, *xs, acc);
            });
        }
    }
}

/// The numbers of some positions of 64 rows.
#[inline]
#[target_feature(enable = "neon")]
fn unpack<C: Code>(indices: &[u8], numbers: &mut Numbers) {
    for (indices, numbers) in indices.chunks_exact(C::POSITION).zip(numbers) {
        for (i, indices) in indices.chunks_exact(16 * C::BYTES).enumerate() {
            let of_stages = match (C::STAGES, C::BYTES) {
                (2, _) => two(indices.first_chunk().expect("two bytes of 16 rows")),
                (3, _) => three(indices.first_chunk().expect("three bytes of 16 rows")),
                _ => four(three(indices.first_chunk().expect("three bytes of 16 rows"))),
            };
            for (numbers, of_stage) in numbers.iter_mut().zip(of_stages).take(C::STAGES) {
                store_bytes(&mut numbers.as_chunks_mut().0[i], of_stage);
            }
        }
    }
}

/// Bytes 0 and 1 of 16 rows.
#[inline]
#[target_feature(enable = "neon")]
fn two(indices: &[u8; 32]) -> [uint8x16_t; STAGES] {
    // SAFETY: `indices` is 32 readable bytes.
    let bytes = unsafe { vld2q_u8(indices.as_ptr()) };
    [bytes.0, bytes.1, vdupq_n_u8(0), vdupq_n_u8(0)]
}

/// Bytes 0, 1 and 2 of 16 rows.
#[inline]
#[target_feature(enable = "neon")]
fn three(indices: &[u8; 48]) -> [uint8x16_t; STAGES] {
    // SAFETY: `indices` is 48 readable bytes.
    let bytes = unsafe { vld3q_u8(indices.as_ptr()) };
    [bytes.0, bytes.1, bytes.2, vdupq_n_u8(0)]
}

/// Four numbers of six bits from three bytes.
#[inline]
#[target_feature(enable = "neon")]
fn four([b0, b1, b2, _]: [uint8x16_t; STAGES]) -> [uint8x16_t; STAGES] {
    let low = |it| vandq_u8(it, vdupq_n_u8(63));
    [
        low(b0),
        low(vorrq_u8(vshrq_n_u8::<6>(b0), vshlq_n_u8::<2>(b1))),
        low(vorrq_u8(vshrq_n_u8::<4>(b1), vshlq_n_u8::<4>(b2))),
        vshrq_n_u8::<2>(b2),
    ]
}

/// What the numbers name in plane `p`, summed over stages and positions.
#[inline]
#[target_feature(enable = "neon")]
fn add_up<const S: usize, const E: usize, const P: usize>(
    numbers: &Numbers,
    planes: &[[[[u8; E]; P]; S]],
    p: usize,
) -> Words {
    let mut sums = [[vdupq_n_u16(0); 2]; ROW_BLOCK / 16];
    for (numbers, stages) in numbers.iter().zip(planes) {
        for (numbers, planes) in numbers.iter().zip(stages) {
            let (quarters, _) = planes[p].as_chunks();
            let first = quarter(&quarters[0]);
            for (numbers, sums) in numbers.as_chunks().0.iter().zip(&mut sums) {
                let number = load_bytes(numbers);
                let mut entries = vqtbl4q_u8(first, number);
                for (j, table) in quarters.iter().enumerate().skip(1) {
                    let number = vsubq_u8(number, vdupq_n_u8((64 * j) as u8));
                    entries = vqtbx4q_u8(entries, quarter(table), number);
                }
                *sums = [vaddw_u8(sums[0], vget_low_u8(entries)), vaddw_high_u8(sums[1], entries)];
            }
        }
    }
    sums
}

/// acc = fma(f32(Σ q), xs, acc), from the sums of so many biased bytes of each plane, highest first.
#[inline]
#[target_feature(enable = "neon")]
fn finish<const P: usize>(planes: &[Words; P], entries: usize, xs: f32, acc: &mut [f32; ROW_BLOCK]) {
    for (i, acc) in acc.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let mut sum = vdupq_n_s32(-bias(P) * entries as i32);
        for (p, rows) in planes.iter().enumerate() {
            let eight = rows[i / 4][i / 2 % 2];
            let of_plane = if i % 2 == 0 { vmovl_u16(vget_low_u16(eight)) } else { vmovl_high_u16(eight) };
            let shift = vdupq_n_s32(8 * (P - 1 - p) as i32);
            sum = vaddq_s32(sum, vshlq_s32(vreinterpretq_s32_u32(of_plane), shift));
        }
        store_ps(acc, vfmaq_f32(load_ps(acc), vcvtq_f32_s32(sum), vdupq_n_f32(xs)));
    }
}

/// 64 entries.
#[inline]
#[target_feature(enable = "neon")]
fn quarter(src: &[u8; 64]) -> uint8x16x4_t {
    // SAFETY: `src` is 64 readable bytes.
    unsafe { vld1q_u8_x4(src.as_ptr()) }
}
