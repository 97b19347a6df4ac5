//! W4 and W4M: unsigned codes times signed activation bytes by `vpmaddubsw`.
//!
//! A register holds 4 inputs of 8 rows. Each product pair is at most 2 · 15 · 128 = 3840, so the 8 quads of a group
//! add up in i16 lanes (two a row, inputs 4j, 4j+1 and 4j+2, 4j+3): at most 30,720. W4's −8 is put in as the *start*
//! of those lanes, −8 times the sums of the group's two halves of 16: lane one then ends as
//! Σ (code − 8)·x over its 8 inputs of the first half, plus Σ code·x over its 8 of the second, minus 8·Σx over the
//! other lane's 8 of the first: at most 8·(8 + 15 + 8)·128 = 31,744, and lane two likewise. Sums that pass the limit
//! on the way wrap and come back.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256, _mm256_cvtepi32_ps,
    _mm256_fmadd_ps, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_srli_epi16,
};
use std::hint::black_box;
use std::ops::Range;

use waste_plan::{FX_GROUP, LANES, Packing};

use super::{AHEAD, scale_step};
use crate::avx2::{load_32, load_pair, prefetch, splat_4, store_32, store_pair, widen_halves, with_lanes};
use crate::linear::check;
use crate::linear::parts::{GROUPS, QUADS, SPAN, TOKENS, Token};
use crate::linear::portable::GROUP;
use crate::view::{FxRows, TileMut};

macro_rules! rows {
    ($($name:ident: $planes:literal, $with_minima:literal;)+) => {
        $(#[target_feature(enable = "avx2,fma,f16c")]
        pub(in crate::linear) fn $name(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
            linear::<$planes, { 6 / $planes }, $with_minima>(w, k, x, y);
        })+
    };
}

rows! {
    w4_fixed24: 3, false;
    w4_fixed16: 2, false;
    w4_fixed8: 1, false;
    w4m_fixed24: 3, true;
    w4m_fixed16: 2, true;
    w4m_fixed8: 1, true;
}

/// Bytes of a group's codes, 16 rows.
const GROUP_BYTES: usize = GROUP * LANES / 2;

/// One weight group's part of one token.
#[derive(Clone, Copy)]
struct Part<const PLANES: usize> {
    /// 4 inputs each, plane by plane.
    quads: [[[u8; 4]; QUADS]; PLANES],
    /// What the two i16 lanes of a row start from.
    start: [[u8; 4]; PLANES],
    z: f32,
    xs: f32,
}

/// The unpacked codes and scales of one block over a chunk.
struct Panel {
    codes: [[[[u8; 32]; 2]; QUADS]; GROUPS],
    scales: [[f32; LANES]; GROUPS],
    minima: [[f32; LANES]; GROUPS],
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn linear<const PLANES: usize, const T: usize, const MINIMA: bool>(
    w: &[u8],
    k: usize,
    x: &FxRows<'_>,
    y: &mut TileMut<'_>,
) {
    let packing = if MINIMA { Packing::W4M } else { Packing::W4 };
    check(packing, PLANES, w, k, x, y);
    for t in 0..y.rows() {
        y.row_mut(t).fill(0.0);
    }
    if y.rows() == 1 {
        return one_token::<PLANES, MINIMA>(packing, w, k, x, y);
    }
    let mut scratch = Scratch { parts: [[Part::ZERO; GROUPS]; TOKENS], panel: Panel::zeroed() };
    for from in (0..y.rows()).step_by(TOKENS) {
        let tokens = from..y.rows().min(from + TOKENS);
        for chunk in 0..k.div_ceil(FX_GROUP) {
            let groups = chunk * GROUPS..(k / GROUP).min((chunk + 1) * GROUPS);
            for (parts, t) in scratch.parts.iter_mut().zip(tokens.clone()) {
                let token = Token::<PLANES>::new(x, t);
                for (part, g) in parts.iter_mut().zip(groups.clone()) {
                    token.part::<MINIMA>(g, part);
                }
            }
            for (block, b) in w.chunks_exact(packing.block_bytes(k)).zip(0..y.cols().div_ceil(LANES)) {
                let cols = b * LANES..y.cols().min((b + 1) * LANES);
                scratch.panel.unpack::<MINIMA>(packing, block, k, groups.clone());
                scratch.times_block::<T, MINIMA>(groups.len(), &mut y.sub(tokens.clone(), cols));
            }
        }
    }
}

/// What the matrix product keeps of one chunk of inputs.
struct Scratch<const PLANES: usize> {
    parts: [[Part<PLANES>; GROUPS]; TOKENS],
    panel: Panel,
}

impl<const PLANES: usize> Scratch<PLANES> {
    /// Adds the panel's block times the tokens to a tile of theirs.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn times_block<const T: usize, const MINIMA: bool>(&self, groups: usize, y: &mut TileMut<'_>) {
        let (many, rest) = self.parts[..y.rows()].as_chunks::<T>();
        for (i, parts) in many.iter().enumerate() {
            self.panel.times::<PLANES, T, MINIMA>(groups, parts, y, i * T);
        }
        for (i, parts) in rest.as_chunks::<1>().0.iter().enumerate() {
            self.panel.times::<PLANES, 1, MINIMA>(groups, parts, y, many.len() * T + i);
        }
    }
}

