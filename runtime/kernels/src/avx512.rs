//! Loads and stores of the AVX-512 tiers over arrays, so that kernels need no pointers.
//!
//! Everything here is one instruction; the references carry the proof that the bytes are there. `avx512bw` brings
//! `avx512f`, and with it AVX2, FMA and F16C.

use std::arch::x86_64::{
    __m256i, __m512, __m512i, _mm256_loadu_si256, _mm512_cvtph_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_storeu_ps, _mm512_storeu_si512,
};

use half::f16;
use waste_plan::LANES;

use crate::avx2::load_32;

/// 16 half-precision floats, as they are.
#[inline]
#[target_feature(enable = "avx512bw")]
pub(crate) fn load_16_halves(src: &[f16; LANES]) -> __m256i {
    // SAFETY: `src` is 32 readable bytes; the unaligned form has no alignment demand.
    unsafe { _mm256_loadu_si256(src.as_ptr().cast()) }
}

/// 64 bytes.
#[inline]
#[target_feature(enable = "avx512bw")]
pub(crate) fn load_64(src: &[u8; 64]) -> __m512i {
    // SAFETY: `src` is 64 readable bytes; the unaligned form has no alignment demand.
    unsafe { _mm512_loadu_si512(src.as_ptr().cast()) }
}

/// Stores 64 bytes.
#[inline]
#[target_feature(enable = "avx512bw")]
pub(crate) fn store_64(dst: &mut [u8; 64], v: __m512i) {
    // SAFETY: `dst` is 64 writable bytes.
    unsafe { _mm512_storeu_si512(dst.as_mut_ptr().cast(), v) }
}

/// 16 floats.
#[inline]
#[target_feature(enable = "avx512bw")]
pub(crate) fn load_16_ps(src: &[f32; LANES]) -> __m512 {
    // SAFETY: `src` is 64 readable bytes; the unaligned form has no alignment demand.
    unsafe { _mm512_loadu_ps(src.as_ptr()) }
}

/// Stores 16 floats.
#[inline]
#[target_feature(enable = "avx512bw")]
pub(crate) fn store_16_ps(dst: &mut [f32; LANES], v: __m512) {
    // SAFETY: `dst` is 64 writable bytes.
    unsafe { _mm512_storeu_ps(dst.as_mut_ptr(), v) }
}

/// 4 bytes repeated 16 times.
#[inline]
#[target_feature(enable = "avx512bw")]
pub(crate) fn splat_16(src: [u8; 4]) -> __m512i {
    _mm512_set1_epi32(i32::from_le_bytes(src))
}

/// 16 f16 numbers as f32.
#[inline]
#[target_feature(enable = "avx512bw")]
pub(crate) fn widen_16(src: &[u8; 2 * LANES]) -> __m512 {
    _mm512_cvtph_ps(load_32(src))
}
