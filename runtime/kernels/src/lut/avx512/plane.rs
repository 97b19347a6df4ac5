//! Tables of byte planes: 64 rows are the lanes of a register, and an entry of all of them is one `vpermb` of 64
//! entries, or four of 256: each where the index's two high bits say so, the later ones over the earlier.
//!
//! Byte c of row r of a three-byte stream is byte 3r + c of three registers. As 64 = 1 mod 3, byte c is found at places
//! of its own in each of them: two blends collect it for all rows, row r at place (3r + c) mod 64. So the stages of
//! `Vq3r` are summed each in an order of its own, and sorted at the end of a block; those of `Vq4p`, whose numbers run
//! over bytes, first turn to the order of byte 0.
//!
//! Bytes are summed as words, twice: as they are, modulo 2^16, and their odd ones alone. A block is at most 32 positions
//! of four stages, so a sum is at most 128 · 255 < 2^15.

use std::arch::x86_64::{
    __m512i, __mmask64, _mm512_add_epi8, _mm512_add_epi16, _mm512_add_epi32, _mm512_castsi512_si256,
    _mm512_cvtepi32_ps, _mm512_cvtepu16_epi32, _mm512_extracti64x4_epi64, _mm512_fmadd_ps,
    _mm512_mask_blend_epi8, _mm512_mask_permutexvar_epi8, _mm512_movepi8_mask, _mm512_permutex2var_epi16,
    _mm512_permutexvar_epi8, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_si512,
    _mm512_slli_epi16, _mm512_slli_epi32, _mm512_srli_epi16, _mm512_sub_epi16, _mm512_ternarylogic_epi32,
};
use std::ops::Range;

use waste_plan::vq::ROW_BLOCK;
use waste_plan::{LutLayout, Tables};

use super::super::portable::parts;
use super::super::{Code, Vq2r, Vq3r, Vq4p, bias, check_apply, with_block};
use crate::avx2::prefetch;
use crate::avx512::{load_16_ps, load_64, store_16_ps};

/// Sums of the bytes that lanes look up, as words: all of them modulo 2^16, and the odd ones alone.
type Words = [__m512i; 2];

/// Calls `f` with the index bytes, the table bytes, the scale and the sums of every block of tables and of rows.
#[inline(always)]
fn walk<C: Code>(
    tables: Tables,
    bytes: &[u8],
    indices: &[u8],
    positions: Range<usize>,
    k: usize,
    acc: &mut [f32],
    f: impl Fn(&[u8], &[u8], f32, &mut [f32; ROW_BLOCK]),
) {
    let layout = LutLayout { code: C::CODE, tables };
    let of_rows = check_apply(layout, bytes, indices, &positions, k, acc.len());
    let (_, scales) = parts::<i32>(layout, positions.len(), bytes);
    let blocks = bytes.chunks(layout.entry_bytes(tables.block()));
    for (b, (block, xs)) in blocks.zip(scales).enumerate() {
        let first = positions.start + b * tables.block();
        let n = tables.block().min(positions.end - first);
        for (indices, acc) in indices.chunks_exact(of_rows).zip(acc.chunks_mut(ROW_BLOCK)) {
            let indices = &indices[first * C::POSITION..][..n * C::POSITION];
            with_block(acc, |acc| f(indices, block, *xs, acc));
        }
    }
}

/// Three stages of 256 entries, a byte each.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn vq3r<const P: usize>(
    tables: Tables,
    bytes: &[u8],
    indices: &[u8],
    positions: Range<usize>,
    k: usize,
    acc: &mut [f32],
) {
    let ahead = k / 8 * Vq3r::POSITION;
    walk::<Vq3r>(tables, bytes, indices, positions, k, acc, |indices, tables, xs, acc| {
        let (tables, _) = tables.as_chunks::<256>().0.as_chunks::<P>().0.as_chunks::<3>();
        let (indices, _) = indices.as_chunks();
        let mut sums = [[[_mm512_setzero_si512(); 2]; P]; 3];
        for (indices, tables) in indices.iter().zip(tables) {
            // One by one: a loop would keep its sums in memory.
            let numbers = deinterleave(indices, ahead);
            add_stage(numbers[0], &tables[0], &mut sums[0]);
            add_stage(numbers[1], &tables[1], &mut sums[1]);
            add_stage(numbers[2], &tables[2], &mut sums[2]);
        }
        let mut rows = [[_mm512_setzero_si512(); 2]; P];
        for (stage, sums) in sums.iter().enumerate() {
            for (rows, sums) in rows.iter_mut().zip(sums) {
                let sorted = sorted(*sums, stage);
                *rows = [_mm512_add_epi16(rows[0], sorted[0]), _mm512_add_epi16(rows[1], sorted[1])];
            }
        }
        finish(rows, 3 * indices.len(), xs, acc);
    });
}

