//! Tables of byte planes of 64 entries: 32 rows are the lanes of a register, and an entry of all of them is four
//! `vpshufb`, one for each 16 entries.
//!
//! `vpshufb` gives 0 where an index is negative, and looks at its low four bits elsewhere. So of number − 16j it takes
//! the right byte of chunk j, but also of every chunk below; and as a chunk is stored as its exclusive or with the one
//! before, the exclusive or of all four is the entry.

use std::arch::x86_64::{
    __m256i, _mm_setr_epi8, _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256, _mm256_blendv_epi8,
    _mm256_broadcastsi128_si256, _mm256_castsi128_si256, _mm256_castsi256_si128, _mm256_cvtepi32_ps,
    _mm256_cvtepu16_epi32, _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_inserti128_si256,
    _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_si256,
    _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srli_epi16, _mm256_sub_epi8,
    _mm256_sub_epi16, _mm256_unpackhi_epi16, _mm256_unpacklo_epi16, _mm256_xor_si256,
};
use std::ops::Range;

use waste_plan::vq::ROW_BLOCK;
use waste_plan::{LutLayout, Tables};

use super::super::portable::parts;
use super::super::{Code, Vq4p, bias, check_apply, with_block};
use super::word::{PIECE, add_floats, pieces_of_floats};
use crate::avx2::{load_16, load_ps, prefetch, store_32, store_ps};

/// Rows of a register.
const ROWS: usize = 32;
/// Index bytes of a position of so many rows.
const BYTES: usize = 3 * ROWS;

/// Fixed-point tables of `P` planes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn fixed<const P: usize>(
    tables: Tables,
    bytes: &[u8],
    indices: &[u8],
    positions: Range<usize>,
    k: usize,
    acc: &mut [f32],
) {
    let layout = LutLayout { code: Vq4p::CODE, tables };
    let of_rows = check_apply(layout, bytes, indices, &positions, k, acc.len());
    let (_, scales) = parts::<i32>(layout, positions.len(), bytes);
    let blocks = bytes.chunks(layout.entry_bytes(tables.block()));
    for (b, (block, xs)) in blocks.zip(scales).enumerate() {
        let first = positions.start + b * tables.block();
        let n = tables.block().min(positions.end - first);
        let (planes, _) = block.as_chunks().0.as_chunks().0.as_chunks();
        let (range, of_range) = (first * Vq4p::POSITION, n * Vq4p::POSITION);
        for (indices, acc) in indices.chunks_exact(of_rows).zip(acc.chunks_mut(ROW_BLOCK)) {
            let indices = &indices[range..][..of_range];
            (0..of_range).step_by(64).for_each(|line| prefetch(indices, of_rows + line));
            with_block(acc, |acc| {
                let (rows, _) = indices.as_chunks::<BYTES>();
                for (half, acc) in acc.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
                    let sums = sums::<P>(rows.iter().skip(half).step_by(2), &planes[..n]);
                    for (acc, sum) in acc.as_chunks_mut().0.iter_mut().zip(sums) {
                        let sum = _mm256_cvtepi32_ps(sum);
                        store_ps(acc, _mm256_fmadd_ps(sum, _mm256_set1_ps(*xs), load_ps(acc)));
                    }
                }
            });
        }
    }
}

/// Σ q of 32 rows over the positions of a block; a position's planes are `[stage][plane][64]`.
///
/// Bytes are summed as words, twice: as they are, modulo 2^16, and their odd ones alone. A block is at most 32
/// positions of four stages, so a sum is at most 128 · 255 < 2^15.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sums<'a, const P: usize>(
    indices: impl Iterator<Item = &'a [u8; BYTES]>,
    planes: &[[[[u8; 64]; P]; 4]],
) -> [__m256i; 4] {
    let mut words = [_mm256_setzero_si256(); P];
    let mut odd = [_mm256_setzero_si256(); P];
    for (indices, planes) in indices.zip(planes) {
        for (number, planes) in unpack(indices).into_iter().zip(planes) {
            let numbers = steps(number);
            for (p, plane) in planes.iter().enumerate() {
                let entries = look_up(numbers, plane);
                words[p] = _mm256_add_epi16(words[p], entries);
                odd[p] = _mm256_add_epi16(odd[p], _mm256_srli_epi16::<8>(entries));
            }
        }
    }
    let biases = _mm256_set1_epi32(-bias(P) * 4 * planes.len() as i32);
    let mut sums = [biases; 4];
    for p in 0..P {
        let even = _mm256_sub_epi16(words[p], _mm256_slli_epi16::<8>(odd[p]));
        let rows = [_mm256_unpacklo_epi16(even, odd[p]), _mm256_unpackhi_epi16(even, odd[p])];
        let eights = [
            _mm256_castsi256_si128(rows[0]),
            _mm256_castsi256_si128(rows[1]),
            _mm256_extracti128_si256::<1>(rows[0]),
            _mm256_extracti128_si256::<1>(rows[1]),
        ];
        for (sum, eight) in sums.iter_mut().zip(eights) {
            let of_plane = _mm256_cvtepu16_epi32(eight);
            let shifted = match P - 1 - p {
                0 => of_plane,
                1 => _mm256_slli_epi32::<8>(of_plane),
                _ => _mm256_slli_epi32::<16>(of_plane),
            };
            *sum = _mm256_add_epi32(*sum, shifted);
        }
    }
    sums
}

