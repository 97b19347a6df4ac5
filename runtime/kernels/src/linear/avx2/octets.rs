//! W8: signed bytes widened to i16, times activations in i16 by `vpmaddwd`.
//!
//! Two byte planes are one i16 operand: fixed16 is q itself (|q| ≤ 32,639), and fixed24 is h next to b = 256·m + l +
//! 128, which runs from −32,768 to 32,767 and so just fits; Σ w·(256·m + l) = Σ w·b − 128·Σ w. All exact:
//! |Σ w·b| ≤ 32 · 2^7 · 2^15 = 2^27, and f32(256·M + L) is what the definition makes of M and L (its module).
//!
//! A register holds 2 inputs of 8 rows, so that a row's sum is one i32 lane. The 4 bytes that a quad of codes has of each row
//! become two such registers by shifts alone: bytes 0 and 2 of a row, then 1 and 3. Activations are laid out in that
//! order ("paired"); as sums are exact, the order means nothing otherwise.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_add_epi16, _mm256_add_epi32, _mm256_castsi256_si128, _mm256_cvtepi8_epi16,
    _mm256_cvtepi32_ps, _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_ps, _mm256_setr_epi8, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_srai_epi16,
};
use std::hint::black_box;
use std::ops::Range;

use waste_plan::{FX_GROUP, LANES, Packing};

use super::{AHEAD, scale_step};
use crate::avx2::{
    load_32, load_pair, load_words, prefetch, splat_pair, store_pair, store_words, widen_halves, with_lanes,
};
use crate::linear::check;
use crate::linear::parts::{GROUPS, QUADS, SPAN, TOKENS};
use crate::linear::portable::GROUP;
use crate::view::{FxRows, TileMut};

/// Bytes of a group's codes, 16 rows.
const GROUP_BYTES: usize = GROUP * LANES;

macro_rules! rows {
    ($($name:ident: $planes:literal, $words:literal, $tokens:literal;)+) => {
        $(#[target_feature(enable = "avx2,fma,f16c")]
        pub(in crate::linear) fn $name(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
            linear::<$planes, $words, $tokens>(w, k, x, y);
        })+
    };
}

// Eight registers of sums each: 16 rows, so many words and tokens.
rows! {
    fixed24: 3, 2, 2;
    fixed16: 2, 1, 4;
    fixed8: 1, 1, 4;
}

/// One weight group's part of one token, in i16 operands, highest first.
#[derive(Clone, Copy)]
struct Part<const WORDS: usize> {
    /// Per quad of inputs two registers' worth of 16 words, of which every pair is `[0, 2]` or `[1, 3]` of the quad.
    words: [[[i16; 16]; 2]; WORDS],
    xs: f32,
}

/// The widened codes and the scales of one block over a chunk.
struct Panel {
    codes: [[[[i16; 16]; 4]; QUADS]; GROUPS],
    /// −128 · Σ w per row, as i32.
    shifts: [[[i16; 16]; 2]; GROUPS],
    scales: [[f32; LANES]; GROUPS],
}

