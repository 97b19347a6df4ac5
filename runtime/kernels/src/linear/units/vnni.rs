//! VNNI twins of the linears over units: a register is 4 inputs of all 16 rows of a block, `vpdpbusd` multiplies unsigned codes.
//!
//! The walk is that of the AVX2 twins: chunks of one activation group, eight slices of 16 inputs, a [`Panel`] where several tokens read a
//! block. What a format subtracts from its codes (and 128, which makes IQ4's table unsigned) is taken off where a group's sums start:
//! −bias · Σx, exact in i32. A group's sums, |Σ| ≤ 32 · 241 · 128 < 2^20 on the way, are multiplied by its scale in i32 (bounds in the
//! family's documentation).

use std::arch::x86_64::{
    __m512, __m512i, _mm_cvtsi32_si128, _mm512_add_epi32, _mm512_and_si512, _mm512_broadcast_i32x4,
    _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_dpbusd_epi32, _mm512_dpwssd_epi32,
    _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_mul_ps, _mm512_mullo_epi32, _mm512_or_si512, _mm512_set1_epi8,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_epi8,
    _mm512_slli_epi16, _mm512_slli_epi32, _mm512_srl_epi16, _mm512_srli_epi16,
};
use std::hint::black_box;

use waste_plan::units::{Codes, UnitScale};
use waste_plan::{FX_GROUP, LANES, Packing, UnitLayout};

use super::check;
use super::portable::unit_scales;
use crate::avx2::{load_16, prefetch, with_lanes};
use crate::avx512::{load_16_ps, load_64, splat_16, store_16_ps, store_64, widen_16};
use crate::cpu::Isa;
use crate::table::{Entry, KernelTable};
use crate::view::{FxRows, TileMut};

/// Inputs of a slice.
const SLICE: usize = 16;
/// Slices in a chunk of inputs.
const SLICES: usize = FX_GROUP / SLICE;
/// Tokens whose part of a chunk is laid out at once.
const TOKENS: usize = 32;
/// Chunks of a single token that are laid out at once: 2048 inputs.
const SPAN: usize = 16;
/// How far ahead of a matrix-vector product its weights are asked for, in bytes.
const AHEAD: usize = 4096;

/// A packing as a type.
trait Format {
    const PACKING: Packing;
    const LAYOUT: UnitLayout = match Self::PACKING.units() {
        Some(layout) => layout,
        None => panic!("a packing in units"),
    };
    /// Slices of a group.
    const GROUP: usize = Self::LAYOUT.group / SLICE;
    /// Groups of a step.
    const GROUPS: usize = Self::LAYOUT.step() / Self::LAYOUT.group;
    /// What the codes, as multiplied, have too much.
    const BIAS: i32 = match Self::LAYOUT.codes {
        Codes::Minus(bias) => bias as i32,
        Codes::Table(_) => 128,
    };
}

macro_rules! formats {
    ($($name:ident),+) => {
        $(struct $name;
        impl Format for $name {
            const PACKING: Packing = Packing::$name;
        })+

        /// The product for every packing.
        #[inline]
        #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
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
            $( table.$name = Entry { call: $name, isa: Isa::Vnni }; )+
        }
        $(#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
        fn $name(packing: Packing, w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
            assert_eq!((x.n(), x.layout().planes), (k, $planes), "inputs and planes of the activations");
            check(packing, w, k, x.rows(), y);
            any::<$planes, { 12 / $planes }>(packing, w, k, x, y);
        })+
    };
}

rows! {
    linear_units_fixed24: 3;
    linear_units_fixed16: 2;
    linear_units_fixed8: 1;
}

/// A chunk's part of one token.
#[derive(Clone, Copy)]
struct Part<const P: usize> {
    /// 4 inputs each: slice by slice, plane by plane.
    quads: [[[[u8; 4]; 4]; P]; SLICES],
    /// What the sums of each group start from.
    start: [[i32; P]; SLICES],
    /// Sums of two neighbouring groups, in words.
    sums: [[[u8; 4]; P]; SLICES / 2],
    z: [f32; SLICES / 2],
    xs: f32,
}

impl<const P: usize> Part<P> {
    const ZERO: Self = Self {
        quads: [[[[0; 4]; 4]; P]; SLICES],
        start: [[0; P]; SLICES],
        sums: [[[0; 4]; P]; SLICES / 2],
        z: [0.0; SLICES / 2],
        xs: 0.0,
    };

