//! W8: signed bytes widened to i16, times activations in i16 by `vpmaddwd`.
//!
//! Two byte planes are one i16 operand: fixed16 is q itself (|q| ≤ 32,639), and fixed24 is h next to b = 256·m + l +
//! 128, which runs from −32,768 to 32,767 and so just fits; Σ w·(256·m + l) = Σ w·b − 128·Σ w. All exact:
//! |Σ w·b| ≤ 32 · 2^7 · 2^15 = 2^27, and f32(256·M + L) is what the definition makes of M and L (its module).
//!
//! A register holds 4 inputs of 4 rows; a row's two i32 lanes are joined at the end of a group. Four registers are
//! rows 0–3, 4–7, 8–11, 12–15; joining two of them gives rows 0 1 4 5 2 3 6 7, the order of all f32 registers here
//! ("crossed"): scales are loaded that way, and accumulators cross when they are loaded and stored.

use std::arch::x86_64::{
    __m256, __m256i, _mm_shuffle_epi32, _mm256_add_epi16, _mm256_add_epi32, _mm256_castpd_ps,
    _mm256_castps_pd, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_cvtepi8_epi16, _mm256_cvtepi32_ps,
    _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_permute4x64_epi64,
    _mm256_permute4x64_pd, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_shuffle_ps,
};
use std::hint::black_box;
use std::ops::Range;

use waste_plan::{FX_GROUP, LANES, Packing};

use super::{AHEAD, TOKENS, scale_step};
use crate::avx2::{
    load_16, load_32, load_pair, load_words, prefetch, splat_words, store_pair, store_words, with_lanes,
};
use crate::linear::check;
use crate::linear::portable::GROUP;
use crate::view::{FxRows, TileMut};

/// Weight groups in a chunk of inputs.
const GROUPS: usize = FX_GROUP / GROUP;
/// Bytes of a group's codes, 16 rows.
const GROUP_BYTES: usize = GROUP * LANES;
/// Quads of inputs in a group.
const QUADS: usize = GROUP / 4;
/// The order of f32 registers, as 64-bit pairs of rows; its own inverse.
const CROSSED: i32 = 0b11_01_10_00;

macro_rules! rows {
    ($($name:ident: $planes:literal, $words:literal, $tokens:literal;)+) => {
        $(#[target_feature(enable = "avx2,fma,f16c")]
        pub(in crate::linear) fn $name(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
            linear::<$planes, $words, $tokens>(w, k, x, y);
        })+
    };
}

rows! {
    fixed24: 3, 2, 1;
    fixed16: 2, 1, 2;
    fixed8: 1, 1, 2;
}

/// One weight group's part of one token, in i16 operands.
#[derive(Clone, Copy)]
struct Part<const WORDS: usize> {
    words: [[i16; GROUP]; WORDS],
    xs: f32,
}

/// The widened codes and the scales of one block over a chunk.
struct Panel {
    codes: [[[[i16; 16]; 4]; QUADS]; GROUPS],
    /// −128 · Σ w per row, crossed.
    shifts: [[[i16; 16]; 2]; GROUPS],
    /// Crossed.
    scales: [[f32; LANES]; GROUPS],
}

/// What the matrix product keeps of one chunk of inputs.
struct Scratch<const WORDS: usize> {
    parts: [[Part<WORDS>; GROUPS]; TOKENS],
    panel: Panel,
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
    let mut scratch = Scratch { parts: [[Part::<WORDS>::ZERO; GROUPS]; TOKENS], panel: Panel::zeroed() };
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
    const ZERO: Self = Self { words: [[0; GROUP]; WORDS], xs: 0.0 };
}

/// The rows of one token.
struct Token<'a, const PLANES: usize> {
    planes: [&'a [[i8; GROUP]]; PLANES],
    xs: &'a [f32],
}

impl<'a, const PLANES: usize> Token<'a, PLANES> {
    #[inline(always)]
    fn new(x: &FxRows<'a>, t: usize) -> Self {
        Self { planes: std::array::from_fn(|p| x.plane(t, p).as_chunks().0), xs: x.xs(t) }
    }

    /// The part of group `g`: the operands that the module names, highest first.
    #[inline(always)]
    fn part<const WORDS: usize>(&self, g: usize, part: &mut Part<WORDS>) {
        part.xs = self.xs[g / GROUPS];
        let low = self.planes[PLANES - 1][g];
        let words = &mut part.words[WORDS - 1];
        if PLANES == 1 {
            *words = low.map(i16::from);
        } else {
            // 256·m + l + 128 is in range; without the 128 it is for fixed16 only, where nothing can wrap.
            let bias = if PLANES == 3 { 128 } else { 0 };
            for ((word, l), m) in words.iter_mut().zip(low).zip(self.planes[PLANES - 2][g]) {
                *word = (i16::from(m) << 8).wrapping_add(i16::from(l) + bias);
            }
        }
        if PLANES == 3 {
            part.words[0] = self.planes[0][g].map(i16::from);
        }
    }
}

/// Sums of 16 rows of one operand: 4 rows a register, two i32 lanes each.
type Sums = [__m256i; 4];

