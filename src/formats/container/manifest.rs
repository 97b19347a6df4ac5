//! manifest.json, parsed and checked as far as it can be without the other files.
//!
//! Invariants
//! - the version is looked at before anything else;
//! - memory is bounded by the length of the file, nesting by the JSON parser;
//! - a name of a file names one beside the manifest.

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::MANIFEST;
use super::bank::BankEntry;
use super::declare::text_meta;
use super::{ROW_BLOCK, VEC_DIM, VqCode};
use crate::formats::config::json_offset;
use crate::formats::error::{FormatError, Item, Result, shown};
use crate::formats::meta::Meta;
use crate::formats::source::{is_plain_name, read_small};

/// Bytes of a manifest at most: some two hundred for each of a few thousand tensors, and room.
const MAX_MANIFEST: u64 = 16 << 20;

/// Characters of a tensor prefix at most.
const MAX_PREFIX: usize = 63;

/// A manifest whose version and code are known.
pub(super) struct Parsed {
    pub(super) text: Vec<u8>,
    pub(super) config: Meta,
    pub(super) arch: String,
    pub(super) prefix: String,
    pub(super) code: VqCode,
    pub(super) trunk: Vec<TrunkEntry>,
    /// By layer, ascending.
    pub(super) layers: Vec<(u32, BankEntry)>,
}

#[derive(Deserialize)]
struct Outline {
    format_version: Option<Json>,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    arch: String,
    #[serde(default)]
    tensor_prefix: String,
    config: Box<RawValue>,
    expert_quant: Quant,
    layers: Pairs<BankEntry>,
    trunk: Vec<TrunkEntry>,
}

#[derive(Deserialize)]
struct Quant {
    #[serde(default = "three")]
    stages: u64,
    #[serde(default = "eight")]
    vec_dim: u64,
    #[serde(default = "entries")]
    entries: u64,
    #[serde(default = "block")]
    index_block: u64,
    #[serde(default = "eight")]
    index_bits: u64,
}

fn three() -> u64 {
    3
}

fn eight() -> u64 {
    8
}

fn entries() -> u64 {
    256
}

fn block() -> u64 {
    ROW_BLOCK as u64
}

/// A trunk tensor as the manifest has it.
#[derive(Deserialize)]
pub(super) struct TrunkEntry {
    pub(super) name: String,
    pub(super) fmt: u32,
    pub(super) off: u64,
    pub(super) shape: Vec<u64>,
    pub(super) group: Option<u64>,
    pub(super) scale_off: Option<u64>,
}

/// Reads the manifest in `folder`.
pub(super) fn read(folder: &Path) -> Result<Parsed> {
    let path = folder.join(MANIFEST);
    let file = shown(&path.to_string_lossy());
    let text =
        read_small(&path, MAX_MANIFEST)?.ok_or_else(|| FormatError::not_a_model(&path, "no such file"))?;
    let malformed = |item: Item, offset: u64, reason: String| FormatError::Malformed {
        file: file.clone(),
        item,
        offset,
        reason,
    };
    let invalid = |err: serde_json::Error| malformed(Item::Header, json_offset(&text, &err), err.to_string());
    let outline: Outline = serde_json::from_slice(&text).map_err(invalid)?;
    let version = outline.format_version.ok_or_else(|| FormatError::Missing {
        file: file.clone(),
        item: Item::key("format_version"),
        hint: " (not the manifest of a container)".to_owned(),
    })?;
    if version.as_u64() != Some(0) {
        return Err(FormatError::Unsupported {
            file,
            item: Item::key("format_version"),
            offset: 0,
            what: format!("version {}", shown(&version.to_string())),
            supported: "0 is",
        });
    }
    let Manifest { arch, tensor_prefix, config, expert_quant, layers, trunk } =
        serde_json::from_slice(&text).map_err(invalid)?;
    let code = expert_quant.code(&file)?;
    let (config, own_prefix) = text_meta(&file, config.get().as_bytes())?;
    let prefix = if tensor_prefix.is_empty() { own_prefix.to_owned() } else { tensor_prefix };
    if prefix.len() > MAX_PREFIX {
        let reason = format!("{} bytes, at most {MAX_PREFIX} are allowed", prefix.len());
        return Err(malformed(Item::key("tensor_prefix"), 0, reason));
    }
    let mut by_layer = Vec::with_capacity(layers.0.len());
    for (name, entry) in layers.0 {
        let bad = |reason: String| malformed(Item::key(&format!("layers.{name}")), 0, reason);
        let layer = name.parse::<u32>().ok().filter(|it| it.to_string() == name);
        let layer = layer.ok_or_else(|| bad("the name is no layer's number".to_owned()))?;
        if entry.experts == 0 || entry.bytes == 0 {
            return Err(bad(format!("{} experts in {} bytes", entry.experts, entry.bytes)));
        }
        if !is_plain_name(&entry.file) {
            return Err(bad(format!(
                "'{}' is not the name of a file beside the manifest",
                shown(&entry.file)
            )));
        }
        by_layer.push((layer, entry));
    }
    by_layer.sort_by_key(|it| it.0);
    Ok(Parsed { text, config, arch, prefix, code, trunk, layers: by_layer })
}

impl Quant {
    /// The code with these numbers; any other is refused by the key that no known code has.
    fn code(&self, file: &str) -> Result<VqCode> {
        let refuse = |key: &str, found: u64, supported: &'static str| FormatError::Unsupported {
            file: file.to_owned(),
            item: Item::key(&format!("expert_quant.{key}")),
            offset: 0,
            what: found.to_string(),
            supported,
        };
        if self.index_block != ROW_BLOCK as u64 {
            return Err(refuse("index_block", self.index_block, "64 is"));
        }
        if self.vec_dim != VEC_DIM as u64 {
            return Err(refuse("vec_dim", self.vec_dim, "8 is"));
        }
        let index_bits = |it: VqCode| (8 * it.position_bytes() / it.stages()) as u64;
        let bits: Vec<VqCode> =
            VqCode::ALL.iter().copied().filter(|it| index_bits(*it) == self.index_bits).collect();
        if bits.is_empty() {
            return Err(refuse("index_bits", self.index_bits, "6 and 8 are"));
        }
        let Some(code) = bits.into_iter().find(|it| it.stages() as u64 == self.stages) else {
            return Err(refuse("stages", self.stages, "3 and 2 with index_bits 8, 4 with index_bits 6 are"));
        };
        if code.entries() as u64 != self.entries {
            return Err(refuse("entries", self.entries, "256 with index_bits 8, 64 with index_bits 6 are"));
        }
        Ok(code)
    }
}

/// A JSON object whose names are unique, in the order of the file.
struct Pairs<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object by layer")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Pairs<T>, A::Error> {
                let mut out: Vec<(String, T)> = Vec::new();
                let mut names = std::collections::BTreeSet::new();
                while let Some((name, value)) = map.next_entry::<String, T>()? {
                    if !names.insert(name.clone()) {
                        return Err(serde::de::Error::custom(format!("'{}' occurs twice", shown(&name))));
                    }
                    out.push((name, value));
                }
                Ok(Pairs(out))
            }
        }
        deserializer.deserialize_map(Reader(PhantomData))
    }
}