/// What the matrix product keeps of one chunk of inputs; in whole cache lines, so that no load of codes needs two.
#[repr(align(64))]
struct Scratch<const WORDS: usize> {
    panel: Panel,
    parts: [[Part<WORDS>; GROUPS]; TOKENS],
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn linear<const PLANES: usize, const WORDS: usize, const T: usize>(
    w: &[u8],
    k: usize,
    x: &FxRows<'_>,
    y: &mut TileMut<'_>,
) {
    check(Packing::W8, PLANES, w, k, x, y);
    for t in 0..y.rows() {
        y.row_mut(t).fill(0.0);
    }
    if y.rows() == 1 {
        return one_token::<PLANES, WORDS>(w, k, x, y);
    }
    let mut scratch = Scratch { panel: Panel::zeroed(), parts: [[Part::<WORDS>::ZERO; GROUPS]; TOKENS] };
    for from in (0..y.rows()).step_by(TOKENS) {
        let tokens = from..y.rows().min(from + TOKENS);
        for chunk in 0..k.div_ceil(FX_GROUP) {
            let groups = chunk * GROUPS..(k / GROUP).min((chunk + 1) * GROUPS);
            for (parts, t) in scratch.parts.iter_mut().zip(tokens.clone()) {
                let token = Token::<PLANES>::new(x, t);
                for (part, g) in parts.iter_mut().zip(groups.clone()) {
                    token.part(g, part);
                }
            }
            for (block, b) in w.chunks_exact(Packing::W8.block_bytes(k)).zip(0..y.cols().div_ceil(LANES)) {
                let cols = b * LANES..y.cols().min((b + 1) * LANES);
                scratch.panel.widen(block, k, groups.clone());
                scratch.times_block::<T>(groups.len(), &mut y.sub(tokens.clone(), cols));
            }
        }
    }
}

impl<const WORDS: usize> Scratch<WORDS> {
    /// Adds the panel's block times the tokens to a tile of theirs.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn times_block<const T: usize>(&self, groups: usize, y: &mut TileMut<'_>) {
        let (many, rest) = self.parts[..y.rows()].as_chunks::<T>();
        for (i, parts) in many.iter().enumerate() {
            self.panel.times::<WORDS, T>(groups, parts, y, i * T);
        }
        for (i, parts) in rest.as_chunks::<1>().0.iter().enumerate() {
            self.panel.times::<WORDS, 1>(groups, parts, y, many.len() * T + i);
        }
    }
}

impl<const WORDS: usize> Part<WORDS> {
    const ZERO: Self = Self { words: [[[0; 16]; 2]; WORDS], xs: 0.0 };
}

/// The rows of one token.
struct Token<'a, const PLANES: usize> {
    planes: [&'a [[u8; GROUP]]; PLANES],
    xs: &'a [f32],
}

impl<'a, const PLANES: usize> Token<'a, PLANES> {
    #[inline(always)]
    fn new(x: &FxRows<'a>, t: usize) -> Self {
        Self { planes: std::array::from_fn(|p| x.plane_bytes(t, p).as_chunks().0), xs: x.xs(t) }
    }

    /// The part of group `g`: the operands that the module names.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn part<const WORDS: usize>(&self, g: usize, part: &mut Part<WORDS>) {
        part.xs = self.xs[g / GROUPS];
        let mut words = paired(&self.planes[PLANES - 1][g]);
        if PLANES > 1 {
            // 256·m + l + 128 is in range; without the 128 it is for fixed16 only, where nothing can wrap.
            let bias = _mm256_set1_epi16(if PLANES == 3 { 128 } else { 0 });
            let high = paired(&self.planes[PLANES - 2][g]);
            for (word, high) in words.iter_mut().zip(high) {
                let low = _mm256_add_epi16(*word, bias);
                *word = _mm256_add_epi16(_mm256_slli_epi16::<8>(high), low);
            }
        }
        store_two(&mut part.words[WORDS - 1], words);
        if PLANES == 3 {
            store_two(&mut part.words[0], paired(&self.planes[0][g]));
        }
    }
}

/// A group's bytes as words, paired.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn paired(plane: &[u8; GROUP]) -> [__m256i; 2] {
    let order = _mm256_setr_epi8(
        0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14,
        13, 15,
    );
    let bytes = _mm256_shuffle_epi8(load_32(plane), order);
    let high = _mm256_extracti128_si256::<1>(bytes);
    [_mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes)), _mm256_cvtepi8_epi16(high)]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_two(dst: &mut [[i16; 16]; 2], words: [__m256i; 2]) {
    store_words(&mut dst[0], words[0]);
    store_words(&mut dst[1], words[1]);
}

/// Sums of 16 rows of one operand.
type Sums = [__m256i; 2];

