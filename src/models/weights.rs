//! Tensors by name and shape: each becomes a weight of the module, the rest is refused.
//!
//! Invariant: [`Weights::finish`] succeeds only if every tensor of the model was taken or is known to be harmless.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};
use waste_ir::{Dim, Module, SourceDecl, SourceId, TensorType, WeightId, WeightInit};
use waste_plan::DType;

use crate::formats::{ModelFiles, TensorInfo, shown};

use super::{ModelError, Result};

/// The weights declared so far.
pub(super) struct Weights<'a> {
    pub(super) module: Module,
    files: &'a ModelFiles,
    sources: Vec<SourceId>,
    taken: BTreeSet<String>,
}

/// A matrix and its bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear {
    pub(super) w: WeightId,
    pub(super) bias: Option<WeightId>,
}

impl<'a> Weights<'a> {
    /// A module that names the files of `files` as its sources and has no weights yet.
    pub(super) fn new(files: &'a ModelFiles) -> Self {
        let mut module = Module::default();
        let sources = source_decls(files).into_iter().map(|it| module.sources.push(it)).collect();
        Self { module, files, sources, taken: BTreeSet::new() }
    }

    /// Whether the model has a tensor `name`, readable or not.
    pub(super) fn has(&self, name: &str) -> bool {
        !matches!(self.files.get_tensor(name), Ok(None))
    }

    /// The matrix `name` of `rows` × `cols`, in its stored type.
    pub(super) fn matrix(&mut self, name: &str, rows: u32, cols: u32) -> Result<WeightId> {
        let info = self.take(name, &[rows, cols])?;
        let init = self.stored(info);
        Ok(self.module.add_weight(name, TensorType::matrix(info.dtype, Dim::Const(rows), cols), init))
    }

    /// The matrix of `rows` × `cols` whose transpose is stored as `name` (GPT-2's Conv1D).
    pub(super) fn transposed(&mut self, name: &str, rows: u32, cols: u32) -> Result<WeightId> {
        let info = self.take(name, &[cols, rows])?;
        self.check_float(info)?;
        let (source, offset, stored) = (self.sources[info.file], info.offset, info.dtype);
        let init = WeightInit::Transposed { source, offset, stored };
        Ok(self.module.add_weight(name, TensorType::matrix(info.dtype, Dim::Const(rows), cols), init))
    }

    /// The vector `name` of `n` elements, stored as any float and widened to f32.
    pub(super) fn vector(&mut self, name: &str, n: u32) -> Result<WeightId> {
        let info = self.take(name, &[n])?;
        self.check_float(info)?;
        let init = self.stored(info);
        Ok(self.module.add_weight(name, TensorType::new(DType::F32, &[Dim::Const(n)]), init))
    }

    /// The tensor `name` of the shape `stored`, kept as any float, as an f32 weight of `dims`.
    pub(super) fn reshaped(&mut self, name: &str, stored: &[u32], dims: &[u32]) -> Result<WeightId> {
        let info = self.take(name, stored)?;
        self.check_float(info)?;
        let init = self.stored(info);
        let dims: Vec<Dim> = dims.iter().copied().map(Dim::Const).collect();
        Ok(self.module.add_weight(name, TensorType::new(DType::F32, &dims), init))
    }

    /// The first `n` elements of the tensor `name`, whatever its shape, if it has `n` or `padded` in all.
    pub(super) fn flat(&mut self, name: &str, n: u32, padded: u32) -> Result<WeightId> {
        let info = self.files.tensor(name)?;
        if ![u64::from(n), u64::from(padded)].contains(&info.elements()) {
            return Err(self.wrong_shape(info, &[n]));
        }
        self.check_float(info)?;
        self.taken.insert(name.to_owned());
        let init = self.stored(info);
        Ok(self.module.add_weight(name, TensorType::new(DType::F32, &[Dim::Const(n)]), init))
    }

    /// One matrix of `rows` × `cols` from each of `parts`, all stored in one type, as the bank `name`.
    pub(super) fn bank(
        &mut self,
        name: &str,
        parts: impl Iterator<Item = String>,
        rows: u32,
        cols: u32,
    ) -> Result<WeightId> {
        let (mut found, mut stored) = (Vec::new(), None);
        for part in parts {
            let info = self.take(&part, &[rows, cols])?;
            let expected = *stored.get_or_insert(info.dtype);
            if info.dtype != expected {
                return Err(self.stored_as(info, expected.name()));
            }
            found.push((self.sources[info.file], info.offset));
        }
        let stored = stored.unwrap_or(DType::F32);
        Ok(self.add_bank(name, stored, found, rows, cols))
    }

    /// The bank `name`, stored whole.
    pub(super) fn stacked(&mut self, name: &str, dims: [u32; 3]) -> Result<WeightId> {
        let info = self.take(name, &dims)?;
        let init = self.stored(info);
        Ok(self.module.add_weight(name, TensorType::new(info.dtype, &dims.map(Dim::Const)), init))
    }