impl<const PLANES: usize> Token<'_, PLANES> {
    /// The part of group `g`.
    #[inline(always)]
    fn part<const MINIMA: bool>(&self, g: usize, part: &mut Part<PLANES>) {
        for p in 0..PLANES {
            part.quads[p] = self.planes[p][g];
            if !MINIMA {
                let [low, high] = self.sums[p][g].map(|sum| (-8 * sum).to_le_bytes());
                part.start[p] = [low[0], low[1], high[0], high[1]];
            }
        }
        part.z = self.z[g];
        part.xs = self.xs[g / GROUPS];
    }
}

impl<const PLANES: usize> Part<PLANES> {
    const ZERO: Self = Self { quads: [[[0; 4]; QUADS]; PLANES], start: [[0; 4]; PLANES], z: 0.0, xs: 0.0 };
}

/// Plane sums of 16 rows: per plane and half, i16 lanes while a group lasts.
type Sums<const PLANES: usize> = [[__m256i; 2]; PLANES];

/// The start of a group's sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn start<const PLANES: usize>(part: &Part<PLANES>) -> Sums<PLANES> {
    std::array::from_fn(|p| [splat_4(part.start[p]); 2])
}

/// Adds the products of 4 inputs of 16 rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_quad<const PLANES: usize>(
    sums: &mut Sums<PLANES>,
    codes: [__m256i; 2],
    part: &Part<PLANES>,
    q: usize,
) {
    for (sums, quads) in sums.iter_mut().zip(&part.quads) {
        let x = splat_4(quads[q]);
        for (sum, codes) in sums.iter_mut().zip(codes) {
            *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(codes, x));
        }
    }
}

/// The scale step of a finished group, and the minima's.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn finish<const PLANES: usize, const MINIMA: bool>(
    sums: &Sums<PLANES>,
    part: &Part<PLANES>,
    d: [__m256; 2],
    m: [__m256; 2],
    acc: &mut [__m256; 2],
) {
    let xs = _mm256_set1_ps(part.xs);
    for half in 0..2 {
        let s = recombine::<PLANES>(std::array::from_fn(|p| sums[p][half]));
        acc[half] = scale_step(s, d[half], xs, acc[half]);
        if MINIMA {
            acc[half] = _mm256_fmadd_ps(_mm256_set1_ps(part.z), _mm256_mul_ps(m[half], xs), acc[half]);
        }
    }
}

/// The `s` of 8 rows: the two lower planes join exactly in i32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn recombine<const PLANES: usize>(sums: [__m256i; PLANES]) -> __m256 {
    let rows = |sum: __m256i| _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
    let mut low = rows(sums[PLANES - 1]);
    if PLANES > 1 {
        low = _mm256_add_epi32(low, _mm256_slli_epi32::<8>(rows(sums[PLANES - 2])));
    }
    let low = _mm256_cvtepi32_ps(low);
    if PLANES < 3 {
        return low;
    }
    _mm256_fmadd_ps(_mm256_cvtepi32_ps(rows(sums[0])), _mm256_set1_ps(65536.0), low)
}

/// Low and high nibbles of 8 rows: inputs 8j … 8j+3 and 8j+4 … 8j+7.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles(codes: __m256i) -> [__m256i; 2] {
    let mask = _mm256_set1_epi8(15);
    [_mm256_and_si256(codes, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(codes), mask)]
}

impl Panel {
    #[inline(always)]
    fn zeroed() -> Self {
        Self {
            codes: [[[[0; 32]; 2]; QUADS]; GROUPS],
            scales: [[0.0; LANES]; GROUPS],
            minima: [[0.0; LANES]; GROUPS],
        }
    }

