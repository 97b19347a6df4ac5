//! What can go wrong at run time, by what the reader can do about it.

use std::path::PathBuf;

/// An error of loading or executing a plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A plan file is damaged, foreign or of another version.
    #[error("{path}: {message}")]
    Plan {
        /// The file.
        path: PathBuf,
        /// What is wrong, with found and expected.
        message: String,
    },
    /// The machine or a limit has less memory than the plan needs.
    #[error("needs {needs} bytes of memory, {limit} are allowed")]
    Memory {
        /// Bytes that the plan needs with this number of threads.
        needs: u64,
        /// The limit.
        limit: u64,
    },
    /// The system refused an allocation.
    #[error("the system has no {bytes} bytes for {what}")]
    Allocation {
        /// Bytes asked for.
        bytes: u64,
        /// What for.
        what: &'static str,
    },
    /// Threads could not be started.
    #[error("cannot start {threads} threads: {message}")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// Why.
        message: String,
    },
    /// A batch that the plan cannot take.
    #[error("{0}")]
    Batch(String),
    /// A packed weight does not have the bytes that were written at compile.
    #[error(
        "{file}: weight '{name}' at {offset:#x} is damaged: CRC-32C {found:08x}, expected {expected:08x}"
    )]
    Damaged {
        /// The plan.
        file: String,
        /// Where the weight begins in the plan file, or in memory where it was repacked from its sources.
        offset: u64,
        /// The weight.
        name: String,
        /// CRC of the bytes there.
        found: u32,
        /// CRC in the plan.
        expected: u32,
    },
    /// A logit or intermediate value is infinite or not a number.
    #[error("{what} is not finite")]
    NotFinite {
        /// Which value: row of logits, or step and op.
        what: String,
    },
    /// A step reads bytes whose value is dead.
    #[error("{what}")]
    Poisoned {
        /// Program, step, op and operand, and whose value it was.
        what: String,
    },
    /// An expert cannot be had.
    #[error(transparent)]
    Experts(#[from] crate::experts::ExpertError),
    /// A saved session cannot be written, read, or continued by this plan.
    #[error("{path}: {message}")]
    Saved {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// A kernel panicked: a bug.
    #[error("a step failed: this is a bug in waste")]
    Panicked,
}
