//! All files of one model behind one type, whatever the format.
//!
//! Invariants
//! - a folder means exactly the container whose `manifest.json` it holds, or `model.safetensors`, or its index, or the one
//!   GGUF in it: never whatever else ends in `.safetensors`;
//! - tensor names are unique over all files, whatever the type, and every range of [`TensorInfo`] lies inside its file.
//!
//! Deliberately absent: what tensors and keys mean (front ends), decoding, downloads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::config::parse_config;
use super::container::{self, Coding, Container};
use super::error::{FormatError, Item, Result, shown};
use super::gguf;
use super::hub::{HubCache, RepoName, several};
use super::meta::Meta;
use super::safetensors::{self, ForeignTensor};
use super::source::{FileStamp, Source, read_small};
use super::tensor::TensorInfo;

/// The configuration of a checkpoint.
const CONFIG: &str = "config.json";

const MAX_CONFIG: u64 = 1 << 20;
const MAX_TEXT: u64 = 64 << 20;

/// The files of a folder that say how text becomes tokens.
const TEXT_FILES: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "encoder.json",
    "vocab.bpe",
    "tokenizer.model",
    "tiktoken.model",
    "specials.json",
];

/// The family of files a model is stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One or several GGUF files, complete in themselves.
    Gguf,
    /// safetensors with config.json beside them.
    Safetensors,
    /// A `.waste` container: see [`ModelFiles::container`].
    Container,
}

/// The opened files of one model.
#[derive(Debug)]
pub struct ModelFiles {
    format: Format,
    folder: PathBuf,
    opened: Opened,
    meta: Arc<Meta>,
    generation: Option<Meta>,
    container: Option<Container>,
}

/// What the readers of either format deliver.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    pub(crate) sources: Vec<Source>,
    /// The part of each source before its tensor data, in bytes.
    pub(crate) headers: Vec<Range<usize>>,
    pub(crate) tensors: BTreeMap<String, TensorInfo>,
    pub(crate) foreign: BTreeMap<String, ForeignTensor>,
    /// The metadata inside the files, if the format has any.
    pub(crate) meta: Option<Meta>,
    /// Further texts that say what the model is (index, configurations): part of the header hash.
    pub(crate) extra: Vec<Vec<u8>>,
}

impl Opened {
    /// Takes in one more file, whose tables share no name.
    pub(crate) fn add(
        &mut self,
        source: Source,
        header: Range<usize>,
        tensors: BTreeMap<String, TensorInfo>,
        foreign: BTreeMap<String, ForeignTensor>,
    ) -> Result<()> {
        let places = tensors.iter().map(|it| (it.0, it.1.offset));
        for (name, offset) in places.chain(foreign.iter().map(|it| (it.0, it.1.offset))) {
            if let Some(twin) = self.holder(name) {
                return Err(FormatError::Malformed {
                    file: source.name(),
                    item: Item::tensor(name),
                    offset,
                    reason: format!("is in '{}' already", self.sources[twin].name()),
                });
            }
        }
        self.tensors.extend(tensors);
        self.foreign.extend(foreign);
        self.sources.push(source);
        self.headers.push(header);
        Ok(())
    }

    /// The number of the file with the tensor `name`, whatever its type.
    pub(crate) fn holder(&self, name: &str) -> Option<usize> {
        let read = self.tensors.get(name).map(|it| it.file);
        read.or_else(|| self.foreign.get(name).map(|it| it.source))
    }
}

impl ModelFiles {
    /// Opens a model: a folder (of a container too), a `.gguf` (any shard), a `.safetensors`, a `.safetensors.index.json`, or
    /// `org/repo[:quant]` in the local cache `hub`. Existing paths come first.
    ///
    /// # Errors
    /// Any [`FormatError`]; nothing is decoded yet, but all tables are checked against the files.
    pub fn open(model: &Path, hub: Option<&HubCache>) -> Result<Self> {
        if model.exists() {
            return Self::open_path(model);
        }
        let missing = || FormatError::not_a_model(model, "no such file or folder");
        let name = model.to_str().and_then(RepoName::parse).ok_or_else(missing)?;
        let hub = hub.ok_or_else(missing)?;
        Self::open_path(&hub.resolve(&name)?)
    }

