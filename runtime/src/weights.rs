//! Files as bytes, and where a session's packed weights are.
//!
//! A mapped file that another process shrinks faults on access: that is the other process's act; lengths are checked at open.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::arena::Buffer;
use crate::error::RuntimeError;

/// A read-only file mapped into memory.
#[derive(Debug)]
pub struct MappedFile {
    map: Option<Mmap>,
}

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// If it cannot be opened or mapped.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        // Asked before opening, since opening a pipe waits for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self { map: None });
        }
        // SAFETY: the map is read-only and private; who changes the file meanwhile changes what is read, as documented.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { map: Some(map) })
    }

    /// All bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }

    /// Gives the memory back that its pages take here; who reads one again finds it in the file. A refusal changes nothing but memory.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Some(map) = &self.map {
            // SAFETY: pages of a read-only map of a file come back with what the file holds, as they came at first.
            let _refused = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// Memory for the packed weights of a plan.
#[derive(Debug)]
pub struct WeightBuffer(pub(crate) Buffer);

impl WeightBuffer {
    /// `bytes` zeros.
    ///
    /// # Errors
    /// If there is not as much memory.
    pub fn new(bytes: u64) -> Result<Self, RuntimeError> {
        Buffer::new(bytes, "weights").map(Self)
    }

    /// All bytes, to be filled; as many as were asked for, or a few more.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

/// The packed weights of a plan: inside its mapped file, repacked into memory of their own, or not here.
#[derive(Clone, Debug)]
pub(crate) enum WeightBytes {
    Mapped(Arc<MappedFile>, Range<usize>),
    Owned(Arc<Buffer>),
    Outside,
}

impl WeightBytes {
    /// Where they begin in their file; 0 in memory of their own.
    pub(crate) fn starts_at(&self) -> u64 {
        match self {
            Self::Mapped(_, range) => range.start as u64,
            Self::Owned(_) | Self::Outside => 0,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(file, range) => &file.bytes()[range.clone()],
            Self::Owned(buffer) => buffer.bytes(),
            Self::Outside => &[],
        }
    }
}