/// Numbers − 0, 16, 32, 48.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn steps(numbers: __m256i) -> [__m256i; 4] {
    let sixteen = _mm256_set1_epi8(16);
    let one = _mm256_sub_epi8(numbers, sixteen);
    let two = _mm256_sub_epi8(one, sixteen);
    [numbers, one, two, _mm256_sub_epi8(two, sixteen)]
}

/// The bytes of a plane that 32 numbers name.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn look_up(steps: [__m256i; 4], plane: &[u8; 64]) -> __m256i {
    let (chunks, _) = plane.as_chunks();
    let [a, b, c, d]: [__m256i; 4] = std::array::from_fn(|j| {
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_16(&chunks[j])), steps[j])
    });
    _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d))
}

/// The numbers of the four stages of 32 rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack(indices: &[u8; BYTES]) -> [__m256i; 4] {
    let [b0, b1, b2] = deinterleave(indices);
    let field = |bits, mask| _mm256_and_si256(bits, _mm256_set1_epi8(mask));
    [
        field(b0, 63),
        _mm256_or_si256(field(_mm256_srli_epi16::<6>(b0), 3), field(_mm256_slli_epi16::<2>(b1), 60)),
        _mm256_or_si256(field(_mm256_srli_epi16::<4>(b1), 15), field(_mm256_slli_epi16::<4>(b2), 48)),
        field(_mm256_srli_epi16::<2>(b2), 63),
    ]
}

/// Bytes 0, 1 and 2 of 32 rows of three, rows ascending.
///
/// A lane of 128 bits takes 48 bytes, 16 rows, in three registers. As 16 = 1 mod 3, byte c of the rows is found at
/// places of its own in each of them: two blends collect it, and the shuffle sorts place (3r + c) mod 16 to row r.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn deinterleave(indices: &[u8; BYTES]) -> [__m256i; 3] {
    let (parts, _) = indices.as_chunks();
    let [x, y, z]: [__m256i; 3] = std::array::from_fn(|i| {
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(load_16(&parts[i])), load_16(&parts[i + 3]))
    });
    // Places 0, 1 and 2 mod 3.
    let places = [
        _mm_setr_epi8(-1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1),
        _mm_setr_epi8(0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0),
        _mm_setr_epi8(0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0),
    ];
    let order = [
        _mm_setr_epi8(0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14, 1, 4, 7, 10, 13),
        _mm_setr_epi8(1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14),
        _mm_setr_epi8(2, 5, 8, 11, 14, 1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15),
    ];
    std::array::from_fn(|c| {
        let of_y = _mm256_broadcastsi128_si256(places[(c + 2) % 3]);
        let of_z = _mm256_broadcastsi128_si256(places[(c + 1) % 3]);
        let bytes = _mm256_blendv_epi8(_mm256_blendv_epi8(x, y, of_y), z, of_z);
        _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(order[c]))
    })
}

/// Tables of floats, in the order of the container.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn floats(bytes: &[u8], indices: &[u8], positions: Range<usize>, k: usize, acc: &mut [f32]) {
    pieces_of_floats::<Vq4p>(bytes, indices, positions, k, acc, |indices, piece, acc| {
        let mut numbers = [[[0; ROW_BLOCK]; 4]; PIECE];
        for (i, indices) in indices.as_chunks().0.iter().enumerate() {
            for (numbers, stage) in numbers[i / 2].iter_mut().zip(unpack(indices)) {
                store_32(&mut numbers.as_chunks_mut().0[i % 2], stage);
            }
        }
        let tables: &[[[f32; 64]; 4]] = piece.as_chunks().0.as_chunks().0;
        add_floats(tables, |v, row, stage| numbers[v][stage][row], acc);
    });
}
