//! Files of expert records, read past the page cache.
//!
//! A bank is larger than memory and is read once a record: pages of it in the system's cache would only push out what is
//! used again. So reads go straight to memory of the expert cache where the system can (Linux `O_DIRECT`, macOS
//! `F_NOCACHE`); where it cannot, they are buffered, and the pages are given back after each read.
//!
//! Deliberately absent: unbuffered reads on Windows, where they are buffered; mapping.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use super::error::{ExpertError, Fault};
use crate::arena::Buffer;

/// Alignment of offset, length and memory of a direct read: a page, which every device's block divides.
const DIRECT_ALIGN: usize = 4096;

/// Reads in a row that bring less than a block, after which a file is taken to end there.
const MAX_STALLS: u32 = 8;

/// Bytes at positions of a file. Tests put a faulty one between the cache and the disk.
pub trait ReadAt: fmt::Debug + Send + Sync {
    /// Reads bytes from `offset` on into `buf`; how many, possibly fewer than asked for, 0 only at the end of the file.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::Interrupted`] means "again".
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// A power of two, at most 4096, that must divide offset, length and address of a read.
    fn alignment(&self) -> usize;

    /// Bytes of the file.
    ///
    /// # Errors
    /// What the system says.
    fn size(&self) -> io::Result<u64>;

    /// How the file differs from what it was when it was opened or last accepted, if it does.
    fn changed(&self) -> Option<String>;

    /// Takes the file as it is now. Called when the difference has been reported.
    fn accept(&self);

    /// The file's name, for errors.
    fn path(&self) -> &Arc<Path>;
}

/// How a file is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Past the page cache.
    Direct,
    /// Through the page cache, and why.
    Buffered(String),
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::Buffered(why) => write!(f, "buffered ({why})"),
        }
    }
}

/// A file of records.
#[derive(Debug)]
pub struct ExpertFile {
    file: File,
    path: Arc<Path>,
    access: Access,
    version: Mutex<Version>,
}

/// What changes when somebody writes a file. Replacing it by renaming does not: the open file stays what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl ExpertFile {
    /// Opens `path`, past the page cache if `direct` and if a first read shows that this works.
    ///
    /// # Errors
    /// If it cannot be opened or is no regular file.
    pub fn open(path: &Path, direct: bool) -> Result<Self, ExpertError> {
        Self::try_open(path, direct)
            .map_err(|it| ExpertError::File { path: PathBuf::from(path), message: it.to_string() })
    }

    fn try_open(path: &Path, direct: bool) -> io::Result<Self> {
        // Asked before opening, since opening a pipe waits for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let direct_file = if direct { open_direct(path) } else { Err(io::Error::other("as asked for")) };
        let (file, access) = match direct_file {
            Ok(file) => (file, Access::Direct),
            Err(why) => {
                let file = File::open(path)?;
                expect_random_reads(&file);
                (file, Access::Buffered(why.to_string()))
            }
        };
        let version = Mutex::new(Version::of(&file)?);
        Ok(Self { file, path: path.into(), access, version })
    }

    /// How it is read.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Locks the file until it is dropped, without waiting: with others that read it, or alone. The lock is advice that only
    /// those who lock heed. Where the system has no locks, only being alone is refused.
    ///
    /// # Errors
    /// If another reader is alone with it, or, to be alone, if there is any other.
    pub fn lock(&self, alone: bool) -> Result<(), ExpertError> {
        let locked = if alone { self.file.try_lock() } else { self.file.try_lock_shared() };
        let message = match locked {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if alone => {
                "others are reading it, and it was to be read alone".to_owned()
            }
            Err(TryLockError::WouldBlock) => "somebody reads it alone".to_owned(),
            Err(TryLockError::Error(_)) if !alone => return Ok(()),
            Err(TryLockError::Error(error)) => format!("cannot be locked: {error}"),
        };
        Err(ExpertError::File { path: self.path.to_path_buf(), message })
    }

    /// `N` bytes from `offset` on.
    ///
    /// # Errors
    /// If the file ends before, or the system cannot read them.
    pub(crate) fn read_array<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        let room = span(offset, N as u64, self.alignment());
        let mut buffer = Buffer::new(room, "a header").map_err(|it| Fault::Io(it.to_string()))?;
        let at = read_record(self, offset, N, buffer.bytes_mut())?;
        Ok(buffer.bytes()[at].try_into().expect("as many as were asked for"))
    }

    fn version(&self) -> std::sync::MutexGuard<'_, Version> {
        self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Version {
    fn of(file: &File) -> io::Result<Self> {
        let it = file.metadata()?;
        Ok(Self { bytes: it.len(), modified: it.modified().ok() })
    }
}