/// Two stages of 256 entries, a byte each: row r at place 2r, row 32 + r at 2r + 1.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn vq2r<const P: usize>(
    tables: Tables,
    bytes: &[u8],
    indices: &[u8],
    positions: Range<usize>,
    k: usize,
    acc: &mut [f32],
) {
    const ODD: __mmask64 = 0xaaaa_aaaa_aaaa_aaaa;
    let ahead = k / 8 * Vq2r::POSITION;
    walk::<Vq2r>(tables, bytes, indices, positions, k, acc, |indices, tables, xs, acc| {
        let (tables, _) = tables.as_chunks::<256>().0.as_chunks::<P>().0.as_chunks::<2>();
        let (lines, _) = indices.as_chunks::<64>().0.as_chunks::<2>();
        let mut sums = [[_mm512_setzero_si512(); 2]; P];
        for (lines, tables) in lines.iter().zip(tables) {
            prefetch(&lines[0], ahead);
            prefetch(&lines[1], ahead);
            let (low, high) = (load_64(&lines[0]), load_64(&lines[1]));
            let numbers = [
                _mm512_mask_blend_epi8(ODD, low, _mm512_slli_epi16::<8>(high)),
                _mm512_mask_blend_epi8(ODD, _mm512_srli_epi16::<8>(low), high),
            ];
            add_stage(numbers[0], &tables[0], &mut sums);
            add_stage(numbers[1], &tables[1], &mut sums);
        }
        let mut rows = [[_mm512_setzero_si512(); 2]; P];
        for (rows, sums) in rows.iter_mut().zip(sums) {
            *rows = [even(sums), sums[1]];
        }
        finish(rows, 2 * lines.len(), xs, acc);
    });
}

/// Four stages of 64 entries, six bits each.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn vq4p<const P: usize>(
    tables: Tables,
    bytes: &[u8],
    indices: &[u8],
    positions: Range<usize>,
    k: usize,
    acc: &mut [f32],
) {
    let ahead = k / 8 * Vq4p::POSITION;
    walk::<Vq4p>(tables, bytes, indices, positions, k, acc, |indices, tables, xs, acc| {
        let (tables, _) = tables.as_chunks::<64>().0.as_chunks::<P>().0.as_chunks::<4>();
        let (indices, _) = indices.as_chunks();
        let mut sums = [[_mm512_setzero_si512(); 2]; P];
        for (indices, tables) in indices.iter().zip(tables) {
            let numbers = unpack(deinterleave(indices, ahead));
            for (numbers, planes) in numbers.into_iter().zip(tables) {
                for (plane, sums) in planes.iter().zip(&mut sums) {
                    add(_mm512_permutexvar_epi8(numbers, load_64(plane)), sums);
                }
            }
        }
        let mut rows = [[_mm512_setzero_si512(); 2]; P];
        for (rows, sums) in rows.iter_mut().zip(sums) {
            *rows = sorted(sums, 0);
        }
        finish(rows, 4 * indices.len(), xs, acc);
    });
}

/// Bytes 0, 1 and 2 of 64 rows, row r of byte c at place (3r + c) mod 64; asks for the bytes so far `ahead`.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn deinterleave(indices: &[u8; 3 * ROW_BLOCK], ahead: usize) -> [__m512i; 3] {
    /// Places 0, 1 and 2 mod 3.
    const PLACES: [__mmask64; 3] = [0x9249_2492_4924_9249, 0x2492_4924_9249_2492, 0x4924_9249_2492_4924];
    let mut lines = [_mm512_setzero_si512(); 3];
    for (register, line) in lines.iter_mut().zip(indices.as_chunks().0) {
        prefetch(line, ahead);
        *register = load_64(line);
    }
    let mut bytes = [lines[0]; 3];
    for (c, bytes) in bytes.iter_mut().enumerate() {
        *bytes = _mm512_mask_blend_epi8(PLACES[(c + 2) % 3], *bytes, lines[1]);
        *bytes = _mm512_mask_blend_epi8(PLACES[(c + 1) % 3], *bytes, lines[2]);
    }
    bytes
}

