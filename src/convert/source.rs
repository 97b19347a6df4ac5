//! A checkpoint in Hugging Face's layout, seen as a container sees it: experts by layer, and everything else.
//!
//! Invariants
//! - every tensor is either a matrix of an expert or part of the trunk; a layer with experts has all of them, in the shapes
//!   that the configuration gives;
//! - a stored type that is not understood is refused by name before any work.

use std::ops::Range;

use serde_json::Value as Json;

use super::matrix::{Matrix, names};
use super::{ConvertError, Result};
use crate::formats::container::{Expert, Geometry, MatrixKind, text_config};
use crate::formats::{Format, FormatError, Item, ModelFiles, parse_config};

/// How families name the matrices of experts: the part before the expert's number, then gate, up and down.
const NAMES: [(&str, [&str; 3]); 2] = [
    ("block_sparse_moe.experts", ["w1", "w3", "w2"]),
    ("mlp.experts", ["gate_proj", "up_proj", "down_proj"]),
];

/// Rows and columns that share a scale in fp8 where the configuration does not say.
const FP8_BLOCK: [u64; 2] = [128, 128];

/// The checkpoint to convert.
pub(super) struct Checkpoint<'a> {
    files: &'a ModelFiles,
    /// The configuration of the text model, as the container will hold it.
    pub(super) config: Json,
    pub(super) prefix: &'static str,
    pub(super) arch: String,
    pub(super) geometry: Geometry,
    naming: (&'static str, [&'static str; 3]),
    fp8_block: [u64; 2],
    trunk: Vec<Matrix<'a>>,
    stored_bytes: u64,
}

impl<'a> Checkpoint<'a> {
    /// Looks through `files`.
    ///
    /// # Errors
    /// If they are no safetensors, have no routed experts, lack something that the configuration asks for, or hold a type
    /// that is not understood.
    pub(super) fn new(files: &'a ModelFiles) -> Result<Self> {
        let refuse =
            |reason: &str| ConvertError::Source { file: folder_of(files), reason: reason.to_owned() };
        if files.format() != Format::Safetensors {
            return Err(refuse("is no checkpoint in safetensors with a config.json"));
        }
        let (config, prefix, quantization) =
            text_config(&files.side_file("config.json")?.unwrap_or_default());
        let meta = parse_config(files.meta().file(), config.to_string().as_bytes())?;
        let geometry = Geometry::of_config(&meta)?;
        if geometry.moe_layers().is_empty() {
            return Err(refuse("has no routed experts (num_experts): there is nothing to quantise"));
        }
        let names = names(files);
        let first = |naming| expert_name(prefix, naming, geometry.moe_layers().start, 0, MatrixKind::Gate);
        let naming = NAMES.into_iter().find(|it| names.contains(&first(*it).as_str()));
        let naming = naming.ok_or_else(|| missing(files, &first(NAMES[0])))?;
        let classes = meta.get_strs("architectures")?.unwrap_or_default();
        let mut checkpoint = Self {
            files,
            prefix,
            arch: classes.first().map_or("unknown", |it| *it).to_owned(),
            geometry,
            naming,
            fp8_block: fp8_block(&quantization)
                .ok_or_else(|| refuse("has a weight_block_size that is no pair"))?,
            trunk: Vec::new(),
            stored_bytes: 0,
            config,
        };
        checkpoint.take_all(&names)?;
        Ok(checkpoint)
    }

    /// Sorts the matrices called `names` into experts and trunk.
    fn take_all(&mut self, names: &[&str]) -> Result<()> {
        let part = format!(".{}.", self.naming.0);
        let (experts, trunk): (Vec<&str>, Vec<&str>) = names.iter().partition(|it| it.contains(&part));
        let mut count = 0;
        for layer in self.moe_layers() {
            for expert in 0..self.geometry.experts() {
                for kind in MatrixKind::ALL {
                    self.stored_bytes += self.expert(layer, expert, kind)?.stored_bytes();
                    count += 1;
                }
            }
        }
        if experts.len() != count {
            let reason = format!("has {} matrices of experts, the configuration {count}", experts.len());
            return Err(ConvertError::Source { file: self.folder(), reason });
        }
        for name in trunk {
            let matrix = self.matrix(name)?;
            self.stored_bytes += matrix.stored_bytes();
            self.trunk.push(matrix);
        }
        Ok(())
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
        let matrix = self.matrix(&expert_name(self.prefix, self.naming, layer, expert, kind))?;
        let (rows, cols) = self.shape().shape(kind);
        if matrix.shape() == [u64::from(rows), u64::from(cols)] {
            return Ok(matrix);
        }
        let reason = format!("has shape {:?}, expected [{rows}, {cols}]", matrix.shape());
        Err(ConvertError::Tensor { file: matrix.file(), tensor: matrix.name().to_owned(), reason })
    }

    fn matrix(&self, name: &str) -> Result<Matrix<'a>> {
        Matrix::find(self.files, name, self.fp8_block)?.ok_or_else(|| missing(self.files, name))
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
    pub(super) fn trunk(&self) -> &[Matrix<'a>] {
        &self.trunk
    }

    /// Bytes of all tensors in the checkpoint.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }
}

fn missing(files: &ModelFiles, name: &str) -> ConvertError {
    FormatError::Missing { file: folder_of(files), item: Item::tensor(name), hint: String::new() }.into()
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

/// Rows and columns of a block of fp8; `None` if what is stated is no such thing.
fn fp8_block(quantization: &Json) -> Option<[u64; 2]> {
    let Some(stated) = quantization.get("weight_block_size").filter(|it| !it.is_null()) else {
        return Some(FP8_BLOCK);
    };
    let pair: [u64; 2] = serde_json::from_value(stated.clone()).ok()?;
    (pair[0] > 0 && pair[1] > 0).then_some(pair)
}
