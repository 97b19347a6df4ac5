//! Loads, stores and widenings of NEON over arrays, so that kernels need no pointers.
//!
//! Everything here is a few instructions; the references carry the proof that the bytes are there.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, uint8x16_t, uint8x16x4_t, uint16x4_t, uint16x8_t, vaddq_s32, vcvtnq_s32_f32,
    vdupq_n_s32, vdupq_n_u8, vget_high_u16, vget_low_u16, vld1q_f32, vld1q_s8, vld1q_u8, vld1q_u16,
    vmaxq_s32, vminq_s32, vmulq_n_f32, vqtbl4q_u8, vreinterpretq_f32_s8, vreinterpretq_f32_u32,
    vreinterpretq_s8_s32, vreinterpretq_u8_s32, vreinterpretq_u16_u8, vshll_n_u16, vst1q_f32, vst1q_s8,
    vst1q_u8,
};
use std::arch::asm;

use half::f16;
use waste_plan::{FxLayout, LANES};

/// 16 bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn load_16(src: &[u8; 16]) -> int8x16_t {
    // SAFETY: `src` is 16 readable bytes, and the load has no alignment demand.
    unsafe { vld1q_s8(src.as_ptr().cast()) }
}

/// A line of 64 bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn load_64(src: &[u8; 64]) -> [int8x16_t; 4] {
    let [a, b, c, d] = quarters(src);
    [load_16(a), load_16(b), load_16(c), load_16(d)]
}

/// 4 floats.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn load_ps(src: &[f32; 4]) -> float32x4_t {
    // SAFETY: `src` is 4 readable floats.
    unsafe { vld1q_f32(src.as_ptr()) }
}

/// 8 floats from bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn load_eight(src: &[u8; 32]) -> [float32x4_t; 2] {
    let (halves, _) = src.as_chunks();
    [load_16(&halves[0]), load_16(&halves[1])].map(|it| vreinterpretq_f32_s8(it))
}

/// Stores 4 floats.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn store_ps(dst: &mut [f32; 4], v: float32x4_t) {
    // SAFETY: `dst` is 4 writable floats.
    unsafe { vst1q_f32(dst.as_mut_ptr(), v) }
}

/// 16 floats.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn load_lanes(src: &[f32; LANES]) -> [float32x4_t; 4] {
    let (fours, _) = src.as_chunks();
    [load_ps(&fours[0]), load_ps(&fours[1]), load_ps(&fours[2]), load_ps(&fours[3])]
}

/// Stores 16 floats.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn store_lanes(dst: &mut [f32; LANES], v: [float32x4_t; 4]) {
    for (dst, v) in dst.as_chunks_mut().0.iter_mut().zip(v) {
        store_ps(dst, v);
    }
}

/// 16 bytes without sign.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn load_bytes(src: &[u8; 16]) -> uint8x16_t {
    // SAFETY: `src` is 16 readable bytes, and the load has no alignment demand.
    unsafe { vld1q_u8(src.as_ptr()) }
}

/// Stores 16 bytes without sign.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn store_bytes(dst: &mut [u8; 16], v: uint8x16_t) {
    // SAFETY: `dst` is 16 writable bytes.
    unsafe { vst1q_u8(dst.as_mut_ptr(), v) }
}

/// Stores 16 bytes with sign.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn store_signed(dst: &mut [i8; 16], v: int8x16_t) {
    // SAFETY: `dst` is 16 writable bytes.
    unsafe { vst1q_s8(dst.as_mut_ptr(), v) }
}

/// 16 numbers in fixed point of `P` byte planes, the highest first: clamp(round-half-even(x · inverse), −Q, Q) in balanced
/// digits, each plus 128. |x| · inverse ≤ Q but for its rounding.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn biased_digits<const P: usize>(x: &[f32; LANES], inverse: f32) -> [uint8x16_t; P] {
    /// Where byte b of 16 words stands.
    const PLACES: [[u8; 16]; 3] = {
        let mut places = [[0; 16]; 3];
        let mut i = 0;
        while i < 3 * 16 {
            places[i / 16][i % 16] = (i % 16 * 4 + i / 16) as u8;
            i += 1;
        }
        places
    };
    let q_max = FxLayout { planes: P }.q_max();
    let bias = 0x0080_8080 >> (8 * (3 - P));
    let mut words = [vdupq_n_u8(0); 4];
    for (words, four) in words.iter_mut().zip(x.as_chunks().0) {
        let q = vcvtnq_s32_f32(vmulq_n_f32(load_ps(four), inverse));
        let q = vminq_s32(vmaxq_s32(q, vdupq_n_s32(-q_max)), vdupq_n_s32(q_max));
        *words = vreinterpretq_u8_s32(vaddq_s32(q, vdupq_n_s32(bias)));
    }
    let words = uint8x16x4_t(words[0], words[1], words[2], words[3]);
    let mut res = [words.0; P];
    for (plane, places) in res.iter_mut().rev().zip(&PLACES) {
        *plane = vqtbl4q_u8(words, load_bytes(places));
    }
    res
}

/// 4 bytes repeated 4 times.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn splat_4(src: [u8; 4]) -> int8x16_t {
    vreinterpretq_s8_s32(vdupq_n_s32(i32::from_le_bytes(src)))
}

/// 8 f16 numbers as f32.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn widen_8(src: &[u8; 16]) -> [float32x4_t; 2] {
    let halves = words(src);
    [widen_4(vget_low_u16(halves)), widen_4(vget_high_u16(halves))]
}

/// As [`widen_8`], from their type.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn widen_8_halves(src: &[f16; 8]) -> [float32x4_t; 2] {
    // SAFETY: `src` is 8 readable words.
    let halves = unsafe { vld1q_u16(src.as_ptr().cast()) };
    [widen_4(vget_low_u16(halves)), widen_4(vget_high_u16(halves))]
}

/// 16 f16 numbers as f32.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn widen_16(src: &[u8; 2 * LANES]) -> [float32x4_t; 4] {
    let (eights, _) = src.as_chunks();
    let ([a, b], [c, d]) = (widen_8(&eights[0]), widen_8(&eights[1]));
    [a, b, c, d]
}

/// 8 bf16 numbers as f32.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn widen_8_bf16(src: &[u8; 16]) -> [float32x4_t; 2] {
    let halves = words(src);
    [vget_low_u16(halves), vget_high_u16(halves)].map(|it| vreinterpretq_f32_u32(vshll_n_u16::<16>(it)))
}

/// 8 words.
#[inline]
#[target_feature(enable = "neon")]
fn words(src: &[u8; 16]) -> uint16x8_t {
    // SAFETY: `src` is 16 readable bytes, and the load has no alignment demand.
    vreinterpretq_u16_u8(unsafe { vld1q_u8(src.as_ptr()) })
}

/// 4 f16 numbers as f32, exact; the intrinsic needs the type `f16`, which is not stable.
#[inline]
#[target_feature(enable = "neon")]
fn widen_4(halves: uint16x4_t) -> float32x4_t {
    let wide;
    // SAFETY: the instruction is NEON's and touches nothing but its registers.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {halves:v}.4h", wide = lateout(vreg) wide, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// The quarters of a line.
#[inline(always)]
fn quarters(src: &[u8; 64]) -> [&[u8; 16]; 4] {
    let (parts, _) = src.as_chunks();
    [&parts[0], &parts[1], &parts[2], &parts[3]]
}
