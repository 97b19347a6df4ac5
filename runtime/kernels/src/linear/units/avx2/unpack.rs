//! Bits to bytes: codes of a slice, and the scales of a chunk.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_cvtsi32_si128, _mm256_add_epi16, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_cvtepi8_epi16, _mm256_cvtepu8_epi16, _mm256_madd_epi16, _mm256_or_si256, _mm256_permute4x64_epi64,
    _mm256_set1_epi8, _mm256_set1_epi16, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi16,
    _mm256_srl_epi16, _mm256_srli_epi16, _mm256_unpackhi_epi16, _mm256_unpacklo_epi16,
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

/// The four quads of slice `s` of a chunk: codes without sign, or weights that fill a byte.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quads<F: Format>(block: &[u8], chunk: usize, s: usize) -> [[__m256i; 2]; 4] {
    let (unit, s) = unit_of::<F>(block, chunk, s);
    let mut quads = [[_mm256_setzero_si256(); 2]; 4];
    if F::LAYOUT.low == 4 {
        let (first, second) = (line(unit, 2 * s), line(unit, 2 * s + 1));
        let mask = _mm256_set1_epi8(15);
        for half in 0..2 {
            quads[0][half] = _mm256_and_si256(first[half], mask);
            quads[1][half] = _mm256_and_si256(_mm256_srli_epi16::<4>(first[half]), mask);
            quads[2][half] = _mm256_and_si256(second[half], mask);
            quads[3][half] = _mm256_and_si256(_mm256_srli_epi16::<4>(second[half]), mask);
        }
    } else {
        let (codes, mask) = (line(unit, s), _mm256_set1_epi8(3));
        for half in 0..2 {
            quads[0][half] = _mm256_and_si256(codes[half], mask);
            quads[1][half] = _mm256_and_si256(_mm256_srli_epi16::<2>(codes[half]), mask);
            quads[2][half] = _mm256_and_si256(_mm256_srli_epi16::<4>(codes[half]), mask);
            quads[3][half] = _mm256_and_si256(_mm256_srli_epi16::<6>(codes[half]), mask);
        }
    }
    let high = &unit[F::LAYOUT.high_at()..];
    match F::LAYOUT.high {
        2 => {
            let bits = line(high, s);
            for half in 0..2 {
                let lifted = two_bits_to_four(bits[half]);
                for (quad, lifted) in quads.iter_mut().zip(lifted) {
                    quad[half] = _mm256_or_si256(quad[half], lifted);
                }
            }
        }
        1 => {
            let bits = line(high, s / 2);
            let odd = _mm_cvtsi32_si128(if s % 2 == 0 { 0 } else { 4 });
            for half in 0..2 {
                let lifted = one_bit_to(F::LAYOUT.low, bits[half], odd);
                for (quad, lifted) in quads.iter_mut().zip(lifted) {
                    quad[half] = _mm256_or_si256(quad[half], lifted);
                }
            }
        }
        _ => {}
    }
    if let Codes::Table(table) = F::LAYOUT.codes {
        let bias = F::BIAS.to_le_bytes()[0].cast_signed();
        let table = table.map(|it| (it + bias).cast_unsigned());
        let table = _mm256_broadcastsi128_si256(load_16(&table));
        for quad in quads.as_flattened_mut() {
            *quad = _mm256_shuffle_epi8(table, *quad);
        }
    }
    quads
}

/// The two bits of each quad of a byte, as its bits 4 and 5.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn two_bits_to_four(bits: __m256i) -> [__m256i; 4] {
    [_mm256_slli_epi16::<4>(bits), _mm256_slli_epi16::<2>(bits), bits, _mm256_srli_epi16::<2>(bits)]
        .map(|it| _mm256_and_si256(it, _mm256_set1_epi8(0x30)))
}

/// Four bits of each byte from bit `from` on, each as bit `to` (4 or 2) of its quad's.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn one_bit_to(to: usize, bits: __m256i, from: __m128i) -> [__m256i; 4] {
    let bits = _mm256_srl_epi16(bits, from);
    let lifted = if to == 4 {
        [
            _mm256_slli_epi16::<4>(bits),
            _mm256_slli_epi16::<3>(bits),
            _mm256_slli_epi16::<2>(bits),
            _mm256_slli_epi16::<1>(bits),
        ]
    } else {
        [_mm256_slli_epi16::<2>(bits), _mm256_slli_epi16::<1>(bits), bits, _mm256_srli_epi16::<1>(bits)]
    };
    let mask = _mm256_set1_epi8(if to == 4 { 0x10 } else { 0x04 });
    lifted.map(|it| _mm256_and_si256(it, mask))
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

    /// The integer scale of slice `s` of 16 rows; `None` where it is 1.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn pair<F: Format>(&self, s: usize) -> Option<[__m256i; 2]> {
        if !F::LAYOUT.has_group_scales() {
            return None;
        }
        let [low, high] = &self.pairs[s * SLICE / F::LAYOUT.group];
        Some([load_words(low), load_words(high)])
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
            let quads = quads::<F>(block, chunk, s);
            for (dst, src) in self.codes[s].as_flattened_mut().iter_mut().zip(quads.as_flattened()) {
                store_32(dst, *src);
            }
        }
    }

    /// The quads of slice `s`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn quads(&self, s: usize) -> [[__m256i; 2]; 4] {
        self.codes[s].each_ref().map(|quad| quad.each_ref().map(|half| load_32(half)))
    }
}