/// Adds the products of 4 inputs of 16 rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_quad<const WORDS: usize>(sums: &mut [Sums; WORDS], codes: [__m256i; 4], part: &Part<WORDS>, q: usize) {
    for (sums, words) in sums.iter_mut().zip(&part.words) {
        let (pairs, _) = words.as_flattened().as_chunks::<2>();
        let (even, odd) = (splat_pair(pairs[2 * q]), splat_pair(pairs[2 * q + 1]));
        sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(codes[0], even));
        sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(codes[1], even));
        sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(codes[2], odd));
        sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(codes[3], odd));
    }
}

/// The scale step of a finished group; `shift` is −128 · Σ w.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn finish<const WORDS: usize>(
    sums: &[Sums; WORDS],
    shift: [__m256i; 2],
    d: [__m256; 2],
    xs: f32,
    acc: &mut [__m256; 2],
) {
    let xs = _mm256_set1_ps(xs);
    for half in 0..2 {
        let low = sums[WORDS - 1][half];
        let s = if WORDS == 1 {
            _mm256_cvtepi32_ps(low)
        } else {
            let low = _mm256_cvtepi32_ps(_mm256_add_epi32(low, shift[half]));
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[0][half]), _mm256_set1_ps(65536.0), low)
        };
        acc[half] = scale_step(s, d[half], xs, acc[half]);
    }
}

/// 4 codes of 16 rows in words: bytes 0 and 2 of rows 0–7, of rows 8–15, then bytes 1 and 3.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_quad(codes: &[u8; 64]) -> [__m256i; 4] {
    let (halves, _) = codes.as_chunks::<32>();
    let (low, high) = (load_32(&halves[0]), load_32(&halves[1]));
    let even = |bytes| _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes));
    [even(low), even(high), _mm256_srai_epi16::<8>(low), _mm256_srai_epi16::<8>(high)]
}

/// Adds 4 codes of each row to its two word lanes: at most 32 · 128 in all.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_codes(sums: &mut [__m256i; 2], codes: &[u8; 64]) {
    for (sum, codes) in sums.iter_mut().zip(codes.as_chunks::<32>().0) {
        *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(_mm256_set1_epi8(1), load_32(codes)));
    }
}

/// −128 · Σ w per row, from the word lanes of a group.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shift(sums: [__m256i; 2]) -> [__m256i; 2] {
    let factor = _mm256_set1_epi16(-128);
    [_mm256_madd_epi16(sums[0], factor), _mm256_madd_epi16(sums[1], factor)]
}

impl Panel {
    #[inline(always)]
    fn zeroed() -> Self {
        Self {
            codes: [[[[0; 16]; 4]; QUADS]; GROUPS],
            shifts: [[[0; 16]; 2]; GROUPS],
            scales: [[0.0; LANES]; GROUPS],
        }
    }

