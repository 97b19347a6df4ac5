//! Bits to bytes: codes of a slice, and the scales of a chunk.

use std::arch::x86_64::{
    __m256i, _mm_cvtsi32_si128, _mm256_add_epi16, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_cvtepi8_epi16, _mm256_cvtepu8_epi16, _mm256_madd_epi16, _mm256_or_si256, _mm256_permute4x64_epi64,
    _mm256_set1_epi8, _mm256_set1_epi16, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_sll_epi16,
    _mm256_srl_epi16, _mm256_unpackhi_epi16, _mm256_unpacklo_epi16,
};

use waste_plan::units::{Codes, UnitScale};
use waste_plan::{FX_GROUP, LANES};

use super::{Format, SLICE, SLICES};
use crate::avx2::{load_16, load_32, load_words, prefetch, store_32, store_pair, store_words, widen_halves};
use crate::linear::units::portable::unit_scales;

/// How far ahead of a matrix-vector product its weights are asked for, in bytes.
const AHEAD: usize = 4096;

/// Asks for the bytes of chunk `chunk` of a block, as far ahead.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn prefetch_chunk<F: Format>(block: &[u8], chunk: usize) {
    let bytes = F::LAYOUT.bytes() * FX_GROUP / F::LAYOUT.inputs;
    let start = block.get(chunk * bytes..).unwrap_or(&[]);
    for line in (0..bytes).step_by(64) {
        prefetch(start, AHEAD + line);
    }
}

/// The unit of slice `s` of a chunk, and the slice's number in it.
#[inline(always)]
fn unit_of<F: Format>(block: &[u8], chunk: usize, s: usize) -> (&[u8], usize) {
    let input = chunk * FX_GROUP + s * SLICE;
    let bytes = F::LAYOUT.bytes();
    (&block[input / F::LAYOUT.inputs * bytes..][..bytes], input % F::LAYOUT.inputs / SLICE)
}

/// Line `i` of 64 bytes of a part of a unit.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn line(part: &[u8], i: usize) -> [__m256i; 2] {
    let (halves, _) = part[64 * i..][..64].as_chunks::<32>();
    [load_32(&halves[0]), load_32(&halves[1])]
}

/// What the codes of a slice are put together from.
pub(super) struct Lines {
    low: [[__m256i; 2]; 2],
    high: [__m256i; 2],
}

impl Lines {
    /// None.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn none() -> Self {
        Self { low: [[_mm256_setzero_si256(); 2]; 2], high: [_mm256_setzero_si256(); 2] }
    }
}

/// The lines of slice `s` of a chunk.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn lines<F: Format>(block: &[u8], chunk: usize, s: usize) -> Lines {
    let (unit, s) = unit_of::<F>(block, chunk, s);
    let low =
        if F::LAYOUT.low == 4 { [line(unit, 2 * s), line(unit, 2 * s + 1)] } else { [line(unit, s); 2] };
    let high = &unit[F::LAYOUT.high_at()..];
    let high = match F::LAYOUT.high {
        2 => line(high, s),
        1 => {
            let [first, second] = line(high, s / 2);
            let from = s % 2 * 4;
            [shift_right(first, from), shift_right(second, from)]
        }
        _ => [_mm256_setzero_si256(); 2],
    };
    Lines { low, high }
}

