//! The v0 `.waste` container: a folder with a manifest, a trunk, codebooks, and one bank of expert records a layer.
//!
//! | file | holds |
//! |---|---|
//! | `manifest.json` | configuration, tensor table, banks, the code of the experts |
//! | `trunk.bin` | every tensor that is no routed expert, plain or in groups with a scale ([`TrunkFormat`]) |
//! | `codebooks.bin` | the centroids of the experts' vectors, as f16 |
//! | `experts-L{n}.bin` | records of one fixed size, sorted by expert ([`Bank`]) |
//!
//! Source: the public description of WARP's container, version 0.
//!
//! Invariants
//! - a table row, bank, codebook or record is handed out only after it was checked against its file and the geometry that
//!   the configuration asks for: no offset of a hostile file reaches a byte outside its own matrix;
//! - configuration values are read as *values*: `"moe_renormalize": false` means false;
//! - what the layout depends on and is not known (`index_block`, stage counts, formats) is refused by name.
//!
//! Records are checked when they are asked for ([`Container::record`]) or all at once ([`Container::check_headers`]):
//! a bank may hold a hundred thousand of them, and planning needs none.
//!
//! To plan, a container may lack files, or be no more than what a configuration would be converted to (`declare`).
//!
//! Deliberately absent: what the tensors mean (`models`), reading records fast (the runtime's reader threads), the vision
//! tower, `usage.waste` and chat prefixes.

mod bank;
mod codebooks;
mod declare;
mod geometry;
mod manifest;
mod record;
mod trunk;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub use bank::{Bank, BankEntry, BankMatrix, Expert, MatrixKind};
pub use codebooks::{BOOK_FORMAT, BOOK_HEADER, BOOK_MAGIC};
pub use declare::Coding;
pub(crate) use declare::text_config;
pub(crate) use geometry::Geometry;
pub use record::Record;
pub(crate) use trunk::{ALIGN as TRUNK_ALIGN, MAX_DIM as MAX_TRUNK_DIM};
pub use trunk::{DEFAULT_GROUP, TrunkFormat, TrunkTensor};
use waste_plan::record::Fault;
pub use waste_plan::vq::{ROW_BLOCK, VEC_DIM, VqCode};

use self::codebooks::Codebooks;
use super::error::{FormatError, Item, Result, shown};
use super::meta::Meta;
use super::source::Source;

/// The name of the file that makes a folder a container.
pub const MANIFEST: &str = "manifest.json";

/// An opened container.
#[derive(Debug)]
pub struct Container {
    config: Arc<Meta>,
    text: Vec<u8>,
    arch: String,
    prefix: String,
    trunk: BTreeMap<String, TrunkTensor>,
    banks: BTreeMap<u32, Bank>,
    codebooks: Codebooks,
    /// trunk.bin, codebooks.bin, then the banks by layer.
    sources: Vec<Source>,
    /// The format of most matrices of a trunk that was never made; its tensors are those that a front end asks for.
    declared: Option<TrunkFormat>,
}

