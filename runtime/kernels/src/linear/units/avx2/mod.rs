//! AVX2 twins of the linears over units.
//!
//! Inputs go in chunks of one activation group (128), eight *slices* of 16. A slice of codes is four quads of inputs, each two registers:
//! 4 inputs of 8 rows, as they stand in memory. The tokens' part of a chunk is laid out once; one token reads codes straight from the
//! packed bytes, several read them from a [`Panel`] that a chunk of a block is unpacked to. Accumulators live in the tile between chunks
//! and steps ascend, so each output sees the order of the definition.
//!
//! Small codes are unsigned (at most 63) and multiplied by `vpmaddubsw`; products add up in i16 lanes, two a row (inputs 4j, 4j + 1 and
//! 4j + 2, 4j + 3), for a *run* of one slice, or two where 16 · 15 · 128 = 30,720 allows it. `vpmaddwd` with the group's scale in both lanes
//! then makes the row's i32. What a format subtracts from its codes is put in where it is exact:
//!
//! - `K3` (−4): as the start of lane one, −4 · Σx of the slice: |lane| ≤ 8 · 7 · 128 + 16 · 4 · 128 = 15,360;
//! - `K6` (−32): as the start of both lanes, −32 · Σx of the lane's own inputs − 1. A lane ends as Σ (c − 32)·x − 1 over 8 inputs, from
//!   −8 · 32 · 127 − 1 to 8 · 32 · 128 − 1 = 32,767; sums that pass the limit on the way wrap and come back. Two lanes are 2 too little, so
//!   the i32 sums start from 2 · Σ s;
//! - `W5` (−16) and `W4E` (−12; its table gives the weight plus 12): scales are 1, so the i32 sums start from −16 or −12 · Σx of the step.
//!
//! Weights of IQ4's table fill a byte: `vpmaddubsw` of |x| (unsigned, 128 included) and the weight with the sign of x; a pair of products is at
//! most 2 · 128 · 127 = 32,512, and `vpmaddwd` with the scale follows at once.

mod float;
mod parts;
mod unpack;

use std::arch::x86_64::{
    __m256, __m256i, _mm256_abs_epi8, _mm256_add_epi16, _mm256_add_epi32, _mm256_cvtepi32_ps,
    _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_sign_epi8,
};
use std::hint::black_box;

use waste_plan::units::Codes;
use waste_plan::{FX_GROUP, LANES, Packing, UnitLayout};

use super::check;
use crate::avx2::{load_pair, load_words, splat_4, store_pair, with_lanes};
use crate::cpu::Isa;
use crate::table::{Entry, KernelTable};
use crate::view::{FxRows, RowsF32, TileMut};
use parts::Part;
use unpack::{Lines, Panel, Scales, lines, prefetch_chunk, quad};

/// Inputs of a slice.
const SLICE: usize = 16;
/// Slices in a chunk of inputs.
const SLICES: usize = FX_GROUP / SLICE;
/// Tokens whose part of a chunk is laid out at once.
const TOKENS: usize = 32;
/// Chunks of a single token that are laid out at once: 2048 inputs.
const SPAN: usize = 16;

/// A packing as a type.
trait Format {
    const PACKING: Packing;
    const LAYOUT: UnitLayout = match Self::PACKING.units() {
        Some(layout) => layout,
        None => panic!("a packing in units"),
    };
    /// Slices of a step.
    const STEP: usize = Self::LAYOUT.step() / SLICE;
    /// Whether the weights fill a byte.
    const WIDE: bool = matches!(Self::PACKING, Packing::W4T | Packing::K4T);
    /// Slices whose products add up in i16 lanes.
    const RUN: usize = if matches!(Self::PACKING, Packing::K4) { 2 } else { 1 };
    /// What the codes, as multiplied, have too much.
    const BIAS: i16 = match Self::LAYOUT.codes {
        Codes::Minus(bias) => bias as i16,
        Codes::Table(_) if Self::WIDE => 0,
        Codes::Table(_) => 12,
    };
    /// The table of the codes' weights, plus the bias; zeros where there is none.
    const TABLE: [u8; 16] = {
        let mut biased = [0; 16];
        if let Codes::Table(table) = Self::LAYOUT.codes {
            let mut i = 0;
            while i < table.len() {
                biased[i] = (table[i] + Self::BIAS as i8).cast_unsigned();
                i += 1;
            }
        }
        biased
    };
}

