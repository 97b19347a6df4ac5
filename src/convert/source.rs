//! A checkpoint in Hugging Face's layout, seen as a container sees it: experts by layer, and everything else.
//!
//! Invariants
//! - every tensor is either a matrix of an expert or part of the trunk; a layer with experts has all of them, in the shapes
//!   that the configuration gives;
//! - a stored type that is not understood is refused by name before any work.

use std::ops::Range;

use serde_json::Value as Json;
use waste_plan::DType;

use super::{ConvertError, Result};
use crate::formats::container::{Expert, Geometry, MatrixKind};
use crate::formats::{Format, Meta, ModelFiles, TensorInfo, parse_config};

/// What stands before the tensors of the text model where the configuration holds several models.
const TEXT_PREFIX: &str = "language_model.";

/// How families name the matrices of experts: the part before the expert's number, then gate, up and down.
const NAMES: [(&str, [&str; 3]); 2] = [
    ("block_sparse_moe.experts", ["w1", "w3", "w2"]),
    ("mlp.experts", ["gate_proj", "up_proj", "down_proj"]),
];

/// The checkpoint to convert.
pub(super) struct Checkpoint<'a> {
    files: &'a ModelFiles,
    /// The configuration of the text model, as the container will hold it.
    pub(super) config: Json,
    pub(super) prefix: &'static str,
    pub(super) arch: String,
    pub(super) geometry: Geometry,
    naming: (&'static str, [&'static str; 3]),
}

/// A matrix, or any other tensor seen as rows.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    files: &'a ModelFiles,
    info: &'a TensorInfo,
    bytes: &'a [u8],
    rows: u64,
    cols: u64,
}

impl<'a> Matrix<'a> {
    fn new(files: &'a ModelFiles, info: &'a TensorInfo) -> Self {
        let cols = info.shape.last().copied().unwrap_or(1);
        Self { files, info, bytes: files.tensor_bytes(info), rows: info.elements() / cols, cols }
    }

    pub(super) fn name(&self) -> &'a str {
        &self.info.name
    }

    /// The file that holds it, as messages show it.
    pub(super) fn file(&self) -> String {
        self.files.sources()[self.info.file].name()
    }

    pub(super) fn shape(&self) -> &'a [u64] {
        &self.info.shape
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn cols(&self) -> u64 {
        self.cols
    }

    /// Bytes in the checkpoint.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.info.bytes
    }

    /// Decodes `row` into `out` of as many elements.
    pub(super) fn decode_row(&self, row: u64, out: &mut [f32]) {
        let len = self.bytes.len() / usize::try_from(self.rows).expect("rows in memory");
        let at = usize::try_from(row).expect("a row in memory") * len;
        self.info.dtype.decode(&self.bytes[at..at + len], out);
    }
}

