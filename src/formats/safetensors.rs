//! safetensors: the header of one file, and `*.safetensors.index.json` naming several.
//!
//! Source: the format's README: `u64 n` (little-endian), n bytes of JSON
//! `{"name": {"dtype": "F32", "shape": […], "data_offsets": [begin, end]}, "__metadata__": {…}}`, data.
//!
//! Invariants
//! - the header is parsed into the table directly, so memory is bounded by its length;
//! - names are unique; ranges lie in the file, fit shape and dtype, and do not overlap (gaps are allowed);
//! - an index names files of its own folder only, and every tensor is in the file the index says.
//!
//! Deliberately absent: the `__metadata__` (free text that changes nothing).

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use waste_plan::dtype::DType;

use super::config::json_offset;
use super::error::{FormatError, Item, Result, shown};
use super::model::Opened;
use super::source::{Source, is_plain_name, read_small};
use super::tensor::{TensorInfo, check_ranges};

const MAX_HEADER: u64 = 100 << 20;
const MAX_INDEX: u64 = 64 << 20;
const SUPPORTED: &str = "F32, F16 and BF16 are";

/// A tensor of a type that no front end can read: refused when one needs it or does not know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignTensor {
    /// The name in the file.
    pub name: String,
    /// The type as the file names it.
    pub dtype: String,
    /// The file, as error messages show it.
    pub file: String,
    /// Row-major.
    pub shape: Vec<u64>,
    /// The number of the file.
    pub source: usize,
    /// Where its data starts, in bytes from the start of the file.
    pub offset: u64,
    /// The length of its data in bytes, as the file says; not compared with type and shape.
    pub bytes: u64,
}

impl ForeignTensor {
    /// The error that refuses this tensor.
    #[must_use]
    pub fn refuse(&self) -> FormatError {
        FormatError::Unsupported {
            file: self.file.clone(),
            item: Item::tensor(&self.name),
            offset: self.offset,
            what: format!("dtype {}", shown(&self.dtype)),
            supported: SUPPORTED,
        }
    }
}

/// Opens one safetensors file.
pub(crate) fn open_single(path: &Path) -> Result<Opened> {
    let mut opened = Opened::default();
    add_file(&mut opened, path)?;
    Ok(opened)
}

/// Opens the shards that the index at `path` names.
pub(crate) fn open_index(path: &Path) -> Result<Opened> {
    let file = shown(&path.to_string_lossy());
    let text = read_small(path, MAX_INDEX)?.ok_or_else(|| FormatError::not_a_model(path, "no such file"))?;
    let index: Index = serde_json::from_slice(&text).map_err(|err| FormatError::Malformed {
        file: file.clone(),
        item: Item::key("weight_map"),
        offset: json_offset(&text, &err),
        reason: err.to_string(),
    })?;
    let mut parts: BTreeMap<&str, usize> = BTreeMap::new();
    for (tensor, part) in &index.weight_map.0 {
        if !part.ends_with(".safetensors") || !is_plain_name(part) {
            return Err(FormatError::Malformed {
                file: file.clone(),
                item: Item::tensor(tensor),
                offset: 0,
                reason: format!("'{}' is not the name of a .safetensors file beside the index", shown(part)),
            });
        }
        parts.entry(part).or_default();
    }
    let mut opened = Opened::default();
    for (idx, (part, number)) in parts.iter_mut().enumerate() {
        let path = path.with_file_name(part);
        if !path.exists() {
            let hint = " (the download is not complete)".to_owned();
            return Err(FormatError::Missing { file: file.clone(), item: Item::file(part), hint });
        }
        *number = idx;
        add_file(&mut opened, &path)?;
    }
    for (tensor, part) in &index.weight_map.0 {
        if opened.holder(tensor) != parts.get(part.as_str()).copied() {
            let hint = format!(" (the index says it is in '{}')", shown(part));
            return Err(FormatError::Missing { file: file.clone(), item: Item::tensor(tensor), hint });
        }
    }
    opened.extra.push(text);
    Ok(opened)
}

#[derive(Deserialize)]
struct Index {
    weight_map: UniqueMap<String>,
}

fn add_file(opened: &mut Opened, path: &Path) -> Result<()> {
    let source = Source::open(path)?;
    let parsed = parse(&source, opened.sources.len())?;
    opened.add(source, 0..parsed.data, parsed.tensors, parsed.foreign)
}

/// One parsed safetensors file.
#[derive(Debug)]
pub(crate) struct SafetensorsFile {
    pub(crate) tensors: BTreeMap<String, TensorInfo>,
    pub(crate) foreign: BTreeMap<String, ForeignTensor>,
    /// Where the tensor data starts.
    pub(crate) data: usize,
}

