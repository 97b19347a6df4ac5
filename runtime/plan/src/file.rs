//! The plan file (`.wplan`): a fixed header, a section table, and four sections.
//!
//! | at | type | holds |
//! |---|---|---|
//! | 0 | `[u8; 4]` | `WPLN` |
//! | 4 | u32 | version; a build reads its own and the one before it |
//! | 8 | u64 | offset of the section table |
//! | 16 | u32 | number of sections |
//! | 20 | u32 | CRC-32C of the section table |
//! | 24 | u64 | length of the file |
//! | 32 | `[u8; 28]` | reserved, zero |
//! | 60 | u32 | CRC-32C of bytes 0 … 59 |
//!
//! A table entry is `kind [u8; 4], flags u32 (bit 0: required), offset u64, length u64, CRC-32C u32, reserved u32`.
//!
//! | kind | required | holds |
//! |---|---|---|
//! | `json` | yes | the whole [`Plan`], one step a line; repeated layers once, with what differs (see `file/doc.rs`) |
//! | `ir  ` | no | the final graphs as canonical text, then the pass report |
//! | `text` | yes | the tokenizer |
//! | `wght` | yes | packed weights; absent if they stay outside. No CRC here: each weight has its own in the plan |
//!
//! Invariants
//! - little-endian; sections start at multiples of 64, ascend and do not overlap;
//! - reading allocates no more than a fixed multiple of the JSON section, whatever the bytes say;
//! - a reader skips unknown optional sections and refuses unknown required ones;
//! - the bytes follow from plan, texts and weights alone;
//! - a final name always holds a whole file: see [`PlanWriter`].
//!
//! Deliberately absent: whether the plan makes sense ([`crate::validate::validate`]) and reading the weights.

mod doc;
mod fold;
mod header;
mod temp;
mod write;

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::schema::{Plan, VERSION};

pub use crc32c::{crc32c, crc32c_append};
use header::{Entry, Header};
pub use temp::write_whole;
pub use write::{PlanWriter, WeightsAt};

/// Sections start at multiples of this many bytes.
pub const SECTION_ALIGN: u64 = 64;

/// The oldest version this build reads: the one before its own.
pub const OLDEST: u32 = if VERSION > 1 { VERSION - 1 } else { 1 };

/// Most bytes of the JSON section.
const MAX_JSON: u64 = 64 << 20;

/// Why a plan file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It does not start like a plan.
    #[error("not a plan file: it starts with {found:?}, expected \"WPLN\"")]
    Magic {
        /// The first four bytes, made printable.
        found: String,
    },
    /// Written by another version of the compiler.
    #[error("plan version {found}, this build reads {OLDEST} to {VERSION}: compile the model again")]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// The file is shorter or longer than it says.
    #[error("the file has {found} bytes, its header says {expected} (interrupted copy?)")]
    Length {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// Bytes changed after they were written.
    #[error("{what} at {offset:#x}: CRC-32C is {found:08x}, expected {expected:08x}")]
    Checksum {
        /// The part of the file.
        what: String,
        /// Where it starts.
        offset: u64,
        /// CRC of the bytes there are.
        found: u32,
        /// CRC when they were written.
        expected: u32,
    },
    /// A part lies where it cannot be.
    #[error("{what} at {offset:#x}: {reason}")]
    Layout {
        /// The part of the file.
        what: String,
        /// Where it starts, or the offset that is wrong.
        offset: u64,
        /// Found and expected.
        reason: String,
    },
    /// A section that this build does not know but must not ignore.
    #[error("section '{kind}' at {offset:#x} is required but unknown to this build (version {VERSION})")]
    UnknownSection {
        /// Its kind.
        kind: String,
        /// Where it starts.
        offset: u64,
    },
    /// A section that every plan has is not there.
    #[error("section '{kind}' is missing")]
    MissingSection {
        /// Its kind.
        kind: &'static str,
    },
    /// The JSON section does not hold a plan.
    #[error("section 'json', line {line}, column {column}: {reason}")]
    Json {
        /// Line in the section, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        reason: String,
    },
    /// The steps cannot be laid out as the JSON section says.
    #[error("section 'json', program {program}, group {group}: {reason}")]
    Steps {
        /// Index of the program.
        program: usize,
        /// Index of the group of steps.
        group: usize,
        /// What is wrong.
        reason: String,
    },
    /// What was to be written does not fit the plan.
    #[error("{reason}")]
    Unwritable {
        /// Found and expected.
        reason: String,
    },
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl FileError {
    fn io(path: &Path) -> impl Fn(std::io::Error) -> Self + '_ {
        |source| Self::Io { path: path.to_path_buf(), source }
    }
}