impl<'a> Checkpoint<'a> {
    /// Looks through `files`.
    ///
    /// # Errors
    /// If they are no safetensors, have no routed experts, or lack something that the configuration asks for.
    pub(super) fn new(files: &'a ModelFiles) -> Result<Self> {
        let folder = folder_of(files);
        if files.format() != Format::Safetensors {
            let reason = "is no checkpoint in safetensors with a config.json".to_owned();
            return Err(ConvertError::Source { file: folder, reason });
        }
        let text = files.side_file("config.json")?.unwrap_or_default();
        let (config, prefix) = text_config(&text);
        let meta: Meta = parse_config(files.meta().file(), config.to_string().as_bytes())?;
        let geometry = Geometry::of_config(&meta)?;
        if geometry.moe_layers().is_empty() {
            let reason = "has no routed experts (num_experts): there is nothing to quantise".to_owned();
            return Err(ConvertError::Source { file: folder, reason });
        }
        let arch = meta.get_strs("architectures")?.and_then(|it| it.first().map(|it| (*it).to_owned()));
        let first = geometry.moe_layers().start;
        let is_there = |naming: &(&'static str, [&'static str; 3])| {
            files.tensors().contains_key(&expert_name(prefix, *naming, first, 0, MatrixKind::Gate))
        };
        let naming = NAMES.into_iter().find(is_there).ok_or_else(|| {
            // The likeliest name, so that the line says which tensor was looked for.
            let name = expert_name(prefix, NAMES[0], first, 0, MatrixKind::Gate);
            files.tensor(&name).err().map_or_else(
                || ConvertError::Source { file: folder, reason: "has no experts".to_owned() },
                ConvertError::from,
            )
        })?;
        let arch = arch.unwrap_or_else(|| "unknown".to_owned());
        let checkpoint = Self { files, config, prefix, arch, geometry, naming };
        checkpoint.check()?;
        Ok(checkpoint)
    }

    /// The folder, as messages show it.
    pub(super) fn folder(&self) -> String {
        folder_of(self.files)
    }

    /// The matrix `kind` of `expert` in `layer`.
    ///
    /// # Errors
    /// If there is none, or its shape is not the configuration's.
    pub(super) fn expert(&self, layer: u32, expert: u32, kind: MatrixKind) -> Result<Matrix<'a>> {
        let name = expert_name(self.prefix, self.naming, layer, expert, kind);
        let matrix = Matrix::new(self.files, self.files.tensor(&name)?);
        let (rows, cols) = self.shape().shape(kind);
        if matrix.shape() == [u64::from(rows), u64::from(cols)] {
            return Ok(matrix);
        }
        let reason = format!("has shape {:?}, expected [{rows}, {cols}]", matrix.shape());
        Err(ConvertError::Tensor { file: matrix.file(), tensor: name, reason })
    }

    /// The shape of every expert.
    pub(super) fn shape(&self) -> Expert {
        self.geometry.expert()
    }

    /// The layers that have experts.
    pub(super) fn moe_layers(&self) -> Range<u32> {
        self.geometry.moe_layers()
    }

    /// Everything that is no expert's, by name.
    pub(super) fn trunk(&self) -> impl Iterator<Item = Matrix<'a>> {
        let (files, experts) = (self.files, format!(".{}.", self.naming.0));
        files
            .tensors()
            .values()
            .filter(move |it| !it.name.contains(&experts))
            .map(move |it| Matrix::new(files, it))
    }

    /// Bytes of all tensors in the checkpoint.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.files.tensors().values().map(|it| it.bytes).sum()
    }

    /// Every expert is there, nothing else is called one, and all types are floats.
    fn check(&self) -> Result<()> {
        if let Some(foreign) = self.files.foreign().next() {
            return Err(foreign.refuse().into());
        }
        let mut count = 0;
        for layer in self.moe_layers() {
            for expert in 0..self.geometry.experts() {
                for kind in MatrixKind::ALL {
                    self.expert(layer, expert, kind)?;
                    count += 1;
                }
            }
        }
        let experts = format!(".{}.", self.naming.0);
        let named = self.files.tensors().values().filter(|it| it.name.contains(&experts));
        if named.clone().count() > count {
            let reason = format!("has {} tensors of experts, the configuration {count}", named.count());
            return Err(ConvertError::Source { file: self.folder(), reason });
        }
        let is_float = |it: &&TensorInfo| matches!(it.dtype, DType::F32 | DType::F16 | DType::BF16);
        match self.files.tensors().values().find(|it| !is_float(it)) {
            None => Ok(()),
            Some(info) => Err(ConvertError::Tensor {
                file: Matrix::new(self.files, info).file(),
                tensor: info.name.clone(),
                reason: format!("is stored as {}, expected a float", info.dtype.name()),
            }),
        }
    }
}

fn folder_of(files: &ModelFiles) -> String {
    crate::formats::shown(&files.folder().to_string_lossy())
}

fn expert_name(
    prefix: &str,
    (part, names): (&str, [&str; 3]),
    layer: u32,
    expert: u32,
    kind: MatrixKind,
) -> String {
    format!("{prefix}model.layers.{layer}.{part}.{expert}.{}.weight", names[kind as usize])
}

/// The configuration of the text model and its prefix: where it stands inside another one, that one is kept as `_outer`.
fn text_config(text: &[u8]) -> (Json, &'static str) {
    // Parsed once before, when the files were opened.
    let config: Json = serde_json::from_slice(text).unwrap_or_default();
    let Json::Object(mut outer) = config else { return (config, "") };
    match outer.remove("text_config") {
        Some(Json::Object(mut inner)) => {
            inner.insert("_outer".to_owned(), Json::Object(outer));
            (Json::Object(inner), TEXT_PREFIX)
        }
        _ => (Json::Object(outer), ""),
    }
}
