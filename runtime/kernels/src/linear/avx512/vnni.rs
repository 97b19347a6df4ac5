//! All formats by `vpdpbusd`: unsigned codes times signed activation bytes, four products and a sum a lane.
//!
//! W8 is made unsigned by adding 128, W4 by not subtracting 8, and the plane sums start from what that adds, negated. All
//! exact: |Σ| ≤ 32 · 255 · 128 < 2^20 on the way. `T` tokens times two blocks are 24 registers of sums.

use std::arch::x86_64::{
    __m512i, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_si512, _mm512_xor_si512,
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
    ($($name:ident: $codes:ty, $lines:literal, $planes:literal;)+) => {
        /// Overlays the rows of this tier. The caller has the tier.
        pub(crate) fn install(table: &mut KernelTable) {
            $( table.$name = Entry { call: $name, isa: Isa::Vnni }; )+
        }
        $(#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
        pub(in crate::linear) fn $name(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
            linear::<$codes, $planes, $lines, { 12 / $planes }>(w, k, x, y);
        })+
    };
}

rows! {
    linear_w8_fixed24: W8, 8, 3;
    linear_w8_fixed16: W8, 8, 2;
    linear_w8_fixed8: W8, 8, 1;
    linear_w4_fixed24: W4, 4, 3;
    linear_w4_fixed16: W4, 4, 2;
    linear_w4_fixed8: W4, 4, 1;
    linear_w4m_fixed24: W4M, 4, 3;
    linear_w4m_fixed16: W4M, 4, 2;
    linear_w4m_fixed8: W4M, 4, 1;
}

walkers!(target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni"));

/// Adds the groups that the tokens have parts of.
///
/// Codes are asked for a fixed way ahead; scales and minima, which every block has at its end, two blocks ahead.
#[inline(never)]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add<C: Codes, const P: usize, const L: usize, const T: usize, const B: usize>(
    blocks: [Block<'_>; B],
    parts: Parts<'_, P>,
    y: &mut TileMut<'_>,
    at: usize,
) {
    let mut acc = loaded::<T, B>(y, at);
    // A count that the compiler does not see keeps this a loop: unrolled, it holds all broadcasts at once and spills.
    let lines = black_box(L);
    for g in 0..parts.groups {
        let parts = &parts.flat[g..][..(T - 1) * GROUPS + 1];
        let mut sums = [[[_mm512_setzero_si512(); B]; P]; T];
        for (t, sums) in sums.iter_mut().enumerate() {
            for (p, sums) in sums.iter_mut().enumerate() {
                *sums = [_mm512_set1_epi32(parts[t * GROUPS].start::<C>(p)); B];
            }
        }
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
            for half in 0..QUADS / L {
                let quad = line * (QUADS / L) % QUADS + half;
                for (t, sums) in sums.iter_mut().enumerate() {
                    for (sums, quads) in sums.iter_mut().zip(&parts[t * GROUPS].quads) {
                        let x = splat_16(quads[quad]);
                        for (sum, codes) in sums.iter_mut().zip(registers) {
                            *sum = _mm512_dpbusd_epi32(*sum, codes[half], x);
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
                let xs = _mm512_set1_ps(parts[t * GROUPS].xs);
                acc[b] = _mm512_fmadd_ps(recombine(of_block(sums, b)), _mm512_mul_ps(d, xs), acc[b]);
            }
            if matches!(C::PACKING, Packing::W4M) {
                add_minima(&block.minima[g], b, parts, &mut acc);
            }
        }
    }
    store(&acc, y, at);
}

/// The codes of a line, one or two quads of inputs, without sign.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn unsigned<C: Codes>(line: &[u8; 64]) -> [__m512i; 2] {
    let codes = load_64(line);
    if matches!(C::PACKING, Packing::W8) {
        return [_mm512_xor_si512(codes, _mm512_set1_epi8(-128)); 2];
    }
    nibbles(codes)
}

/// The plane sums of block `b`.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn of_block<const P: usize, const B: usize>(sums: &[[__m512i; B]; P], b: usize) -> [__m512i; P] {
    let mut res = [_mm512_setzero_si512(); P];
    for (res, sums) in res.iter_mut().zip(sums) {
        *res = sums[b];
    }
    res
}