    /// The part of token `t` in chunk `chunk`.
    #[inline(always)]
    fn lay_out<F: Format>(&mut self, x: &FxRows<'_>, t: usize, chunk: usize) {
        for p in 0..P {
            let plane: &[[[[u8; 4]; 4]; SLICES]] =
                x.plane_bytes(t, p).as_chunks().0.as_chunks().0.as_chunks().0;
            for (dst, src) in self.quads.iter_mut().zip(&plane[chunk]) {
                dst[p] = *src;
            }
            let slices: &[i16; SLICES] = &x.sums(t, p).as_chunks().0[chunk];
            let mut groups = [0i16; SLICES];
            for (group, slices) in groups.iter_mut().zip(slices.chunks_exact(F::GROUP)) {
                *group = slices.iter().sum();
            }
            for (start, group) in self.start.iter_mut().zip(groups) {
                start[p] = -F::BIAS * i32::from(group);
            }
            for (sums, [a, b]) in self.sums.iter_mut().zip(groups.as_chunks().0) {
                let ([a0, a1], [b0, b1]) = (a.to_le_bytes(), b.to_le_bytes());
                sums[p] = [a0, a1, b0, b1];
            }
        }
        self.z = x.z(t).as_chunks().0[chunk];
        self.xs = x.xs(t)[chunk];
    }
}

/// The scales of a chunk of one block.
struct Scales {
    /// Integer scales of the groups, as i32.
    groups: [[u8; 64]; SLICES],
    /// Integer minima of two neighbouring groups, in words.
    minima: [[u8; 64]; SLICES / 2],
    /// Float scales and minima of the steps.
    d: [[f32; LANES]; SLICES / 2],
    m: [[f32; LANES]; SLICES / 2],
}

/// The unpacked codes and the scales of a chunk of one block.
struct Panel {
    codes: [[[u8; 64]; 4]; SLICES],
    scales: Scales,
}

impl Panel {
    const fn zeroed() -> Self {
        Self { codes: [[[0; 64]; 4]; SLICES], scales: Scales::ZERO }
    }
}

/// Steps of a chunk.
#[inline(always)]
fn steps<F: Format>(k: usize, chunk: usize) -> usize {
    (k - chunk * FX_GROUP).min(FX_GROUP) / F::LAYOUT.step()
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
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn line(part: &[u8], i: usize) -> __m512i {
    load_64(part[64 * i..].first_chunk().expect("a line of the unit"))
}

/// The four quads of slice `s` of a chunk, codes without sign.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn quads<F: Format>(block: &[u8], chunk: usize, s: usize) -> [__m512i; 4] {
    let (unit, s) = unit_of::<F>(block, chunk, s);
    let mut quads = if F::LAYOUT.low == 4 {
        let (first, second) = (line(unit, 2 * s), line(unit, 2 * s + 1));
        [first, _mm512_srli_epi16::<4>(first), second, _mm512_srli_epi16::<4>(second)]
    } else {
        let codes = line(unit, s);
        [codes, _mm512_srli_epi16::<2>(codes), _mm512_srli_epi16::<4>(codes), _mm512_srli_epi16::<6>(codes)]
    };
    let mask = _mm512_set1_epi8(if F::LAYOUT.low == 4 { 15 } else { 3 });
    for quad in &mut quads {
        *quad = _mm512_and_si512(*quad, mask);
    }
    if F::LAYOUT.high > 0 {
        let lifted = high_bits::<F>(&unit[F::LAYOUT.high_at()..], s);
        for (quad, lifted) in quads.iter_mut().zip(lifted) {
            *quad = _mm512_or_si512(*quad, lifted);
        }
    }
    if let Codes::Table(table) = F::LAYOUT.codes {
        let unsigned = table.map(|it| it.cast_unsigned() ^ 0x80);
        let table = _mm512_broadcast_i32x4(load_16(&unsigned));
        for quad in &mut quads {
            *quad = _mm512_shuffle_epi8(table, *quad);
        }
    }
    quads
}

/// The high bits of slice `s`, where they belong in its codes.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn high_bits<F: Format>(high: &[u8], s: usize) -> [__m512i; 4] {
    let (lifted, mask) = match (F::LAYOUT.high, F::LAYOUT.low) {
        (2, _) => {
            let bits = line(high, s);
            let lifted = [
                _mm512_slli_epi16::<4>(bits),
                _mm512_slli_epi16::<2>(bits),
                bits,
                _mm512_srli_epi16::<2>(bits),
            ];
            (lifted, 0x30)
        }
        (_, low) => {
            let from = _mm_cvtsi32_si128(if s % 2 == 0 { 0 } else { 4 });
            let bits = _mm512_srl_epi16(line(high, s / 2), from);
            let (two, one) = (_mm512_slli_epi16::<2>(bits), _mm512_slli_epi16::<1>(bits));
            if low == 4 {
                ([_mm512_slli_epi16::<4>(bits), _mm512_slli_epi16::<3>(bits), two, one], 0x10)
            } else {
                ([two, one, bits, _mm512_srli_epi16::<1>(bits)], 0x04)
            }
        }
    };
    let mut res = [_mm512_setzero_si512(); 4];
    for (res, lifted) in res.iter_mut().zip(lifted) {
        *res = _mm512_and_si512(lifted, _mm512_set1_epi8(mask));
    }
    res
}