    /// Unpacks some groups of a block.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn unpack<const MINIMA: bool>(&mut self, packing: Packing, block: &[u8], k: usize, groups: Range<usize>) {
        let from = groups.start;
        let (codes, _) = block[from * GROUP_BYTES..groups.end * GROUP_BYTES].as_chunks::<GROUP_BYTES>();
        let (scales, _) = block[packing.payload_bytes(k)..].as_chunks::<{ 2 * LANES }>();
        let (minima, _) = block[packing.minima_at(k)..].as_chunks::<{ 2 * LANES }>();
        for (g, codes) in codes.iter().enumerate() {
            for (pair, codes) in
                self.codes[g].as_chunks_mut::<2>().0.iter_mut().zip(codes.as_chunks::<64>().0)
            {
                for (half, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
                    let [low, high] = nibbles(load_32(codes));
                    store_32(&mut pair[0][half], low);
                    store_32(&mut pair[1][half], high);
                }
            }
            store_pair(&mut self.scales[g], widen_halves(&scales[from + g]));
            if MINIMA {
                store_pair(&mut self.minima[g], widen_halves(&minima[from + g]));
            }
        }
    }

    /// Adds the block's chunk times `T` tokens to rows `at` … of the tile.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn times<const PLANES: usize, const T: usize, const MINIMA: bool>(
        &self,
        groups: usize,
        parts: &[[Part<PLANES>; GROUPS]; T],
        y: &mut TileMut<'_>,
        at: usize,
    ) {
        let mut acc = [[_mm256_setzero_ps(); 2]; T];
        for (t, acc) in acc.iter_mut().enumerate() {
            with_lanes(y.row_mut(at + t), |lanes| *acc = load_pair(lanes));
        }
        for g in 0..groups.min(GROUPS) {
            let mut sums: [Sums<PLANES>; T] = std::array::from_fn(|t| start(&parts[t][g]));
            for q in 0..QUADS {
                let codes = self.codes[g][q].each_ref().map(|codes| load_32(codes));
                for (sums, parts) in sums.iter_mut().zip(parts) {
                    add_quad(sums, codes, &parts[g], q);
                }
            }
            let (d, m) = (load_pair(&self.scales[g]), load_pair(&self.minima[g]));
            for ((sums, parts), acc) in sums.iter().zip(parts).zip(&mut acc) {
                finish::<PLANES, MINIMA>(sums, &parts[g], d, m, acc);
            }
        }
        for (t, acc) in acc.iter().enumerate() {
            with_lanes(y.row_mut(at + t), |lanes| store_pair(lanes, *acc));
        }
    }
}

/// The matrix-vector product, codes unpacked in registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn one_token<const PLANES: usize, const MINIMA: bool>(
    packing: Packing,
    w: &[u8],
    k: usize,
    x: &FxRows<'_>,
    y: &mut TileMut<'_>,
) {
    let token = Token::<PLANES>::new(x, 0);
    let mut parts = [Part::ZERO; SPAN];
    for from in (0..k / GROUP).step_by(SPAN) {
        let parts = &mut parts[..SPAN.min(k / GROUP - from)];
        for (g, part) in parts.iter_mut().enumerate() {
            token.part::<MINIMA>(from + g, part);
        }
        for (block, y) in w.chunks_exact(packing.block_bytes(k)).zip(y.row_mut(0).chunks_mut(LANES)) {
            with_lanes(y, |lanes| block_times_token::<PLANES, MINIMA>(packing, block, k, from, parts, lanes));
        }
    }
}

/// Adds the groups of one block from `from` on, as many as there are parts, times one token.
///
/// Codes are asked for a fixed way ahead; scales and minima, which every block has at its end, one block ahead.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn block_times_token<const PLANES: usize, const MINIMA: bool>(
    packing: Packing,
    block: &[u8],
    k: usize,
    from: usize,
    parts: &[Part<PLANES>],
    lanes: &mut [f32; LANES],
) {
    let codes = &block[from * GROUP_BYTES..packing.payload_bytes(k)];
    let scales = &block[packing.payload_bytes(k) + from * 2 * LANES..];
    let minima = &block[packing.minima_at(k) + from * if MINIMA { 2 * LANES } else { 0 }..];
    let mut acc = load_pair(lanes);
    let (codes, _) = codes.as_chunks::<GROUP_BYTES>();
    let (scales, _) = scales.as_chunks::<{ 2 * LANES }>();
    let (minima, _) = minima.as_chunks::<{ 2 * LANES }>();
    // A count that the compiler does not see keeps this a loop: unrolled, it holds all broadcasts at once and spills.
    let octets = black_box(QUADS / 2);
    for (g, ((codes, scales), part)) in codes.iter().zip(scales).zip(parts).enumerate() {
        prefetch(scales, block.len());
        if MINIMA {
            prefetch(&minima[g], block.len());
        }
        let mut sums = start(part);
        for (j, codes) in codes.as_chunks::<64>().0.iter().take(octets).enumerate() {
            prefetch(codes, AHEAD);
            let (eights, _) = codes.as_chunks::<32>();
            let ([low_0, high_0], [low_1, high_1]) =
                (nibbles(load_32(&eights[0])), nibbles(load_32(&eights[1])));
            add_quad(&mut sums, [low_0, low_1], part, 2 * j);
            add_quad(&mut sums, [high_0, high_1], part, 2 * j + 1);
        }
        let m = if MINIMA { widen_halves(&minima[g]) } else { [_mm256_setzero_ps(); 2] };
        finish::<PLANES, MINIMA>(&sums, part, widen_halves(scales), m, &mut acc);
    }
    store_pair(lanes, acc);
}
