//! Packed blocks, element by element.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::schema::Part;
use crate::stored::tests::golden;
use crate::units::exponent_scale;

struct Bytes(Vec<Vec<u8>>);
impl PartBytes for Bytes {
    fn part(&self, index: usize) -> &[u8] {
        &self.0[index]
    }
}

fn weight(dtype: DType, packing: Packing, rows: u64, cols: u64, parts: Vec<Part>) -> Weight {
    let bytes = packing.bytes(rows, cols).unwrap_or(0);
    Weight {
        name: "w".into(),
        dtype,
        bank: 1,
        rows,
        cols,
        packing,
        bytes,
        offset: 0,
        crc32c: 0,
        parts,
        records: None,
    }
}

fn part(stored: DType, rows: u64, transposed: bool) -> Part {
    Part { source: 0, offset: 0, scales: None, stored, rows, transposed, terms: Vec::new() }
}

/// Every stored value is found again at its documented place.
#[test]
fn nibbles_lie_where_the_table_says() {
    let row: Vec<u8> = (0..2u8)
        .flat_map(|r| {
            let mut block = vec![0, 0x3c, 0, 0x40];
            block.extend((0..16u8).map(|i| (i & 15) | ((15 - i + r) & 15) << 4));
            block
        })
        .collect();
    let w = weight(DType::Q4_1, Packing::W4M, 2, 32, vec![part(DType::Q4_1, 2, false)]);
    let mut out = vec![0xff; w.bytes as usize];
    pack_block(&w, 0, &Bytes(vec![row.clone()]), &mut RowBuffer::default(), &mut out);
    for lane in 0..2 {
        let block = &row[lane * 20..][..20];
        for k in 0..32 {
            let expected = if k < 16 { block[4 + k] & 15 } else { block[4 + k - 16] >> 4 };
            let byte = out[k / 8 * 64 + lane * 4 + k % 4];
            let found = if k % 8 < 4 { byte & 15 } else { byte >> 4 };
            assert_eq!(found, expected, "lane {lane} k {k}");
        }
        assert_eq!(out[256 + lane * 2..][..2], [0, 0x3c]);
        assert_eq!(out[256 + 32 + lane * 2..][..2], [0, 0x40]);
    }
    assert!(out[8..64].iter().all(|it| *it == 0), "rows past the end are zero");
}

#[test]
fn parts_follow_each_other_and_transposes_are_undone() {
    let a: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|it| it.to_le_bytes()).collect();
    // Stored [k = 2][n = 3]: rows of the weight are its columns.
    let b: Vec<u8> = [5f32, 6.0, 7.0, 8.0, 9.0, 10.0].iter().flat_map(|it| it.to_le_bytes()).collect();
    let parts = vec![part(DType::F32, 2, false), part(DType::F32, 3, true)];
    let w = weight(DType::F32, Packing::F32, 5, 2, parts);
    let mut out = vec![0; w.bytes as usize];
    pack_block(&w, 0, &Bytes(vec![a, b]), &mut RowBuffer::default(), &mut out);
    let at = |k: usize, row: usize| {
        f32::from_le_bytes(out[(k * 16 + row) * 4..][..4].try_into().expect("four bytes"))
    };
    let expected = [[1.0, 2.0], [3.0, 4.0], [5.0, 8.0], [6.0, 9.0], [7.0, 10.0]];
    for (row, values) in expected.iter().enumerate() {
        assert_eq!([at(0, row), at(1, row)], *values, "row {row}");
    }
}

#[test]
fn each_matrix_of_a_bank_is_whole_blocks() {
    let rows = |from: u8, n: u8| -> Vec<u8> {
        (from..from + n).flat_map(|it| f32::from(it).to_le_bytes()).collect()
    };
    // Two matrices of 3 × 1, the first in two parts.
    let parts = vec![part(DType::F32, 2, false), part(DType::F32, 1, false), part(DType::F32, 3, false)];
    let w = Weight { bank: 2, bytes: 128, ..weight(DType::F32, Packing::F32, 3, 1, parts) };
    let bytes = Bytes(vec![rows(1, 2), rows(3, 1), rows(4, 3)]);
    for (block, expected) in [(0, [1.0f32, 2.0, 3.0, 0.0]), (1, [4.0, 5.0, 6.0, 0.0])] {
        let mut out = vec![0xff; 64];
        pack_block(&w, block, &bytes, &mut RowBuffer::default(), &mut out);
        let found: Vec<f32> =
            out.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().expect("four bytes"))).collect();
        assert_eq!(found[..4], expected, "block {block}");
    }
}

#[test]
fn narrow_vectors_are_widened_exactly() {
    let stored: Vec<u8> =
        [0.5f32, -3.0].iter().flat_map(|it| half::bf16::from_f32(*it).to_le_bytes()).collect();
    let w = weight(DType::F32, Packing::Plain, 1, 2, vec![part(DType::BF16, 2, false)]);
    let mut out = vec![0; 8];
    pack_block(&w, 0, &Bytes(vec![stored]), &mut RowBuffer::default(), &mut out);
    assert_eq!(out, [0.5f32.to_le_bytes(), (-3.0f32).to_le_bytes()].concat());
}

/// Codes and scales of one part in two places.
struct Apart(Vec<u8>, Vec<u8>);
impl PartBytes for Apart {
    fn part(&self, _: usize) -> &[u8] {
        &self.0
    }
    fn scales(&self, _: usize) -> &[u8] {
        &self.1
    }
}

