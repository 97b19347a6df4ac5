//! The unfinished container: a folder `OUT.part` that a later run takes up where this one ended.
//!
//! Its journal names the checkpoint and options it is made for, then, line by line, the stages that are finished. A stage is
//! noted after its files reached the disk, so that a stage that is noted is whole; all else is written anew.
//!
//! Invariants
//! - only one process writes a folder: the journal is locked;
//! - the container appears by one rename, after which the journal goes.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{ConvertError, ConvertOptions, Result};
use crate::formats::{ModelFiles, hex};

const JOURNAL: &str = "journal";

/// Changes whenever the same options give other bytes.
const VERSION: &str = "waste convert 1";

/// A step whose files are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// trunk.bin.
    Trunk,
    /// The bank of a layer, and its codebooks.
    Layer(u32),
}

impl Stage {
    fn line(self) -> String {
        match self {
            Self::Trunk => "trunk".to_owned(),
            Self::Layer(layer) => format!("layer {layer}"),
        }
    }
}

/// What finished stages depend on, as one line.
///
/// # Errors
/// If a side file of the checkpoint cannot be read.
pub(super) fn fingerprint(files: &ModelFiles, options: &ConvertOptions) -> Result<String> {
    // Threads are left out: the bytes do not depend on them.
    let ConvertOptions { experts, trunk, sample, jobs: _, seed } = *options;
    let mut hash = Sha256::new();
    hash.update(files.header_hash()?);
    for stamp in files.stamps() {
        hash.update(format!("{} {} {};", stamp.len, stamp.modified_ns, stamp.inode));
    }
    let digest = hex(&hash.finalize());
    Ok(format!("{VERSION} {} {} {sample} {seed} {digest}", experts.name(), trunk.name()))
}

/// The folder, locked.
#[derive(Debug)]
pub(super) struct Part {
    folder: PathBuf,
    out: PathBuf,
    journal: File,
    done: Vec<String>,
}

impl Part {
    /// Opens the folder for `out`, taking up what was finished under the same `fingerprint`.
    ///
    /// # Errors
    /// If `out` exists, another process is at work, or the folder cannot be written.
    pub(super) fn open(out: &Path, fingerprint: &str) -> Result<Self> {
        let refuse = |path: &Path, reason: &str| ConvertError::Output {
            path: path.to_path_buf(),
            reason: reason.to_owned(),
        };
        if std::fs::symlink_metadata(out).is_ok() {
            return Err(refuse(out, "exists already"));
        }
        let mut name = out.file_name().ok_or_else(|| refuse(out, "names no folder"))?.to_owned();
        name.push(".part");
        let folder = out.with_file_name(name);
        std::fs::create_dir_all(&folder).map_err(ConvertError::io(&folder))?;
        let path = folder.join(JOURNAL);
        let io = ConvertError::io(&path);
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let mut journal = options.open(&path).map_err(io)?;
        journal.try_lock().map_err(|err| match err {
            TryLockError::WouldBlock => refuse(&folder, "another conversion is writing here"),
            TryLockError::Error(err) => io(err),
        })?;
        let mut text = Vec::new();
        journal.read_to_end(&mut text).map_err(io)?;
        // A last line without its end was not finished.
        let whole = text.iter().rposition(|it| *it == b'\n').map_or(0, |at| at + 1);
        let mut lines =
            text[..whole].split(|it| *it == b'\n').map(|it| String::from_utf8_lossy(it).into_owned());
        let is_same = lines.next().as_deref() == Some(fingerprint);
        let done: Vec<String> =
            if is_same { lines.filter(|it| !it.is_empty()).collect() } else { Vec::new() };
        let mut part = Self { folder, out: out.to_path_buf(), journal, done };
        if is_same {
            part.journal.set_len(whole as u64).map_err(io)?;
            part.journal.seek(SeekFrom::End(0)).map_err(io)?;
        } else {
            part.journal.set_len(0).map_err(io)?;
            part.journal.rewind().map_err(io)?;
            part.clear()?;
            part.note(fingerprint)?;
        }
        Ok(part)
    }

    /// Whether `stage` is finished.
    pub(super) fn has(&self, stage: Stage) -> bool {
        self.done.contains(&stage.line())
    }

    /// Notes that `stage` is finished; its files have reached the disk.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub(super) fn finish(&mut self, stage: Stage) -> Result<()> {
        self.note(&stage.line())?;
        self.done.push(stage.line());
        Ok(())
    }

    /// A new, empty file.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(super) fn create(&self, name: &str) -> Result<(PathBuf, File)> {
        let path = self.folder.join(name);
        let file = File::create(&path).map_err(ConvertError::io(&path))?;
        Ok((path, file))
    }

    /// A file as it is, or a new one.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(super) fn open_or_create(&self, name: &str) -> Result<(PathBuf, File)> {
        let path = self.folder.join(name);
        let options = OpenOptions::new().write(true).create(true).truncate(false).clone();
        let file = options.open(&path).map_err(ConvertError::io(&path))?;
        Ok((path, file))
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn write_small(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (path, mut file) = self.create(name)?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(ConvertError::io(&path))
    }

    /// Gives the container its name.
    ///
    /// # Errors
    /// If something of that name has come up meanwhile, or the folder cannot be renamed.
    pub(super) fn publish(self) -> Result<()> {
        let Self { folder, out, journal, .. } = self;
        let io = ConvertError::io(&out);
        sync_folder(&folder).map_err(io)?;
        // Some systems do not rename a folder with an open file in it.
        drop(journal);
        std::fs::rename(&folder, &out).map_err(io)?;
        if let Some(parent) = out.parent().filter(|it| !it.as_os_str().is_empty()) {
            sync_folder(parent).map_err(io)?;
        }
        std::fs::remove_file(out.join(JOURNAL)).map_err(io)
    }

    fn note(&mut self, line: &str) -> Result<()> {
        let io = ConvertError::io(&self.folder);
        self.journal.write_all(format!("{line}\n").as_bytes()).map_err(io)?;
        self.journal.sync_all().map_err(io)
    }

    /// Removes what another checkpoint or other options left here.
    fn clear(&self) -> Result<()> {
        let io = ConvertError::io(&self.folder);
        for entry in std::fs::read_dir(&self.folder).map_err(io)? {
            let entry = entry.map_err(io)?;
            let is_file = entry.file_type().map_err(io)?.is_file();
            if is_file && entry.file_name() != JOURNAL {
                std::fs::remove_file(entry.path()).map_err(io)?;
            }
        }
        Ok(())
    }
}

#[cfg(unix)]
fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
fn sync_folder(_folder: &Path) -> std::io::Result<()> {
    Ok(())
}