    /// Widens some groups of a block.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn widen(&mut self, block: &[u8], k: usize, groups: Range<usize>) {
        let (codes, _) =
            block[groups.start * GROUP_BYTES..groups.end * GROUP_BYTES].as_chunks::<GROUP_BYTES>();
        let (scales, _) = block[Packing::W8.payload_bytes(k)..].as_chunks::<{ 2 * LANES }>();
        for (g, (codes, scales)) in codes.iter().zip(&scales[groups.start..]).enumerate() {
            let mut sums = [_mm256_setzero_si256(); 2];
            for (words, codes) in self.codes[g].iter_mut().zip(codes.as_chunks::<64>().0) {
                add_codes(&mut sums, codes);
                for (words, wide) in words.iter_mut().zip(widen_quad(codes)) {
                    store_words(words, wide);
                }
            }
            store_two(&mut self.shifts[g], shift(sums));
            store_pair(&mut self.scales[g], widen_halves(scales));
        }
    }

    /// Adds the block's chunk times `T` tokens to rows `at` … of the tile.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn times<const WORDS: usize, const T: usize>(
        &self,
        groups: usize,
        parts: &[[Part<WORDS>; GROUPS]; T],
        y: &mut TileMut<'_>,
        at: usize,
    ) {
        let mut acc = [[_mm256_setzero_ps(); 2]; T];
        for (t, acc) in acc.iter_mut().enumerate() {
            with_lanes(y.row_mut(at + t), |lanes| *acc = load_pair(lanes));
            // Rows of a tile are far apart, often in the same set of the cache.
            if at + t + T < y.rows() {
                prefetch(y.row_mut(at + t + T), 0);
            }
        }
        // A count that the compiler does not see keeps this a loop: unrolled, it runs out of registers.
        let quads = black_box(QUADS);
        for g in 0..groups.min(GROUPS) {
            let mut sums = [[[_mm256_setzero_si256(); 2]; WORDS]; T];
            for (q, codes) in self.codes[g].iter().take(quads).enumerate() {
                let codes = [
                    load_words(&codes[0]),
                    load_words(&codes[1]),
                    load_words(&codes[2]),
                    load_words(&codes[3]),
                ];
                for (sums, parts) in sums.iter_mut().zip(parts) {
                    add_quad(sums, codes, &parts[g], q);
                }
            }
            let shift = [load_words(&self.shifts[g][0]), load_words(&self.shifts[g][1])];
            let d = load_pair(&self.scales[g]);
            for ((sums, parts), acc) in sums.iter().zip(parts).zip(&mut acc) {
                finish(sums, shift, d, parts[g].xs, acc);
            }
        }
        for (t, acc) in acc.iter().enumerate() {
            with_lanes(y.row_mut(at + t), |lanes| store_pair(lanes, *acc));
        }
    }
}

/// The matrix-vector product, codes widened in registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn one_token<const PLANES: usize, const WORDS: usize>(
    w: &[u8],
    k: usize,
    x: &FxRows<'_>,
    y: &mut TileMut<'_>,
) {
    let token = Token::<PLANES>::new(x, 0);
    let mut parts = [Part::<WORDS>::ZERO; SPAN];
    for from in (0..k / GROUP).step_by(SPAN) {
        let parts = &mut parts[..SPAN.min(k / GROUP - from)];
        for (g, part) in parts.iter_mut().enumerate() {
            token.part(from + g, part);
        }
        for (block, y) in w.chunks_exact(Packing::W8.block_bytes(k)).zip(y.row_mut(0).chunks_mut(LANES)) {
            with_lanes(y, |lanes| block_times_token(block, k, from, parts, lanes));
        }
    }
}

/// Adds the groups of one block from `from` on, as many as there are parts, times one token.
///
/// Codes are asked for a fixed way ahead; scales, which every block has at its end, one block ahead.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn block_times_token<const WORDS: usize>(
    block: &[u8],
    k: usize,
    from: usize,
    parts: &[Part<WORDS>],
    lanes: &mut [f32; LANES],
) {
    let codes = &block[from * GROUP_BYTES..Packing::W8.payload_bytes(k)];
    let scales = &block[Packing::W8.payload_bytes(k) + from * 2 * LANES..];
    let mut acc = load_pair(lanes);
    let (codes, _) = codes.as_chunks::<GROUP_BYTES>();
    let (scales, _) = scales.as_chunks::<{ 2 * LANES }>();
    // A count that the compiler does not see keeps this a loop: unrolled, it holds all broadcasts at once and spills.
    let quads = black_box(QUADS);
    for ((codes, scales), part) in codes.iter().zip(scales).zip(parts) {
        prefetch(scales, block.len());
        let mut sums = [[_mm256_setzero_si256(); 2]; WORDS];
        let mut of_codes = [_mm256_setzero_si256(); 2];
        for (q, codes) in codes.as_chunks::<64>().0.iter().take(quads).enumerate() {
            prefetch(codes, AHEAD);
            if WORDS == 2 {
                add_codes(&mut of_codes, codes);
            }
            add_quad(&mut sums, widen_quad(codes), part, q);
        }
        finish(&sums, shift(of_codes), widen_halves(scales), part.xs, &mut acc);
    }
    store_pair(lanes, acc);
}