/// Parses `source`, whose tensors will say that they are in file number `file`.
pub(crate) fn parse(source: &Source, file: usize) -> Result<SafetensorsFile> {
    let name = source.name();
    let (table, data) = header(&name, source.bytes())?;
    let mut out = SafetensorsFile { tensors: BTreeMap::new(), foreign: BTreeMap::new(), data };
    for (tensor, row) in table.0.into_iter().filter_map(|(tensor, row)| Some((tensor, row.0?))) {
        let malformed = |reason: String| FormatError::Malformed {
            file: name.clone(),
            item: Item::tensor(&tensor),
            offset: (data as u64).saturating_add(row.data_offsets.0),
            reason,
        };
        let (begin, end) = row.data_offsets;
        let at = begin.checked_add(data as u64).filter(|_| begin <= end);
        let at = at.ok_or_else(|| malformed(format!("data_offsets [{begin}, {end}] are no range")))?;
        let Some(dtype) = dtype(&row.dtype) else {
            let foreign = ForeignTensor {
                name: tensor.clone(),
                dtype: row.dtype,
                file: name.clone(),
                shape: row.shape,
                source: file,
                offset: at,
                bytes: end - begin,
            };
            out.foreign.insert(tensor, foreign);
            continue;
        };
        let mut info = TensorInfo::new(&tensor, dtype, row.shape, at).map_err(malformed)?;
        if end - begin != info.bytes {
            let (found, shape) = (end - begin, &info.shape);
            let reason = format!("has {found} bytes, {} {shape:?} needs {}", dtype.name(), info.bytes);
            return Err(malformed(reason));
        }
        info.file = file;
        out.tensors.insert(tensor, info);
    }
    check_ranges(&name, source.bytes().len() as u64, out.tensors.values())?;
    Ok(out)
}

fn header(name: &str, bytes: &[u8]) -> Result<(UniqueMap<Row>, usize)> {
    let malformed = |offset: u64, reason: String| FormatError::Malformed {
        file: name.to_owned(),
        item: Item::Header,
        offset,
        reason,
    };
    let truncated = |offset: u64, need: u64| FormatError::Truncated {
        file: name.to_owned(),
        item: Item::Header,
        offset,
        need,
        end: bytes.len() as u64,
    };
    let (len, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| truncated(0, 8))?;
    let len = u64::from_le_bytes(*len);
    if len > MAX_HEADER {
        return Err(malformed(
            0,
            format!("claims a header of {len} bytes, at most {MAX_HEADER} are allowed"),
        ));
    }
    let text = usize::try_from(len).ok().and_then(|len| rest.get(..len)).ok_or_else(|| truncated(8, len))?;
    let table = serde_json::from_slice(text)
        .map_err(|err| malformed(8 + json_offset(text, &err), format!("the table is not valid: {err}")))?;
    Ok((table, 8 + text.len()))
}

fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        _ => return None,
    })
}

/// One row of the table; `None` for `__metadata__`.
struct Row(Option<RowFields>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RowFields {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// A JSON object whose names are unique.
struct UniqueMap<T>(BTreeMap<String, T>);

/// What a [`UniqueMap`] holds: built from its name and the JSON after it.
trait MapItem: Sized {
    fn read<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> std::result::Result<Self, A::Error>;
}

impl MapItem for Row {
    fn read<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> std::result::Result<Self, A::Error> {
        if name == "__metadata__" {
            map.next_value::<serde::de::IgnoredAny>()?;
            return Ok(Self(None));
        }
        map.next_value().map(|fields| Self(Some(fields)))
    }
}

impl MapItem for String {
    fn read<'de, A: MapAccess<'de>>(_name: &str, map: &mut A) -> std::result::Result<Self, A::Error> {
        map.next_value()
    }
}

impl<'de, T: MapItem> Deserialize<'de> for UniqueMap<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Reader<T>(std::marker::PhantomData<T>);
        impl<'de, T: MapItem> Visitor<'de> for Reader<T> {
            type Value = UniqueMap<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object by tensor name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
                let mut out = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    let item = T::read(&name, &mut map)?;
                    if out.contains_key(&name) {
                        let reason = format!("tensor '{}' occurs twice", shown(&name));
                        return Err(serde::de::Error::custom(reason));
                    }
                    out.insert(name, item);
                }
                Ok(UniqueMap(out))
            }
        }
        deserializer.deserialize_map(Reader(std::marker::PhantomData))
    }
}
