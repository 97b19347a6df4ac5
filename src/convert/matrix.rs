//! A matrix of a checkpoint in any of the types that are understood, decoded a row at a time.
//!
//! | type | tensors | weight (r, i) |
//! |---|---|---|
//! | F32, F16, BF16 | `X` | itself |
//! | fp8 with block scales (DeepSeek) | `X` F8_E4M3 `[n, k]`, `X_scale_inv` F32 `[⌈n/b⌉, ⌈k/b'⌉]` | value · scale of the block |
//! | MXFP4 pairs (compressed-tensors) | `X_packed` U8 `[n, k/2]`, `X_scale` U8 `[n, k/32]` | E2M1 · 2^(scale − 127) |
//!
//! E4M3 has no infinities and one NaN; of a packed byte the low nibble comes first. All products are rounded once to f32.
//!
//! Sources: OCP Microscaling Formats 1.0 (E2M1, E8M0), OCP 8-bit Floating Point 1.0 (E4M3).
//!
//! Invariant: shapes and lengths fit each other before the first row is decoded.

use waste_plan::DType;

use super::{ConvertError, Result, index};
use crate::formats::{ForeignTensor, ModelFiles};

/// Weights that share a scale in MXFP4.
const MX_BLOCK: u64 = 32;

/// The values of the codes 0 to 7 of E2M1; those from 8 on are their negatives.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// A matrix, or any other tensor seen as rows.
#[derive(Clone)]
pub(super) struct Matrix<'a> {
    name: &'a str,
    file: String,
    shape: Vec<u64>,
    rows: u64,
    cols: u64,
    stored_bytes: u64,
    stored: Stored<'a>,
}

#[derive(Clone)]
enum Stored<'a> {
    Float { dtype: DType, bytes: &'a [u8] },
    Fp8 { bytes: &'a [u8], scales: Vec<f32>, block: [u64; 2] },
    Mxfp4 { bytes: &'a [u8], scales: &'a [u8] },
}

impl<'a> Matrix<'a> {
    /// The matrix called `name`, stored as itself or as a pair; `None` if there is none.
    ///
    /// # Errors
    /// If it is of a type that is not understood, or its parts do not fit each other.
    pub(super) fn find(files: &'a ModelFiles, name: &str, fp8_block: [u64; 2]) -> Result<Option<Self>> {
        if let Some(info) = files.tensors().get(name) {
            let cols = info.shape.last().copied().unwrap_or(1);
            let (bytes, dtype) = (files.tensor_bytes(info), info.dtype);
            return Ok(Some(Self {
                name: &info.name,
                file: files.sources()[info.file].name(),
                shape: info.shape.clone(),
                rows: info.elements() / cols,
                cols,
                stored_bytes: info.bytes,
                stored: Stored::Float { dtype, bytes },
            }));
        }
        match (files.foreign().get(name), files.foreign().get(&format!("{name}_packed"))) {
            (Some(values), _) if values.dtype == "F8_E4M3" => fp8(files, values, fp8_block).map(Some),
            (Some(other), _) => Err(other.refuse().into()),
            (None, Some(packed)) => mxfp4(files, packed).map(Some),
            (None, None) => Ok(None),
        }
    }

    pub(super) fn name(&self) -> &'a str {
        self.name
    }

    /// The file that holds it, as messages show it.
    pub(super) fn file(&self) -> String {
        self.file.clone()
    }

    pub(super) fn shape(&self) -> &[u64] {
        &self.shape
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn cols(&self) -> u64 {
        self.cols
    }

    /// Bytes in the checkpoint.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Decodes `row` into `out` of as many elements.
    ///
    /// # Panics
    /// If there is no such row, or `out` has another length.
    pub(super) fn decode_row(&self, row: u64, out: &mut [f32]) {
        assert!(row < self.rows && out.len() as u64 == self.cols, "a row of this matrix");
        let (row, rows) = (index(row), index(self.rows));
        let of_row = |bytes: &'a [u8]| &bytes[row * (bytes.len() / rows)..][..bytes.len() / rows];
        match &self.stored {
            Stored::Float { dtype, bytes } => dtype.decode(of_row(bytes), out),
            Stored::Fp8 { bytes, scales, block } => {
                let [high, wide] = block.map(index);
                let scales = &scales[row / high * out.len().div_ceil(wide)..];
                for (idx, (w, byte)) in out.iter_mut().zip(of_row(bytes)).enumerate() {
                    *w = e4m3(*byte) * scales[idx / wide];
                }
            }
            Stored::Mxfp4 { bytes, scales } => {
                let blocks =
                    out.chunks_mut(MX_BLOCK as usize).zip(of_row(bytes).chunks(MX_BLOCK as usize / 2));
                for ((weights, codes), scale) in blocks.zip(of_row(scales)) {
                    for (idx, w) in weights.iter_mut().enumerate() {
                        *w = e2m1(codes[idx / 2] >> (4 * (idx % 2)) & 15) * e8m0(*scale);
                    }
                }
            }
        }
    }
}

/// The error that says that the tensors of a matrix do not fit each other.
fn misfit(tensor: &ForeignTensor, reason: String) -> ConvertError {
    ConvertError::Tensor { file: tensor.file.clone(), tensor: tensor.name.clone(), reason }
}

/// The bytes of a tensor of one-byte elements, and its two dimensions.
fn bytes_of<'a>(files: &'a ModelFiles, tensor: &'a ForeignTensor) -> Result<(&'a [u8], u64, u64)> {
    let bytes = files.foreign_bytes(tensor)?;
    match tensor.shape[..] {
        [rows, cols] if rows > 0 && cols > 0 && rows.checked_mul(cols) == Some(tensor.bytes) => {
            Ok((bytes, rows, cols))
        }
        _ => Err(misfit(tensor, format!("has shape {:?} and {} bytes", tensor.shape, tensor.bytes))),
    }
}

