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
            let (file, tensor) = (self.file_name(info), shown(name));
            return Err(ModelError::Shape { file, tensor, found: info.shape.clone(), expected });
        }
        self.taken.insert(name.to_owned());
        Ok(info)
    }

    fn check_float(&self, info: &TensorInfo) -> Result<()> {
        if info.dtype.is_float() {
            return Ok(());
        }
        let (file, tensor) = (self.file_name(info), shown(&info.name));
        let expected = "f32, f16 or bf16";
        Err(ModelError::StoredAs { file, tensor, found: info.dtype.name(), expected })
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
