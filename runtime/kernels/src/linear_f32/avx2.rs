//! AVX2 twins: two registers are the 16 rows of a block, `T` tokens share every weight that is loaded.
//!
//! Inputs go in chunks of [`CHUNK`], so that a block's weights stay in L1 while all tokens of a batch pass;
//! accumulators live in the tile between chunks. Integer weights go group by group, as their definition says.
//! One token takes [`BLOCKS`] blocks at once: enough independent sums to hide the latency of fma.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_add_ps, _mm256_and_si256, _mm256_castsi256_ps, _mm256_cvtepi32_ps,
    _mm256_cvtepu16_epi32, _mm256_fmadd_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_slli_epi32, _mm256_sllv_epi32, _mm256_srai_epi32, _mm256_srlv_epi32,
};
use std::ops::Range;

use waste_plan::{LANES, Packing};

use super::portable::{BF16, F16, F32};
use crate::avx2::{load_16, load_32, load_pair, prefetch, store_pair, widen_halves, with_lanes};
use crate::cpu::Isa;
use crate::linear::portable::{Format, GROUP, W4, W4M, W8};
use crate::table::{Entry, KernelTable};
use crate::view::{RowsF32, TileMut};

/// Inputs whose weights are kept in L1.
const CHUNK: usize = 128;
/// Tokens that pass over a chunk.
const TOKENS: usize = 24;
/// Blocks of 16 rows that a single token takes at once.
const BLOCKS: usize = 4;
/// How far ahead of a matrix-vector product its weights are asked for, in bytes.
const AHEAD: usize = 4096;
/// Inputs between two looks at the bounds of the activations. So many that the compiler leaves their loop a loop:
/// unrolled, it would hold more registers than there are.
const STEP: usize = GROUP;

macro_rules! rows {
    ($($name:ident: $weights:ty;)+) => {
        /// Overlays the rows of this tier. The caller has the tier.
        pub(crate) fn install(table: &mut KernelTable) {
            $( table.$name = Entry { call: $name, isa: Isa::Avx2 }; )+
        }
        $(#[target_feature(enable = "avx2,fma,f16c")]
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
type Acc = [__m256; 2];

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
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
            for (block, b) in w.chunks_exact(block_bytes).zip(0..y.cols().div_ceil(LANES)) {
                let cols = b * LANES..y.cols().min((b + 1) * LANES);
                let block = Block { bytes: block, k };
                some_tokens::<W>(block, inputs.clone(), x, from, &mut y.sub(tokens.clone(), cols));
            }
        }
    }
}

/// Adds a chunk of one block times the tokens of a tile; its row 0 is token `from`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
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
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_tokens<W: Format, const T: usize>(
    block: Block<'_>,
    inputs: Range<usize>,
    x: &RowsF32<'_>,
    from: usize,
    y: &mut TileMut<'_>,
    at: usize,
) -> usize {
    let mut acc = [[[_mm256_setzero_ps(); 2]; 1]; T];
    let mut rows = [&[][..]; T];
    for (t, (acc, row)) in acc.iter_mut().zip(&mut rows).enumerate() {
        with_lanes(y.row_mut(at + t), |lanes| acc[0] = load_pair(lanes));
        *row = x.row(from + at + t);
    }
    let acc = add::<W, T, 1>([block], inputs, rows, acc);
    for (t, acc) in acc.iter().enumerate() {
        with_lanes(y.row_mut(at + t), |lanes| store_pair(lanes, acc[0]));
    }
    T
}

/// The matrix-vector product.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn one_token<W: Format>(w: &[u8], k: usize, x: &[f32], y: &mut [f32]) {
    let blocks = w.chunks_exact(W::PACKING.block_bytes(k)).map(|bytes| Block { bytes, k });
    let (many, rest) = y.split_at_mut(y.len() / (BLOCKS * LANES) * BLOCKS * LANES);
    let mut blocks = blocks.fuse();
    for y in many.chunks_exact_mut(BLOCKS * LANES) {
        let some = std::array::from_fn(|_| blocks.next().unwrap_or(Block { bytes: &[], k }));
        let acc = add::<W, 1, BLOCKS>(some, 0..k, [x], [[[_mm256_setzero_ps(); 2]; BLOCKS]]);
        for (y, acc) in y.as_chunks_mut().0.iter_mut().zip(acc[0]) {
            store_pair(y, acc);
        }
    }
    for (y, block) in rest.chunks_mut(LANES).zip(blocks) {
        let acc = add::<W, 1, 1>([block], 0..k, [x], [[[_mm256_setzero_ps(); 2]]]);
        with_lanes(y, |lanes| store_pair(lanes, acc[0][0]));
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
    #[target_feature(enable = "avx2,fma,f16c")]
    fn halves(self, at: usize, g: usize) -> Acc {
        self.bytes[at + g * 2 * LANES..]
            .first_chunk()
            .map_or([_mm256_setzero_ps(); 2], |halves| widen_halves(halves))
    }
}

