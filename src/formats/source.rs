//! Files as bytes: mapped model files, small side files read whole, and files that are only known by their length.
//!
//! Invariants
//! - a [`Source`] never copies the file it stands for;
//! - a source that is absent has a length and no bytes: enough to plan, never to pack or run;
//! - a side file (config.json and the like) is refused above its cap before it is read.
//!
//! Deliberately absent: unsafe code (the memory map is `waste_runtime`'s) and any interpretation.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use waste_runtime::weights::MappedFile;

use super::error::{FormatError, Result, grouped, shown};

/// Bytes that several owners hold.
pub(crate) type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Where the bytes of a source are.
#[derive(Clone)]
enum Held {
    Mapped(Arc<MappedFile>),
    Memory(Arc<Vec<u8>>),
}

/// What tells two states of a file apart without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileStamp {
    /// Length in bytes.
    pub len: u64,
    /// Last change, in nanoseconds since 1970 (0 where the system has none).
    pub modified_ns: u128,
    /// The inode number (0 where there is none).
    pub inode: u64,
}

/// One file of weights.
#[derive(Clone)]
pub struct Source {
    path: PathBuf,
    bytes: Held,
    stamp: FileStamp,
    is_absent: bool,
}

impl Source {
    /// Maps `path`.
    ///
    /// # Errors
    /// [`FormatError::Io`] if it cannot be opened or mapped, or is no regular file.
    pub fn open(path: &Path) -> Result<Self> {
        let meta = std::fs::metadata(path).map_err(|err| FormatError::io(path, err))?;
        if !meta.is_file() {
            return Err(FormatError::not_a_model(path, "not a regular file"));
        }
        let map = MappedFile::open(path).map_err(|err| FormatError::io(path, err))?;
        let stamp = stamp_of(&meta);
        Ok(Self { path: path.to_path_buf(), bytes: Held::Mapped(Arc::new(map)), stamp, is_absent: false })
    }

    /// Bytes in memory that stand for the file `name`: weights of graphs that are built by hand.
    #[must_use]
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Self {
        let stamp = FileStamp { len: bytes.len() as u64, modified_ns: 0, inode: 0 };
        Self { path: PathBuf::from(name), bytes: Held::Memory(Arc::new(bytes)), stamp, is_absent: false }
    }

    /// A file of `len` bytes that is not there, such as one that is yet to be downloaded or made.
    pub(crate) fn absent(path: &Path, len: u64) -> Self {
        let stamp = FileStamp { len, modified_ns: 0, inode: 0 };
        Self { path: path.to_path_buf(), bytes: Held::Memory(Arc::default()), stamp, is_absent: true }
    }

    /// Whether only the length of the file is known.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.is_absent
    }

    /// Bytes of the file, there or not.
    #[must_use]
    pub fn size(&self) -> u64 {
        if self.is_absent { self.stamp.len } else { self.bytes().len() as u64 }
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path as error messages show it.
    #[must_use]
    pub fn name(&self) -> String {
        shown(&self.path.to_string_lossy())
    }

    /// The whole file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Held::Mapped(map) => map.bytes(),
            Held::Memory(bytes) => bytes,
        }
    }

    /// Shared ownership of [`Source::bytes`].
    pub(crate) fn share(&self) -> Bytes {
        match &self.bytes {
            Held::Mapped(map) => Arc::clone(map) as Bytes,
            Held::Memory(bytes) => Arc::clone(bytes) as Bytes,
        }
    }

    /// What was read of a mapped file need not stay in memory.
    pub(crate) fn release(&self) {
        if let Held::Mapped(map) = &self.bytes {
            map.release();
        }
    }

    /// Length, time of change and inode when the file was opened.
    #[must_use]
    pub fn stamp(&self) -> FileStamp {
        self.stamp
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("path", &self.path).field("stamp", &self.stamp).finish_non_exhaustive()
    }
}

/// Whether `name` names a file of the same folder: no folders, no way out.
pub(crate) fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0'])
}

/// Reads a side file of at most `cap` bytes; `None` if there is no such file.
///
/// # Errors
/// [`FormatError::Io`], or [`FormatError::NotAModel`] above `cap`.
pub fn read_small(path: &Path, cap: u64) -> Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(FormatError::io(path, err)),
    };
    let mut out = Vec::new();
    file.take(cap + 1).read_to_end(&mut out).map_err(|err| FormatError::io(path, err))?;
    if out.len() as u64 > cap {
        let reason = format!("larger than the {} bytes such a file may have", grouped(cap));
        return Err(FormatError::not_a_model(path, reason));
    }
    Ok(Some(out))
}

fn stamp_of(meta: &std::fs::Metadata) -> FileStamp {
    let since = meta.modified().ok().and_then(|it| it.duration_since(std::time::UNIX_EPOCH).ok());
    FileStamp { len: meta.len(), modified_ns: since.map_or(0, |it| it.as_nanos()), inode: inode_of(meta) }
}

#[cfg(unix)]
fn inode_of(meta: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(meta)
}

#[cfg(not(unix))]
fn inode_of(_meta: &std::fs::Metadata) -> u64 {
    0
}