    /// The matrix `{name}.weight`, whose rows are `keys` and then `values` for each of `heads`, as two banks over the heads:
    /// `{name}.keys.weight` and `{name}.values.weight`.
    pub(super) fn head_banks(
        &mut self,
        name: &str,
        heads: u32,
        [keys, values]: [u32; 2],
        cols: u32,
    ) -> Result<[WeightId; 2]> {
        let each = u64::from(keys) + u64::from(values);
        let rows = u32::try_from(u64::from(heads) * each).unwrap_or(u32::MAX);
        let info = self.take(&format!("{name}.weight"), &[rows, cols])?;
        let (source, stored) = (self.sources[info.file], info.dtype);
        // The table holds whole rows inside the file, so neither the product nor the sum leaves 64 bits.
        let row_bytes = info.bytes / u64::from(rows);
        let parts = |skip: u32| -> Vec<(SourceId, u64)> {
            let row = |head: u32| u64::from(head) * each + u64::from(skip);
            (0..heads).map(|head| (source, info.offset + row(head) * row_bytes)).collect()
        };
        let key_bank = self.add_bank(&format!("{name}.keys.weight"), stored, parts(0), keys, cols);
        let value_bank = self.add_bank(&format!("{name}.values.weight"), stored, parts(keys), values, cols);
        Ok([key_bank, value_bank])
    }

    fn add_bank(
        &mut self,
        name: &str,
        stored: DType,
        parts: Vec<(SourceId, u64)>,
        rows: u32,
        cols: u32,
    ) -> WeightId {
        let count = u32::try_from(parts.len()).expect("as many as a configuration says");
        let ty = TensorType::new(stored, &[count, rows, cols].map(Dim::Const));
        self.module.add_weight(name, ty, WeightInit::Bank { stored, parts })
    }

    /// The matrix `{name}.weight`, and the vector `{name}.bias` if `bias`.
    pub(super) fn linear(&mut self, name: &str, rows: u32, cols: u32, bias: bool) -> Result<Linear> {
        let w = self.matrix(&format!("{name}.weight"), rows, cols)?;
        let bias = bias.then(|| self.vector(&format!("{name}.bias"), rows)).transpose()?;
        Ok(Linear { w, bias })
    }

    /// The module, once all tensors were taken or are harmless.
    pub(super) fn finish(self, is_harmless: impl Fn(&str) -> bool) -> Result<Module> {
        self.files.refuse_unknown(|name| self.taken.contains(name) || is_harmless(name))?;
        Ok(self.module)
    }

    fn take(&mut self, name: &str, shape: &[u32]) -> Result<&'a TensorInfo> {
        let info = self.files.tensor(name)?;
        let expected: Vec<u64> = shape.iter().copied().map(u64::from).collect();
        if info.shape != expected {
            return Err(self.wrong_shape(info, shape));
        }
        self.taken.insert(name.to_owned());
        Ok(info)
    }

    fn check_float(&self, info: &TensorInfo) -> Result<()> {
        if info.dtype.is_float() {
            return Ok(());
        }
        Err(self.stored_as(info, "f32, f16 or bf16"))
    }

    fn stored_as(&self, info: &TensorInfo, expected: &'static str) -> ModelError {
        let (file, tensor) = (self.file_name(info), shown(&info.name));
        ModelError::StoredAs { file, tensor, found: info.dtype.name(), expected }
    }

    fn wrong_shape(&self, info: &TensorInfo, expected: &[u32]) -> ModelError {
        let (file, tensor) = (self.file_name(info), shown(&info.name));
        let expected = expected.iter().copied().map(u64::from).collect();
        ModelError::Shape { file, tensor, found: info.shape.clone(), expected }
    }

    fn stored(&self, info: &TensorInfo) -> WeightInit {
        WeightInit::Stored { source: self.sources[info.file], offset: info.offset, stored: info.dtype }
    }

    fn file_name(&self, info: &TensorInfo) -> String {
        self.files.sources()[info.file].name()
    }
}

/// Each file with its length and the hash of all that lies before its first tensor.
#[must_use]
pub fn source_decls(files: &ModelFiles) -> Vec<SourceDecl> {
    let mut header_ends: Vec<u64> = files.sources().iter().map(|it| it.stamp().len).collect();
    for info in files.tensors().values() {
        header_ends[info.file] = header_ends[info.file].min(info.offset);
    }
    let declare = |(source, end): (&crate::formats::Source, u64)| {
        let bytes = source.bytes();
        let header = &bytes[..usize::try_from(end).unwrap_or(usize::MAX).min(bytes.len())];
        SourceDecl {
            path: source.path().to_string_lossy().into_owned(),
            bytes: source.stamp().len,
            header_sha256: hex(&Sha256::digest(header)),
        }
    };
    files.sources().iter().zip(header_ends).map(declare).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|it| format!("{it:02x}")).collect()
}
