//! NEON twins: four registers are the 16 rows of a block, `T` tokens share every weight that is loaded.
//!
//! Inputs go in chunks of [`CHUNK`], so that a block's weights stay in L1 while all tokens of a batch pass;
//! accumulators live in the tile between chunks. Integer weights go group by group, as their definition says.
//! One token takes [`BLOCKS`] blocks at once: enough independent sums to hide the latency of fma.

use std::arch::aarch64::{
    float32x4_t, int32x4_t, vaddq_f32, vandq_s32, vcvtq_f32_s32, vdupq_n_f32, vdupq_n_s32, vfmaq_f32,
    vfmaq_n_f32, vreinterpretq_f32_s32, vreinterpretq_s32_s8, vshlq_s32, vshrq_n_s32,
};
use std::ops::Range;

use waste_plan::{LANES, Packing};

use super::portable::{BF16, F16, F32};
use crate::cpu::Isa;
use crate::linear::portable::{Format, GROUP, W4, W4M, W8};
use crate::neon::{load_64, load_lanes, store_lanes, widen_8_bf16, widen_16};
use crate::table::{Entry, KernelTable};
use crate::view::{RowsF32, TileMut, with_lanes};

/// Inputs whose weights are kept in L1.
const CHUNK: usize = 128;
/// Tokens that pass over a chunk.
const TOKENS: usize = 24;
/// Blocks of 16 rows that a single token takes at once.
const BLOCKS: usize = 4;

