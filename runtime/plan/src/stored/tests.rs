//! Stored blocks against another reader.
#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;

const ALL: [DType; 10] = [
    DType::Q5_0,
    DType::Q5_1,
    DType::Q2K,
    DType::Q3K,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
    DType::Iq4Nl,
    DType::Iq4Xs,
    DType::Mxfp4,
];

/// Two random blocks of each format and the weights that the Python package `gguf` (0.19.0, MIT) makes of them; its f32 arithmetic
/// rounds once, too.
const GOLDEN: &[u8] = include_bytes!("../../testdata/stored_blocks.bin");

/// Blocks and weights of each format of the golden file.
pub(crate) fn golden() -> impl Iterator<Item = (DType, &'static [u8], Vec<f32>)> {
    let mut rest = GOLDEN;
    let mut take = move |n: usize| rest.split_off(..n).expect("the golden file has all formats");
    ALL.into_iter().map(move |dtype| {
        let block = dtype.block().unwrap();
        let blocks = take(2 * block.bytes as usize);
        let weights = take(8 * block.elems as usize).as_chunks().0.iter().map(|it| f32::from_le_bytes(*it));
        (dtype, blocks, weights.collect())
    })
}

#[test]
fn the_reference_decode_agrees_with_another() {
    let mut bytes = 0;
    for (dtype, blocks, expected) in golden() {
        let mut found = vec![0.0; expected.len()];
        dtype.decode(blocks, &mut found);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "{} element {i}: {found}, expected {expected}", dtype.name());
        }
        bytes += blocks.len() + 4 * expected.len();
    }
    assert_eq!(bytes, GOLDEN.len());
}

#[test]
fn an_exponent_of_255_is_refused() {
    let mut blocks = vec![0u8; 3 * 17];
    blocks[1..17].fill(255);
    assert_eq!(DType::Mxfp4.refused_block(&blocks), None);
    blocks[34] = 255;
    assert_eq!(DType::Mxfp4.refused_block(&blocks).map(|it| it.0), Some(2));
    assert_eq!(DType::Q4K.refused_block(&[255; 144]), None);
}