impl ReadAt for ExpertFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = read_at(&self.file, buf, offset)?;
        if self.access != Access::Direct {
            forget_pages(&self.file, offset, n);
        }
        Ok(n)
    }

    fn alignment(&self) -> usize {
        if self.access == Access::Direct { DIRECT_ALIGN } else { 1 }
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn changed(&self) -> Option<String> {
        let then = *self.version();
        let now = match Version::of(&self.file) {
            Ok(it) => it,
            Err(error) => return Some(error.to_string()),
        };
        if now.bytes != then.bytes {
            return Some(format!("{} bytes, {} before", now.bytes, then.bytes));
        }
        (now != then).then(|| "it was written to".to_owned())
    }

    fn accept(&self) {
        if let Ok(now) = Version::of(&self.file) {
            *self.version() = now;
        }
    }

    fn path(&self) -> &Arc<Path> {
        &self.path
    }
}

#[cfg(unix)]
fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buf, offset)
}

#[cfg(windows)]
fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buf, offset)
}

/// Opens a file for direct reads and tries one.
#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> io::Result<File> {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;

    let flags = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).expect("a flag of open(2)");
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut page =
        Buffer::new(DIRECT_ALIGN as u64, "a trial read").map_err(|it| io::Error::other(it.to_string()))?;
    read_at(&file, page.bytes_mut(), 0)?;
    Ok(file)
}

/// Opens a file whose reads leave nothing in the page cache.
#[cfg(target_vendor = "apple")]
fn open_direct(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(file)
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn open_direct(_: &Path) -> io::Result<File> {
    Err(io::Error::other("direct reads are not implemented for this system"))
}

/// Tells the system not to read ahead. A refusal changes nothing but speed.
fn expect_random_reads(file: &File) {
    #[cfg(target_os = "linux")]
    let _refused = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// Gives pages back that a buffered read brought. A refusal changes nothing but speed.
fn forget_pages(file: &File, offset: u64, n: usize) {
    #[cfg(target_os = "linux")]
    if let Some(n) = std::num::NonZeroU64::new(n as u64) {
        let _refused = rustix::fs::fadvise(file, offset, Some(n), rustix::fs::Advice::DontNeed);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, n);
}

/// Bytes of memory that reading `bytes` bytes at `offset` takes with `alignment`: whole blocks.
pub(super) fn span(offset: u64, bytes: u64, alignment: usize) -> u64 {
    let alignment = alignment as u64;
    (offset % alignment + bytes).next_multiple_of(alignment)
}

/// Reads `bytes` bytes at `offset` into `buf`, which has room for their [`span`]; where in `buf` they are.
///
/// One read, unless the system returns less than asked for or is interrupted: then it goes on from the last whole block.
pub(super) fn read_record(
    file: &dyn ReadAt,
    offset: u64,
    bytes: usize,
    buf: &mut [u8],
) -> Result<Range<usize>, Fault> {
    let found = read_blocks(file, offset, bytes, buf);
    match file.changed() {
        Some(how) => Err(Fault::Changed(how)),
        None => found,
    }
}

fn read_blocks(file: &dyn ReadAt, offset: u64, bytes: usize, buf: &mut [u8]) -> Result<Range<usize>, Fault> {
    let alignment = file.alignment();
    let skip = usize::try_from(offset % alignment as u64).expect("less than a page");
    let (start, needs) = (offset - skip as u64, skip + bytes);
    let buf = &mut buf[..needs.next_multiple_of(alignment)];
    let (mut done, mut stalls) = (0, 0);
    loop {
        let n = match file.read_at(&mut buf[done..], start + done as u64) {
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Fault::Io(error.to_string())),
        };
        if needs <= done + n {
            return Ok(skip..needs);
        }
        // The next read begins at a whole block; less than one is the end of the file, most likely.
        stalls = if n < alignment { stalls + 1 } else { 0 };
        if n == 0 || stalls == MAX_STALLS {
            let (end, needs) = (start + (done + n) as u64, start + needs as u64);
            return Err(Fault::Truncated { end, needs });
        }
        done += n - n % alignment;
    }
}
