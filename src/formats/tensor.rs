//! The tensor table of a model, whatever its format.
//!
//! Invariants
//! - shapes are row-major with at least one element, and `bytes` is what shape and dtype ask for;
//! - ranges lie inside their file and no two of one file overlap.

use waste_plan::dtype::DType;

use super::error::{FormatError, Item, Result, shown};

/// One tensor: what it holds and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name in the file.
    pub name: String,
    /// The stored type.
    pub dtype: DType,
    /// Row-major: `[rows, cols]`, whatever order the file lists them in.
    pub shape: Vec<u64>,
    /// The number of the file that holds it.
    pub file: usize,
    /// Where its data starts, in bytes from the start of that file.
    pub offset: u64,
    /// The length of its data in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// A tensor in file 0 at `offset`; `Err` is the reason why no such tensor can exist.
    pub(crate) fn new(
        name: &str,
        dtype: DType,
        shape: Vec<u64>,
        offset: u64,
    ) -> std::result::Result<Self, String> {
        let (cols, rows) = shape.split_last().map_or((1, &[][..]), |(cols, rows)| (*cols, rows));
        if shape.contains(&0) {
            return Err(format!("shape {shape:?} has a zero dimension"));
        }
        let row = dtype.row_bytes(cols).ok_or_else(|| {
            let elems = dtype.block().map_or(1, |it| it.elems);
            format!("rows of {cols} elements are not whole {} blocks of {elems}", dtype.name())
        })?;
        let bytes = rows.iter().try_fold(row, |bytes, &n| bytes.checked_mul(n));
        let bytes = bytes.ok_or_else(|| format!("shape {shape:?} is larger than any file"))?;
        Ok(Self { name: name.to_owned(), dtype, shape, file: 0, offset, bytes })
    }

    /// The number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// Checks that the tensors of one file of `end` bytes lie inside it and apart.
pub(crate) fn check_ranges<'a>(
    file: &str,
    end: u64,
    tensors: impl Iterator<Item = &'a TensorInfo>,
) -> Result<()> {
    let mut by_offset: Vec<&TensorInfo> = tensors.collect();
    by_offset.sort_by_key(|it| (it.offset, it.bytes));
    for info in &by_offset {
        if info.offset.checked_add(info.bytes).is_none_or(|last| last > end) {
            return Err(FormatError::Truncated {
                file: file.to_owned(),
                item: Item::tensor(&info.name),
                offset: info.offset,
                need: info.bytes,
                end,
            });
        }
    }
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            return Err(FormatError::Malformed {
                file: file.to_owned(),
                item: Item::tensor(&pair[1].name),
                offset: pair[1].offset,
                reason: format!("overlaps tensor '{}' at {:#x}", shown(&pair[0].name), pair[0].offset),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_shape_and_dtype() {
        let bytes = |dtype, shape: &[u64]| TensorInfo::new("t", dtype, shape.to_vec(), 0).map(|it| it.bytes);
        assert_eq!(bytes(DType::F32, &[]), Ok(4));
        assert_eq!(bytes(DType::F16, &[3, 5]), Ok(30));
        assert_eq!(bytes(DType::Q4_1, &[3, 64]), Ok(120));
        assert!(bytes(DType::Q8_0, &[64, 3]).is_err_and(|it| it.contains("whole q8_0 blocks of 32")));
        assert!(bytes(DType::F32, &[1 << 40, 1 << 40]).is_err_and(|it| it.contains("larger than any file")));
        assert!(bytes(DType::F32, &[4, 0]).is_err_and(|it| it.contains("zero dimension")));
    }
}
