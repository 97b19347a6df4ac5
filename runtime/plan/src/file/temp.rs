//! A file under a temporary name beside its final one, renamed when it is whole.
//!
//! Invariants
//! - the final name changes only in [`TempFile::publish`], after the bytes are on disk;
//! - dropping an unpublished file removes it; a killed process leaves it, under a name that is never read;
//! - a writer holds a lock on its file, so what a dead one left is told from a live one's and removed by the next.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use super::FileError;

/// Writers of one final name at a time.
const MAX_WRITERS: usize = 64;

/// Writes the file at `target` under a temporary name and renames it when it is whole.
///
/// # Errors
/// If something else than a regular file has that name, or the system refuses.
pub fn write_whole(
    target: &Path,
    write: impl FnOnce(&mut BufWriter<&File>) -> std::io::Result<()>,
) -> Result<(), FileError> {
    let temp = TempFile::create(target)?;
    let mut out = BufWriter::new(temp.file());
    write(&mut out).and_then(|()| out.flush()).map_err(FileError::io(temp.path()))?;
    drop(out);
    temp.publish()
}

pub(super) struct TempFile {
    file: File,
    path: PathBuf,
    target: PathBuf,
    is_published: bool,
}

impl TempFile {
    /// Creates an empty file that will become `target`.
    ///
    /// # Errors
    /// If something else than a regular file has that name: a device or folder is never replaced.
    pub(super) fn create(target: &Path) -> Result<Self, FileError> {
        if std::fs::metadata(target).is_ok_and(|it| !it.is_file()) {
            let reason = format!("{} is not a regular file", target.display());
            return Err(FileError::Unwritable { reason });
        }
        for number in 0..MAX_WRITERS {
            let path = temp_path(target, number)?;
            remove_if_dead(&path);
            if let Some(file) = create_locked(&path).map_err(FileError::io(&path))? {
                return Ok(Self { file, path, target: target.to_path_buf(), is_published: false });
            }
        }
        Err(FileError::Unwritable {
            reason: format!("{MAX_WRITERS} others are writing {}", target.display()),
        })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the bytes on disk, then the file at its final name.
    pub(super) fn publish(mut self) -> Result<(), FileError> {
        self.file.sync_all().map_err(FileError::io(&self.path))?;
        std::fs::rename(&self.path, &self.target).map_err(FileError::io(&self.target))?;
        self.is_published = true;
        sync_folder(&self.target).map_err(FileError::io(&self.target))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.is_published {
            // Best effort: there is nobody to tell, and the next writer removes it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn temp_path(target: &Path, number: usize) -> Result<PathBuf, FileError> {
    let reason = || format!("{} is not the name of a file", target.display());
    let name = target.file_name().ok_or_else(|| FileError::Unwritable { reason: reason() })?;
    let mut temp = std::ffi::OsString::from(".");
    temp.push(name);
    temp.push(format!(".{number}.part"));
    Ok(target.with_file_name(temp))
}

/// Removes what a killed writer left: a file that nobody holds locked.
fn remove_if_dead(path: &Path) {
    let Ok(file) = OpenOptions::new().write(true).open(path) else { return };
    if file.try_lock().is_ok() {
        // If it fails, `create_locked` finds the name taken.
        let _ = std::fs::remove_file(path);
    }
}

/// `None` if the name is taken.
fn create_locked(path: &Path) -> std::io::Result<Option<File>> {
    let file = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => file,
        Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => return Ok(None),
        Err(err) => return Err(err),
    };
    // Between creation and lock another writer may have taken it for a dead one's.
    match file.try_lock() {
        Ok(()) if path.exists() => Ok(Some(file)),
        Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(err)) if err.kind() == std::io::ErrorKind::Unsupported => Ok(Some(file)),
        Err(TryLockError::Error(err)) => Err(err),
    }
}

/// Makes the new name itself durable.
#[cfg(unix)]
fn sync_folder(target: &Path) -> std::io::Result<()> {
    let folder = target.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
fn sync_folder(_target: &Path) -> std::io::Result<()> {
    Ok(())
}