/// Adds some inputs of `B` blocks times `T` tokens: k ascending, or group by group (whole groups then).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
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
        let sums = fold::<W, T, B>(blocks, at..at + GROUP, x, [[[_mm256_setzero_ps(); 2]; B]; T]);
        for (b, block) in blocks.iter().enumerate() {
            let d = block.halves(W::PACKING.payload_bytes(block.k), at / GROUP);
            for (acc, sums) in acc.iter_mut().zip(&sums) {
                acc[b] = fma(d, sums[b], acc[b]);
            }
        }
        if matches!(W::PACKING, Packing::W4M) {
            for (x, acc) in x.iter().zip(&mut acc) {
                let u = _mm256_set1_ps(x[at..at + GROUP].iter().fold(0.0, |u, x| u + x));
                for (block, acc) in blocks.iter().zip(acc) {
                    *acc = fma(block.halves(Packing::W4M.minima_at(block.k), at / GROUP), [u; 2], *acc);
                }
            }
        }
    }
    acc
}

/// acc = fma(w, x, acc) over some inputs, ascending.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fold<W: Format, const T: usize, const B: usize>(
    blocks: [Block<'_>; B],
    inputs: Range<usize>,
    x: [&[f32]; T],
    mut acc: [[Acc; B]; T],
) -> [[Acc; B]; T] {
    let whole = inputs.end - inputs.len() % STEP;
    for at in (inputs.start..whole).step_by(STEP) {
        let mut near = [&[0.0; STEP]; T];
        for (near, x) in near.iter_mut().zip(x) {
            *near = x[at..].first_chunk().expect("the inputs lie in the rows");
        }
        if T == 1 {
            let step_bytes = const { W::PACKING.payload_bytes(STEP) };
            let next = at / STEP * step_bytes + AHEAD;
            for line in (0..step_bytes).step_by(64) {
                blocks.iter().for_each(|block| prefetch(block.bytes, next + line));
            }
        }
        for i in 0..STEP {
            acc = fold_one::<W, T, B>(blocks, at + i, near.map(|x| &x[i]), acc);
        }
    }
    for i in whole..inputs.end {
        acc = fold_one::<W, T, B>(blocks, i, x.map(|x| &x[i]), acc);
    }
    acc
}

/// acc = fma(w, x, acc) for input `i`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fold_one<W: Format, const T: usize, const B: usize>(
    blocks: [Block<'_>; B],
    i: usize,
    x: [&f32; T],
    mut acc: [[Acc; B]; T],
) -> [[Acc; B]; T] {
    for (b, block) in blocks.iter().enumerate() {
        let w = weights::<W>(block.bytes, i);
        for (acc, x) in acc.iter_mut().zip(x) {
            acc[b] = fma(w, [_mm256_set1_ps(*x); 2], acc[b]);
        }
    }
    acc
}

/// a · b + c of 16 rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fma(a: Acc, b: Acc, c: Acc) -> Acc {
    [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
}

/// Input `i` of 16 rows, exact.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn weights<W: Format>(block: &[u8], i: usize) -> Acc {
    let at = 2 * LANES * i;
    match W::PACKING {
        Packing::F16 => widen_halves(block[at..].first_chunk().expect("a row of the block")),
        Packing::BF16 => {
            let (parts, _) = block[at..][..2 * LANES].as_chunks::<16>();
            std::array::from_fn(|h| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_16(&parts[h]))))
            })
        }
        Packing::W8 => {
            let to_top = _mm256_set1_epi32((24 - i % 4 * 8) as i32);
            let dwords = dwords(block, i / 4);
            dwords.map(|it| _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(_mm256_sllv_epi32(it, to_top))))
        }
        Packing::W4 | Packing::W4M => {
            let down = _mm256_set1_epi32((i % 4 * 8 + i % 8 / 4 * 4) as i32);
            let bias = _mm256_set1_ps(if matches!(W::PACKING, Packing::W4) { -8.0 } else { 0.0 });
            dwords(block, i / 8).map(|it| {
                let code = _mm256_and_si256(_mm256_srlv_epi32(it, down), _mm256_set1_epi32(15));
                _mm256_add_ps(_mm256_cvtepi32_ps(code), bias)
            })
        }
        _ => dwords(block, i).map(|it| _mm256_castsi256_ps(it)),
    }
}

/// Line `i` of 16 dwords.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dwords(block: &[u8], i: usize) -> [__m256i; 2] {
    let (parts, _) = block[64 * i..][..64].as_chunks::<32>();
    [load_32(&parts[0]), load_32(&parts[1])]
}
