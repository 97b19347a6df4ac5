//! The definition: token by token, block by block, group by group; 16 outputs at a time.

use waste_plan::{LANES, Packing};

use super::check;
use crate::half16::f16_to_f32;
use crate::quant_act::portable::recombine;
use crate::view::{FxRows, TileMut};

/// Inputs of a weight group.
pub(crate) const GROUP: usize = 32;

/// A packed layout as a type.
pub(crate) trait Format {
    const PACKING: Packing;
}

/// How 16 codes of one input are read from a group's payload.
pub(crate) trait Codes: Format {
    /// Bytes of a group of 32 inputs of 16 rows.
    const GROUP_BYTES: usize;
    /// The signed weights of input `i` of the group.
    fn decode(group: &[u8], i: usize) -> [i32; LANES];
}

pub(crate) struct W8;
pub(crate) struct W4;
pub(crate) struct W4M;

impl Format for W8 {
    const PACKING: Packing = Packing::W8;
}

impl Codes for W8 {
    const GROUP_BYTES: usize = GROUP * LANES;
    #[inline(always)]
    fn decode(group: &[u8], i: usize) -> [i32; LANES] {
        let quad: &[u8] = &group[i / 4 * 64..][..64];
        std::array::from_fn(|r| i32::from(quad[4 * r + i % 4].cast_signed()))
    }
}

impl Format for W4 {
    const PACKING: Packing = Packing::W4;
}

impl Codes for W4 {
    const GROUP_BYTES: usize = GROUP * LANES / 2;
    #[inline(always)]
    fn decode(group: &[u8], i: usize) -> [i32; LANES] {
        W4M::decode(group, i).map(|code| code - 8)
    }
}

impl Format for W4M {
    const PACKING: Packing = Packing::W4M;
}

impl Codes for W4M {
    const GROUP_BYTES: usize = GROUP * LANES / 2;
    #[inline(always)]
    fn decode(group: &[u8], i: usize) -> [i32; LANES] {
        let oct: &[u8] = &group[i / 8 * 64..][..64];
        std::array::from_fn(|r| i32::from(oct[4 * r + i % 4] >> (i % 8 / 4 * 4) & 15))
    }
}

/// The 16-bit number `i` of a little-endian byte slice.
#[inline(always)]
pub(crate) fn half_at(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
}

/// 16 scales (or minima) of group `g`.
#[inline(always)]
pub(crate) fn halves(bytes: &[u8], g: usize) -> [f32; LANES] {
    let bytes = &bytes[g * 2 * LANES..][..2 * LANES];
    std::array::from_fn(|r| f16_to_f32(half_at(bytes, r)))
}

macro_rules! rows {
    ($($name:ident: $codes:ty, $planes:literal;)+) => {
        $(#[inline(always)]
        pub(crate) fn $name(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
            linear::<$codes, $planes>(w, k, x, y);
        })+
    };
}

rows! {
    linear_w8_fixed24: W8, 3;
    linear_w8_fixed16: W8, 2;
    linear_w8_fixed8: W8, 1;
    linear_w4_fixed24: W4, 3;
    linear_w4_fixed16: W4, 2;
    linear_w4_fixed8: W4, 1;
    linear_w4m_fixed24: W4M, 3;
    linear_w4m_fixed16: W4M, 2;
    linear_w4m_fixed8: W4M, 1;
}

#[inline(always)]
fn linear<C: Codes, const PLANES: usize>(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
    check(C::PACKING, PLANES, w, k, x, y);
    for t in 0..y.rows() {
        let y = y.row_mut(t);
        for (block, y) in w.chunks_exact(C::PACKING.block_bytes(k)).zip(y.chunks_mut(LANES)) {
            let acc = block_row::<C, PLANES>(block, k, x, t);
            y.copy_from_slice(&acc[..y.len()]);
        }
    }
}

/// Token `t` times one block.
#[inline(always)]
fn block_row<C: Codes, const PLANES: usize>(
    block: &[u8],
    k: usize,
    x: &FxRows<'_>,
    t: usize,
) -> [f32; LANES] {
    let planes: [&[i8]; PLANES] = std::array::from_fn(|p| x.plane(t, p));
    let (xs, z) = (x.xs(t), x.z(t));
    let scales = &block[C::PACKING.payload_bytes(k)..];
    let mut acc = [0.0; LANES];
    for (g, codes) in block[..C::PACKING.payload_bytes(k)].chunks_exact(C::GROUP_BYTES).enumerate() {
        let xs = xs[g * GROUP / waste_plan::FX_GROUP];
        let sums = plane_sums::<C, PLANES>(codes, planes.map(|plane| &plane[g * GROUP..][..GROUP]));
        let d = halves(scales, g);
        for r in 0..LANES {
            let s = recombine(std::array::from_fn::<_, PLANES, _>(|p| sums[p][r]));
            acc[r] = s.mul_add(d[r] * xs, acc[r]);
        }
        if matches!(C::PACKING, Packing::W4M) {
            let m = halves(&block[Packing::W4M.minima_at(k)..], g);
            for r in 0..LANES {
                acc[r] = z[g].mul_add(m[r] * xs, acc[r]);
            }
        }
    }
    acc
}

/// The exact sums of one group, per plane and row.
#[inline(always)]
fn plane_sums<C: Codes, const PLANES: usize>(
    codes: &[u8],
    planes: [&[i8]; PLANES],
) -> [[i32; LANES]; PLANES] {
    let mut sums = [[0i32; LANES]; PLANES];
    for i in 0..GROUP {
        let w = C::decode(codes, i);
        for (sums, plane) in sums.iter_mut().zip(planes) {
            for (sum, w) in sums.iter_mut().zip(w) {
                *sum += w * i32::from(plane[i]);
            }
        }
    }
    sums
}
