//! PEFT's LoRA adapters: `adapter_config.json` and `adapter_model.safetensors` in one folder.
//!
//! Source: peft 0.21, `LoraConfig`, `tuners/lora/layer.py`. A module `m` of the base gains scale · B·A, with A in
//! `base_model.model.{m}.lora_A.weight` of `[r, in]`, B in `….lora_B.weight` of `[out, r]`, and scale = alpha / r, or alpha / √r with
//! `use_rslora`. `rank_pattern` and `alpha_pattern` name modules whose r and alpha differ.
//!
//! Invariants
//! - every tensor is one half of a pair, and its rank is what the configuration says;
//! - every name in `target_modules` is that of an adapted module, and every adapted module has such a name;
//! - a key that could change the result is used or refused, never ignored. `fan_in_fan_out` says how the base stores its matrix, which
//!   the base itself knows: PEFT corrects it too.
//!
//! Deliberately absent: DoRA, adapted embeddings, biases and saved modules (refused by name), regular expressions in patterns, and what
//! a module is (that is `models`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::config::parse_config;
use super::error::{FormatError, Item, Result, shown};
use super::meta::Meta;
use super::safetensors;
use super::source::{Source, read_small};
use super::tensor::TensorInfo;

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
const MAX_CONFIG: u64 = 1 << 20;

/// Keys that do not change what the stored factors do: training, bookkeeping, and how they were initialised. A trailing `*` stands
/// for any rest.
const HARMLESS: [&str; 17] = [
    "auto_mapping*",
    "base_model_name_or_path",
    "corda_config*",
    "ensure_weight_tying",
    "eva_config*",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config*",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config*",
    "task_type",
];

/// Initialisations that leave the base as it is.
const INITIALISATIONS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// An opened adapter.
#[derive(Debug)]
pub struct Adapter {
    source: Source,
    config: Vec<u8>,
    layers: Vec<AdaptedLayer>,
}

/// What an adapter adds to one module.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptedLayer {
    /// The module's name in the base, such as `model.layers.0.self_attn.q_proj`.
    pub module: String,
    /// A, `[rank, in]`.
    pub a: TensorInfo,
    /// B, `[out, rank]`, of the same type.
    pub b: TensorInfo,
    /// What B·A is multiplied by.
    pub scale: f64,
}

impl Adapter {
    /// Opens the adapter in `folder`.
    ///
    /// # Errors
    /// Any [`FormatError`], with the key or tensor at fault.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(CONFIG);
        let config = read_small(&path, MAX_CONFIG)?
            .ok_or_else(|| FormatError::not_a_model(folder, "no adapter: it holds no adapter_config.json"))?;
        let tensors = folder.join(TENSORS);
        if !tensors.exists() {
            let reason = "holds no adapter_model.safetensors (adapter_model.bin is not read)";
            return Err(FormatError::not_a_model(folder, reason));
        }
        Self::parse(&shown(&path.to_string_lossy()), config, Source::open(&tensors)?)
    }

    /// Reads the configuration text, called `name` in messages, and the tensor table of `source`.
    ///
    /// # Errors
    /// As [`Adapter::open`].
    pub fn parse(name: &str, config: Vec<u8>, source: Source) -> Result<Self> {
        let meta = parse_config(name, &config)?;
        let scales = Scales::read(&meta)?;
        let file = safetensors::parse(&source, 0)?;
        if let Some(foreign) = file.foreign.values().next() {
            return Err(foreign.refuse());
        }
        let layers = pairs(&source.name(), file.tensors)?
            .into_iter()
            .map(|(module, [a, b])| scales.layer(&source.name(), module, a, b))
            .collect::<Result<Vec<_>>>()?;
        scales.check_targets(&layers)?;
        Ok(Self { source, config, layers })
    }

    /// The file of the factors.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// SHA-256 of the configuration and the whole file, each with its length before it: adapters of one base have the same tensor table,
    /// and are small enough to be read.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for part in [&self.config[..], self.source.bytes()] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }

    /// What is added to which module, by name.
    #[must_use]
    pub fn layers(&self) -> &[AdaptedLayer] {
        &self.layers
    }
}

