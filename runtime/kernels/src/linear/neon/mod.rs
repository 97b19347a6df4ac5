//! NEON twins of the fixed-point linears. A register holds 4 inputs of 4 rows as they stand in memory: four registers are
//! a quad of inputs of a block's 16 rows.
//!
//! Three files multiply, each with the best instruction of its tier: `products` with those of NEON itself, `dotprod` with
//! `sdot`, `i8mm` with `smmla`. What they have in common stands here: what a token brings to a weight group ([`Part`]) is
//! laid out once; a matrix product walks the inputs in chunks of one activation group, so that the parts of `TOKENS`
//! tokens stay in L1, with its accumulators in the tile between chunks; one token goes through a block's inputs at a
//! stretch. Groups ascend, so each output sees the order of the definition.
//!
//! Deliberately absent: software prefetch, whose worth has not been measured on an Arm processor.

pub(crate) mod dotprod;
pub(crate) mod i8mm;
pub(crate) mod products;

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int32x4_t, vaddq_s32, vandq_s8, vcvtq_f32_s32, vdupq_n_f32, vdupq_n_s8,
    vdupq_n_s32, vfmaq_f32, vmulq_f32, vreinterpretq_s8_u8, vreinterpretq_u8_s8, vshlq_n_s32, vshrq_n_u8,
};

use waste_plan::{LANES, Packing};

use crate::linear::parts::Part;
use crate::linear::portable::Codes;
use crate::neon::{load_64, widen_16};

impl<const P: usize> Part<P> {
    /// What plane p's sums of codes lack: W4's codes are not made signed.
    #[inline(always)]
    fn bias<C: Codes>(&self, p: usize) -> i32 {
        if matches!(C::PACKING, Packing::W4) { -8 * self.sum(p) } else { 0 }
    }
}

/// One packed block of 16 rows from some group on.
#[derive(Clone, Copy)]
struct Block<'a> {
    /// Lines of 64 bytes: a quad of inputs, or two in nibbles.
    codes: &'a [[u8; 64]],
    scales: &'a [[u8; 2 * LANES]],
    /// Empty where the format has none.
    minima: &'a [[u8; 2 * LANES]],
}

impl<'a> Block<'a> {
    #[inline(always)]
    fn new<C: Codes>(block: &'a [u8], k: usize, from: usize) -> Self {
        let payload = C::PACKING.payload_bytes(k);
        let minima = match C::PACKING {
            Packing::W4M => &block[C::PACKING.minima_at(k)..],
            _ => &[],
        };
        Self {
            codes: block[from * C::GROUP_BYTES..payload].as_chunks().0,
            scales: &block[payload..].as_chunks().0[from..],
            minima: minima.as_chunks().0.get(from..).unwrap_or(&[]),
        }
    }

    /// The codes of a group.
    #[inline(always)]
    fn codes<C: Codes>(&self, group: usize) -> &'a [[u8; 64]] {
        let lines = C::GROUP_BYTES / 64;
        &self.codes[group * lines..][..lines]
    }
}

/// Two quads of inputs of 16 rows.
type Eight = [[int8x16_t; 4]; 2];

/// Inputs 8j … 8j + 7 of a group; nibbles as they are, without sign.
#[inline]
#[target_feature(enable = "neon")]
fn eight<C: Codes>(lines: &[[u8; 64]], j: usize) -> Eight {
    if matches!(C::PACKING, Packing::W8) {
        return [load_64(&lines[2 * j]), load_64(&lines[2 * j + 1])];
    }
    let line = load_64(&lines[j]);
    let high = |it| vreinterpretq_s8_u8(vshrq_n_u8::<4>(vreinterpretq_u8_s8(it)));
    [line.map(|it| vandq_s8(it, vdupq_n_s8(15))), line.map(high)]
}

/// The plane sums of 16 rows.
type Sums<const P: usize> = [[int32x4_t; 4]; P];

/// The scale step of a finished group, and the minima's, for one token.
#[inline]
#[target_feature(enable = "neon")]
fn finish<C: Codes, const P: usize>(
    sums: &Sums<P>,
    part: &Part<P>,
    d: &[float32x4_t; 4],
    m: &[float32x4_t; 4],
    acc: &mut [float32x4_t; 4],
) {
    let (xs, z) = (vdupq_n_f32(part.xs), vdupq_n_f32(part.z));
    for (r, acc) in acc.iter_mut().enumerate() {
        let mut planes = [vdupq_n_s32(0); P];
        for (p, plane) in planes.iter_mut().enumerate() {
            *plane = vaddq_s32(sums[p][r], vdupq_n_s32(part.bias::<C>(p)));
        }
        *acc = vfmaq_f32(*acc, recombine(planes), vmulq_f32(d[r], xs));
        if matches!(C::PACKING, Packing::W4M) {
            *acc = vfmaq_f32(*acc, z, vmulq_f32(m[r], xs));
        }
    }
}

/// The `s` of 4 rows from their plane sums: the two lower planes join exactly in i32.
#[inline]
#[target_feature(enable = "neon")]
fn recombine<const P: usize>(sums: [int32x4_t; P]) -> float32x4_t {
    let mut low = sums[P - 1];
    if P > 1 {
        low = vaddq_s32(low, vshlq_n_s32::<8>(sums[P - 2]));
    }
    let low = vcvtq_f32_s32(low);
    if P < 3 {
        return low;
    }
    vfmaq_f32(low, vcvtq_f32_s32(sums[0]), vdupq_n_f32(65536.0))
}