/// 160 inputs: five groups of 32, of which four share the first scale.
#[test]
fn groups_of_128_repeat_their_scale_for_each_32() {
    for (dtype, packing) in [(DType::Q8G, Packing::W8), (DType::Q4G, Packing::W4), (DType::Q3G, Packing::W4)]
    {
        let (layout, k) = (dtype.grouped().expect("grouped"), 160);
        let row_bytes = usize::try_from(layout.row_bytes(k as u64).expect("a row")).expect("small");
        let codes: Vec<u8> = (0..2 * row_bytes).map(|i| (i * 37 + 11) as u8).collect();
        let scales = [0.5f32, 2.0, 1.0, 0.25].map(|it| half::f16::from_f32(it).to_le_bytes()).concat();
        let mut w = weight(dtype, packing, 2, k as u64, vec![part(dtype, 2, false)]);
        w.parts[0].scales = Some(0);
        assert_eq!((w.part_bytes(0), w.scale_bytes(0)), (Some(codes.len() as u64), Some(8)));
        let mut out = vec![0xff; w.bytes as usize];
        let bytes = Apart(codes.clone(), scales.clone());
        pack_block(&w, 0, &bytes, &mut RowBuffer::default(), &mut out);
        for lane in 0..2 {
            let mut wanted = vec![0.0; k];
            layout.decode_row(&codes[lane * row_bytes..], &scales[lane * 4..], &mut wanted);
            for (i, wanted) in wanted.iter().enumerate() {
                let code = if packing == Packing::W8 {
                    out[i / 4 * 64 + lane * 4 + i % 4].cast_signed()
                } else {
                    let byte = out[i / 8 * 64 + lane * 4 + i % 4];
                    (if i % 8 < 4 { byte & 15 } else { byte >> 4 }).cast_signed() - 8
                };
                let at = packing.payload_bytes(k) + (i / 32 * LANES + lane) * 2;
                let scale = half::f16::from_le_bytes([out[at], out[at + 1]]).to_f32();
                assert_eq!(scale * f32::from(code), *wanted, "{} lane {lane} input {i}", dtype.name());
            }
        }
    }
}

#[test]
fn rows_in_groups_are_widened_exactly() {
    let codes: Vec<u8> = (0..128).collect();
    let scales = half::f16::from_f32(0.5).to_le_bytes().to_vec();
    let mut w = weight(DType::F32, Packing::Plain, 1, 5, vec![part(DType::Q8G, 1, false)]);
    (w.bank, w.bytes, w.parts[0].scales) = (2, 40, Some(0));
    w.parts.push(w.parts[0].clone());
    let mut out = vec![0; 40];
    pack_block(&w, 0, &Apart(codes, scales), &mut RowBuffer::default(), &mut out);
    let row: Vec<u8> = [0.0f32, 0.5, 1.0, 1.5, 2.0].iter().flat_map(|it| it.to_le_bytes()).collect();
    assert_eq!(out, [row.clone(), row].concat());
}

#[test]
fn codebooks_are_transposed_one_by_one() {
    let book = |from: u16| -> Vec<u8> {
        (from..from + 24).flat_map(|it| half::f16::from_f32(it.into()).to_le_bytes()).collect()
    };
    let parts = vec![part(DType::F16, 3, false), part(DType::F16, 3, false)];
    let mut w = weight(DType::F32, Packing::Columns, 3, 8, parts);
    (w.bank, w.bytes) = (2, 192);
    let mut out = vec![0; 192];
    pack_block(&w, 0, &Bytes(vec![book(0), book(100)]), &mut RowBuffer::default(), &mut out);
    let found: Vec<f32> =
        out.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().expect("four bytes"))).collect();
    let wanted = |from: usize| (0..8).flat_map(move |d| (0..3).map(move |c| (from + c * 8 + d) as f32));
    assert_eq!(found, wanted(0).chain(wanted(100)).collect::<Vec<_>>());
}

/// Packing keeps every integer and every scale.
#[test]
fn a_packed_row_decodes_to_the_same_weights() {
    for (dtype, blocks, expected) in golden() {
        let layout = Packing::of(dtype).and_then(Packing::units).unwrap();
        let k = expected.len();
        let weight = weight(dtype, Packing::of(dtype).unwrap(), 5, k as u64, vec![part(dtype, 5, false)]);
        let mut out = vec![0xff; usize::try_from(weight.bytes).unwrap()];
        pack_block(&weight, 0, &Bytes(vec![blocks.repeat(5)]), &mut RowBuffer::default(), &mut out);
        for (lane, i) in [0, 4].into_iter().flat_map(|lane| (0..k).map(move |i| (lane, i))) {
            let (unit, i_in) =
                (&out[i / layout.inputs * layout.bytes()..][..layout.bytes()], i % layout.inputs);
            let half = |at: usize| {
                f64::from(half::f16::from_le_bytes([unit[at + 2 * lane], unit[at + 2 * lane + 1]]).to_f32())
            };
            let d = match layout.scale {
                UnitScale::Half => half(layout.d_at()),
                UnitScale::Exponent => f64::from(exponent_scale(unit[layout.d_at() + lane])),
            };
            let j = i_in / layout.group;
            let m = match (layout.minima, layout.has_group_scales()) {
                (false, _) => 0.0,
                (true, false) => half(layout.m_at()),
                (true, true) => -half(layout.m_at()) * f64::from(layout.group_minimum(unit, lane, j)),
            };
            let w =
                f64::from(layout.integer(unit, lane, i_in)) * f64::from(layout.group_scale(unit, lane, j));
            assert_eq!((d * w + m) as f32, expected[i], "{} lane {lane} input {i}", dtype.name());
        }
        let unit = &out[..layout.bytes()];
        let is_zero = |lane| (0..layout.inputs).all(|i| layout.code(unit, lane, i) == 0);
        assert!((5..LANES).all(is_zero), "rows past the end are zero");
    }
}
