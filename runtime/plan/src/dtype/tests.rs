//! Names, blocks and rows of element types.
#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;

#[test]
fn names_parse_back() {
    for it in DType::ALL {
        assert_eq!(DType::from_name(it.name()), Some(it));
        let json = serde_json::to_string(&it).unwrap();
        assert_eq!(json, format!("\"{}\"", it.name()));
        assert_eq!(serde_json::from_str::<DType>(&json).unwrap(), it);
    }
    assert!(serde_json::from_str::<DType>("\"lut5r_f32\"").is_err());
    for it in Math::ALL {
        assert_eq!(Math::from_name(it.name()), Some(it));
    }
}

#[test]
fn q4_1_decodes_low_then_high_nibbles() {
    let mut block = vec![0u8; 20];
    block[..2].copy_from_slice(&half::f16::from_f32(0.5).to_le_bytes());
    block[2..4].copy_from_slice(&half::f16::from_f32(-1.0).to_le_bytes());
    block[4] = 0xf3;
    let mut out = [0.0; 32];
    DType::Q4_1.decode(&block, &mut out);
    assert_eq!(out[0], 0.5 * 3.0 - 1.0);
    assert_eq!(out[16], 0.5 * 15.0 - 1.0);
    assert_eq!(out[1], -1.0);
}

#[test]
fn a_row_must_be_whole_blocks() {
    assert_eq!(DType::Q8_0.row_bytes(48), None);
    assert_eq!(DType::Q8_0.row_bytes(64), Some(68));
    assert_eq!(DType::Fx24.row_bytes(576), Some(FxLayout { planes: 3 }.row_bytes(576) as u64));
    let lut = DType::Lut(VqCode::Vq4p, Tables::Fixed24);
    assert_eq!(lut.row_bytes(576), Some(72 * 256 * 4 + 3 * 64), "two slabs of 32 positions and one of 8");
    assert_eq!((lut.row_bytes(12), lut.row_bytes(1 << 60)), (None, None));
    assert_eq!((DType::Vq3r.row_bytes(576), DType::Q4G.row_bytes(576)), (None, None));
    assert_eq!(DType::Vq3r.matrix_bytes(65, 16), Some(128 * 2 * 3 + 130));
    assert_eq!(DType::Q4G.matrix_bytes(3, 200), Some(3 * (128 + 4)));
    assert_eq!(DType::Q8_0.matrix_bytes(3, 64), Some(204));
}
