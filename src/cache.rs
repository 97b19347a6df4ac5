//! Compiled plans kept between runs.
//!
//! An entry is `KEY.wplan` with `KEY.json` beside it. The key is a hash of the model's headers and tensor tables, of
//! length, time of change and inode of each file, of the options, and of this program's version. The JSON keeps the hash
//! of the files' whole content, so that a model that was only moved, copied or touched finds its plan again. Experts in files
//! are neither read whole nor moved: their plan names the files, so these belong to the key, and the hashes of their headers
//! stand for their content.
//!
//! Invariants
//! - an entry appears whole or not at all: the plan is renamed into place, then its JSON;
//! - an entry that cannot be read counts as absent;
//! - nothing outside the cache's folder is written.
//!
//! Deliberately absent: limits of size, and removal of old entries: it is a folder that a user may delete.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::compile::CompileOptions;
use crate::formats::{Adapter, FormatError, ModelFiles, Source, hex};
use crate::models::source_decls;
use crate::progress::Progress;

/// A folder of compiled plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanCache {
    root: PathBuf,
}

/// Why the cache cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The model's files.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The folder or an entry cannot be written.
    #[error("cache {}: {source}", path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// What stands beside a plan.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    /// The model, for people.
    model: String,
    /// Hash of headers, tensor tables and options.
    family: String,
    /// Hash of the whole content of the model's files.
    content: String,
    /// File name of the plan; entries may share one.
    plan: String,
}

/// The place of one model, as it is now, under given options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    family: String,
    exact: String,
}

impl Key {
    /// The key of `files` compiled under `options`; no weight is read.
    ///
    /// # Errors
    /// If a side file cannot be read.
    pub fn new(files: &ModelFiles, options: &CompileOptions) -> Result<Self, CacheError> {
        let mut family = Sha256::new();
        family.update(env!("CARGO_PKG_VERSION"));
        family.update(files.header_hash()?);
        family.update(options_text(options));
        for folder in &options.lora {
            family.update(Adapter::open(folder)?.hash());
        }
        for bank in banks(files) {
            family.update(real_path(bank.1).as_os_str().as_encoded_bytes());
            family.update([0]);
        }
        let family = hex(&family.finalize());
        let mut exact = Sha256::new();
        exact.update(&family);
        for stamp in files.stamps() {
            exact.update(stamp.len.to_le_bytes());
            exact.update(stamp.modified_ns.to_le_bytes());
            exact.update(stamp.inode.to_le_bytes());
        }
        let exact = hex(&exact.finalize())[..32].to_owned();
        Ok(Self { family, exact })
    }
}

/// Every option that changes the plan. A new option is a compile error here until it is decided on.
fn options_text(options: &CompileOptions) -> String {
    // The cache of experts is settled anew by each session; of adapters the content counts, not the place.
    let CompileOptions {
        ctx,
        batch,
        chunk,
        want,
        kv,
        math,
        only,
        disabled,
        rewrite_limit,
        tables,
        lookahead,
        expert_slots: _,
        max_mem: _,
        lora: _,
    } = options;
    format!(
        "ctx {ctx:?} batch {batch} chunk {chunk:?} want {want:?} kv {} math {} only {only:?} disabled {disabled:?} \
         rewrites {rewrite_limit:?} tables {} lookahead {lookahead}",
        kv.name(),
        math.name(),
        tables.name(),
    )
}

impl PlanCache {
    /// The cache in folder `root`, which need not exist yet.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The plan for `key`, if there is one. Where only the times or names of the model's files differ, their content is
    /// read and compared, with `progress`.
    #[must_use]
    pub fn find(&self, key: &Key, files: &ModelFiles, progress: &dyn Progress) -> Option<PathBuf> {
        if let Some(entry) = self.entry(&self.json_path(key)) {
            return self.plan_of(&entry);
        }
        let relatives: Vec<Entry> = self.entries().into_iter().filter(|it| it.family == key.family).collect();
        if relatives.is_empty() {
            return None;
        }
        let content = content_hash(files, progress);
        let twin = relatives.into_iter().find(|it| it.content == content && self.plan_of(it).is_some())?;
        let plan = self.plan_of(&twin);
        // Best effort: without it the content is read again next time.
        let _ = self.write_entry(key, &Entry { model: model_name(files), ..twin });
        plan
    }