/// Scales, or minima, of 16 rows; zeros where the format has none.
#[inline]
#[target_feature(enable = "neon")]
fn halves(all: &[[u8; 2 * LANES]], group: usize) -> [float32x4_t; 4] {
    all.get(group).map_or([vdupq_n_f32(0.0); 4], |it| widen_16(it))
}

/// A tier: its rows and the loops around its file's `sums`. So many columns (planes of tokens) are summed at once.
macro_rules! tier {
    ($isa:expr, $attribute:meta, $columns:literal) => {
        tier!(@rows $isa, $attribute, $columns;
            linear_w8_fixed24: W8, 3;
            linear_w8_fixed16: W8, 2;
            linear_w8_fixed8: W8, 1;
            linear_w4_fixed24: W4, 3;
            linear_w4_fixed16: W4, 2;
            linear_w4_fixed8: W4, 1;
            linear_w4m_fixed24: W4M, 3;
            linear_w4m_fixed16: W4M, 2;
            linear_w4m_fixed8: W4M, 1;
        );

        /// The linear, `T` tokens at a time.
        #[inline]
        #[$attribute]
        fn linear<C: Codes, const P: usize, const T: usize>(
            w: &[u8],
            k: usize,
            x: &FxRows<'_>,
            y: &mut TileMut<'_>,
        ) {
            check(C::PACKING, P, w, k, x, y);
            for t in 0..y.rows() {
                y.row_mut(t).fill(0.0);
            }
            if y.rows() == 1 {
                return one_token::<C, P>(w, k, x, y);
            }
            let mut parts = [[Part::<P>::ZERO; GROUPS]; TOKENS];
            for from in (0..y.rows()).step_by(TOKENS) {
                let tokens = from..y.rows().min(from + TOKENS);
                for chunk in (0..k / GROUP).step_by(GROUPS) {
                    let groups = GROUPS.min(k / GROUP - chunk);
                    for (parts, t) in parts.iter_mut().zip(tokens.clone()) {
                        Token::new(x, t).lay_out(chunk, &mut parts[..groups]);
                    }
                    let blocks = w.chunks_exact(C::PACKING.block_bytes(k));
                    for (block, at) in blocks.zip((0..y.cols()).step_by(LANES)) {
                        let block = Block::new::<C>(block, k, chunk);
                        let y = &mut y.sub(tokens.clone(), at..y.cols().min(at + LANES));
                        let (many, rest) = parts[..tokens.len()].as_chunks::<T>();
                        for (i, parts) in many.iter().enumerate() {
                            add::<C, P, T>(block, parts.each_ref().map(|it| &it[..groups]), y, i * T);
                        }
                        for (i, parts) in rest.iter().enumerate() {
                            add::<C, P, 1>(block, [&parts[..groups]], y, many.len() * T + i);
                        }
                    }
                }
            }
        }

        /// The matrix-vector product.
        #[inline]
        #[$attribute]
        fn one_token<C: Codes, const P: usize>(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
            let token = Token::<P>::new(x, 0);
            let mut parts = [Part::ZERO; SPAN];
            for from in (0..k / GROUP).step_by(SPAN) {
                let parts = &mut parts[..SPAN.min(k / GROUP - from)];
                token.lay_out(from, parts);
                let blocks = w.chunks_exact(C::PACKING.block_bytes(k));
                for (block, at) in blocks.zip((0..y.cols()).step_by(LANES)) {
                    let y = &mut y.sub(0..1, at..y.cols().min(at + LANES));
                    add::<C, P, 1>(Block::new::<C>(block, k, from), [&*parts], y, 0);
                }
            }
        }

        /// Adds the groups that the tokens have parts of to rows `at` … of the tile.
        #[inline(never)]
        #[$attribute]
        fn add<C: Codes, const P: usize, const T: usize>(
            block: Block<'_>,
            parts: [&[Part<P>]; T],
            y: &mut TileMut<'_>,
            at: usize,
        ) {
            let mut acc = [[vdupq_n_f32(0.0); 4]; T];
            for (t, acc) in acc.iter_mut().enumerate() {
                with_lanes(y.row_mut(at + t), |lanes| *acc = load_lanes(lanes));
            }
            for g in 0..parts[0].len() {
                let parts = parts.map(|it| &it[g]);
                let sums = sums::<C, P, T>(block.codes::<C>(g), parts);
                let (d, m) = (halves(block.scales, g), halves(block.minima, g));
                for ((sums, part), acc) in sums.iter().zip(parts).zip(&mut acc) {
                    finish::<C, P>(sums, part, &d, &m, acc);
                }
            }
            for (t, acc) in acc.iter().enumerate() {
                with_lanes(y.row_mut(at + t), |lanes| store_lanes(lanes, *acc));
            }
        }
    };
    (@rows $isa:expr, $attribute:meta, $columns:literal; $($name:ident: $codes:ty, $planes:literal;)+) => {
        /// Overlays the rows of this tier. The caller has the tier.
        pub(crate) fn install(table: &mut KernelTable) {
            $( table.$name = Entry { call: $name, isa: $isa }; )+
        }
        $(#[$attribute]
        fn $name(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
            linear::<$codes, $planes, { $columns / $planes }>(w, k, x, y);
        })+
    };
}
use tier;
