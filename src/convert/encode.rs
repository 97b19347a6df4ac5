//! Matrices to index streams and row scales.
//!
//! A row is divided by its scale (its largest magnitude, as f16 stores it), cut into vectors of 8, and each vector is coded
//! greedily, stage by stage. Then the scale is fitted anew to what was chosen, by least squares, which no reader notices and
//! which can only help: scale = Σ w·q / Σ q².
//!
//! Invariant: a row's code depends on the row and the books alone.

use half::f16;
use rayon::prelude::*;

use super::matrix::Matrix;
use super::nearest::{Book, Vector};
use super::{ConvertError, Result, index};
use crate::formats::container::{ROW_BLOCK, VEC_DIM, VqCode};

/// A row over its scale, and the scale; all zeros if the scale is none.
///
/// # Errors
/// If a weight is not finite or too large for a scale.
pub(super) fn normalise(matrix: &Matrix<'_>, row: u64, out: &mut [f32]) -> Result<f16> {
    matrix.decode_row(row, out);
    let most = out.iter().fold(0.0f32, |most, x| if x.abs() > most || x.is_nan() { x.abs() } else { most });
    let scale = f16::from_f32(most);
    if !scale.is_finite() {
        let reason = format!("row {row} has a weight of {most}, beyond what a scale can hold");
        return Err(ConvertError::Tensor { file: matrix.file(), tensor: matrix.name().to_owned(), reason });
    }
    let by = scale.to_f32();
    out.iter_mut().for_each(|x| *x = if by > 0.0 { *x / by } else { 0.0 });
    Ok(scale)
}

/// Codes `matrix` into `stream`, which is as long as the code asks for and zero, and gives the scales of its rows.
///
/// # Errors
/// As [`normalise`].
pub(super) fn encode(
    code: VqCode,
    matrix: &Matrix<'_>,
    books: &[Book],
    stream: &mut [u8],
) -> Result<Vec<f16>> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let block_bytes = index(code.index_bytes(1, cols).expect("rows of whole vectors"));
    let block = |(number, stream): (usize, &mut [u8])| {
        let first = (number * ROW_BLOCK) as u64;
        let mut weights = vec![0.0; index(cols)];
        (first..rows.min(first + ROW_BLOCK as u64))
            .map(|row| {
                let lane = index(row - first);
                encode_row(code, matrix, row, books, &mut weights, &mut |position, indices| {
                    let at = (position * ROW_BLOCK + lane) * code.position_bytes();
                    pack(code, indices, &mut stream[at..at + code.position_bytes()]);
                })
            })
            .collect::<Result<Vec<f16>>>()
    };
    let blocks: Vec<Result<Vec<f16>>> = stream.par_chunks_mut(block_bytes).enumerate().map(block).collect();
    Ok(blocks.into_iter().collect::<Result<Vec<_>>>()?.concat())
}

fn encode_row(
    code: VqCode,
    matrix: &Matrix<'_>,
    row: u64,
    books: &[Book],
    weights: &mut [f32],
    put: &mut dyn FnMut(usize, [u8; 4]),
) -> Result<f16> {
    let scale = normalise(matrix, row, weights)?;
    let (mut both, mut square) = (0.0, 0.0);
    for (position, vector) in weights.as_chunks::<VEC_DIM>().0.iter().enumerate() {
        let mut rest = *vector;
        let mut indices = [0; 4];
        for (index, book) in indices.iter_mut().zip(&books[..code.stages()]) {
            *index = book.subtract_nearest(&mut rest);
        }
        let coded: Vector = std::array::from_fn(|d| vector[d] - rest[d]);
        for (w, q) in vector.iter().zip(coded) {
            both += f64::from(*w) * f64::from(q);
            square += f64::from(q) * f64::from(q);
        }
        put(position, indices);
    }
    let fitted = f16::from_f64(scale.to_f64() * both / square);
    Ok(if both > 0.0 && fitted.is_finite() { fitted } else { scale })
}

/// Writes what [`VqCode::unpack`] reads.
fn pack(code: VqCode, indices: [u8; 4], out: &mut [u8]) {
    match code {
        VqCode::Vq3r | VqCode::Vq2r => out.copy_from_slice(&indices[..out.len()]),
        VqCode::Vq4p => {
            let [a, b, c, d] = indices.map(u32::from);
            out.copy_from_slice(&(a | b << 6 | c << 12 | d << 18).to_le_bytes()[..3]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_indices_come_back() {
        for code in [VqCode::Vq3r, VqCode::Vq2r, VqCode::Vq4p] {
            let most = (code.entries() - 1) as u8;
            for indices in [[0; 4], [most; 4], [1, 2, 3, 4], [most, 0, most - 1, 5]] {
                let mut bytes = vec![0; code.position_bytes()];
                pack(code, indices, &mut bytes);
                assert_eq!(code.unpack(&bytes)[..code.stages()], indices[..code.stages()], "{}", code.name());
            }
        }
    }
}