    /// Where the plan for `key` is to be written, with the folder made.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn place(&self, key: &Key) -> Result<PathBuf, CacheError> {
        fs::create_dir_all(&self.root)
            .map_err(|source| CacheError::Io { path: self.root.clone(), source })?;
        Ok(self.root.join(format!("{}.wplan", key.exact)))
    }

    /// Records that the plan at [`PlanCache::place`] is whole.
    ///
    /// # Errors
    /// If the entry cannot be written.
    pub fn record(&self, key: &Key, files: &ModelFiles, progress: &dyn Progress) -> Result<(), CacheError> {
        let entry = Entry {
            model: model_name(files),
            family: key.family.clone(),
            content: content_hash(files, progress),
            plan: format!("{}.wplan", key.exact),
        };
        self.write_entry(key, &entry)
    }

    fn json_path(&self, key: &Key) -> PathBuf {
        self.root.join(format!("{}.json", key.exact))
    }

    fn entry(&self, path: &Path) -> Option<Entry> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    fn entries(&self) -> Vec<Entry> {
        let Ok(listing) = fs::read_dir(&self.root) else { return Vec::new() };
        let mut paths: Vec<PathBuf> = listing.filter_map(|it| Some(it.ok()?.path())).collect();
        paths.retain(|it| it.extension().is_some_and(|it| it == "json"));
        paths.sort();
        paths.iter().filter_map(|it| self.entry(it)).collect()
    }

    /// The plan file of `entry`, which must lie in the cache itself.
    fn plan_of(&self, entry: &Entry) -> Option<PathBuf> {
        let is_plain = Path::new(&entry.plan).file_name().is_some_and(|it| it == entry.plan.as_str());
        let path = self.root.join(&entry.plan);
        (is_plain && path.is_file()).then_some(path)
    }

    fn write_entry(&self, key: &Key, entry: &Entry) -> Result<(), CacheError> {
        let path = self.json_path(key);
        let io = |source| CacheError::Io { path: path.clone(), source };
        let text = serde_json::to_vec_pretty(entry).map_err(|err| io(err.into()))?;
        let temp = self.root.join(format!(".{}.{}.part", key.exact, std::process::id()));
        let written = fs::File::create(&temp).and_then(|mut it| it.write_all(&text));
        written.and_then(|()| fs::rename(&temp, &path)).map_err(|err| {
            // There is nobody to tell if the leftover stays.
            let _ = fs::remove_file(&temp);
            io(err)
        })
    }
}

/// Where a file is, whatever name was used for it.
fn real_path(source: &Source) -> PathBuf {
    source.path().canonicalize().unwrap_or_else(|_| source.path().to_owned())
}

fn model_name(files: &ModelFiles) -> String {
    files.sources().first().map_or_else(String::new, |it| it.path().to_string_lossy().into_owned())
}

/// The files of experts that a plan reads while it runs, with their numbers.
fn banks(files: &ModelFiles) -> impl Iterator<Item = (usize, &Source)> {
    let is_bank = |at: usize| files.container().is_some_and(|it| it.bank_in(at).is_some());
    files.sources().iter().enumerate().filter(move |it| is_bank(it.0))
}

/// SHA-256 over the whole content of all files with tensors, and the hashes of headers of experts in files.
fn content_hash(files: &ModelFiles, progress: &dyn Progress) -> String {
    const PIECE: usize = 8 << 20;
    let banks: Vec<usize> = banks(files).map(|it| it.0).collect();
    let decls = source_decls(files);
    let whole = || files.sources().iter().enumerate().filter(|it| !banks.contains(&it.0)).map(|it| it.1);
    let total = whole().map(|it| it.stamp().len).sum();
    let mut hash = Sha256::new();
    let mut done = 0;
    banks.iter().for_each(|it| hash.update(&decls[*it].header_sha256));
    for source in whole() {
        hash.update((source.bytes().len() as u64).to_le_bytes());
        for piece in source.bytes().chunks(PIECE) {
            hash.update(piece);
            done += piece.len() as u64;
            progress.update(done, total);
        }
    }
    hex(&hash.finalize())
}