/// A and B of each module.
fn pairs(file: &str, tensors: BTreeMap<String, TensorInfo>) -> Result<BTreeMap<String, [TensorInfo; 2]>> {
    let mut halves: BTreeMap<String, [Option<TensorInfo>; 2]> = BTreeMap::new();
    for (name, info) in tensors {
        let refuse = |reason: &str| malformed(file, &info, reason.to_owned());
        let Some(path) = name.strip_prefix("base_model.model.") else {
            return Err(refuse("is no part of an adapter: its name does not begin with 'base_model.model.'"));
        };
        let half = [".lora_A.weight", ".lora_B.weight"].iter().position(|it| path.ends_with(it));
        let Some(half) = half else {
            return Err(refuse(match path {
                it if it.contains("lora_magnitude_vector") => "is DoRA, which is not supported",
                it if it.contains("lora_embedding_") => "adapts an embedding, which is not supported",
                it if it.contains("lora_B.bias") => "is a bias of an adapter, which is not supported",
                it if it.contains("modules_to_save") => "is a saved module, which is not supported",
                _ => "is neither 'lora_A.weight' nor 'lora_B.weight'",
            }));
        };
        let module = path[..path.len() - ".lora_A.weight".len()].to_owned();
        halves.entry(module).or_default()[half] = Some(info);
    }
    let whole = |(module, pair): (String, [Option<TensorInfo>; 2])| match pair {
        [Some(a), Some(b)] => Ok((module, [a, b])),
        [Some(one), None] => Err(malformed(file, &one, "has no 'lora_B.weight' beside it".to_owned())),
        [None, Some(one)] => Err(malformed(file, &one, "has no 'lora_A.weight' beside it".to_owned())),
        [None, None] => unreachable!("an entry is made with a half"),
    };
    halves.into_iter().map(whole).collect()
}

fn malformed(file: &str, info: &TensorInfo, reason: String) -> FormatError {
    FormatError::Malformed {
        file: file.to_owned(),
        item: Item::tensor(&info.name),
        offset: info.offset,
        reason,
    }
}

