//! AVX-512 twins of the fixed-point linears: a register is 4 inputs of all 16 rows of a block, as they stand in memory.
//!
//! Weights are multiplied straight from the packed bytes; what a token brings to a weight group ([`Part`]) is laid out
//! once. A matrix product walks the inputs in chunks of one activation group, so that the parts of `TOKENS` tokens
//! and the weights of two blocks stay in L1; its accumulators live in the tile between chunks. One token goes through
//! all inputs of two blocks at a time. Groups ascend, so each output sees the order of the definition.

pub(crate) mod nibbles;
pub(crate) mod vnni;

use std::arch::x86_64::{
    __m512, __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_cvtepi32_ps, _mm512_fmadd_ps, _mm512_mul_ps,
    _mm512_set1_epi8, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_srli_epi16,
};

use waste_plan::{LANES, Packing};

use crate::avx2::with_lanes;
use crate::avx512::{load_16_ps, store_16_ps, widen_16};
use crate::linear::parts::{GROUPS, Part};
use crate::linear::portable::Codes;
use crate::view::TileMut;

/// How far ahead of a matrix-vector product its weights are asked for, in bytes.
const AHEAD: usize = 4096;

impl<const PLANES: usize> Part<PLANES> {
    /// What plane p's sums of codes made unsigned have too much, negated: −128 or −8 times the group's activations.
    #[inline(always)]
    fn start<C: Codes>(&self, p: usize) -> i32 {
        let bias = match C::PACKING {
            Packing::W8 => 128,
            Packing::W4 => 8,
            _ => 0,
        };
        -bias * self.sum(p)
    }
}

/// Some groups of some tokens: token after token, [`GROUPS`] apart where there are several.
#[derive(Clone, Copy)]
struct Parts<'a, const PLANES: usize> {
    flat: &'a [Part<PLANES>],
    groups: usize,
}

/// One packed block of 16 rows from some group on.
#[derive(Clone, Copy)]
struct Block<'a> {
    /// Lines of 64 bytes: a quad of inputs, or two in nibbles.
    codes: &'a [[u8; 64]],
    scales: &'a [[u8; 2 * LANES]],
    /// Empty where the format has none.
    minima: &'a [[u8; 2 * LANES]],
    /// From one block to the next.
    bytes: usize,
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
            bytes: block.len(),
        }
    }
}

/// Low and high nibbles of 16 rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn nibbles(codes: __m512i) -> [__m512i; 2] {
    let mask = _mm512_set1_epi8(15);
    [_mm512_and_si512(codes, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(codes), mask)]
}

/// The `s` of 16 rows from their plane sums: the two lower planes join exactly in i32.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn recombine<const P: usize>(sums: [__m512i; P]) -> __m512 {
    let mut low = sums[P - 1];
    if P > 1 {
        low = _mm512_add_epi32(low, _mm512_slli_epi32::<8>(sums[P - 2]));
    }
    let low = _mm512_cvtepi32_ps(low);
    if P < 3 {
        return low;
    }
    _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[0]), _mm512_set1_ps(65536.0), low)
}

/// What the tile has so far: of tokens `at` …, 16 outputs of each block.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn loaded<const T: usize, const B: usize>(y: &mut TileMut<'_>, at: usize) -> [[__m512; B]; T] {
    let mut acc = [[_mm512_setzero_ps(); B]; T];
    for (t, acc) in acc.iter_mut().enumerate() {
        for (acc, y) in acc.iter_mut().zip(y.row_mut(at + t).chunks_mut(LANES)) {
            with_lanes(y, |lanes| *acc = load_16_ps(lanes));
        }
    }
    acc
}

/// The opposite of [`loaded`].
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn store<const T: usize, const B: usize>(acc: &[[__m512; B]; T], y: &mut TileMut<'_>, at: usize) {
    for (t, acc) in acc.iter().enumerate() {
        for (acc, y) in acc.iter().zip(y.row_mut(at + t).chunks_mut(LANES)) {
            with_lanes(y, |lanes| store_16_ps(lanes, *acc));
        }
    }
}

