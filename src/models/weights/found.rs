//! A tensor where it is stored: in a table of files, or in the trunk of a container.

use waste_plan::{DType, grouped};

use crate::formats::container::{Container, MAX_TRUNK_DIM, TrunkFormat, TrunkTensor};
use crate::formats::{FormatError, Item, ModelFiles, shown};

use crate::models::{ModelError, Result};

use super::Weights;

/// What kernels over integer codes take: whole groups of so many inputs.
const CODES: u32 = 32;

/// Elements of a tensor, and bytes of all of them, beyond which a configuration is taken for damage: no file bounds it.
const MOST_ELEMENTS: u64 = 1 << 40;
const MOST_DECLARED: u64 = 1 << 50;

/// A tensor: its whole name, how it is stored and where.
pub(super) struct Found {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<u64>,
    /// Its number among the sources.
    pub(super) file: usize,
    /// First byte: of all of it, or of its codes.
    pub(super) offset: u64,
    /// First byte of its scales, if they lie apart.
    pub(super) scales: Option<u64>,
}

impl Found {
    /// The dtype in which it is multiplied: its own, or f32 (exactly) where rows are no whole groups for kernels.
    pub(super) fn multiplied(&self, cols: u32) -> DType {
        if self.scales.is_some() && !cols.is_multiple_of(CODES) { DType::F32 } else { self.dtype }
    }
}

impl Weights<'_> {
    /// Whether the model has a tensor `name`, readable or not.
    pub(in crate::models) fn has(&self, name: &str) -> bool {
        has_tensor(self.files, name)
    }

    /// The tensor `name`; in a trunk that was never made it has the shape `expected`.
    pub(super) fn find(&mut self, name: &str, expected: &[u32]) -> Result<Found> {
        let files = self.files;
        if let Some(container) = files.container() {
            let name = whole(container, name);
            let Some(asked) = container.declared() else {
                return self.in_trunk(container.tensor(&name)?, name);
            };
            let shape: Vec<u64> = expected.iter().copied().map(u64::from).collect();
            let elements = shape.iter().try_fold(1u64, |n, it| n.checked_mul(*it));
            let is_large = elements.is_none_or(|it| MOST_ELEMENTS < it)
                || shape.iter().any(|it| MAX_TRUNK_DIM < *it)
                || MOST_DECLARED < self.declared_end;
            if is_large {
                return Err(FormatError::Malformed {
                    file: files.meta().file().to_owned(),
                    item: Item::tensor(&name),
                    offset: 0,
                    reason: format!("shape {shape:?} is larger than any model"),
                }
                .into());
            }
            let (tensor, end) = TrunkTensor::place(&name, shape, asked, self.declared_end);
            self.declared_end = end;
            return self.in_trunk(&tensor, name);
        }
        let info = self.files.tensor(name)?;
        let (dtype, shape, offset) = (info.dtype, info.shape.clone(), info.offset);
        Ok(Found { name: info.name.clone(), dtype, shape, file: info.file, offset, scales: None })
    }

    fn in_trunk(&self, tensor: &TrunkTensor, name: String) -> Result<Found> {
        let dtype = match tensor.fmt {
            TrunkFormat::F32 => DType::F32,
            TrunkFormat::Q8G => DType::Q8G,
            TrunkFormat::Q4G => DType::Q4G,
            TrunkFormat::Q3G => DType::Q3G,
        };
        let is_apart = dtype.grouped().is_some();
        if is_apart && tensor.group != grouped::GROUP {
            let (file, tensor) = (self.file_name(Container::TRUNK), shown(&name));
            return Err(ModelError::StoredAs {
                file,
                tensor,
                found: "other groups",
                expected: "groups of 128",
            });
        }
        Ok(Found {
            name,
            dtype,
            shape: tensor.shape.clone(),
            file: Container::TRUNK,
            offset: tensor.offset,
            scales: is_apart.then_some(tensor.scale_offset),
        })
    }

    /// Refuses the first tensor that was not taken and is not harmless. What a container holds beside its text model, before whose names
    /// its prefix stands, is no concern of it.
    pub(super) fn refuse_unknown(&self, is_harmless: impl Fn(&str) -> bool) -> Result<()> {
        let Some(container) = self.files.container() else {
            return Ok(self.files.refuse_unknown(|name| self.taken.contains(name) || is_harmless(name))?);
        };
        let prefix = container.prefix();
        let is_unknown = |name: &&String| {
            name.strip_prefix(prefix).is_some_and(|it| !self.taken.contains(*name) && !is_harmless(it))
        };
        match container.tensors().keys().find(is_unknown) {
            None => Ok(()),
            Some(name) => Err(FormatError::Malformed {
                file: self.file_name(Container::TRUNK),
                item: Item::tensor(name),
                offset: container.tensors()[name].offset,
                reason: "is not part of this architecture".to_owned(),
            }
            .into()),
        }
    }
}

/// Whether `files` have a tensor `name`, readable or not.
pub(in crate::models) fn has_tensor(files: &ModelFiles, name: &str) -> bool {
    match files.container() {
        Some(container) => {
            container.declared().is_some() || container.tensors().contains_key(&whole(container, name))
        }
        None => !matches!(files.get_tensor(name), Ok(None)),
    }
}

/// The name in the container of what the architecture calls `name`.
fn whole(container: &Container, name: &str) -> String {
    format!("{}{name}", container.prefix())
}