macro_rules! formats {
    ($($name:ident),+) => {
        $(struct $name;
        impl Format for $name {
            const PACKING: Packing = Packing::$name;
        })+

        #[target_feature(enable = "avx2,fma,f16c")]
        fn linear_units_f32(packing: Packing, w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>) {
            assert_eq!(x.cols(), k, "inputs of the activations");
            check(packing, w, k, x.rows(), y);
            match packing {
                $(Packing::$name => float::linear::<$name>(w, k, x, y),)+
                _ => unreachable!("the rows have looked"),
            }
        }

        /// The product for every packing.
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn any<const P: usize, const T: usize>(
            packing: Packing,
            w: &[u8],
            k: usize,
            x: &FxRows<'_>,
            y: &mut TileMut<'_>,
        ) {
            match packing {
                $(Packing::$name => linear::<$name, P, T>(w, k, x, y),)+
                _ => unreachable!("the rows have looked"),
            }
        }
    };
}

formats!(W5, W5M, W4T, W4E, K2, K3, K4, K5, K6, K4T);

macro_rules! rows {
    ($($name:ident: $planes:literal;)+) => {
        /// Overlays the rows of this tier. The caller has the tier.
        pub(crate) fn install(table: &mut KernelTable) {
            table.linear_units_f32 = Entry { call: linear_units_f32, isa: Isa::Avx2 };
            $( table.$name = Entry { call: $name, isa: Isa::Avx2 }; )+
        }
        $(#[target_feature(enable = "avx2,fma,f16c")]
        fn $name(packing: Packing, w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
            assert_eq!((x.n(), x.layout().planes), (k, $planes), "inputs and planes of the activations");
            check(packing, w, k, x.rows(), y);
            any::<$planes, { 6 / $planes }>(packing, w, k, x, y);
        })+
    };
}

rows! {
    linear_units_fixed24: 3;
    linear_units_fixed16: 2;
    linear_units_fixed8: 1;
}

/// i32 sums of 16 rows, plane by plane.
type Totals<const P: usize> = [[__m256i; 2]; P];

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn linear<F: Format, const P: usize, const T: usize>(
    w: &[u8],
    k: usize,
    x: &FxRows<'_>,
    y: &mut TileMut<'_>,
) {
    for t in 0..y.rows() {
        y.row_mut(t).fill(0.0);
    }
    if y.rows() == 1 {
        return one_token::<F, P>(w, k, x, y);
    }
    let (mut parts, mut panel) = ([Part::<P>::ZERO; TOKENS], Panel::zeroed());
    for from in (0..y.rows()).step_by(TOKENS) {
        let tokens = from..y.rows().min(from + TOKENS);
        for chunk in 0..k.div_ceil(FX_GROUP) {
            for (part, t) in parts.iter_mut().zip(tokens.clone()) {
                part.lay_out::<F>(x, t, chunk);
            }
            for (block, b) in w.chunks_exact(F::PACKING.block_bytes(k)).zip(0..y.cols().div_ceil(LANES)) {
                let cols = b * LANES..y.cols().min((b + 1) * LANES);
                let y = &mut y.sub(tokens.clone(), cols);
                let (many, rest) = parts[..tokens.len()].as_chunks::<T>();
                panel.unpack::<F>(block, k, chunk);
                for (i, parts) in many.iter().enumerate() {
                    some_tokens::<F, P, T>(&panel, steps::<F>(k, chunk), parts, y, i * T);
                }
                for (i, part) in rest.iter().enumerate() {
                    with_lanes(y.row_mut(many.len() * T + i), |lanes| {
                        let part = std::slice::from_ref(part);
                        block_times_token::<F, P>(block, k, chunk, part, &mut panel.scales, lanes);
                    });
                }
            }
        }
    }
}

/// Steps of a chunk.
#[inline(always)]
fn steps<F: Format>(k: usize, chunk: usize) -> usize {
    (k - chunk * FX_GROUP).min(FX_GROUP) / (F::STEP * SLICE)
}

