//! AVX-512 twins: a register is the 16 rows of a block.
//!
//! A matrix product lays a chunk of inputs of [`TOKENS`] tokens out once, input by input ([`Panel`]), so that a weight
//! that is loaded meets all of them through one pointer; what a batch lacks to a panel's width are zeros that nobody
//! reads. Accumulators live in the tile between chunks. One token takes [`BLOCKS`] blocks at once: enough independent
//! sums to hide the latency of fma. Integer weights go group by group, as their definition says.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cvtepi32_ps, _mm512_cvtepu16_epi32,
    _mm512_fmadd_ps, _mm512_permutexvar_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_slli_epi32, _mm512_sllv_epi32, _mm512_srai_epi32, _mm512_srlv_epi32,
};
use std::ops::Range;

use waste_plan::{LANES, Packing};

use super::portable::{BF16, F16, F32};
use crate::avx2::{load_32, prefetch, with_lanes};
use crate::avx512::{load_16_ps, load_64, store_16_ps, widen_16};
use crate::cpu::Isa;
use crate::linear::portable::{Format, GROUP, W4, W4M, W8};
use crate::table::{Entry, KernelTable};
use crate::view::{RowsF32, TileMut};

/// Inputs whose weights are kept in L1.
const CHUNK: usize = 128;
/// Tokens of a panel.
const WIDTH: usize = 16;
/// Tokens that pass over a chunk of a block.
const TOKENS: usize = 3 * WIDTH;
/// Blocks of 16 rows that a single token takes at once.
const BLOCKS: usize = 4;
/// How far ahead of a matrix-vector product its weights are asked for, in bytes.
const AHEAD: usize = 4096;

macro_rules! rows {
    ($($name:ident: $weights:ty;)+) => {
        /// Overlays the rows of this tier. The caller has the tier.
        pub(crate) fn install(table: &mut KernelTable) {
            $( table.$name = Entry { call: $name, isa: Isa::Avx512 }; )+
        }
        $(#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
        fn $name(w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>) {
            linear::<$weights>(w, k, x, y);
        })+
    };
}

rows! {
    linear_f32_f32: F32;
    linear_f16_f32: F16;
    linear_bf16_f32: BF16;
    linear_w8_f32: W8;
    linear_w4_f32: W4;
    linear_w4m_f32: W4M;
}

/// A chunk of inputs of some tokens.
struct Panel {
    x: [[f32; WIDTH]; CHUNK],
    /// Sums of each weight group's inputs.
    sums: [[f32; WIDTH]; CHUNK / GROUP],
}

impl Panel {
    const ZERO: Self = Self { x: [[0.0; WIDTH]; CHUNK], sums: [[0.0; WIDTH]; CHUNK / GROUP] };

