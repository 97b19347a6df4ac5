//! What can go wrong with streamed experts, each as one clear line.

use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An error of opening or using an expert cache. None is sticky: the same request may be made again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExpertError {
    /// A record cannot be had.
    #[error("{path}: expert {expert} of layer {layer} at {offset:#x}: {fault}", path = .path.display())]
    Record {
        /// The file.
        path: Arc<Path>,
        /// The model's number of the layer.
        layer: u32,
        /// The expert's number.
        expert: u32,
        /// Where its record begins in the file.
        offset: u64,
        /// What is wrong with it.
        fault: Fault,
    },
    /// There is no such expert.
    #[error("there is no expert {expert} of layer {layer}")]
    Unknown {
        /// The layer asked for.
        layer: u32,
        /// The expert asked for.
        expert: u32,
    },
    /// All slots are in use; the caller may use fewer at a time.
    #[error("all {slots} experts of the cache are in use")]
    Full {
        /// Slots of the cache.
        slots: usize,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// Banks that cannot be, or do not lie inside their files.
    #[error("{0}")]
    Banks(String),
    /// A file cannot be opened or probed.
    #[error("{path}: {message}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
}

/// What is wrong with one record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The system cannot read it.
    #[error("{0}")]
    Io(String),
    /// The file ends before the record does.
    #[error("the file ends at {end:#x}, the record at {needs:#x} (truncated?)")]
    Truncated {
        /// Bytes that could be read, from the beginning of the file.
        end: u64,
        /// Where the record ends.
        needs: u64,
    },
    /// The check of records refused it.
    #[error("{0}")]
    Damaged(String),
    /// Somebody changed the file while it was in use.
    #[error("the file was changed while it was in use: {0}")]
    Changed(String),
}