/// Quad `q` of a slice: codes without sign, or weights that fill a byte.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quad<F: Format>(lines: &Lines, q: usize) -> [__m256i; 2] {
    let (low, high) = (F::LAYOUT.low, F::LAYOUT.high);
    let mut quad = [_mm256_setzero_si256(); 2];
    for (half, quad) in quad.iter_mut().enumerate() {
        let line = lines.low[q * low / 8][half];
        *quad = _mm256_and_si256(shift_right(line, q * low % 8), _mm256_set1_epi8((1 << low) - 1));
        if high > 0 {
            // From bit q · high of a byte to the bit after the low ones.
            let (bits, from) = (lines.high[half], q * high);
            let lifted =
                if from < low { shift_left(bits, low - from) } else { shift_right(bits, from - low) };
            let mask = _mm256_set1_epi8(((1 << high) - 1) << low);
            *quad = _mm256_or_si256(*quad, _mm256_and_si256(lifted, mask));
        }
        if matches!(F::LAYOUT.codes, Codes::Table(_)) {
            *quad = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_16(&F::TABLE)), *quad);
        }
    }
    quad
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shift_right(v: __m256i, bits: usize) -> __m256i {
    _mm256_srl_epi16(v, _mm_cvtsi32_si128(bits as i32))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shift_left(v: __m256i, bits: usize) -> __m256i {
    _mm256_sll_epi16(v, _mm_cvtsi32_si128(bits as i32))
}

/// The scales of a chunk of one block.
pub(super) struct Scales {
    /// Integer scales of the groups, each in both lanes of its row.
    pairs: [[[i16; 16]; 2]; SLICES],
    /// Integer minima of two neighbouring groups, one in each lane.
    pub(super) minima: [[[i16; 16]; 2]; SLICES / 2],
    /// 2 · Σ s, as i32.
    base: [[u8; 32]; 2],
    /// Float scales and minima of the steps.
    pub(super) d: [[f32; LANES]; SLICES / 2],
    pub(super) m: [[f32; LANES]; SLICES / 2],
}

impl Scales {
    #[inline(always)]
    pub(super) const fn zeroed() -> Self {
        Self {
            pairs: [[[0; 16]; 2]; SLICES],
            minima: [[[0; 16]; 2]; SLICES / 2],
            base: [[0; 32]; 2],
            d: [[0.0; LANES]; SLICES / 2],
            m: [[0.0; LANES]; SLICES / 2],
        }
    }

    /// Reads those of chunk `chunk`, k inputs in all.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn read<F: Format>(&mut self, block: &[u8], k: usize, chunk: usize) {
        for step in 0..super::steps::<F>(k, chunk) {
            let (unit, _) = unit_of::<F>(block, chunk, step * F::STEP);
            match F::LAYOUT.scale {
                UnitScale::Half => store_pair(&mut self.d[step], sixteen_halves(&unit[F::LAYOUT.d_at()..])),
                UnitScale::Exponent => self.d[step] = unit_scales(&F::LAYOUT, unit),
            }
            if F::LAYOUT.minima {
                store_pair(&mut self.m[step], sixteen_halves(&unit[F::LAYOUT.m_at()..]));
            }
        }
        if F::LAYOUT.has_group_scales() {
            self.read_groups::<F>(block, chunk);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn read_groups<F: Format>(&mut self, block: &[u8], chunk: usize) {
        let (unit, slice) = unit_of::<F>(block, chunk, 0);
        let (groups, first) = (FX_GROUP / F::LAYOUT.group, slice * SLICE / F::LAYOUT.group);
        let rows = |at: usize| -> &[[u8; LANES]] { &unit[at..].as_chunks().0[first..][..groups] };
        let mut sum = _mm256_setzero_si256();
        for (pair, scales) in self.pairs.iter_mut().zip(rows(F::LAYOUT.scales_at())) {
            let words = words(scales, F::LAYOUT.signed);
            sum = _mm256_add_epi16(sum, words);
            interleave(words, words, pair);
        }
        if F::BIAS == 32 {
            let mut pair = [[0; 16]; 2];
            interleave(sum, sum, &mut pair);
            for (base, pair) in self.base.iter_mut().zip(&pair) {
                store_32(base, _mm256_madd_epi16(load_words(pair), _mm256_set1_epi16(1)));
            }
        }
        if F::LAYOUT.minima {
            for (pair, minima) in self.minima.iter_mut().zip(rows(F::LAYOUT.minima_at()).as_chunks::<2>().0) {
                interleave(words(&minima[0], false), words(&minima[1], false), pair);
            }
        }
    }

    /// The integer scale of slice `s` of 16 rows, in both lanes of a row.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn pair<F: Format>(&self, s: usize) -> [__m256i; 2] {
        if !F::LAYOUT.has_group_scales() {
            return [_mm256_set1_epi16(1); 2];
        }
        let [low, high] = &self.pairs[s * SLICE / F::LAYOUT.group];
        [load_words(low), load_words(high)]
    }

    /// What the i32 sums of 16 rows start from.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn base(&self) -> [__m256i; 2] {
        [load_32(&self.base[0]), load_32(&self.base[1])]
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sixteen_halves(bytes: &[u8]) -> [std::arch::x86_64::__m256; 2] {
    widen_halves(bytes.first_chunk().expect("a unit has 16 scales"))
}

/// 16 bytes as words, in the order of their rows but for the two middle quarters: what [`interleave`] takes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn words(bytes: &[u8; LANES], signed: bool) -> __m256i {
    let bytes = load_16(bytes);
    let words = if signed { _mm256_cvtepi8_epi16(bytes) } else { _mm256_cvtepu8_epi16(bytes) };
    _mm256_permute4x64_epi64::<0b11_01_10_00>(words)
}

/// The words of `a` in the first lanes of their rows, those of `b` in the second.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn interleave(a: __m256i, b: __m256i, rows: &mut [[i16; 16]; 2]) {
    store_words(&mut rows[0], _mm256_unpacklo_epi16(a, b));
    store_words(&mut rows[1], _mm256_unpackhi_epi16(a, b));
}

/// The unpacked codes and the scales of a chunk of one block.
pub(super) struct Panel {
    codes: [[[[u8; 32]; 2]; 4]; SLICES],
    pub(super) scales: Scales,
}

impl Panel {
    #[inline(always)]
    pub(super) const fn zeroed() -> Self {
        Self { codes: [[[[0; 32]; 2]; 4]; SLICES], scales: Scales::zeroed() }
    }

    /// Unpacks chunk `chunk` of a block.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn unpack<F: Format>(&mut self, block: &[u8], k: usize, chunk: usize) {
        self.scales.read::<F>(block, k, chunk);
        for s in 0..super::steps::<F>(k, chunk) * F::STEP {
            let lines = lines::<F>(block, chunk, s);
            for (q, dst) in self.codes[s].iter_mut().enumerate() {
                let [low, high] = quad::<F>(&lines, q);
                store_32(&mut dst[0], low);
                store_32(&mut dst[1], high);
            }
        }
    }

    /// Quad `q` of slice `s`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn quad(&self, s: usize, q: usize) -> [__m256i; 2] {
        let [low, high] = &self.codes[s][q];
        [load_32(low), load_32(high)]
    }
}