    /// Opens a model to plan it: any path that [`ModelFiles::open`] takes, and also a container of which only the manifest is there, and a
    /// `config.json`, or a folder with it and without weights, as the container that it would be converted to. With `coding`, a
    /// checkpoint that is there is planned as such a container too; without it, one is coded as `convert` does by default.
    ///
    /// # Errors
    /// As [`ModelFiles::open`]; if a configuration is of no model with routed experts.
    pub fn open_to_plan(model: &Path, coding: Option<Coding>) -> Result<Self> {
        let has_manifest = model.join(container::MANIFEST).is_file();
        if has_manifest && coding.is_none() {
            return Ok(Self::from_opened_container(model, Container::open_to_plan(model)?));
        }
        let is_config = model.is_file() && model.file_name().is_some_and(|it| it == CONFIG);
        let config = if is_config { model.to_path_buf() } else { model.join(CONFIG) };
        let is_bare = is_config || !has_manifest && config.is_file() && main_file(model).is_err();
        if !is_bare && coding.is_none() {
            return Self::open(model, None);
        }
        let text = read_small(&config, MAX_CONFIG)?.ok_or_else(|| {
            FormatError::not_a_model(model, "no checkpoint with a config.json, which would be converted")
        })?;
        let folder = folder_of(&config);
        let file = shown(&config.to_string_lossy());
        let declared = Container::declare(&folder, &file, &text, coding.unwrap_or_default())?;
        Ok(Self::from_opened_container(&folder, declared))
    }

    fn open_path(path: &Path) -> Result<Self> {
        if path.is_dir() && path.join(container::MANIFEST).exists() {
            return Self::from_container(path);
        }
        let main = if path.is_dir() { main_file(path)? } else { path.to_path_buf() };
        let name = main.file_name().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default();
        if name.ends_with(".gguf") {
            return Self::from_gguf(&main);
        }
        if name.ends_with(".safetensors") {
            return Self::from_safetensors(&main, safetensors::open_single(&main)?);
        }
        if name.ends_with(".safetensors.index.json") {
            return Self::from_safetensors(&main, safetensors::open_index(&main)?);
        }
        let expected = "expected a folder, a .gguf, a .safetensors or a .safetensors.index.json";
        Err(FormatError::not_a_model(path, expected))
    }

    fn from_gguf(path: &Path) -> Result<Self> {
        let mut opened = gguf::open(path)?;
        let meta = opened.meta.take().expect("a GGUF has at least one file, and each has metadata");
        let (folder, meta) = (folder_of(path), Arc::new(meta));
        Ok(Self { format: Format::Gguf, folder, opened, meta, generation: None, container: None })
    }

    fn from_container(folder: &Path) -> Result<Self> {
        Ok(Self::from_opened_container(folder, Container::open(folder)?))
    }

    fn from_opened_container(folder: &Path, container: Container) -> Self {
        let mut opened = Opened::default();
        opened.sources = container.sources().to_vec();
        // The files have no header; what says what they hold is the manifest.
        opened.headers = vec![0..0; opened.sources.len()];
        opened.extra.push(container.manifest().to_vec());
        let (folder, meta) = (folder.to_path_buf(), Arc::clone(container.config()));
        let container = Some(container);
        Self { format: Format::Container, folder, opened, meta, generation: None, container }
    }

    fn from_safetensors(path: &Path, mut opened: Opened) -> Result<Self> {
        let folder = folder_of(path);
        let mut config = |name: &str| -> Result<Option<Meta>> {
            let path = folder.join(name);
            let Some(text) = read_small(&path, MAX_CONFIG)? else { return Ok(None) };
            let meta = parse_config(&shown(&path.to_string_lossy()), &text)?;
            opened.extra.push(text);
            Ok(Some(meta))
        };
        let meta = config("config.json")?.ok_or_else(|| FormatError::Missing {
            file: shown(&folder.to_string_lossy()),
            item: Item::file("config.json"),
            hint: " (it must lie beside the .safetensors)".to_owned(),
        })?;
        let generation = config("generation_config.json")?;
        let meta = Arc::new(meta);
        Ok(Self { format: Format::Safetensors, folder, opened, meta, generation, container: None })
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// The folder that holds the files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The files that hold tensors; [`TensorInfo::file`] is an index into them.
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.opened.sources
    }

    /// The tables of a container, which stand in for [`ModelFiles::tensors`]: its tensors are in formats of their own.
    #[must_use]
    pub fn container(&self) -> Option<&Container> {
        self.container.as_ref()
    }

    /// GGUF metadata, config.json, or the configuration in a container's manifest.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// generation_config.json, if there is one.
    #[must_use]
    pub fn generation(&self) -> Option<&Meta> {
        self.generation.as_ref()
    }