/// A plan file, parsed over its bytes.
#[derive(Debug, PartialEq)]
pub struct PlanFile<'a> {
    /// The plan, with all its steps.
    pub plan: Plan,
    /// The final graphs as canonical text, then the pass report; empty if the file has none.
    pub ir: &'a str,
    /// The tokenizer.
    pub text: &'a [u8],
    /// Where the weight space lies in the file; `None` if the weights stay outside.
    pub weights: Option<Range<usize>>,
}

/// The kinds of sections that this build knows.
mod kind {
    pub(super) const JSON: [u8; 4] = *b"json";
    pub(super) const IR: [u8; 4] = *b"ir  ";
    pub(super) const TEXT: [u8; 4] = *b"text";
    pub(super) const WEIGHTS: [u8; 4] = *b"wght";
    pub(super) const ALL: [[u8; 4]; 4] = [JSON, IR, TEXT, WEIGHTS];
}

impl<'a> PlanFile<'a> {
    /// Parses a whole plan file. Weights are not looked at: `bytes` may be a mapping of many gigabytes.
    ///
    /// # Errors
    /// Any [`FileError`] but `Unwritable` and `Io`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FileError> {
        let header = Header::parse(bytes)?;
        let sections = header.sections(bytes)?;
        for it in &sections {
            if !kind::ALL.contains(&it.kind) && it.required {
                return Err(FileError::UnknownSection { kind: it.name(), offset: it.offset });
            }
        }
        let find = |kind: [u8; 4]| sections.iter().find(|it| it.kind == kind);
        let need = |kind, name| find(kind).ok_or(FileError::MissingSection { kind: name });

        let json = need(kind::JSON, "json")?;
        if json.len > MAX_JSON {
            return Err(json.misplaced(format!("{} bytes, at most {MAX_JSON} are allowed", json.len)));
        }
        let plan = doc::decode(json.checked(bytes)?)?;
        if plan.version != header.version {
            let reason = format!("holds plan version {}, the header says {}", plan.version, header.version);
            return Err(json.misplaced(reason));
        }
        let text = need(kind::TEXT, "text")?.checked(bytes)?;
        let ir = find(kind::IR).map_or(Ok(""), |it| utf8(it, bytes))?;
        let weights = find(kind::WEIGHTS).map(|it| weight_range(it, &plan)).transpose()?;
        Ok(Self { plan, ir, text, weights })
    }
}

fn utf8<'a>(section: &Entry, bytes: &'a [u8]) -> Result<&'a str, FileError> {
    let text = section.checked(bytes)?;
    std::str::from_utf8(text).map_err(|err| section.misplaced(format!("not UTF-8: {err}")))
}

/// The weights section, which must be as long as the plan's weights need.
fn weight_range(section: &Entry, plan: &Plan) -> Result<Range<usize>, FileError> {
    let need = weight_space(plan)?;
    if section.len != need {
        return Err(section.misplaced(format!("has {} bytes, the plan's weights need {need}", section.len)));
    }
    Ok(section.range())
}

/// Bytes from the start of the weight space to the end of the last weight.
fn weight_space(plan: &Plan) -> Result<u64, FileError> {
    let mut end = 0;
    for it in &plan.weights {
        let last = it.offset.checked_add(it.bytes).ok_or_else(|| FileError::Layout {
            what: format!("weight '{}'", it.name),
            offset: it.offset,
            reason: format!("{} bytes from there pass the end of any file", it.bytes),
        })?;
        end = last.max(end);
    }
    Ok(end)
}

#[cfg(test)]
mod tests;