    /// Lays out some inputs of some tokens.
    #[inline(always)]
    fn lay_out(&mut self, x: &RowsF32<'_>, tokens: Range<usize>, inputs: &Range<usize>) {
        for (t, token) in tokens.enumerate() {
            for (to, x) in self.x.iter_mut().zip(&x.row(token)[inputs.clone()]) {
                to[t] = *x;
            }
        }
        for (sums, x) in self.sums.iter_mut().zip(self.x.chunks_exact(GROUP)) {
            *sums = [0.0; WIDTH];
            for x in x {
                sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn linear<W: Format>(w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>) {
    super::check::<W>(w, k, x, y);
    let block_bytes = W::PACKING.block_bytes(k);
    if y.rows() == 1 {
        return one_token::<W>(w, k, x.row(0), y.row_mut(0));
    }
    for t in 0..y.rows() {
        y.row_mut(t).fill(0.0);
    }
    let mut panels = [Panel::ZERO; TOKENS / WIDTH];
    for from in (0..y.rows()).step_by(TOKENS) {
        let tokens = from..y.rows().min(from + TOKENS);
        for at in (0..k).step_by(CHUNK) {
            let inputs = at..k.min(at + CHUNK);
            for (panel, t) in panels.iter_mut().zip(tokens.clone().step_by(WIDTH)) {
                panel.lay_out(x, t..tokens.end.min(t + WIDTH), &inputs);
            }
            for (bytes, b) in w.chunks_exact(block_bytes).zip(0..y.cols().div_ceil(LANES)) {
                let cols = b * LANES..y.cols().min((b + 1) * LANES);
                let block = Block { bytes, k };
                for (panel, t) in panels.iter().zip(tokens.clone().step_by(WIDTH)) {
                    let y = &mut y.sub(t..tokens.end.min(t + WIDTH), cols.clone());
                    match y.rows() {
                        0..=4 => add_tokens::<W, 4>(block, &inputs, panel, y),
                        5..=8 => add_tokens::<W, 8>(block, &inputs, panel, y),
                        _ => add_tokens::<W, WIDTH>(block, &inputs, panel, y),
                    }
                }
            }
        }
    }
}

/// Adds a chunk of one block times at most `T` tokens to their tile.
#[inline(never)]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn add_tokens<W: Format, const T: usize>(
    block: Block<'_>,
    inputs: &Range<usize>,
    panel: &Panel,
    y: &mut TileMut<'_>,
) {
    let mut acc = [_mm512_setzero_ps(); T];
    for (t, acc) in acc.iter_mut().enumerate().take(y.rows()) {
        with_lanes(y.row_mut(t), |lanes| *acc = load_16_ps(lanes));
    }
    if is_float::<W>() {
        fold_tokens::<W, T>(block, inputs.start, &panel.x[..inputs.len()], &mut acc);
    } else {
        for (g, x) in panel.x[..inputs.len()].chunks_exact(GROUP).enumerate() {
            let mut sums = [_mm512_setzero_ps(); T];
            fold_tokens::<W, T>(block, inputs.start + g * GROUP, x, &mut sums);
            let d = block.halves(W::PACKING.payload_bytes(block.k), inputs.start / GROUP + g);
            for (acc, sum) in acc.iter_mut().zip(sums) {
                *acc = _mm512_fmadd_ps(d, sum, *acc);
            }
            if matches!(W::PACKING, Packing::W4M) {
                let m = block.halves(Packing::W4M.minima_at(block.k), inputs.start / GROUP + g);
                for (acc, u) in acc.iter_mut().zip(&panel.sums[g]) {
                    *acc = _mm512_fmadd_ps(m, _mm512_set1_ps(*u), *acc);
                }
            }
        }
    }
    for (t, acc) in acc.iter().enumerate().take(y.rows()) {
        with_lanes(y.row_mut(t), |lanes| store_16_ps(lanes, *acc));
    }
}

/// acc = fma(w, x, acc) for the inputs of some tokens from input `at` of the block on.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn fold_tokens<W: Format, const T: usize>(
    block: Block<'_>,
    at: usize,
    x: &[[f32; WIDTH]],
    acc: &mut [__m512; T],
) {
    for (i, x) in x.chunks_exact(of_line::<W>()).enumerate() {
        let line = line::<W>(block.bytes, at / of_line::<W>() + i);
        for (j, x) in x.iter().enumerate() {
            let w = weight::<W>(line, j);
            for (acc, x) in acc.iter_mut().zip(x) {
                *acc = _mm512_fmadd_ps(w, _mm512_set1_ps(*x), *acc);
            }
        }
    }
}

/// The matrix-vector product.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn one_token<W: Format>(w: &[u8], k: usize, x: &[f32], y: &mut [f32]) {
    let block_bytes = W::PACKING.block_bytes(k);
    let (many, rest) = y.split_at_mut(y.len() / (BLOCKS * LANES) * BLOCKS * LANES);
    let (of_many, of_rest) = w.split_at(many.len() / LANES * block_bytes);
    for (y, w) in many.chunks_exact_mut(BLOCKS * LANES).zip(of_many.chunks_exact(BLOCKS * block_bytes)) {
        some_blocks::<W, BLOCKS>(w, k, x, y);
    }
    for (y, w) in rest.chunks_mut(LANES).zip(of_rest.chunks_exact(block_bytes)) {
        some_blocks::<W, 1>(w, k, x, y);
    }
}

/// `B` blocks times one token.
#[inline(never)]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn some_blocks<W: Format, const B: usize>(w: &[u8], k: usize, x: &[f32], y: &mut [f32]) {
    let mut blocks = [Block { bytes: &[], k }; B];
    for (block, bytes) in blocks.iter_mut().zip(w.chunks_exact(W::PACKING.block_bytes(k))) {
        block.bytes = bytes;
    }
    let mut acc = [_mm512_setzero_ps(); B];
    if is_float::<W>() {
        fold_blocks::<W, B>(&blocks, 0, x, &mut acc);
    } else {
        for (g, x) in x.chunks_exact(GROUP).enumerate() {
            let mut sums = [_mm512_setzero_ps(); B];
            fold_blocks::<W, B>(&blocks, g * GROUP, x, &mut sums);
            for ((acc, sum), block) in acc.iter_mut().zip(sums).zip(&blocks) {
                *acc = _mm512_fmadd_ps(block.halves(W::PACKING.payload_bytes(k), g), sum, *acc);
            }
            if matches!(W::PACKING, Packing::W4M) {
                let u = _mm512_set1_ps(x.iter().fold(0.0, |u, x| u + x));
                for (acc, block) in acc.iter_mut().zip(&blocks) {
                    *acc = _mm512_fmadd_ps(block.halves(Packing::W4M.minima_at(k), g), u, *acc);
                }
            }
        }
    }
    for (acc, y) in acc.iter().zip(y.chunks_mut(LANES)) {
        with_lanes(y, |lanes| store_16_ps(lanes, *acc));
    }
}