impl Container {
    /// Opens the container in `folder` and checks all its tables against its files. Records are not read yet.
    ///
    /// # Errors
    /// Any [`FormatError`], with file, tensor or key, and offset.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::open_with(folder, &|path, _| Source::open(path))
    }

    /// As [`Container::open`], with `file` giving a file of a path and the length that the manifest asks for.
    fn open_with(folder: &Path, file: &dyn Fn(&Path, u64) -> Result<Source>) -> Result<Self> {
        let manifest::Parsed { text, config, arch, prefix, code, trunk, layers } = manifest::read(folder)?;
        let path = folder.join("trunk.bin");
        let trunk_file = file(&path, trunk::extent(&shown(&path.to_string_lossy()), &trunk)?)?;
        let trunk = trunk::table(&trunk_file, trunk)?;
        let books = |it: &(u32, BankEntry)| it.1.codebook_base.saturating_add(3 * code.stages() as u64);
        let books = layers.iter().map(books).max().unwrap_or(0);
        let codebook_bytes = books.saturating_mul(codebooks::book_bytes(code));
        let codebook_file = file(&folder.join("codebooks.bin"), codebook_bytes)?;
        let codebooks = Codebooks::new(code, &codebook_file);
        let mut sources = vec![trunk_file, codebook_file];
        let geometry = Geometry::of_config(&config)?;
        let mut banks = BTreeMap::new();
        for (layer, entry) in geometry.match_layers(&config, layers)? {
            let source = file(&folder.join(&entry.file), entry.bytes)?;
            let bank = Bank::new(layer, sources.len(), &geometry, code, entry, &source)?;
            codebooks.check(&sources[1], bank.codebook_base(), 3 * code.stages() as u32)?;
            sources.push(source);
            banks.insert(layer, bank);
        }
        let config = Arc::new(config);
        Ok(Self { config, text, arch, prefix, trunk, banks, codebooks, sources, declared: None })
    }

    /// The model's configuration: config.json's keys, nested ones dotted.
    #[must_use]
    pub fn config(&self) -> &Arc<Meta> {
        &self.config
    }

    /// The manifest as it was read.
    #[must_use]
    pub fn manifest(&self) -> &[u8] {
        &self.text
    }

    /// What the container calls its architecture; free text.
    #[must_use]
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// What stands before the name of every tensor of the text model, such as `language_model.`; may be empty.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// How the experts are coded.
    #[must_use]
    pub fn code(&self) -> VqCode {
        self.codebooks.code()
    }

    /// The files: [`Container::TRUNK`], [`Container::CODEBOOKS`], then the banks ([`Bank::file`]).
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// The number of trunk.bin in [`Container::sources`].
    pub const TRUNK: usize = 0;

    /// The number of codebooks.bin in [`Container::sources`].
    pub const CODEBOOKS: usize = 1;

    /// Every tensor of the trunk, by its whole name.
    #[must_use]
    pub fn tensors(&self) -> &BTreeMap<String, TrunkTensor> {
        &self.trunk
    }

    /// The trunk's tensor `name`.
    ///
    /// # Errors
    /// If there is none.
    pub fn tensor(&self, name: &str) -> Result<&TrunkTensor> {
        self.trunk.get(name).ok_or_else(|| FormatError::Missing {
            file: self.sources[Self::TRUNK].name(),
            item: Item::tensor(name),
            hint: String::new(),
        })
    }

    /// The bytes of trunk.bin, in which tensors have their offsets.
    #[must_use]
    pub fn trunk(&self) -> &[u8] {
        self.sources[Self::TRUNK].bytes()
    }

    /// The banks, by layer (from 0); every layer without one has a dense feed-forward part.
    #[must_use]
    pub fn banks(&self) -> &BTreeMap<u32, Bank> {
        &self.banks
    }

    /// The bank whose file is number `file` of the sources; `None` for the trunk and the codebooks.
    #[must_use]
    pub fn bank_in(&self, file: usize) -> Option<&Bank> {
        self.banks.values().find(|it| it.file() == file)
    }

    /// Where the codebook `index` (of a whole [`Bank::books`]) starts in codebooks.bin: f16 `[entries][8]`.
    #[must_use]
    pub fn book_offset(&self, index: u32) -> u64 {
        self.codebooks.offset(index) + BOOK_HEADER
    }

    /// The codebooks that `kind` of `bank` uses, decoded: `[stages][entries][8]`.
    #[must_use]
    pub fn books(&self, bank: &Bank, kind: MatrixKind) -> Vec<f32> {
        self.codebooks.decode(self.sources[Self::CODEBOOKS].bytes(), bank.books(kind))
    }

    /// The record of `expert` in `bank`, its header checked against the geometry.
    ///
    /// # Errors
    /// If the header is not what the bank asks for; the line names expert, layer, file and offset.
    ///
    /// # Panics
    /// If `bank` is of another container or has no such expert.
    pub fn record<'a>(&'a self, bank: &'a Bank, expert: u32) -> Result<Record<'a>> {
        let source = &self.sources[bank.file()];
        let record = bank.record_of(expert, source.bytes());
        record.check_header().map_err(|fault| bank.blame(source, expert, fault))?;
        Ok(record)
    }

    /// Checks the header of every record of every bank.
    ///
    /// # Errors
    /// As [`Container::record`], for the first that is wrong.
    pub fn check_headers(&self) -> Result<()> {
        for bank in self.banks.values() {
            for expert in 0..bank.experts() {
                self.record(bank, expert)?;
            }
        }
        Ok(())
    }

    /// The error for `fault` in the record of `expert` of `bank`.
    #[must_use]
    pub fn blame(&self, bank: &Bank, expert: u32, fault: Fault) -> FormatError {
        bank.blame(&self.sources[bank.file()], expert, fault)
    }
}
