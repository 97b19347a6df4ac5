//! `waste convert`: a checkpoint with routed experts to a v0 container.
//!
//! | module | holds |
//! |---|---|
//! | `source`, `matrix` | the checkpoint: experts by layer, and the trunk; rows of any stored type |
//! | `trunk` | trunk.bin: groups of integers with scales |
//! | `kmeans`, `nearest` | codebooks of the experts |
//! | `encode`, `bank` | records of experts |
//! | `part` | the unfinished container, and what of it is done |
//! | `manifest` | manifest.json |
//! | `verify` | is a container whole, and how far from its checkpoint |
//!
//! Invariants
//! - the same checkpoint, options and seed give the same bytes, whatever the number of threads, and wherever it was
//!   interrupted;
//! - memory is bounded by one expert and one sample of vectors, not by the model;
//! - the container appears under its name whole or not at all: it grows in a folder beside it (`OUT.part`), whose finished
//!   files a later run keeps, and is renamed once.
//!
//! Deliberately absent: anything that looks at activations (calibration), and checkpoints of integers.

mod bank;
mod encode;
mod kmeans;
mod manifest;
mod matrix;
mod nearest;
mod part;
mod source;
mod trunk;
mod verify;

use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use crate::formats::container::{BankEntry, MatrixKind, TrunkFormat, TrunkTensor, VqCode};
use crate::formats::{FormatError, ModelFiles};
use crate::progress::Progress;

use matrix::Matrix;
use part::{Part, Stage};
use source::Checkpoint;
pub use verify::{Distance, Verified, verify};

/// A result of this module.
pub type Result<T> = std::result::Result<T, ConvertError>;

/// What a container is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvertOptions {
    /// How experts are coded.
    pub experts: VqCode,
    /// How most other matrices are stored.
    pub trunk: TrunkFormat,
    /// Vectors that the codebooks of a layer's gate, up or down are fitted to, at most.
    pub sample: usize,
    /// Threads; the result does not depend on them.
    pub jobs: usize,
    /// Seed of the sample and of the first centroids.
    pub seed: u64,
}

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// Layers with experts.
    pub layers: u32,
    /// Of these, the ones that an interrupted run had finished.
    pub kept: u32,
    /// Bytes of the tensors in the checkpoint.
    pub source_bytes: u64,
    /// Bytes of trunk.bin.
    pub trunk_bytes: u64,
    /// Bytes of codebooks and banks.
    pub expert_bytes: u64,
}

/// Why no container was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The checkpoint's files.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The checkpoint as a whole.
    #[error("{file}: {reason}")]
    Source {
        /// The folder.
        file: String,
        /// Why it cannot be converted.
        reason: String,
    },
    /// A tensor cannot be stored.
    #[error("{file}: tensor '{tensor}' {reason}")]
    Tensor {
        /// Its file.
        file: String,
        /// Its name.
        tensor: String,
        /// Found and expected.
        reason: String,
    },
    /// The container's folder cannot be written.
    #[error("{}: {reason}", path.display())]
    Output {
        /// The folder or file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

impl ConvertError {
    /// An error of the system about `path`.
    fn io(path: &Path) -> impl Fn(std::io::Error) -> Self + Copy {
        move |err| Self::Output { path: path.to_path_buf(), reason: err.to_string() }
    }
}

/// Converts the checkpoint `files` to the container `out`, which must not exist. `progress` counts its bytes.
///
/// # Errors
/// Any [`ConvertError`]; what was finished is kept for the next run with the same checkpoint and options.
pub fn convert(
    files: &ModelFiles,
    out: &Path,
    options: &ConvertOptions,
    progress: &dyn Progress,
) -> Result<Converted> {
    let checkpoint = Checkpoint::new(files)?;
    let mut part = Part::open(out, &part::fingerprint(files, options)?)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(options.jobs).build();
    let pool =
        pool.map_err(|err| ConvertError::Output { path: out.to_path_buf(), reason: err.to_string() })?;
    let converted = pool.install(|| write_parts(&checkpoint, files, options, &mut part, progress))?;
    part.publish()?;
    Ok(converted)
}

/// All files of the container, those that are finished left as they are.
fn write_parts(
    checkpoint: &Checkpoint<'_>,
    files: &ModelFiles,
    options: &ConvertOptions,
    part: &mut Part,
    progress: &dyn Progress,
) -> Result<Converted> {
    let mut meter = Meter { progress, done: 0, total: checkpoint.stored_bytes() };
    let tensors = checkpoint.trunk();
    let (table, trunk_bytes) = trunk::table(tensors, options.trunk);
    if part.has(Stage::Trunk) {
        meter.add(tensors.iter().map(Matrix::stored_bytes).sum());
    } else {
        write_trunk(tensors, &table, part, &mut meter)?;
        part.finish(Stage::Trunk)?;
    }
    let layout = bank::Layout::new(checkpoint, options.experts)?;
    let mut entries = Vec::new();
    let mut kept = 0;
    for layer in checkpoint.moe_layers() {
        let entry = layout.entry(layer);
        if part.has(Stage::Layer(layer)) {
            kept += 1;
            meter.add(layout.stored_bytes(checkpoint, layer)?);
        } else {
            bank::write(checkpoint, &layout, &entry, layer, options, part, &mut meter)?;
            part.finish(Stage::Layer(layer))?;
        }
        entries.push((layer, entry));
    }
    let banks: u64 = entries.iter().map(|it| it.1.bytes).sum();
    let text = manifest::text(checkpoint, options, tensors, &table, &entries);
    part.write_small("manifest.json", text.as_bytes())?;
    for name in manifest::SIDE_FILES {
        if let Some(bytes) = files.side_file(name)? {
            part.write_small(name, &bytes)?;
        }
    }
    Ok(Converted {
        layers: entries.len() as u32,
        kept,
        source_bytes: meter.total,
        trunk_bytes,
        expert_bytes: banks + layout.codebook_bytes(),
    })
}

fn write_trunk(
    tensors: &[Matrix<'_>],
    table: &[TrunkTensor],
    part: &Part,
    meter: &mut Meter<'_>,
) -> Result<()> {
    let (path, file) = part.create("trunk.bin")?;
    let io = ConvertError::io(&path);
    let mut file = BufWriter::new(file);
    for (matrix, tensor) in tensors.iter().zip(table) {
        trunk::write(matrix, tensor, &mut file, io)?;
        meter.add(matrix.stored_bytes());
    }
    file.flush().map_err(io)?;
    file.get_ref().sync_all().map_err(io)
}

/// Bytes of the checkpoint that are done.
struct Meter<'a> {
    progress: &'a dyn Progress,
    done: u64,
    total: u64,
}

impl Meter<'_> {
    fn add(&mut self, bytes: u64) {
        self.done += bytes;
        self.progress.update(self.done, self.total);
    }
}

/// A size of something that is in memory, or is to be.
fn index(n: u64) -> usize {
    usize::try_from(n).expect("a size in memory")
}