fn fp8<'a>(files: &'a ModelFiles, values: &'a ForeignTensor, block: [u64; 2]) -> Result<Matrix<'a>> {
    let (bytes, rows, cols) = bytes_of(files, values)?;
    let info = files.tensor(&format!("{}_scale_inv", values.name))?;
    let expected = [rows.div_ceil(block[0]), cols.div_ceil(block[1])];
    if info.dtype != DType::F32 || info.shape != expected {
        let found = format!("{} {:?}", info.dtype.name(), info.shape);
        return Err(misfit(values, format!("has scales of {found}, expected f32 {expected:?}")));
    }
    let scales =
        files.tensor_bytes(info).as_chunks::<4>().0.iter().map(|it| f32::from_le_bytes(*it)).collect();
    Ok(Matrix {
        name: &values.name,
        file: values.file.clone(),
        shape: vec![rows, cols],
        rows,
        cols,
        stored_bytes: values.bytes + info.bytes,
        stored: Stored::Fp8 { bytes, scales, block },
    })
}

fn mxfp4<'a>(files: &'a ModelFiles, packed: &'a ForeignTensor) -> Result<Matrix<'a>> {
    let name = packed.name.strip_suffix(PACKED).unwrap_or(&packed.name);
    let (bytes, rows, half) = bytes_of(files, packed)?;
    let Some(scale) = files.foreign().get(&format!("{name}{SCALE}")) else {
        return Err(misfit(packed, format!("has no '{name}{SCALE}' beside it")));
    };
    let (scales, scale_rows, scale_cols) = bytes_of(files, scale)?;
    let is_fit = half % (MX_BLOCK / 2) == 0 && (scale_rows, scale_cols) == (rows, half / (MX_BLOCK / 2));
    if packed.dtype != "U8" || scale.dtype != "U8" || !is_fit {
        let found =
            format!("{} {:?} with scales {} {:?}", packed.dtype, packed.shape, scale.dtype, scale.shape);
        return Err(misfit(
            packed,
            format!("is {found}, expected u8 [n, k/2] and u8 [n, k/{MX_BLOCK}] of MXFP4"),
        ));
    }
    Ok(Matrix {
        name,
        file: packed.file.clone(),
        shape: vec![rows, 2 * half],
        rows,
        cols: 2 * half,
        stored_bytes: packed.bytes + scale.bytes,
        stored: Stored::Mxfp4 { bytes, scales },
    })
}

const PACKED: &str = "_packed";
const SCALE: &str = "_scale";
const SCALE_INV: &str = "_scale_inv";

/// The matrices of a checkpoint, by name: scales belong to what they scale.
pub(super) fn names(files: &ModelFiles) -> Vec<&str> {
    let foreign = files.foreign();
    let is_scale = |name: &str| {
        name.strip_suffix(SCALE_INV).is_some_and(|it| foreign.contains_key(it))
            || name.strip_suffix(SCALE).is_some_and(|it| foreign.contains_key(&format!("{it}{PACKED}")))
    };
    let stored = files.tensors().keys().chain(foreign.keys()).filter(|it| !is_scale(it));
    let logical = |name: &str| name.strip_suffix(PACKED).filter(|_| foreign.contains_key(name)).map(str::len);
    let mut names: Vec<&str> = stored.map(|it| &it[..logical(it).unwrap_or(it.len())]).collect();
    names.sort_unstable();
    names
}

/// OCP E4M3: bias 7, subnormals, no infinity; all ones but the sign are NaN.
fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 15, f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * f32::from_bits((127 - 9) << 23),
        _ => (8.0 + mantissa) * f32::from_bits((u32::from(exponent) + 127 - 10) << 23),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

fn e2m1(code: u8) -> f32 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// 2^(e − 127); 255 is NaN.
fn e8m0(byte: u8) -> f32 {
    match byte {
        // 2^-127 is subnormal in f32.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_are_those_of_the_standards() {
        let cases =
            [(0x00, 0.0), (0x01, 0.001_953_125), (0x07, 0.013_671_875), (0x08, 0.015_625), (0x38, 1.0)];
        for (byte, value) in
            cases.into_iter().chain([(0x39, 1.125), (0x7e, 448.0), (0xfe, -448.0), (0xb8, -1.0)])
        {
            assert_eq!(e4m3(byte), value, "{byte:#x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan() && e4m3(0x78) == 256.0);
        assert_eq!([0, 1, 7, 8, 9, 15].map(e2m1), [0.0, 0.5, 6.0, -0.0, -0.5, -6.0]);
        assert_eq!([127, 128, 126, 1].map(e8m0), [1.0, 2.0, 0.5, f32::MIN_POSITIVE]);
        assert!(e8m0(0) == f32::MIN_POSITIVE / 2.0 && e8m0(255).is_nan());
    }
}