impl Scales {
    const ZERO: Self = Self {
        groups: [[0; 64]; SLICES],
        minima: [[0; 64]; SLICES / 2],
        d: [[0.0; LANES]; SLICES / 2],
        m: [[0.0; LANES]; SLICES / 2],
    };

    /// Reads those of chunk `chunk`, k inputs in all.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn read<F: Format>(&mut self, block: &[u8], k: usize, chunk: usize) {
        for step in 0..steps::<F>(k, chunk) {
            let (unit, _) = unit_of::<F>(block, chunk, step * F::GROUPS * F::GROUP);
            let halves = |at: usize| widen_16(unit[at..].first_chunk().expect("a unit has 16 scales"));
            match F::LAYOUT.scale {
                UnitScale::Half => store_16_ps(&mut self.d[step], halves(F::LAYOUT.d_at())),
                UnitScale::Exponent => self.d[step] = unit_scales(&F::LAYOUT, unit),
            }
            if F::LAYOUT.minima {
                store_16_ps(&mut self.m[step], halves(F::LAYOUT.m_at()));
            }
        }
        if !F::LAYOUT.has_group_scales() {
            return;
        }
        let (unit, slice) = unit_of::<F>(block, chunk, 0);
        let rows =
            |at: usize| -> &[[u8; LANES]] { &unit[at..].as_chunks().0[slice / F::GROUP..][..F::GROUPS] };
        for (dst, scales) in self.groups.iter_mut().zip(rows(F::LAYOUT.scales_at())) {
            let bytes = load_16(scales);
            store_64(
                dst,
                if F::LAYOUT.signed { _mm512_cvtepi8_epi32(bytes) } else { _mm512_cvtepu8_epi32(bytes) },
            );
        }
        if F::LAYOUT.minima {
            for (dst, [a, b]) in self.minima.iter_mut().zip(rows(F::LAYOUT.minima_at()).as_chunks().0) {
                let (a, b) = (_mm512_cvtepu8_epi32(load_16(a)), _mm512_cvtepu8_epi32(load_16(b)));
                store_64(dst, _mm512_or_si512(a, _mm512_slli_epi32::<16>(b)));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn linear<F: Format, const P: usize, const T: usize>(
    w: &[u8],
    k: usize,
    x: &FxRows<'_>,
    y: &mut TileMut<'_>,
) {
    for t in 0..y.rows() {
        y.row_mut(t).fill(0.0);
    }
    let block_bytes = F::PACKING.block_bytes(k);
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
            for (block, b) in w.chunks_exact(block_bytes).zip(0..y.cols().div_ceil(LANES)) {
                let cols = b * LANES..y.cols().min((b + 1) * LANES);
                let y = &mut y.sub(tokens.clone(), cols);
                let steps = steps::<F>(k, chunk);
                panel.scales.read::<F>(block, k, chunk);
                for s in 0..steps * F::GROUPS * F::GROUP {
                    for (dst, src) in panel.codes[s].iter_mut().zip(quads::<F>(block, chunk, s)) {
                        store_64(dst, src);
                    }
                }
                let (many, rest) = parts[..tokens.len()].as_chunks::<T>();
                for (i, parts) in many.iter().enumerate() {
                    some_tokens::<F, P, T>(&panel, steps, parts, y, i * T);
                }
                for (i, part) in rest.as_chunks::<1>().0.iter().enumerate() {
                    some_tokens::<F, P, 1>(&panel, steps, part, y, many.len() * T + i);
                }
            }
        }
    }
}

/// Adds the panel's block times `T` tokens to rows `at` … of a tile.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn some_tokens<F: Format, const P: usize, const T: usize>(
    panel: &Panel,
    steps: usize,
    parts: &[Part<P>; T],
    y: &mut TileMut<'_>,
    at: usize,
) {
    let mut acc = [_mm512_setzero_ps(); T];
    for (t, acc) in acc.iter_mut().enumerate() {
        with_lanes(y.row_mut(at + t), |lanes| *acc = load_16_ps(lanes));
    }
    for step in 0..steps {
        let codes = |s: usize| panel.codes[s].each_ref().map(|quad| load_64(quad));
        add_step::<F, P, T>(codes, &panel.scales, step, parts, &mut acc);
    }
    for (t, acc) in acc.iter().enumerate() {
        with_lanes(y.row_mut(at + t), |lanes| store_16_ps(lanes, *acc));
    }
}

