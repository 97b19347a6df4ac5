//! GGUF, versions 2 and 3, little-endian: header, metadata, tensor table of one file.
//!
//! Source: the GGUF specification in the ggml repository (docs/gguf.md). A file is
//! `"GGUF" u32 version, u64 tensors, u64 keys, key*, tensor*, padding, data`; a key is
//! `string name, u32 type, value`; a tensor is `string name, u32 n_dims, u64 dims[n_dims] (innermost
//! first), u32 type, u64 offset` with the offset counted from the data section.
//!
//! Invariants
//! - nothing is allocated for a count that the rest of the file could not hold;
//! - tensor ranges lie inside the file, are aligned and do not overlap;
//! - names are unique; nothing recurses on the file's nesting (arrays of arrays are refused).
//!
//! Deliberately absent: decoding of tensor data, and big-endian files.

mod keys;
mod shards;
mod types;

use std::collections::BTreeMap;
use std::ops::Range;

use super::cursor::Cursor;
use super::error::{FormatError, Item, Result};
use super::meta::{Entry, Meta, Value};
use super::source::Source;
use super::tensor::{TensorInfo, check_ranges};

pub(crate) use shards::{is_first, open};

const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 20;
const MAX_KEYS: u64 = 1 << 16;
/// Enough for the largest open mixture of experts with one tensor per expert matrix.
const MAX_TENSORS: u64 = 1 << 20;
const MAX_NAME: u64 = 65_535;
const MAX_DIMS: u32 = 4;
/// A key is at least an empty name, a type and one byte.
const MIN_KEY_BYTES: u64 = 13;
/// A tensor is at least an empty name, n_dims, type and offset.
const MIN_TENSOR_BYTES: u64 = 24;

/// One parsed GGUF file.
#[derive(Debug)]
pub(crate) struct GgufFile {
    pub(crate) meta: Meta,
    pub(crate) tensors: BTreeMap<String, TensorInfo>,
    /// Where the tensor data starts: everything before it is header.
    pub(crate) header: Range<usize>,
}

/// Parses the GGUF `source`, whose tensors will say that they are in file number `file`.
pub(crate) fn parse(source: &Source, file: usize) -> Result<GgufFile> {
    let name = source.name();
    let mut cur = Cursor::new(&name, source.bytes());
    check_magic(&mut cur)?;
    let n_tensors = cur.count("tensors", MIN_TENSOR_BYTES, MAX_TENSORS)?;
    let n_keys = cur.count("keys", MIN_KEY_BYTES, MAX_KEYS)?;
    let entries = parse_keys(&mut cur, n_keys)?;
    let alignment = alignment_of(&name, &entries)?;
    let raw = parse_tensors(&mut cur, n_tensors)?;
    cur.item = Item::Header;
    let data = (cur.at() as u64).next_multiple_of(alignment);
    let tensors = place(&name, source.bytes().len() as u64, data, alignment, file, raw)?;
    let data = usize::try_from(data).expect("at most 1 MiB past a position in memory");
    let header = 0..data.min(source.bytes().len());
    Ok(GgufFile { meta: Meta::new(name, source.share(), entries), tensors, header })
}

fn check_magic(cur: &mut Cursor<'_>) -> Result<()> {
    if cur.take(4)? != MAGIC {
        return Err(cur.malformed(0, "not a GGUF file: it does not start with 'GGUF'"));
    }
    match cur.u32()? {
        2 | 3 => Ok(()),
        version if matches!(version.swap_bytes(), 1..=3) => {
            Err(cur.unsupported(4, "a big-endian GGUF", "little-endian ones are"))
        }
        version => Err(cur.unsupported(4, format!("GGUF version {version}"), "versions 2 and 3 are")),
    }
}

fn parse_keys(cur: &mut Cursor<'_>, count: usize) -> Result<BTreeMap<String, Entry>> {
    let mut entries = BTreeMap::new();
    for _ in 0..count {
        cur.item = Item::Header;
        let start = cur.at();
        let name = cur.name(MAX_NAME)?;
        cur.item = Item::key(name);
        let entry = keys::value(cur)?;
        if entries.insert(name.to_owned(), entry).is_some() {
            return Err(cur.malformed(start, "occurs twice"));
        }
    }
    Ok(entries)
}

fn alignment_of(file: &str, entries: &BTreeMap<String, Entry>) -> Result<u64> {
    const KEY: &str = "general.alignment";
    let Some(entry) = entries.get(KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    let found = match entry.value {
        Value::Int(n) => u64::try_from(n).ok(),
        _ => None,
    };
    found.filter(|it| it.is_power_of_two() && *it <= MAX_ALIGNMENT).ok_or_else(|| FormatError::Malformed {
        file: file.to_owned(),
        item: Item::key(KEY),
        offset: entry.offset,
        reason: format!("expected a power of two up to {MAX_ALIGNMENT}"),
    })
}

/// A row of the tensor table, before its place in the data section is known.
struct RawTensor {
    info: TensorInfo,
    /// Where the row is in the table.
    row_at: u64,
}

fn parse_tensors(cur: &mut Cursor<'_>, count: usize) -> Result<Vec<RawTensor>> {
    let mut raw = Vec::with_capacity(count);
    for _ in 0..count {
        cur.item = Item::Header;
        raw.push(parse_tensor(cur)?);
    }
    Ok(raw)
}

fn parse_tensor(cur: &mut Cursor<'_>) -> Result<RawTensor> {
    let start = cur.at();
    let name = cur.name(MAX_NAME)?;
    cur.item = Item::tensor(name);
    let n_dims = cur.u32()?;
    if n_dims > MAX_DIMS {
        return Err(cur.malformed(start, format!("{n_dims} dimensions, at most {MAX_DIMS} are allowed")));
    }
    let mut shape = (0..n_dims).map(|_| cur.u64()).collect::<Result<Vec<u64>>>()?;
    shape.reverse();
    let type_at = cur.at();
    let code = cur.u32()?;
    let Some(dtype) = types::dtype(code) else {
        return Err(cur.unsupported(type_at, format!("type {}", types::name(code)), types::SUPPORTED));
    };
    let offset = cur.u64()?;
    let info = TensorInfo::new(name, dtype, shape, offset).map_err(|reason| cur.malformed(start, reason))?;
    Ok(RawTensor { info, row_at: start as u64 })
}

/// Moves tensors to their absolute offsets and checks that they fit.
fn place(
    file_name: &str,
    end: u64,
    data: u64,
    alignment: u64,
    file: usize,
    raw: Vec<RawTensor>,
) -> Result<BTreeMap<String, TensorInfo>> {
    let mut tensors = BTreeMap::new();
    for RawTensor { mut info, row_at } in raw {
        let malformed = |info: &TensorInfo, reason: String| FormatError::Malformed {
            file: file_name.to_owned(),
            item: Item::tensor(&info.name),
            offset: row_at,
            reason,
        };
        if !info.offset.is_multiple_of(alignment) {
            let reason = format!("data offset {:#x} is not a multiple of {alignment}", info.offset);
            return Err(malformed(&info, reason));
        }
        let Some(at) = data.checked_add(info.offset) else {
            let reason = format!("data offset {:#x} is past any file", info.offset);
            return Err(malformed(&info, reason));
        };
        info.offset = at;
        info.file = file;
        if tensors.contains_key(&info.name) {
            return Err(malformed(&info, "occurs twice".to_owned()));
        }
        tensors.insert(info.name.clone(), info);
    }
    check_ranges(file_name, end, tensors.values())?;
    Ok(tensors)
}
