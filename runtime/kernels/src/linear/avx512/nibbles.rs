//! All formats by `vpmaddubsw`, for processors without VNNI: nibbles times signed activation bytes.
//!
//! A product pair is at most 2 · 15 · 128 = 3840, so the 8 quads of a group add up in i16 lanes, two a row: at most
//! 30,720. The codes of W8, made unsigned by adding 128, are two nibbles each, with sums of their own, so that a row is
//! Σ low + 16 · Σ high. `T` tokens times two blocks are 24 registers of sums.

use std::arch::x86_64::{
    __m512i, _mm512_add_epi16, _mm512_add_epi32, _mm512_fmadd_ps, _mm512_madd_epi16, _mm512_maddubs_epi16,
    _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi16, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_si512, _mm512_xor_si512,
};
use std::hint::black_box;

use waste_plan::{FX_GROUP, LANES, Packing};

use super::{AHEAD, Block, Parts, add_minima, loaded, nibbles, recombine, store, walkers};
use crate::avx2::prefetch;
use crate::avx512::{load_64, splat_16, widen_16};
use crate::cpu::Isa;
use crate::linear::check;
use crate::linear::parts::{GROUPS, Part, QUADS, SPAN, TOKENS, Token};
use crate::linear::portable::{Codes, GROUP, W4, W4M, W8};
use crate::table::{Entry, KernelTable};
use crate::view::{FxRows, TileMut};

macro_rules! rows {
    ($($name:ident: $codes:ty, $lines:literal, $planes:literal, $tokens:literal;)+) => {
        /// Overlays the rows of this tier. The caller has the tier.
        pub(crate) fn install(table: &mut KernelTable) {
            $( table.$name = Entry { call: $name, isa: Isa::Avx512 }; )+
        }
        $(#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
        fn $name(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
            linear::<$codes, $planes, $lines, $tokens>(w, k, x, y);
        })+
    };
}

rows! {
    linear_w8_fixed24: W8, 8, 3, 2;
    linear_w8_fixed16: W8, 8, 2, 3;
    linear_w8_fixed8: W8, 8, 1, 6;
    linear_w4_fixed24: W4, 4, 3, 4;
    linear_w4_fixed16: W4, 4, 2, 6;
    linear_w4_fixed8: W4, 4, 1, 12;
    linear_w4m_fixed24: W4M, 4, 3, 4;
    linear_w4m_fixed16: W4M, 4, 2, 6;
    linear_w4m_fixed8: W4M, 4, 1, 12;
}

walkers!(target_feature(enable = "avx512bw,avx512dq,avx512vl"));

/// Sums of a block's rows in i16 lanes; the second one is that of W8's high nibbles.
type Sums = [__m512i; 2];

/// Adds the groups that the tokens have parts of.
///
/// Codes are asked for a fixed way ahead; scales and minima, which every block has at its end, two blocks ahead.
#[inline(never)]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn add<C: Codes, const P: usize, const L: usize, const T: usize, const B: usize>(
    blocks: [Block<'_>; B],
    parts: Parts<'_, P>,
    y: &mut TileMut<'_>,
    at: usize,
) {
    let is_w8 = matches!(C::PACKING, Packing::W8);
    let mut acc = loaded::<T, B>(y, at);
    // A count that the compiler does not see keeps this a loop: unrolled, it holds all broadcasts at once and spills.
    let lines = black_box(L);
    for g in 0..parts.groups {
        let parts = &parts.flat[g..][..(T - 1) * GROUPS + 1];
        let mut sums = [[[[_mm512_setzero_si512(); 2]; B]; P]; T];
        let mut codes = [&[][..]; B];
        for (codes, block) in codes.iter_mut().zip(blocks) {
            *codes = &block.codes[g * L..][..lines];
        }
        for line in 0..lines {
            let mut registers = [[_mm512_setzero_si512(); 2]; B];
            for (registers, codes) in registers.iter_mut().zip(codes) {
                *registers = unsigned::<C>(&codes[line]);
                if T == 1 {
                    prefetch(&codes[line], AHEAD);
                }
            }
            for half in 0..2 {
                let (quad, of_half) = if is_w8 { (line % QUADS, half) } else { (line * 2 % QUADS + half, 0) };
                for (t, sums) in sums.iter_mut().enumerate() {
                    for (sums, quads) in sums.iter_mut().zip(&parts[t * GROUPS].quads) {
                        let x = splat_16(quads[quad]);
                        for (sum, codes) in sums.iter_mut().zip(registers) {
                            let products = _mm512_maddubs_epi16(codes[half], x);
                            sum[of_half] = _mm512_add_epi16(sum[of_half], products);
                        }
                    }
                }
            }
        }
        for (b, block) in blocks.iter().enumerate() {
            if T == 1 {
                prefetch(&block.scales[g], 2 * block.bytes);
            }
            let d = widen_16(&block.scales[g]);
            for (t, (sums, acc)) in sums.iter().zip(&mut acc).enumerate() {
                let mut planes = [_mm512_setzero_si512(); P];
                for (p, (plane, sums)) in planes.iter_mut().zip(sums).enumerate() {
                    *plane = rows::<C>(sums[b], parts[t * GROUPS].start::<C>(p));
                }
                let xs = _mm512_set1_ps(parts[t * GROUPS].xs);
                acc[b] = _mm512_fmadd_ps(recombine(planes), _mm512_mul_ps(d, xs), acc[b]);
            }
            if matches!(C::PACKING, Packing::W4M) {
                add_minima(&block.minima[g], b, parts, &mut acc);
            }
        }
    }
    store(&acc, y, at);
}

/// Two registers of nibbles: those of W8's codes made unsigned, or two quads of inputs.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn unsigned<C: Codes>(line: &[u8; 64]) -> [__m512i; 2] {
    let codes = load_64(line);
    let is_w8 = matches!(C::PACKING, Packing::W8);
    nibbles(if is_w8 { _mm512_xor_si512(codes, _mm512_set1_epi8(-128)) } else { codes })
}

/// The plane sums of 16 rows, with what they start from.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn rows<C: Codes>(sums: Sums, start: i32) -> __m512i {
    let low = _mm512_madd_epi16(sums[0], _mm512_set1_epi16(1));
    let sum = _mm512_add_epi32(low, _mm512_set1_epi32(start));
    if matches!(C::PACKING, Packing::W8) {
        return _mm512_add_epi32(sum, _mm512_madd_epi16(sums[1], _mm512_set1_epi16(16)));
    }
    sum
}
