//! Containers to plan: of which only the manifest is there, or which a configuration would be converted to.
//!
//! Invariants
//! - files that are not there have the lengths that the manifest or the geometry asks for;
//! - what is declared is what `convert` would make: the same records, codebooks, and formats of trunk tensors. Which tensors the
//!   trunk has, and in which shapes, is known by the front end alone: each that it asks for is there.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;
use waste_plan::record::BLOCK;

use super::bank::{Bank, BankEntry};
use super::codebooks::{self, Codebooks};
use super::geometry::Geometry;
use super::{Container, TrunkFormat, VqCode};
use crate::formats::config::parse_config;
use crate::formats::error::{FormatError, Item, Result, shown};
use crate::formats::meta::Meta;
use crate::formats::source::Source;

/// What stands before the tensors of the text model where the configuration holds several models.
const TEXT_PREFIX: &str = "language_model.";

/// How a checkpoint is stored in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coding {
    /// How experts are coded.
    pub experts: VqCode,
    /// How most other matrices are stored.
    pub trunk: TrunkFormat,
}

impl Default for Coding {
    /// What `convert` does where nothing is asked for.
    fn default() -> Self {
        Self { experts: VqCode::Vq3r, trunk: TrunkFormat::Q8G }
    }
}

impl Container {
    /// Opens the container in `folder` to plan it: only the manifest must be there.
    ///
    /// # Errors
    /// As [`Container::open`], of the files that are there.
    pub(in crate::formats) fn open_to_plan(folder: &Path) -> Result<Self> {
        Self::open_with(folder, &|path, len| {
            if path.exists() { Source::open(path) } else { Ok(Source::absent(path, len)) }
        })
    }

    /// The container in `folder` that the checkpoint with the configuration `text`, of the file `file`, would be converted to.
    ///
    /// # Errors
    /// If the text is no configuration of a model with routed experts, or they cannot be coded so.
    pub(in crate::formats) fn declare(
        folder: &Path,
        file: &str,
        text: &[u8],
        coding: Coding,
    ) -> Result<Self> {
        let (config, prefix) = text_meta(file, text)?;
        let geometry = Geometry::of_config(&config)?;
        if geometry.moe_layers().is_empty() {
            return Err(FormatError::Missing {
                file: file.to_owned(),
                item: Item::key("num_experts"),
                hint: " (a configuration alone can be planned if the model has routed experts)".to_owned(),
            });
        }
        let code = coding.experts;
        let absent = |name: &str, len: u64| Source::absent(&folder.join(name), len);
        let layers = u64::from(geometry.moe_layers().end - geometry.moe_layers().start);
        let each = 3 * code.stages() as u64;
        let mut sources = vec![
            absent("trunk.bin", 0),
            absent("codebooks.bin", layers * each * codebooks::book_bytes(code)),
        ];
        let mut banks = BTreeMap::new();
        for (at, layer) in (0..).zip(geometry.moe_layers()) {
            // Where the shape cannot be coded, the bank says so.
            let record = geometry.expert().layout(code).map_or(BLOCK, |it| it.1.next_multiple_of(BLOCK));
            let experts = u64::from(geometry.experts());
            let name = format!("experts-L{layer}.bin");
            let entry =
                BankEntry { file: name.clone(), experts, bytes: experts * record, codebook_base: at * each };
            let source = absent(&name, entry.bytes);
            banks.insert(layer, Bank::new(layer, sources.len(), &geometry, code, entry, &source)?);
            sources.push(source);
        }
        let classes = config.get_strs("architectures")?.unwrap_or_default();
        let arch = classes.first().map_or_else(|| "unknown".to_owned(), |it| shown(it));
        Ok(Self {
            text: text.to_vec(),
            arch,
            prefix: prefix.to_owned(),
            trunk: BTreeMap::new(),
            banks,
            codebooks: Codebooks::new(code, &sources[Self::CODEBOOKS]),
            sources,
            declared: Some(coding.trunk),
            config: Arc::new(config),
        })
    }

    /// The format of most matrices of a trunk that was never made: it has every tensor that is asked for.
    #[must_use]
    pub fn declared(&self) -> Option<TrunkFormat> {
        self.declared
    }
}

/// The configuration of the text model in `text`, of the file `file`, and its prefix.
///
/// # Errors
/// If the text is no configuration.
pub(super) fn text_meta(file: &str, text: &[u8]) -> Result<(Meta, &'static str)> {
    // Parsed as it is first: what is no JSON is refused where it breaks.
    parse_config(file, text)?;
    let (config, prefix, _) = text_config(text);
    Ok((parse_config(file, config.to_string().as_bytes())?, prefix))
}

/// The configuration of the text model, its prefix, and how the weights are quantised, which a container's no longer are. A
/// configuration around that of the text model is kept as `_outer`.
pub(crate) fn text_config(text: &[u8]) -> (Json, &'static str, Json) {
    // Parsed once before, when the files were opened.
    let Ok(Json::Object(mut outer)) = serde_json::from_slice(text) else {
        return (Json::Null, "", Json::Null);
    };
    let of_outer = outer.remove("quantization_config");
    let (mut config, prefix) = match outer.remove("text_config") {
        Some(Json::Object(mut inner)) => {
            inner.insert("_outer".to_owned(), Json::Object(outer));
            (inner, TEXT_PREFIX)
        }
        _ => (outer, ""),
    };
    let quantization = config.remove("quantization_config").or(of_outer);
    (Json::Object(config), prefix, quantization.unwrap_or_default())
}
