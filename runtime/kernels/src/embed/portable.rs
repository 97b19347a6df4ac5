//! The definitions.

use waste_plan::{LANES, Packing};

use crate::half16::{bf16_to_f32, f16_to_f32};
use crate::linear::portable::half_at;

#[inline(always)]
pub(crate) fn embed_w8(block: &[u8], k: usize, lane: usize, out: &mut [f32]) {
    let scales = &block[Packing::W8.payload_bytes(k)..];
    for (i, y) in out[..k].iter_mut().enumerate() {
        let q = block[(i / 4 * LANES + lane) * 4 + i % 4].cast_signed();
        *y = f16_to_f32(half_at(scales, i / 32 * LANES + lane)) * f32::from(q);
    }
}

#[inline(always)]
pub(crate) fn embed_w4(block: &[u8], k: usize, lane: usize, out: &mut [f32]) {
    let scales = &block[Packing::W4.payload_bytes(k)..];
    for (i, y) in out[..k].iter_mut().enumerate() {
        *y = f16_to_f32(half_at(scales, i / 32 * LANES + lane)) * (f32::from(nibble(block, lane, i)) - 8.0);
    }
}

#[inline(always)]
pub(crate) fn embed_w4m(block: &[u8], k: usize, lane: usize, out: &mut [f32]) {
    let scales = &block[Packing::W4M.payload_bytes(k)..];
    let minima = &block[Packing::W4M.minima_at(k)..];
    for (i, y) in out[..k].iter_mut().enumerate() {
        let at = i / 32 * LANES + lane;
        let (d, m) = (f16_to_f32(half_at(scales, at)), f16_to_f32(half_at(minima, at)));
        // One rounding of the exact d · code + m, as the reference decode has it.
        *y = d.mul_add(f32::from(nibble(block, lane, i)), m);
    }
}

#[inline(always)]
fn nibble(block: &[u8], lane: usize, i: usize) -> u8 {
    let byte = block[(i / 8 * LANES + lane) * 4 + i % 4];
    if i % 8 < 4 { byte & 15 } else { byte >> 4 }
}

#[inline(always)]
pub(crate) fn embed_f32(block: &[u8], k: usize, lane: usize, out: &mut [f32]) {
    let (elems, _) = block.as_chunks::<4>();
    for (i, y) in out[..k].iter_mut().enumerate() {
        *y = f32::from_le_bytes(elems[i * LANES + lane]);
    }
}

#[inline(always)]
pub(crate) fn embed_f16(block: &[u8], k: usize, lane: usize, out: &mut [f32]) {
    for (i, y) in out[..k].iter_mut().enumerate() {
        *y = f16_to_f32(half_at(block, i * LANES + lane));
    }
}

#[inline(always)]
pub(crate) fn embed_bf16(block: &[u8], k: usize, lane: usize, out: &mut [f32]) {
    for (i, y) in out[..k].iter_mut().enumerate() {
        *y = bf16_to_f32(half_at(block, i * LANES + lane));
    }
}

#[inline(always)]
pub(crate) fn embed_plain_f16(row: &[u8], out: &mut [f32]) {
    widen(row, out, f16_to_f32);
}

#[inline(always)]
pub(crate) fn embed_plain_bf16(row: &[u8], out: &mut [f32]) {
    widen(row, out, bf16_to_f32);
}

#[inline(always)]
fn widen(row: &[u8], out: &mut [f32], to_f32: fn(u16) -> f32) {
    let (halves, _) = row.as_chunks::<2>();
    let n = out.len();
    for (y, x) in out.iter_mut().zip(&halves[..n]) {
        *y = to_f32(u16::from_le_bytes(*x));
    }
}