/// Adds the panel's block times `T` tokens to rows `at` … of a tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn some_tokens<F: Format, const P: usize, const T: usize>(
    panel: &Panel,
    steps: usize,
    parts: &[Part<P>; T],
    y: &mut TileMut<'_>,
    at: usize,
) {
    let mut acc = [[_mm256_setzero_ps(); 2]; T];
    for (t, acc) in acc.iter_mut().enumerate() {
        with_lanes(y.row_mut(at + t), |lanes| *acc = load_pair(lanes));
    }
    for step in 0..steps {
        add_step::<F, P, T, false>(
            Source { block: &[], chunk: 0, panel },
            &panel.scales,
            step,
            parts,
            &mut acc,
        );
    }
    for (t, acc) in acc.iter().enumerate() {
        with_lanes(y.row_mut(at + t), |lanes| store_pair(lanes, *acc));
    }
}

/// The matrix-vector product, codes unpacked in registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn one_token<F: Format, const P: usize>(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
    let (mut parts, mut scales) = ([Part::<P>::ZERO; SPAN], Scales::zeroed());
    let chunks = k.div_ceil(FX_GROUP);
    for from in (0..chunks).step_by(SPAN) {
        let parts = &mut parts[..SPAN.min(chunks - from)];
        for (i, part) in parts.iter_mut().enumerate() {
            part.lay_out::<F>(x, 0, from + i);
        }
        for (block, y) in w.chunks_exact(F::PACKING.block_bytes(k)).zip(y.row_mut(0).chunks_mut(LANES)) {
            with_lanes(y, |lanes| block_times_token::<F, P>(block, k, from, parts, &mut scales, lanes));
        }
    }
}

/// Adds the chunks of one block from `from` on, as many as there are parts, times one token; `scales` is scratch.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn block_times_token<F: Format, const P: usize>(
    block: &[u8],
    k: usize,
    from: usize,
    parts: &[Part<P>],
    scales: &mut Scales,
    lanes: &mut [f32; LANES],
) {
    const UNUSED: &Panel = &Panel::zeroed();
    let mut acc = [load_pair(lanes)];
    for (chunk, part) in (from..).zip(parts.as_chunks::<1>().0) {
        prefetch_chunk::<F>(block, chunk);
        scales.read::<F>(block, k, chunk);
        let source = Source { block, chunk, panel: UNUSED };
        for step in 0..steps::<F>(k, chunk) {
            add_step::<F, P, 1, true>(source, scales, step, part, &mut acc);
        }
    }
    store_pair(lanes, acc[0]);
}

/// Where codes are read from: `DIRECT`ly from chunk `chunk` of a block, or from a panel.
#[derive(Clone, Copy)]
struct Source<'a> {
    block: &'a [u8],
    chunk: usize,
    panel: &'a Panel,
}

/// Adds one step.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_step<F: Format, const P: usize, const T: usize, const DIRECT: bool>(
    source: Source<'_>,
    scales: &Scales,
    step: usize,
    parts: &[Part<P>; T],
    acc: &mut [[__m256; 2]; T],
) {
    let mut totals = [[[_mm256_setzero_si256(); 2]; P]; T];
    for (totals, part) in totals.iter_mut().zip(parts) {
        for (p, total) in totals.iter_mut().enumerate() {
            *total = match F::PACKING {
                Packing::K6 => scales.base(),
                Packing::W5 | Packing::W4E => [_mm256_set1_epi32(part.base[step][p]); 2],
                _ => *total,
            };
        }
    }
    // A count that the compiler does not see keeps this a loop: unrolled, it holds all broadcasts at once and spills.
    for run in 0..black_box(F::STEP / F::RUN) {
        let first = step * F::STEP + run * F::RUN;
        if F::WIDE {
            add_wide::<F, P, T, DIRECT>(source, scales, first, parts, &mut totals);
        } else {
            add_small::<F, P, T, DIRECT>(source, scales, first, parts, &mut totals);
        }
    }
    let (d, m) = (load_pair(&scales.d[step]), load_pair(&scales.m[step]));
    for ((totals, part), acc) in totals.iter().zip(parts).zip(acc) {
        finish::<F, P>(totals, part, scales, step, (d, m), acc);
    }
}

