//! The definitions: token by token, block by block; 16 outputs at a time.

use waste_plan::{LANES, Packing};

use crate::half16::{bf16_to_f32, f16_to_f32};
use crate::linear::portable::{Codes, Format, GROUP, W4, W4M, W8, half_at, halves};
use crate::view::{RowsF32, TileMut};

/// How 16 weights of one input are read from a block.
pub(crate) trait Floats: Format {
    fn decode(block: &[u8], i: usize) -> [f32; LANES];
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct BF16;

impl Format for F32 {
    const PACKING: Packing = Packing::F32;
}

impl Floats for F32 {
    #[inline(always)]
    fn decode(block: &[u8], i: usize) -> [f32; LANES] {
        let elems = &block[i * 4 * LANES..][..4 * LANES].as_chunks::<4>().0;
        std::array::from_fn(|r| f32::from_le_bytes(elems[r]))
    }
}

impl Format for F16 {
    const PACKING: Packing = Packing::F16;
}

impl Floats for F16 {
    #[inline(always)]
    fn decode(block: &[u8], i: usize) -> [f32; LANES] {
        let elems = &block[i * 2 * LANES..][..2 * LANES];
        std::array::from_fn(|r| f16_to_f32(half_at(elems, r)))
    }
}

impl Format for BF16 {
    const PACKING: Packing = Packing::BF16;
}

impl Floats for BF16 {
    #[inline(always)]
    fn decode(block: &[u8], i: usize) -> [f32; LANES] {
        let elems = &block[i * 2 * LANES..][..2 * LANES];
        std::array::from_fn(|r| bf16_to_f32(half_at(elems, r)))
    }
}

macro_rules! rows {
    ($($name:ident = $of:ident($weights:ty);)+) => {
        $(#[inline(always)]
        pub(crate) fn $name(w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>) {
            $of::<$weights>(w, k, x, y);
        })+
    };
}

rows! {
    linear_f32_f32 = floats(F32);
    linear_f16_f32 = floats(F16);
    linear_bf16_f32 = floats(BF16);
    linear_w8_f32 = codes(W8);
    linear_w4_f32 = codes(W4);
    linear_w4m_f32 = codes(W4M);
}

#[inline(always)]
fn floats<W: Floats>(w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>) {
    each_block::<W>(w, k, x, y, |block, x| {
        let mut acc = [0.0f32; LANES];
        for (i, x) in x.iter().enumerate() {
            for (acc, w) in acc.iter_mut().zip(W::decode(block, i)) {
                *acc = w.mul_add(*x, *acc);
            }
        }
        acc
    });
}

#[inline(always)]
fn codes<C: Codes>(w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>) {
    each_block::<C>(w, k, x, y, |block, x| {
        let scales = &block[C::PACKING.payload_bytes(k)..];
        let mut acc = [0.0f32; LANES];
        for (g, (codes, x)) in block.chunks_exact(C::GROUP_BYTES).zip(x.chunks_exact(GROUP)).enumerate() {
            let sums = group_sums::<C>(codes, x);
            let d = halves(scales, g);
            for r in 0..LANES {
                acc[r] = d[r].mul_add(sums[r], acc[r]);
            }
            if matches!(C::PACKING, Packing::W4M) {
                let m = halves(&block[Packing::W4M.minima_at(k)..], g);
                let u = x.iter().fold(0.0, |u, x| u + x);
                for r in 0..LANES {
                    acc[r] = m[r].mul_add(u, acc[r]);
                }
            }
        }
        acc
    });
}

#[inline(always)]
fn group_sums<C: Codes>(codes: &[u8], x: &[f32]) -> [f32; LANES] {
    let mut sums = [0.0f32; LANES];
    for (i, x) in x.iter().enumerate() {
        for (sum, w) in sums.iter_mut().zip(C::decode(codes, i)) {
            #[expect(clippy::cast_precision_loss, reason = "codes are small integers")]
            let w = w as f32;
            *sum = w.mul_add(*x, *sum);
        }
    }
    sums
}

/// `f(block, token's row)` for every block of every token, into the tile.
#[inline(always)]
fn each_block<W: Format>(
    w: &[u8],
    k: usize,
    x: &RowsF32<'_>,
    y: &mut TileMut<'_>,
    f: impl Fn(&[u8], &[f32]) -> [f32; LANES],
) {
    super::check::<W>(w, k, x, y);
    for t in 0..y.rows() {
        let y = y.row_mut(t);
        for (block, y) in w.chunks_exact(W::PACKING.block_bytes(k)).zip(y.chunks_mut(LANES)) {
            let acc = f(block, x.row(t));
            y.copy_from_slice(&acc[..y.len()]);
        }
    }
}