macro_rules! rows {
    ($($name:ident: $weights:ty;)+) => {
        /// Overlays the rows of this tier. The caller has the tier.
        pub(crate) fn install(table: &mut KernelTable) {
            $( table.$name = Entry { call: $name, isa: Isa::Neon }; )+
        }
        $(#[target_feature(enable = "neon")]
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

/// Accumulators of 16 rows.
type Acc = [float32x4_t; 4];

#[inline]
#[target_feature(enable = "neon")]
fn linear<W: Format>(w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>) {
    super::check::<W>(w, k, x, y);
    for t in 0..y.rows() {
        y.row_mut(t).fill(0.0);
    }
    let block_bytes = W::PACKING.block_bytes(k);
    if y.rows() == 1 {
        return one_token::<W>(w, k, x.row(0), y.row_mut(0));
    }
    for from in (0..y.rows()).step_by(TOKENS) {
        let tokens = from..y.rows().min(from + TOKENS);
        for at in (0..k).step_by(CHUNK) {
            let inputs = at..k.min(at + CHUNK);
            for (block, at) in w.chunks_exact(block_bytes).zip((0..y.cols()).step_by(LANES)) {
                let cols = at..y.cols().min(at + LANES);
                let block = Block { bytes: block, k };
                some_tokens::<W>(block, inputs.clone(), x, from, &mut y.sub(tokens.clone(), cols));
            }
        }
    }
}

/// Adds a chunk of one block times the tokens of a tile; its row 0 is token `from`.
#[inline]
#[target_feature(enable = "neon")]
fn some_tokens<W: Format>(
    block: Block<'_>,
    inputs: Range<usize>,
    x: &RowsF32<'_>,
    from: usize,
    y: &mut TileMut<'_>,
) {
    let mut t = 0;
    while t < y.rows() {
        let inputs = inputs.clone();
        t += match y.rows() - t {
            6.. => add_tokens::<W, 6>(block, inputs, x, from, y, t),
            3.. => add_tokens::<W, 3>(block, inputs, x, from, y, t),
            2 => add_tokens::<W, 2>(block, inputs, x, from, y, t),
            _ => add_tokens::<W, 1>(block, inputs, x, from, y, t),
        };
    }
}

/// Adds a chunk of one block times `T` tokens to rows `at` … of a tile; returns `T`.
#[inline(never)]
#[target_feature(enable = "neon")]
fn add_tokens<W: Format, const T: usize>(
    block: Block<'_>,
    inputs: Range<usize>,
    x: &RowsF32<'_>,
    from: usize,
    y: &mut TileMut<'_>,
    at: usize,
) -> usize {
    let mut acc = [[[vdupq_n_f32(0.0); 4]; 1]; T];
    let mut rows = [&[][..]; T];
    for (t, (acc, row)) in acc.iter_mut().zip(&mut rows).enumerate() {
        with_lanes(y.row_mut(at + t), |lanes| acc[0] = load_lanes(lanes));
        *row = x.row(from + at + t);
    }
    let acc = add::<W, T, 1>([block], inputs, rows, acc);
    for (t, acc) in acc.iter().enumerate() {
        with_lanes(y.row_mut(at + t), |lanes| store_lanes(lanes, acc[0]));
    }
    T
}

/// The matrix-vector product.
#[inline]
#[target_feature(enable = "neon")]
fn one_token<W: Format>(w: &[u8], k: usize, x: &[f32], y: &mut [f32]) {
    let mut blocks = w.chunks_exact(W::PACKING.block_bytes(k)).map(|bytes| Block { bytes, k }).fuse();
    let (many, rest) = y.split_at_mut(y.len() / (BLOCKS * LANES) * BLOCKS * LANES);
    for y in many.chunks_exact_mut(BLOCKS * LANES) {
        let some = std::array::from_fn(|_| blocks.next().unwrap_or(Block { bytes: &[], k }));
        let acc = add::<W, 1, BLOCKS>(some, 0..k, [x], [[[vdupq_n_f32(0.0); 4]; BLOCKS]]);
        for (y, acc) in y.as_chunks_mut().0.iter_mut().zip(acc[0]) {
            store_lanes(y, acc);
        }
    }
    for (y, block) in rest.chunks_mut(LANES).zip(blocks) {
        let acc = add::<W, 1, 1>([block], 0..k, [x], [[[vdupq_n_f32(0.0); 4]]]);
        with_lanes(y, |lanes| store_lanes(lanes, acc[0][0]));
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
    #[target_feature(enable = "neon")]
    fn halves(self, at: usize, g: usize) -> Acc {
        self.bytes[at + g * 2 * LANES..].first_chunk().map_or([vdupq_n_f32(0.0); 4], |it| widen_16(it))
    }
}

/// Adds some inputs of `B` blocks times `T` tokens: k ascending, or group by group (whole groups then).
#[inline]
#[target_feature(enable = "neon")]
fn add<W: Format, const T: usize, const B: usize>(
    blocks: [Block<'_>; B],
    inputs: Range<usize>,
    x: [&[f32]; T],
    mut acc: [[Acc; B]; T],
) -> [[Acc; B]; T] {
    if !matches!(W::PACKING, Packing::W8 | Packing::W4 | Packing::W4M) {
        return fold::<W, T, B>(blocks, inputs, x, acc);
    }
    for at in inputs.step_by(GROUP) {
        let sums = fold::<W, T, B>(blocks, at..at + GROUP, x, [[[vdupq_n_f32(0.0); 4]; B]; T]);
        for (b, block) in blocks.iter().enumerate() {
            let d = block.halves(W::PACKING.payload_bytes(block.k), at / GROUP);
            for (acc, sums) in acc.iter_mut().zip(&sums) {
                for ((acc, d), sum) in acc[b].iter_mut().zip(d).zip(sums[b]) {
                    *acc = vfmaq_f32(*acc, d, sum);
                }
            }
        }
        if matches!(W::PACKING, Packing::W4M) {
            for (x, acc) in x.iter().zip(&mut acc) {
                let u = x[at..at + GROUP].iter().fold(0.0, |u, x| u + x);
                for (block, acc) in blocks.iter().zip(acc) {
                    let m = block.halves(Packing::W4M.minima_at(block.k), at / GROUP);
                    *acc = fma(m, u, *acc);
                }
            }
        }
    }
    acc
}

/// acc = fma(w, x, acc) over some inputs, ascending.
#[inline]
#[target_feature(enable = "neon")]
fn fold<W: Format, const T: usize, const B: usize>(
    blocks: [Block<'_>; B],
    inputs: Range<usize>,
    x: [&[f32]; T],
    mut acc: [[Acc; B]; T],
) -> [[Acc; B]; T] {
    let x = x.map(|x| &x[inputs.clone()]);
    for i in 0..inputs.len() {
        for (b, block) in blocks.iter().enumerate() {
            let w = weights::<W>(block.bytes, inputs.start + i);
            for (acc, x) in acc.iter_mut().zip(x) {
                acc[b] = fma(w, x[i], acc[b]);
            }
        }
    }
    acc
}

/// a · b + c of 16 rows.
#[inline]
#[target_feature(enable = "neon")]
fn fma(a: Acc, b: f32, c: Acc) -> Acc {
    [
        vfmaq_n_f32(c[0], a[0], b),
        vfmaq_n_f32(c[1], a[1], b),
        vfmaq_n_f32(c[2], a[2], b),
        vfmaq_n_f32(c[3], a[3], b),
    ]
}

/// Input `i` of 16 rows, exact.
#[inline]
#[target_feature(enable = "neon")]
fn weights<W: Format>(block: &[u8], i: usize) -> Acc {
    let at = W::PACKING.payload_bytes(i);
    match W::PACKING {
        Packing::F16 => widen_16(block[at..].first_chunk().expect("a row of the block")),
        Packing::BF16 => {
            let (parts, _) = block[at..][..2 * LANES].as_chunks();
            let ([a, b], [c, d]) = (widen_8_bf16(&parts[0]), widen_8_bf16(&parts[1]));
            [a, b, c, d]
        }
        Packing::W8 => {
            let to_top = vdupq_n_s32((24 - i % 4 * 8) as i32);
            dwords(block, i / 4).map(|it| vcvtq_f32_s32(vshrq_n_s32::<24>(vshlq_s32(it, to_top))))
        }
        Packing::W4 | Packing::W4M => {
            let down = vdupq_n_s32(-((i % 4 * 8 + i % 8 / 4 * 4) as i32));
            let bias = vdupq_n_f32(if matches!(W::PACKING, Packing::W4) { -8.0 } else { 0.0 });
            dwords(block, i / 8).map(|it| {
                let code = vandq_s32(vshlq_s32(it, down), vdupq_n_s32(15));
                vaddq_f32(vcvtq_f32_s32(code), bias)
            })
        }
        _ => dwords(block, i).map(|it| vreinterpretq_f32_s32(it)),
    }
}

/// Line `i` of 16 dwords.
#[inline]
#[target_feature(enable = "neon")]
fn dwords(block: &[u8], i: usize) -> [int32x4_t; 4] {
    load_64(block[64 * i..].first_chunk().expect("a line of the block")).map(|it| vreinterpretq_s32_s8(it))
}