/// Adds z · (m · xs) of a group to every token's sums of block `b`: its minima times the sum of the inputs.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn add_minima<const P: usize, const T: usize, const B: usize>(
    minima: &[u8; 2 * LANES],
    b: usize,
    parts: &[Part<P>],
    acc: &mut [[__m512; B]; T],
) {
    let m = widen_16(minima);
    for (t, acc) in acc.iter_mut().enumerate() {
        let Part { xs, z, .. } = parts[t * GROUPS];
        let (xs, z) = (_mm512_set1_ps(xs), _mm512_set1_ps(z));
        acc[b] = _mm512_fmadd_ps(z, _mm512_mul_ps(m, xs), acc[b]);
    }
}

/// The loops around a file's `add`, for its instructions.
macro_rules! walkers {
    ($attribute:meta) => {
        /// The linear of this tier, `T` tokens at a time.
        #[inline]
        #[$attribute]
        fn linear<C: Codes, const P: usize, const L: usize, const T: usize>(
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
                return one_token::<C, P, L>(w, k, x, y);
            }
            let mut parts = [[Part::<P>::ZERO; GROUPS]; TOKENS];
            for from in (0..y.rows()).step_by(TOKENS) {
                let tokens = from..y.rows().min(from + TOKENS);
                for chunk in 0..k.div_ceil(FX_GROUP) {
                    let groups = GROUPS.min(k / GROUP - chunk * GROUPS);
                    for (parts, t) in parts.iter_mut().zip(tokens.clone()) {
                        Token::new(x, t).lay_out(chunk * GROUPS, &mut parts[..groups]);
                    }
                    for (blocks, at) in
                        w.chunks(2 * C::PACKING.block_bytes(k)).zip((0..y.cols()).step_by(2 * LANES))
                    {
                        let y = &mut y.sub(tokens.clone(), at..y.cols().min(at + 2 * LANES));
                        let (many, rest) = parts[..tokens.len()].as_chunks::<T>();
                        for (i, parts) in many.iter().enumerate() {
                            let parts = Parts { flat: parts.as_flattened(), groups };
                            some_blocks::<C, P, L, T>(blocks, k, chunk * GROUPS, parts, y, i * T);
                        }
                        for (i, parts) in rest.iter().enumerate() {
                            let at = many.len() * T + i;
                            some_blocks::<C, P, L, 1>(
                                blocks,
                                k,
                                chunk * GROUPS,
                                Parts { flat: parts, groups },
                                y,
                                at,
                            );
                        }
                    }
                }
            }
        }

        /// The matrix-vector product.
        #[inline]
        #[$attribute]
        fn one_token<C: Codes, const P: usize, const L: usize>(
            w: &[u8],
            k: usize,
            x: &FxRows<'_>,
            y: &mut TileMut<'_>,
        ) {
            let token = Token::<P>::new(x, 0);
            let mut parts = [Part::ZERO; SPAN];
            for from in (0..k / GROUP).step_by(SPAN) {
                let groups = SPAN.min(k / GROUP - from);
                token.lay_out(from, &mut parts[..groups]);
                for (blocks, at) in
                    w.chunks(2 * C::PACKING.block_bytes(k)).zip((0..y.cols()).step_by(2 * LANES))
                {
                    let y = &mut y.sub(0..1, at..y.cols().min(at + 2 * LANES));
                    some_blocks::<C, P, L, 1>(blocks, k, from, Parts { flat: &parts, groups }, y, 0);
                }
            }
        }

        /// Adds some groups of as many blocks as the tile has (one or two) times `T` tokens to rows `at` … of it.
        #[inline]
        #[$attribute]
        fn some_blocks<C: Codes, const P: usize, const L: usize, const T: usize>(
            blocks: &[u8],
            k: usize,
            from: usize,
            parts: Parts<'_, P>,
            y: &mut TileMut<'_>,
            at: usize,
        ) {
            let (first, second) = blocks.split_at(C::PACKING.block_bytes(k));
            let first = Block::new::<C>(first, k, from);
            if y.cols() > LANES {
                add::<C, P, L, T, 2>([first, Block::new::<C>(second, k, from)], parts, y, at);
            } else {
                add::<C, P, L, T, 1>([first], parts, y, at);
            }
        }
    };
}
use walkers;
