//! Loads and stores of the AVX2 tier over arrays, so that kernels need no pointers.
//!
//! Everything here is one instruction; the references carry the proof that the bytes are there.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_storeu_si128, _mm256_castpd_ps,
    _mm256_castps_pd, _mm256_cvtph_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_set1_epi32,
    _mm256_storeu_ps, _mm256_storeu_si256, _mm256_unpackhi_pd, _mm256_unpackhi_ps, _mm256_unpacklo_pd,
    _mm256_unpacklo_ps,
};

use half::f16;
use waste_plan::LANES;

pub(crate) use crate::view::with_lanes;

/// 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_16(src: &[u8; 16]) -> __m128i {
    // SAFETY: `src` is 16 readable bytes; the unaligned form has no alignment demand.
    unsafe { _mm_loadu_si128(src.as_ptr().cast()) }
}

/// Stores 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn store_16(dst: &mut [u8; 16], v: __m128i) {
    // SAFETY: `dst` is 16 writable bytes.
    unsafe { _mm_storeu_si128(dst.as_mut_ptr().cast(), v) }
}

/// 8 half-precision floats, as they are.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_halves(src: &[f16; 8]) -> __m128i {
    // SAFETY: `src` is 16 readable bytes; the unaligned form has no alignment demand.
    unsafe { _mm_loadu_si128(src.as_ptr().cast()) }
}

/// 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_32(src: &[u8; 32]) -> __m256i {
    // SAFETY: `src` is 32 readable bytes; the unaligned form has no alignment demand.
    unsafe { _mm256_loadu_si256(src.as_ptr().cast()) }
}

/// 16 words.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_words(src: &[i16; 16]) -> __m256i {
    // SAFETY: `src` is 32 readable bytes; the unaligned form has no alignment demand.
    unsafe { _mm256_loadu_si256(src.as_ptr().cast()) }
}

/// Stores 16 words.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn store_words(dst: &mut [i16; 16], v: __m256i) {
    // SAFETY: `dst` is 32 writable bytes.
    unsafe { _mm256_storeu_si256(dst.as_mut_ptr().cast(), v) }
}

/// Stores 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn store_32(dst: &mut [u8; 32], v: __m256i) {
    // SAFETY: `dst` is 32 writable bytes.
    unsafe { _mm256_storeu_si256(dst.as_mut_ptr().cast(), v) }
}

/// 8 floats.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_ps(src: &[f32; 8]) -> __m256 {
    // SAFETY: `src` is 32 readable bytes; the unaligned form has no alignment demand.
    unsafe { _mm256_loadu_ps(src.as_ptr()) }
}

/// Stores 8 floats.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn store_ps(dst: &mut [f32; 8], v: __m256) {
    // SAFETY: `dst` is 32 writable bytes.
    unsafe { _mm256_storeu_ps(dst.as_mut_ptr(), v) }
}

/// 16 floats in two registers.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_pair(src: &[f32; 16]) -> [__m256; 2] {
    let [low, high] = halves(src);
    [load_ps(low), load_ps(high)]
}

/// Stores two registers as 16 floats.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn store_pair(dst: &mut [f32; 16], v: [__m256; 2]) {
    let (eights, _) = dst.as_chunks_mut::<8>();
    store_ps(&mut eights[0], v[0]);
    store_ps(&mut eights[1], v[1]);
}

/// 4 bytes repeated 8 times.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn splat_4(src: [u8; 4]) -> __m256i {
    _mm256_set1_epi32(i32::from_le_bytes(src))
}

/// 2 words repeated 8 times.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn splat_pair(src: [i16; 2]) -> __m256i {
    let [[a, b], [c, d]] = src.map(i16::to_le_bytes);
    splat_4([a, b, c, d])
}

/// 16 f16 numbers as f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn widen_halves(src: &[u8; 2 * LANES]) -> [__m256; 2] {
    let (parts, _) = src.as_chunks::<16>();
    [_mm256_cvtph_ps(load_16(&parts[0])), _mm256_cvtph_ps(load_16(&parts[1]))]
}

/// Transposes two squares of 4 × 4 side by side, one in the lower and one in the upper halves.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn transpose_quarters(rows: [__m256; 4]) -> [__m256; 4] {
    let pairs =
        |a, b| (_mm256_castps_pd(_mm256_unpacklo_ps(a, b)), _mm256_castps_pd(_mm256_unpackhi_ps(a, b)));
    let ((low01, high01), (low23, high23)) = (pairs(rows[0], rows[1]), pairs(rows[2], rows[3]));
    [
        _mm256_castpd_ps(_mm256_unpacklo_pd(low01, low23)),
        _mm256_castpd_ps(_mm256_unpackhi_pd(low01, low23)),
        _mm256_castpd_ps(_mm256_unpacklo_pd(high01, high23)),
        _mm256_castpd_ps(_mm256_unpackhi_pd(high01, high23)),
    ]
}

/// Asks for the cache line `ahead` bytes past the start of `src`, wherever that is.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn prefetch<T>(src: &[T], ahead: usize) {
    _mm_prefetch::<_MM_HINT_T0>(src.as_ptr().wrapping_byte_add(ahead).cast());
}

/// The two halves of an array.
#[inline(always)]
fn halves(src: &[f32; 16]) -> [&[f32; 8]; 2] {
    let (eights, _) = src.as_chunks::<8>();
    [&eights[0], &eights[1]]
}