/// The matrix-vector product, codes unpacked in registers.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn one_token<F: Format, const P: usize>(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
    let (mut parts, mut scales) = ([Part::<P>::ZERO; SPAN], Scales::ZERO);
    let (chunks, chunk_bytes) = (k.div_ceil(FX_GROUP), F::LAYOUT.bytes() * FX_GROUP / F::LAYOUT.inputs);
    for from in (0..chunks).step_by(SPAN) {
        let parts = &mut parts[..SPAN.min(chunks - from)];
        for (i, part) in parts.iter_mut().enumerate() {
            part.lay_out::<F>(x, 0, from + i);
        }
        for (block, y) in w.chunks_exact(F::PACKING.block_bytes(k)).zip(y.row_mut(0).chunks_mut(LANES)) {
            with_lanes(y, |lanes| {
                let mut acc = [load_16_ps(lanes)];
                for (chunk, part) in (from..).zip(parts.as_chunks::<1>().0) {
                    for at in (0..chunk_bytes).step_by(64) {
                        prefetch(&block[chunk * chunk_bytes..], AHEAD + at);
                    }
                    scales.read::<F>(block, k, chunk);
                    for step in 0..steps::<F>(k, chunk) {
                        add_step::<F, P, 1>(|s| quads::<F>(block, chunk, s), &scales, step, part, &mut acc);
                    }
                }
                store_16_ps(lanes, acc[0]);
            });
        }
    }
}

/// Adds one step: `quads(s)` are the codes of slice s of the chunk.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add_step<F: Format, const P: usize, const T: usize>(
    quads: impl Fn(usize) -> [__m512i; 4],
    scales: &Scales,
    step: usize,
    parts: &[Part<P>; T],
    acc: &mut [__m512; T],
) {
    let mut totals = [[_mm512_setzero_si512(); P]; T];
    // A count that the compiler does not see keeps this a loop: unrolled, it holds all broadcasts at once and spills.
    for group in 0..black_box(F::GROUPS) {
        let group = step * F::GROUPS + group;
        let mut sums = [[_mm512_setzero_si512(); P]; T];
        for (sums, part) in sums.iter_mut().zip(parts) {
            for (sum, start) in sums.iter_mut().zip(part.start[group]) {
                *sum = _mm512_set1_epi32(start);
            }
        }
        for s in group * F::GROUP..(group + 1) * F::GROUP {
            for (q, codes) in quads(s).into_iter().enumerate() {
                for (sums, part) in sums.iter_mut().zip(parts) {
                    for (sum, quads) in sums.iter_mut().zip(&part.quads[s]) {
                        *sum = _mm512_dpbusd_epi32(*sum, codes, splat_16(quads[q]));
                    }
                }
            }
        }
        let scale = load_64(&scales.groups[group]);
        for (totals, sums) in totals.iter_mut().zip(&sums) {
            for (total, sum) in totals.iter_mut().zip(sums) {
                let scaled =
                    if F::LAYOUT.has_group_scales() { _mm512_mullo_epi32(*sum, scale) } else { *sum };
                *total = _mm512_add_epi32(*total, scaled);
            }
        }
    }
    let (d, m) = (load_16_ps(&scales.d[step]), load_16_ps(&scales.m[step]));
    for ((totals, part), acc) in totals.iter().zip(parts).zip(acc) {
        let xs = _mm512_set1_ps(part.xs);
        *acc = _mm512_fmadd_ps(recombine(totals), _mm512_mul_ps(d, xs), *acc);
        if F::LAYOUT.minima && F::LAYOUT.has_group_scales() {
            let mut minima = [_mm512_setzero_si512(); P];
            for (sums, words) in part.sums.iter().zip(&scales.minima).take(F::GROUPS / 2) {
                for (minimum, sums) in minima.iter_mut().zip(sums) {
                    *minimum = _mm512_dpwssd_epi32(*minimum, load_64(words), splat_16(*sums));
                }
            }
            // −(z · mx) + acc is fma(z, −mx, acc).
            *acc = _mm512_fnmadd_ps(recombine(&minima), _mm512_mul_ps(m, xs), *acc);
        } else if F::LAYOUT.minima {
            *acc = _mm512_fmadd_ps(_mm512_set1_ps(part.z[step]), _mm512_mul_ps(m, xs), *acc);
        }
    }
}

/// The `s` of 16 rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn recombine<const P: usize>(totals: &[__m512i; P]) -> __m512 {
    let mut s = _mm512_cvtepi32_ps(totals[P - 1]);
    if P > 1 {
        s = _mm512_fmadd_ps(_mm512_cvtepi32_ps(totals[P - 2]), _mm512_set1_ps(256.0), s);
    }
    if P > 2 {
        s = _mm512_fmadd_ps(_mm512_cvtepi32_ps(totals[0]), _mm512_set1_ps(65536.0), s);
    }
    s
}
