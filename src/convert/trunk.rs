//! Everything but the routed experts: tensor by tensor to trunk.bin, in groups of 128 inputs with one f16 scale each.
//!
//! Which format a tensor gets follows from its name and shape ([`TrunkTensor`]'s `place`).
//!
//! scale = max|w| / Q as f16 stores it, Q = 127, 7, 3; q = round-half-even(w / scale), clamped.
//!
//! Invariant: where a tensor lies follows from the shapes alone, so the table of a trunk that is written already is known.

use std::io::Write;

use half::f16;
use rayon::prelude::*;

use super::matrix::Matrix;
use super::{ConvertError, Result, index};
use crate::formats::container::{TRUNK_ALIGN, TrunkFormat, TrunkTensor};

/// Rows that are quantised together.
const ROWS: u64 = 256;

/// What a quantised element of `fmt` is at most.
fn most(fmt: TrunkFormat) -> f32 {
    match fmt {
        TrunkFormat::F32 => f32::INFINITY,
        TrunkFormat::Q8G => 127.0,
        TrunkFormat::Q4G => 7.0,
        TrunkFormat::Q3G => 3.0,
    }
}

/// The table of a trunk of `tensors`, in their order, and its length in bytes.
pub(super) fn table(tensors: &[Matrix<'_>], asked: TrunkFormat) -> (Vec<TrunkTensor>, u64) {
    let mut at = 0u64;
    let place = |matrix: &Matrix<'_>| {
        let tensor;
        (tensor, at) = TrunkTensor::place(matrix.name(), matrix.shape().to_vec(), asked, at);
        tensor
    };
    let table = tensors.iter().map(place).collect();
    (table, at)
}

/// Writes `matrix` as `tensor` says, and the padding to the next tensor.
///
/// # Errors
/// If a weight is not finite or too large, or the file cannot be written.
pub(super) fn write(
    matrix: &Matrix<'_>,
    tensor: &TrunkTensor,
    out: &mut impl Write,
    io: impl Fn(std::io::Error) -> ConvertError + Copy,
) -> Result<()> {
    let row_bytes = index(tensor.row_bytes());
    let mut scales = Vec::with_capacity(index(tensor.scale_bytes()));
    for first in (0..matrix.rows()).step_by(index(ROWS)) {
        let count = index(ROWS.min(matrix.rows() - first));
        let mut payload = vec![0; count * row_bytes];
        let rows = payload.par_chunks_mut(row_bytes).enumerate();
        let parts: Vec<Result<Vec<f16>>> =
            rows.map(|(idx, bytes)| quantise_row(matrix, tensor, first + idx as u64, bytes)).collect();
        for part in parts {
            scales.extend(part?.into_iter().flat_map(f16::to_le_bytes));
        }
        out.write_all(&payload).map_err(io)?;
    }
    out.write_all(&scales).map_err(io)?;
    let end = tensor.payload_bytes() + tensor.scale_bytes();
    let padding = index(end.next_multiple_of(TRUNK_ALIGN) - end);
    out.write_all(&[0; TRUNK_ALIGN as usize][..padding]).map_err(io)
}

/// The bytes of `row`, and its scales.
fn quantise_row(matrix: &Matrix<'_>, tensor: &TrunkTensor, row: u64, bytes: &mut [u8]) -> Result<Vec<f16>> {
    let bad = |found: f32| ConvertError::Tensor {
        file: matrix.file(),
        tensor: matrix.name().to_owned(),
        reason: format!("row {row} has a weight of {found}, beyond what can be stored"),
    };
    let mut weights = vec![0.0; index(matrix.cols())];
    matrix.decode_row(row, &mut weights);
    if let Some(found) = weights.iter().find(|it| !it.is_finite()) {
        return Err(bad(*found));
    }
    if tensor.fmt == TrunkFormat::F32 {
        bytes.as_chunks_mut::<4>().0.iter_mut().zip(&weights).for_each(|(out, w)| *out = w.to_le_bytes());
        return Ok(Vec::new());
    }
    let limit = most(tensor.fmt);
    let mut put = |at: usize, q: i8| match tensor.fmt {
        TrunkFormat::F32 => {}
        TrunkFormat::Q8G => bytes[at] = q.cast_unsigned(),
        TrunkFormat::Q4G => bytes[at / 2] |= (q + 8).cast_unsigned() << (4 * (at % 2)),
        TrunkFormat::Q3G => {
            let code = u16::from((q + 4).cast_unsigned()) << (at * 3 % 8);
            let [low, high] = code.to_le_bytes();
            bytes[at * 3 / 8] |= low;
            bytes[at * 3 / 8 + 1] |= high;
        }
    };
    let mut scales = Vec::with_capacity(index(tensor.groups()));
    for (group, weights) in weights.chunks(index(tensor.group)).enumerate() {
        let largest = weights.iter().fold(0.0f32, |largest, w| largest.max(w.abs()));
        let scale = f16::from_f32(largest / limit);
        if !scale.is_finite() {
            return Err(bad(largest));
        }
        let by = scale.to_f32();
        // Padding is zero too, whose code is not always zero bits.
        for idx in 0..index(tensor.group) {
            let w = weights.get(idx).copied().unwrap_or(0.0);
            let q = if by > 0.0 { (w / by).round_ties_even().clamp(-limit, limit) } else { 0.0 };
            #[expect(clippy::cast_possible_truncation, reason = "clamped to 127")]
            put(group * index(tensor.group) + idx, q as i8);
        }
        scales.push(scale);
    }
    Ok(scales)
}
