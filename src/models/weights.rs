//! Tensors by name and shape: each becomes a weight of the module, the rest is refused.
//!
//! Names are those that the architecture gives; a container puts its prefix before them (`found`).
//!
//! Invariant: [`Weights::finish`] succeeds only if every tensor of the model was taken or is known to be harmless.

mod coded;
mod found;

pub(super) use found::has_tensor;

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};
use waste_ir::{Dim, Module, SourceDecl, SourceId, Steps, TensorType, WeightId, WeightInit};
use waste_plan::DType;

use crate::formats::container::Container;
use crate::formats::{ModelFiles, hex, shown};

use super::{ModelError, Result};
use found::Found;

/// The weights declared so far.
pub(super) struct Weights<'a> {
    pub(super) module: Module,
    files: &'a ModelFiles,
    sources: Vec<SourceId>,
    taken: BTreeSet<String>,
    /// Where the next tensor of a trunk that was never made begins.
    declared_end: u64,
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
        Self { module, files, sources, taken: BTreeSet::new(), declared_end: 0 }
    }

    /// The matrix `name` of `rows` × `cols`, in its stored type or one that kernels multiply.
    pub(super) fn matrix(&mut self, name: &str, rows: u32, cols: u32) -> Result<WeightId> {
        let found = self.take(name, &[rows, cols])?;
        let init = self.init(&found);
        let ty = TensorType::matrix(found.multiplied(cols), Dim::Const(rows), cols);
        Ok(self.module.add_weight(&found.name, ty, init))
    }

    /// The matrix of `rows` × `cols` whose transpose is stored as `name` (GPT-2's Conv1D).
    pub(super) fn transposed(&mut self, name: &str, rows: u32, cols: u32) -> Result<WeightId> {
        let found = self.take(name, &[cols, rows])?;
        self.check_float(&found)?;
        let (source, offset, stored) = (self.sources[found.file], found.offset, found.dtype);
        let init = WeightInit::Transposed { source, offset, stored };
        Ok(self.module.add_weight(&found.name, TensorType::matrix(stored, Dim::Const(rows), cols), init))
    }

    /// The vector `name` of `n` elements, stored as any float and widened to f32.
    pub(super) fn vector(&mut self, name: &str, n: u32) -> Result<WeightId> {
        self.reshaped(name, &[n], &[n])
    }

    /// The tensor `name` of the shape `stored`, kept as any float, as an f32 weight of `dims`.
    pub(super) fn reshaped(&mut self, name: &str, stored: &[u32], dims: &[u32]) -> Result<WeightId> {
        let found = self.take(name, stored)?;
        self.add_float(&found, dims)
    }

    /// The first `n` elements of the tensor `name`, whatever its shape, if it has `n` or `padded` in all.
    pub(super) fn flat(&mut self, name: &str, n: u32, padded: u32) -> Result<WeightId> {
        let found = self.find(name, &[n])?;
        if ![u64::from(n), u64::from(padded)].contains(&found.shape.iter().product()) {
            return Err(self.wrong_shape(&found, &[n]));
        }
        self.taken.insert(found.name.clone());
        self.add_float(&found, &[n])
    }

    /// An f32 weight of `dims` from a tensor that is kept as any float.
    fn add_float(&mut self, found: &Found, dims: &[u32]) -> Result<WeightId> {
        self.check_float(found)?;
        let init = self.init(found);
        let dims: Vec<Dim> = dims.iter().copied().map(Dim::Const).collect();
        Ok(self.module.add_weight(&found.name, TensorType::new(DType::F32, &dims), init))
    }

    /// One matrix of `rows` × `cols` from each of `parts`, all stored in one type, as the bank `name`.
    pub(super) fn bank(
        &mut self,
        name: &str,
        parts: impl Iterator<Item = String>,
        rows: u32,
        cols: u32,
    ) -> Result<WeightId> {
        let (mut places, mut stored) = (Vec::new(), None);
        for part in parts {
            let found = self.take(&part, &[rows, cols])?;
            let expected = *stored.get_or_insert(found.dtype);
            if found.dtype != expected || found.scales.is_some() {
                return Err(self.stored_as(&found, expected.name()));
            }
            places.push((self.sources[found.file], found.offset));
        }
        let stored = stored.unwrap_or(DType::F32);
        Ok(self.add_bank(name, stored, places, [rows, cols]))
    }

    /// The bank `name`, stored whole.
    pub(super) fn stacked(&mut self, name: &str, dims: [u32; 3]) -> Result<WeightId> {
        let found = self.take(name, &dims)?;
        let init = self.init(&found);
        Ok(self.module.add_weight(&found.name, TensorType::new(found.dtype, &dims.map(Dim::Const)), init))
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
        let found = self.take(&format!("{name}.weight"), &[rows, cols])?;
        let name = found.name.strip_suffix(".weight").unwrap_or(&found.name);
        let (key_name, value_name) = (format!("{name}.keys.weight"), format!("{name}.values.weight"));
        if let (Some(scales), Some(layout)) = (found.scales, found.dtype.grouped()) {
            // Keys are multiplied by columns, where scales would be those of outputs: they are widened, exactly.
            let bytes = [layout.row_bytes(cols.into()), Some(layout.scale_bytes(cols.into()))];
            let [row_bytes, row_scales] =
                bytes.map(|it| it.expect("the table holds whole rows inside the file"));
            let mut bank = |name: &str, dtype: DType, skip: u32, rows: u32| {
                let steps =
                    |first: u64, row: u64| Steps { first: first + u64::from(skip) * row, step: each * row };
                let (codes, scales) = (steps(found.offset, row_bytes), steps(scales, row_scales));
                let (source, stored) = (self.sources[found.file], found.dtype);
                let ty = TensorType::new(dtype, &[heads, rows, cols].map(Dim::Const));
                self.module.add_weight(name, ty, WeightInit::Grouped { source, stored, codes, scales })
            };
            let key_bank = bank(&key_name, DType::F32, 0, keys);
            return Ok([key_bank, bank(&value_name, found.multiplied(cols), keys, values)]);
        }
        let (source, stored) = (self.sources[found.file], found.dtype);
        // The table holds whole rows inside the file, so neither the product nor the sum leaves 64 bits.
        let row_bytes = stored.row_bytes(cols.into()).expect("the table holds whole rows");
        let parts = |skip: u32| -> Vec<(SourceId, u64)> {
            let row = |head: u32| u64::from(head) * each + u64::from(skip);
            (0..heads).map(|head| (source, found.offset + row(head) * row_bytes)).collect()
        };
        let key_bank = self.add_bank(&key_name, stored, parts(0), [keys, cols]);
        Ok([key_bank, self.add_bank(&value_name, stored, parts(keys), [values, cols])])
    }

    fn add_bank(
        &mut self,
        name: &str,
        stored: DType,
        parts: Vec<(SourceId, u64)>,
        [rows, cols]: [u32; 2],
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
    pub(super) fn finish(mut self, is_harmless: impl Fn(&str) -> bool) -> Result<Module> {
        self.refuse_unknown(is_harmless)?;
        if self.files.container().is_some_and(|it| it.declared().is_some()) {
            self.module.sources[self.sources[Container::TRUNK]].bytes = self.declared_end;
        }
        Ok(self.module)
    }

    fn take(&mut self, name: &str, shape: &[u32]) -> Result<Found> {
        let found = self.find(name, shape)?;
        let expected: Vec<u64> = shape.iter().copied().map(u64::from).collect();
        if found.shape != expected {
            return Err(self.wrong_shape(&found, shape));
        }
        self.taken.insert(found.name.clone());
        Ok(found)
    }

    fn check_float(&self, found: &Found) -> Result<()> {
        if found.dtype.is_float() {
            return Ok(());
        }
        Err(self.stored_as(found, "f32, f16 or bf16"))
    }

    fn stored_as(&self, found: &Found, expected: &'static str) -> ModelError {
        let (file, tensor) = (self.file_name(found.file), shown(&found.name));
        ModelError::StoredAs { file, tensor, found: found.dtype.name(), expected }
    }

    fn wrong_shape(&self, found: &Found, expected: &[u32]) -> ModelError {
        let (file, tensor) = (self.file_name(found.file), shown(&found.name));
        let expected = expected.iter().copied().map(u64::from).collect();
        ModelError::Shape { file, tensor, found: found.shape.clone(), expected }
    }

    fn init(&self, found: &Found) -> WeightInit {
        let (source, stored, first) = (self.sources[found.file], found.dtype, found.offset);
        let steps = |first: u64| Steps { first, step: 0 };
        match found.scales {
            Some(scales) => {
                WeightInit::Grouped { source, stored, codes: steps(first), scales: steps(scales) }
            }
            None => WeightInit::Stored { source, offset: first, stored },
        }
    }

    fn file_name(&self, file: usize) -> String {
        self.files.sources()[file].name()
    }
}

/// Each file with its length and the hash of all that lies before its first tensor; of a container, the hash of the manifest, which
/// says what its files hold, or of a bank that is there its record headers', which
/// know what each holds.
#[must_use]
pub fn source_decls(files: &ModelFiles) -> Vec<SourceDecl> {
    if let Some(container) = files.container() {
        let hash = hex(&Sha256::digest(container.manifest()));
        let declare = |(file, source): (usize, &crate::formats::Source)| SourceDecl {
            path: source.path().to_string_lossy().into_owned(),
            bytes: source.stamp().len,
            header_sha256: {
                let bank = container.bank_in(file);
                bank.and_then(|it| it.headers_sha256(source)).unwrap_or_else(|| hash.clone())
            },
        };
        return files.sources().iter().enumerate().map(declare).collect();
    }
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