/// Adds the products of 4 inputs of 16 rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_quad<const WORDS: usize>(sums: &mut [Sums; WORDS], codes: [__m256i; 4], part: &Part<WORDS>, q: usize) {
    for (sums, words) in sums.iter_mut().zip(&part.words) {
        let x = splat_words(&words.as_chunks::<4>().0[q]);
        for (sum, codes) in sums.iter_mut().zip(codes) {
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(codes, x));
        }
    }
}

/// The scale step of a finished group; `shift` is −128 · Σ w, crossed like everything here.
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
        let joined = |sums: &Sums| join(sums[2 * half], sums[2 * half + 1]);
        let low = joined(&sums[WORDS - 1]);
        let s = if WORDS == 1 {
            _mm256_cvtepi32_ps(low)
        } else {
            let low = _mm256_cvtepi32_ps(_mm256_add_epi32(low, shift[half]));
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(joined(&sums[0])), _mm256_set1_ps(65536.0), low)
        };
        acc[half] = scale_step(s, d[half], xs, acc[half]);
    }
}

/// The sums of 8 rows, crossed, from two lanes each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn join(a: __m256i, b: __m256i) -> __m256i {
    let (a, b) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
    let even = _mm256_castps_si256(_mm256_shuffle_ps::<0x88>(a, b));
    let odd = _mm256_castps_si256(_mm256_shuffle_ps::<0xdd>(a, b));
    _mm256_add_epi32(even, odd)
}

/// 16 codes of 4 rows each, in words.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_quad(codes: &[u8; 64]) -> [__m256i; 4] {
    let (quarters, _) = codes.as_chunks::<16>();
    std::array::from_fn(|i| _mm256_cvtepi8_epi16(load_16(&quarters[i])))
}

/// Adds 4 codes of each row to its two word lanes: at most 32 · 128 in all.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_codes(sums: &mut [__m256i; 2], codes: &[u8; 64]) {
    for (sum, codes) in sums.iter_mut().zip(codes.as_chunks::<32>().0) {
        *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(_mm256_set1_epi8(1), load_32(codes)));
    }
}

/// −128 · Σ w per row, crossed, from the word lanes of a group.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shift(sums: [__m256i; 2]) -> [__m256i; 2] {
    sums.map(|sum| _mm256_permute4x64_epi64::<CROSSED>(_mm256_madd_epi16(sum, _mm256_set1_epi16(-128))))
}

/// 16 scales, crossed.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn crossed_scales(src: &[u8; 2 * LANES]) -> [__m256; 2] {
    let (parts, _) = src.as_chunks::<16>();
    std::array::from_fn(|i| _mm256_cvtph_ps(_mm_shuffle_epi32::<CROSSED>(load_16(&parts[i]))))
}

/// Crosses accumulators, or uncrosses them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn cross(acc: [__m256; 2]) -> [__m256; 2] {
    acc.map(|acc| _mm256_castpd_ps(_mm256_permute4x64_pd::<CROSSED>(_mm256_castps_pd(acc))))
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
            for (words, shift) in self.shifts[g].iter_mut().zip(shift(sums)) {
                store_words(words, shift);
            }
            store_pair(&mut self.scales[g], crossed_scales(scales));
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
            with_lanes(y.row_mut(at + t), |lanes| *acc = cross(load_pair(lanes)));
        }
        // A count that the compiler does not see keeps this a loop: unrolled, it runs out of registers.
        let quads = black_box(QUADS);
        for g in 0..groups.min(GROUPS) {
            let mut sums = [[[_mm256_setzero_si256(); 4]; WORDS]; T];
            for (q, codes) in self.codes[g].iter().take(quads).enumerate() {
                let codes = codes.each_ref().map(|codes| load_words(codes));
                for (sums, parts) in sums.iter_mut().zip(parts) {
                    add_quad(sums, codes, &parts[g], q);
                }
            }
            let shift = self.shifts[g].each_ref().map(|shift| load_words(shift));
            let d = load_pair(&self.scales[g]);
            for ((sums, parts), acc) in sums.iter().zip(parts).zip(&mut acc) {
                finish(sums, shift, d, parts[g].xs, acc);
            }
        }
        for (t, acc) in acc.iter().enumerate() {
            with_lanes(y.row_mut(at + t), |lanes| store_pair(lanes, cross(*acc)));
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
    /// Groups whose parts are laid out at once: 2048 inputs.
    const SPAN: usize = 64;
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
    let mut acc = cross(load_pair(lanes));
    let (codes, _) = codes.as_chunks::<GROUP_BYTES>();
    let (scales, _) = scales.as_chunks::<{ 2 * LANES }>();
    // A count that the compiler does not see keeps this a loop: unrolled, it holds all broadcasts at once and spills.
    let quads = black_box(QUADS);
    for ((codes, scales), part) in codes.iter().zip(scales).zip(parts) {
        prefetch(scales, block.len());
        let mut sums = [[_mm256_setzero_si256(); 4]; WORDS];
        let mut of_codes = [_mm256_setzero_si256(); 2];
        for (q, codes) in codes.as_chunks::<64>().0.iter().take(quads).enumerate() {
            prefetch(codes, AHEAD);
            if WORDS == 2 {
                add_codes(&mut of_codes, codes);
            }
            add_quad(&mut sums, widen_quad(codes), part, q);
        }
        finish(&sums, shift(of_codes), crossed_scales(scales), part.xs, &mut acc);
    }
    store_pair(lanes, cross(acc));
}