/// The numbers of four stages at the places of byte 0; what stands in their two high bits is no part of them.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn unpack([b0, b1, b2]: [__m512i; 3]) -> [__m512i; 4] {
    /// a where the mask c is set, b elsewhere.
    const SELECT: i32 = 0b1110_0100;
    let b1 = _mm512_permutexvar_epi8(load_64(&turn(1)), b1);
    let b2 = _mm512_permutexvar_epi8(load_64(&turn(2)), b2);
    let second = (_mm512_srli_epi16::<6>(b0), _mm512_slli_epi16::<2>(b1));
    let third = (_mm512_srli_epi16::<4>(b1), _mm512_slli_epi16::<4>(b2));
    [
        b0,
        _mm512_ternarylogic_epi32::<SELECT>(second.0, second.1, _mm512_set1_epi8(3)),
        _mm512_ternarylogic_epi32::<SELECT>(third.0, third.1, _mm512_set1_epi8(15)),
        _mm512_srli_epi16::<2>(b2),
    ]
}

/// Places i + `by` mod 64.
const fn turn(by: u8) -> [u8; 64] {
    let mut places = [0; 64];
    let mut i = 0;
    while i < 64 {
        places[i as usize] = (i + by) % 64;
        i += 1;
    }
    places
}

/// Adds what numbers of 256 name in every plane.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn add_stage<const P: usize>(numbers: __m512i, planes: &[[u8; 256]; P], sums: &mut [Words; P]) {
    // In the second or fourth quarter; in the third or fourth; in the fourth.
    let odd = _mm512_movepi8_mask(_mm512_add_epi8(numbers, numbers));
    let upper = _mm512_movepi8_mask(numbers);
    for (plane, sums) in planes.iter().zip(sums) {
        let (parts, _) = plane.as_chunks();
        let mut entries = _mm512_permutexvar_epi8(numbers, load_64(&parts[0]));
        entries = _mm512_mask_permutexvar_epi8(entries, odd, numbers, load_64(&parts[1]));
        entries = _mm512_mask_permutexvar_epi8(entries, upper, numbers, load_64(&parts[2]));
        entries = _mm512_mask_permutexvar_epi8(entries, odd & upper, numbers, load_64(&parts[3]));
        add(entries, sums);
    }
}

/// Adds bytes to their sums.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn add(entries: __m512i, sums: &mut Words) {
    sums[0] = _mm512_add_epi16(sums[0], entries);
    sums[1] = _mm512_add_epi16(sums[1], _mm512_srli_epi16::<8>(entries));
}

/// The sums of the even bytes.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn even(sums: Words) -> __m512i {
    _mm512_sub_epi16(sums[0], _mm512_slli_epi16::<8>(sums[1]))
}

/// For byte c: at which of 32 even and 32 odd places the sums of rows 0 … 31 and 32 … 63 stand, in words.
const ORDER: [[[u8; 64]; 2]; 3] = {
    let mut order = [[[0; 64]; 2]; 3];
    let mut i = 0;
    while i < 3 * 64 {
        let (c, row) = (i / 64, i % 64);
        let place = (3 * row + c) % 64;
        order[c][row / 32][row % 32 * 2] = (place / 2 + place % 2 * 32) as u8;
        i += 1;
    }
    order
};

/// Sums of rows 0 … 31 and of rows 32 … 63, from those at the places of byte `c`.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn sorted(sums: Words, c: usize) -> [__m512i; 2] {
    let (even, odd) = (even(sums), sums[1]);
    [
        _mm512_permutex2var_epi16(even, load_64(&ORDER[c][0]), odd),
        _mm512_permutex2var_epi16(even, load_64(&ORDER[c][1]), odd),
    ]
}

/// acc = fma(f32(Σ q), xs, acc), from the sums of so many biased bytes of each plane, highest first.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn finish<const P: usize>(planes: [[__m512i; 2]; P], entries: usize, xs: f32, acc: &mut [f32; ROW_BLOCK]) {
    for (i, acc) in acc.as_chunks_mut().0.iter_mut().enumerate() {
        let mut sum = _mm512_set1_epi32(-bias(P) * entries as i32);
        for (p, rows) in planes.iter().enumerate() {
            let half = rows[i / 2];
            let words =
                if i % 2 == 0 { _mm512_castsi512_si256(half) } else { _mm512_extracti64x4_epi64::<1>(half) };
            let of_plane = _mm512_cvtepu16_epi32(words);
            let shifted = match P - 1 - p {
                0 => of_plane,
                1 => _mm512_slli_epi32::<8>(of_plane),
                _ => _mm512_slli_epi32::<16>(of_plane),
            };
            sum = _mm512_add_epi32(sum, shifted);
        }
        let sum = _mm512_cvtepi32_ps(sum);
        store_16_ps(acc, _mm512_fmadd_ps(sum, _mm512_set1_ps(xs), load_16_ps(acc)));
    }
}