    /// Every readable tensor, by name; empty for a container.
    #[must_use]
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.opened.tensors
    }

    /// The tensor `name`, if the model has it.
    ///
    /// # Errors
    /// If it is there with a dtype that cannot be read.
    pub fn get_tensor(&self, name: &str) -> Result<Option<&TensorInfo>> {
        match self.opened.foreign.get(name) {
            Some(foreign) => Err(foreign.refuse()),
            None => Ok(self.opened.tensors.get(name)),
        }
    }

    /// The tensor `name`.
    ///
    /// # Errors
    /// As [`ModelFiles::get_tensor`], and if it is missing.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo> {
        self.get_tensor(name)?.ok_or_else(|| FormatError::Missing {
            file: self.opened.sources[0].name(),
            item: Item::tensor(name),
            hint: String::new(),
        })
    }

    /// Every tensor of a type that is not read as such, by name.
    #[must_use]
    pub fn foreign(&self) -> &BTreeMap<String, ForeignTensor> {
        &self.opened.foreign
    }

    /// The stored bytes of `foreign`, which must be of this model.
    ///
    /// # Errors
    /// If they lie beyond the end of the file: such a tensor is not checked before it is wanted.
    ///
    /// # Panics
    /// If `foreign` is of another model.
    pub fn foreign_bytes(&self, foreign: &ForeignTensor) -> Result<&[u8]> {
        let all = self.opened.sources[foreign.source].bytes();
        let range = foreign
            .offset
            .checked_add(foreign.bytes)
            .and_then(|end| Some(usize::try_from(foreign.offset).ok()?..usize::try_from(end).ok()?));
        range.and_then(|it| all.get(it)).ok_or_else(|| FormatError::Truncated {
            file: foreign.file.clone(),
            item: Item::tensor(&foreign.name),
            offset: foreign.offset,
            need: foreign.bytes,
            end: all.len() as u64,
        })
    }

    /// The stored bytes of `info`, which must be of this model.
    ///
    /// # Panics
    /// If `info` is of another model and outside the files of this one.
    #[must_use]
    pub fn tensor_bytes(&self, info: &TensorInfo) -> &[u8] {
        let range = |at: u64| usize::try_from(at).expect("checked against the mapped file");
        &self.opened.sources[info.file].bytes()[range(info.offset)..range(info.offset + info.bytes)]
    }

    /// Refuses, by name, any tensor that `is_known` does not know: a front end calls this after it has
    /// taken all it wants, so that nothing in a file is silently left out.
    ///
    /// # Errors
    /// The first unknown tensor in name order.
    pub fn refuse_unknown(&self, is_known: impl Fn(&str) -> bool) -> Result<()> {
        if let Some(foreign) = self.opened.foreign.values().find(|it| !is_known(&it.name)) {
            return Err(foreign.refuse());
        }
        match self.opened.tensors.values().find(|it| !is_known(&it.name)) {
            None => Ok(()),
            Some(info) => Err(FormatError::Malformed {
                file: self.opened.sources[info.file].name(),
                item: Item::tensor(&info.name),
                offset: info.offset,
                reason: "is not part of this architecture".to_owned(),
            }),
        }
    }

    /// The text of the side file `name` in the model's folder, at most 64 MiB; `None` if there is none,
    /// and always for a GGUF, which is complete in itself.
    ///
    /// # Errors
    /// If it is larger or cannot be read.
    pub fn side_file(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match self.format {
            Format::Gguf => Ok(None),
            Format::Safetensors | Format::Container => read_small(&self.folder.join(name), MAX_TEXT),
        }
    }

    /// Bytes of all files with tensors.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.opened.sources.iter().map(|it| it.stamp().len).sum()
    }

    /// Length, time of change and inode of each file with tensors.
    #[must_use]
    pub fn stamps(&self) -> Vec<FileStamp> {
        self.opened.sources.iter().map(Source::stamp).collect()
    }

    /// SHA-256 over everything but tensor data: headers and tensor tables, index, configurations, and the
    /// files of the tokenizer, each with its length before it.
    ///
    /// # Errors
    /// If a side file cannot be read.
    pub fn header_hash(&self) -> Result<[u8; 32]> {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        for (source, header) in self.opened.sources.iter().zip(&self.opened.headers) {
            part(&source.stamp().len.to_le_bytes());
            part(&source.bytes()[header.clone()]);
        }
        for text in &self.opened.extra {
            part(text);
        }
        for name in TEXT_FILES {
            if let Some(text) = self.side_file(name)? {
                part(name.as_bytes());
                part(&text);
            }
        }
        Ok(hash.finalize().into())
    }
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// The file that a folder stands for.
fn main_file(folder: &Path) -> Result<PathBuf> {
    for name in ["model.safetensors", "model.safetensors.index.json"] {
        let path = folder.join(name);
        if path.exists() {
            return Ok(path);
        }
    }
    let ggufs = gguf_files(folder)?;
    match &ggufs[..] {
        [one] => Ok(one.clone()),
        [] if folder.join("pytorch_model.bin").exists() => Err(FormatError::not_a_model(
            folder,
            "holds pytorch_model.bin, which is not read: convert it to safetensors",
        )),
        [] => Err(FormatError::not_a_model(
            folder,
            "holds no model.safetensors, no index of one, no manifest.json, and no .gguf",
        )),
        all => Err(several(folder, "several GGUFs are here: name one", all.iter())),
    }
}

/// The GGUFs of a folder, sorted; of a sharded one, the first shard.
pub(crate) fn gguf_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|err| FormatError::io(folder, err))?;
    let mut out = Vec::new();
    for entry in entries {
        let path = entry.map_err(|err| FormatError::io(folder, err))?.path();
        let name = path.file_name().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default();
        if name.ends_with(".gguf") && gguf::is_first(&path) {
            out.push(path);
        }
    }
    out.sort();
    Ok(out)
}