/// Rank and scale of every module.
struct Scales<'a> {
    meta: &'a Meta,
    rank: u32,
    alpha: f64,
    is_rank_stabilised: bool,
    /// `None` for a pattern.
    targets: Option<Vec<&'a str>>,
    ranks: Vec<(&'a str, u32)>,
    alphas: Vec<(&'a str, f64)>,
}

impl<'a> Scales<'a> {
    fn read(meta: &'a Meta) -> Result<Self> {
        let kind = meta.str("peft_type")?;
        if kind != "LORA" {
            return Err(meta.refuse("peft_type", format!("'{}' is not supported (LORA is)", shown(kind))));
        }
        for key in ["use_dora", "lora_bias", "use_qalora"] {
            if meta.get_bool(key)? == Some(true) {
                return Err(meta.refuse(key, "true is not supported"));
            }
        }
        if let Some(bias) = meta.get_str("bias")?.filter(|it| *it != "none") {
            return Err(meta.refuse("bias", format!("'{}' is not supported ('none' is)", shown(bias))));
        }
        if let Ok(Some(name)) = meta.get_str("init_lora_weights")
            && !INITIALISATIONS.contains(&name)
        {
            let name = shown(name);
            let reason = format!(
                "'{name}' changes the base too, which is not supported: convert the adapter to plain LoRA"
            );
            return Err(meta.refuse("init_lora_weights", reason));
        }
        meta.get_bool("fan_in_fan_out")?;
        let targets = if meta.array_len("target_modules").is_some() {
            meta.get_strs("target_modules")?
        } else {
            meta.get_str("target_modules")?;
            None
        };
        let scales = Self {
            meta,
            rank: meta.u32("r")?,
            alpha: meta.f64("lora_alpha")?,
            is_rank_stabilised: meta.get_bool("use_rslora")?.unwrap_or(false),
            targets,
            ranks: pattern(meta, "rank_pattern.", |key| meta.u32(key))?,
            alphas: pattern(meta, "alpha_pattern.", |key| meta.f64(key))?,
        };
        if scales.rank == 0 || scales.ranks.iter().any(|it| it.1 == 0) {
            return Err(meta.refuse("r", "a rank of 0 adds nothing"));
        }
        if scales.alpha == 0.0 || scales.alphas.iter().any(|it| it.1 == 0.0) {
            return Err(meta.refuse("lora_alpha", "an alpha of 0 adds nothing"));
        }
        let unknown = meta.unused().find(|it| !is_harmless(meta, it)).map(str::to_owned);
        match unknown {
            Some(key) => Err(meta.refuse(&key, "is not understood")),
            None => Ok(scales),
        }
    }

    fn layer(&self, file: &str, module: String, a: TensorInfo, b: TensorInfo) -> Result<AdaptedLayer> {
        let rank = self.of(&module, "rank_pattern", &self.ranks)?.unwrap_or(self.rank);
        let alpha = self.of(&module, "alpha_pattern", &self.alphas)?.unwrap_or(self.alpha);
        let rank64 = u64::from(rank);
        if !matches!(a.shape[..], [r, _] if r == rank64) {
            return Err(malformed(file, &a, format!("has shape {:?}, expected [{rank}, inputs]", a.shape)));
        }
        if !matches!(b.shape[..], [_, r] if r == rank64) {
            return Err(malformed(file, &b, format!("has shape {:?}, expected [outputs, {rank}]", b.shape)));
        }
        if a.dtype != b.dtype {
            let reason = format!("is {}, its 'lora_A.weight' {}", b.dtype.name(), a.dtype.name());
            return Err(malformed(file, &b, reason));
        }
        if self.targets.as_ref().is_some_and(|all| !all.iter().any(|it| is_named(&module, it))) {
            return Err(malformed(
                file,
                &a,
                "adapts a module that 'target_modules' does not name".to_owned(),
            ));
        }
        let rank = f64::from(rank);
        let scale = alpha / if self.is_rank_stabilised { rank.sqrt() } else { rank };
        Ok(AdaptedLayer { module, a, b, scale })
    }

    /// What the pattern `key` says of `module`.
    fn of<T: Copy + PartialEq>(&self, module: &str, key: &str, all: &[(&str, T)]) -> Result<Option<T>> {
        let mut found = all.iter().filter(|it| is_named(module, it.0));
        let Some(&(name, value)) = found.next() else { return Ok(None) };
        match found.find(|it| it.1 != value) {
            None => Ok(Some(value)),
            Some((other, _)) => {
                let (name, other) = (shown(name), shown(other));
                let reason = format!("'{name}' and '{other}' both name '{}' and differ", shown(module));
                Err(self.meta.refuse(&format!("{key}.{name}"), reason))
            }
        }
    }

    /// Every target is adapted.
    fn check_targets(&self, layers: &[AdaptedLayer]) -> Result<()> {
        let targets: BTreeSet<&str> = self.targets.iter().flatten().copied().collect();
        match targets.iter().find(|it| !layers.iter().any(|layer| is_named(&layer.module, it))) {
            None if !layers.is_empty() => Ok(()),
            None => Err(self.meta.refuse("target_modules", "no module is adapted")),
            Some(target) => {
                let reason = format!("'{}' has no tensors in {TENSORS}", shown(target));
                Err(self.meta.refuse("target_modules", reason))
            }
        }
    }
}

/// The entries of a pattern: names of modules, or the last parts of names.
fn pattern<'a, T>(
    meta: &'a Meta,
    prefix: &str,
    value: impl Fn(&str) -> Result<T>,
) -> Result<Vec<(&'a str, T)>> {
    let mut out = Vec::new();
    for (key, name) in meta.keys().filter_map(|key| Some((key, key.strip_prefix(prefix)?))) {
        let is_plain = name.bytes().all(|it| it.is_ascii_alphanumeric() || b"._-".contains(&it));
        if !is_plain {
            return Err(meta.refuse(key, "is a regular expression, which is not supported: name the modules"));
        }
        out.push((name, value(key)?));
    }
    Ok(out)
}

/// Whether `name` is that of `module`, or its last parts.
fn is_named(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Whether a key changes nothing: by its name, or by a value that says so.
fn is_harmless(meta: &Meta, key: &str) -> bool {
    let is_known = HARMLESS.iter().any(|it| match it.strip_suffix('*') {
        Some(prefix) => key.starts_with(prefix),
        None => key == *it,
    });
    let is_switch = key == "init_lora_weights" && meta.get_bool(key).is_ok();
    is_known
        || is_switch
        || meta.array_len(key) == Some(0)
        || meta.get_bool(key).is_ok_and(|it| it == Some(false))
}