/// acc = fma(w, x, acc) for the inputs of one token from input `at` of the blocks on.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn fold_blocks<W: Format, const B: usize>(
    blocks: &[Block<'_>; B],
    at: usize,
    x: &[f32],
    acc: &mut [__m512; B],
) {
    let step = GROUP.min(8 * of_line::<W>());
    for (i, x) in x.chunks(step).enumerate() {
        let lines = x.len() / of_line::<W>();
        let mut bytes = [&[][..]; B];
        for (bytes, block) in bytes.iter_mut().zip(blocks) {
            let from = &block.bytes[(at + i * step) / of_line::<W>() * line_bytes::<W>()..];
            (0..step / of_line::<W>() * line_bytes::<W>())
                .step_by(64)
                .for_each(|line| prefetch(from, line + AHEAD));
            *bytes = &from[..lines * line_bytes::<W>()];
        }
        // The usual length as a number, so that the loops lose their bounds.
        match <&[f32; 8]>::try_from(x) {
            Ok(x) if is_float::<W>() => fold_lines::<W, B>(bytes, x, acc),
            _ => fold_lines::<W, B>(bytes, x, acc),
        }
    }
}

/// acc = fma(w, x, acc) for some lines of the blocks.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn fold_lines<W: Format, const B: usize>(bytes: [&[u8]; B], x: &[f32], acc: &mut [__m512; B]) {
    for (i, x) in x.chunks_exact(of_line::<W>()).enumerate() {
        let mut lines = [_mm512_setzero_si512(); B];
        for (l, bytes) in lines.iter_mut().zip(bytes) {
            *l = line::<W>(bytes, i);
        }
        for (j, x) in x.iter().enumerate() {
            for (acc, line) in acc.iter_mut().zip(lines) {
                *acc = _mm512_fmadd_ps(weight::<W>(line, j), _mm512_set1_ps(*x), *acc);
            }
        }
    }
}

/// One packed block of 16 rows.
#[derive(Clone, Copy)]
struct Block<'a> {
    bytes: &'a [u8],
    k: usize,
}

impl Block<'_> {
    /// 16 scales or minima of group `g`, from byte `at` of the block on.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
    fn halves(self, at: usize, g: usize) -> __m512 {
        widen_16(self.bytes[at + g * 2 * LANES..].first_chunk().expect("a group of the block"))
    }
}

/// Whether weights are floats, without groups.
const fn is_float<W: Format>() -> bool {
    !matches!(W::PACKING, Packing::W8 | Packing::W4 | Packing::W4M)
}

/// Inputs of a line, the unit of a load.
const fn of_line<W: Format>() -> usize {
    match W::PACKING {
        Packing::W8 => 4,
        Packing::W4 | Packing::W4M => 8,
        _ => 1,
    }
}

/// Bytes of a line.
const fn line_bytes<W: Format>() -> usize {
    if matches!(W::PACKING, Packing::F16 | Packing::BF16) { 2 * LANES } else { 4 * LANES }
}

/// Line `i` of a block: floats of 16 rows, or their codes as they stand.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn line<W: Format>(block: &[u8], i: usize) -> __m512i {
    let bytes = &block[i * line_bytes::<W>()..];
    match W::PACKING {
        Packing::F16 => _mm512_castps_si512(widen_16(bytes.first_chunk().expect("a line of the block"))),
        Packing::BF16 => {
            let halves = load_32(bytes.first_chunk().expect("a line of the block"));
            _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves))
        }
        _ => load_64(bytes.first_chunk().expect("a line of the block")),
    }
}

/// Input `j` of a line, exact.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn weight<W: Format>(line: __m512i, j: usize) -> __m512 {
    /// The numbers of 4-bit codes. `vpermps` looks at the low four bits of an index.
    const CODES: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    const SIGNED: [f32; 16] = [-8., -7., -6., -5., -4., -3., -2., -1., 0., 1., 2., 3., 4., 5., 6., 7.];
    match W::PACKING {
        Packing::W8 => {
            let top = _mm512_sllv_epi32(line, _mm512_set1_epi32(24 - 8 * j as i32));
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(top))
        }
        Packing::W4 | Packing::W4M => {
            let numbers = if matches!(W::PACKING, Packing::W4) { &SIGNED } else { &CODES };
            let low = _mm512_srlv_epi32(line, _mm512_set1_epi32((j % 4 * 8 + j / 4 * 4) as i32));
            _mm512_permutexvar_ps(low, load_16_ps(numbers))
        }
        _ => _mm512_castsi512_ps(line),
    }
}