/// Adds a run of slices of unsigned codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_small<F: Format, const P: usize, const T: usize, const DIRECT: bool>(
    source: Source<'_>,
    scales: &Scales,
    first: usize,
    parts: &[Part<P>; T],
    totals: &mut [Totals<P>; T],
) {
    let mut sums = [[[_mm256_setzero_si256(); 2]; P]; T];
    if matches!(F::PACKING, Packing::K3 | Packing::K6) {
        for (sums, part) in sums.iter_mut().zip(parts) {
            for (sums, start) in sums.iter_mut().zip(part.start[first]) {
                *sums = [splat_4(start); 2];
            }
        }
    }
    for s in first..first + F::RUN {
        let lines = if DIRECT { lines::<F>(source.block, source.chunk, s) } else { Lines::none() };
        for q in 0..4 {
            let codes = if DIRECT { quad::<F>(&lines, q) } else { source.panel.quad(s, q) };
            for (sums, part) in sums.iter_mut().zip(parts) {
                for (sums, quads) in sums.iter_mut().zip(&part.quads[s]) {
                    let x = splat_4(quads[q]);
                    for (sum, codes) in sums.iter_mut().zip(codes) {
                        *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(codes, x));
                    }
                }
            }
        }
    }
    let scale = scales.pair::<F>(first);
    for (totals, sums) in totals.iter_mut().zip(&sums) {
        for (totals, sums) in totals.iter_mut().zip(sums) {
            for ((total, sum), scale) in totals.iter_mut().zip(sums).zip(scale) {
                *total = _mm256_add_epi32(*total, _mm256_madd_epi16(*sum, scale));
            }
        }
    }
}

/// Adds a slice of weights that fill a byte.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_wide<F: Format, const P: usize, const T: usize, const DIRECT: bool>(
    source: Source<'_>,
    scales: &Scales,
    s: usize,
    parts: &[Part<P>; T],
    totals: &mut [Totals<P>; T],
) {
    let scale = scales.pair::<F>(s);
    let lines = if DIRECT { lines::<F>(source.block, source.chunk, s) } else { Lines::none() };
    for q in 0..4 {
        let weights = if DIRECT { quad::<F>(&lines, q) } else { source.panel.quad(s, q) };
        for (totals, part) in totals.iter_mut().zip(parts) {
            for (totals, quads) in totals.iter_mut().zip(&part.quads[s]) {
                let x = splat_4(quads[q]);
                let magnitude = _mm256_abs_epi8(x);
                for ((total, weights), scale) in totals.iter_mut().zip(weights).zip(scale) {
                    let products = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(weights, x));
                    *total = _mm256_add_epi32(*total, _mm256_madd_epi16(products, scale));
                }
            }
        }
    }
}

/// The scale step, and the minima's.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn finish<F: Format, const P: usize>(
    totals: &Totals<P>,
    part: &Part<P>,
    scales: &Scales,
    step: usize,
    (d, m): ([__m256; 2], [__m256; 2]),
    acc: &mut [__m256; 2],
) {
    let xs = _mm256_set1_ps(part.xs);
    for half in 0..2 {
        let s = recombine(totals, half);
        acc[half] = _mm256_fmadd_ps(s, _mm256_mul_ps(d[half], xs), acc[half]);
    }
    if !F::LAYOUT.minima {
        return;
    }
    if !F::LAYOUT.has_group_scales() {
        let z = _mm256_set1_ps(part.z[step]);
        for half in 0..2 {
            acc[half] = _mm256_fmadd_ps(z, _mm256_mul_ps(m[half], xs), acc[half]);
        }
        return;
    }
    let mut minima = [[_mm256_setzero_si256(); 2]; P];
    for (sums, words) in part.sums.iter().zip(&scales.minima).take(FX_GROUP / F::LAYOUT.group / 2) {
        for (minima, sums) in minima.iter_mut().zip(sums) {
            for (minimum, words) in minima.iter_mut().zip(words) {
                let products = _mm256_madd_epi16(splat_4(*sums), load_words(words));
                *minimum = _mm256_add_epi32(*minimum, products);
            }
        }
    }
    for half in 0..2 {
        // −(z · mx) + acc is fma(z, −mx, acc).
        acc[half] = _mm256_fnmadd_ps(recombine(&minima, half), _mm256_mul_ps(m[half], xs), acc[half]);
    }
}

/// The `s` of 8 rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn recombine<const P: usize>(totals: &Totals<P>, half: usize) -> __m256 {
    let mut s = _mm256_cvtepi32_ps(totals[P - 1][half]);
    if P > 1 {
        s = _mm256_fmadd_ps(_mm256_cvtepi32_ps(totals[P - 2][half]), _mm256_set1_ps(256.0), s);
    }
    if P > 2 {
        s = _mm256_fmadd_ps(_mm256_cvtepi32_ps(totals[0][half]), _mm256_set1_ps(65536.0), s);
    }
    s
}
