//! Which layers have experts, how many, and of which shape, by the configuration.

use std::ops::Range;

use super::bank::{BankEntry, Expert};
use crate::formats::error::{FormatError, Item, Result};
use crate::formats::meta::Meta;

/// Experts of a layer at most: a record numbers them in 16 bits.
const MAX_EXPERTS: u32 = 1 << 16;

/// Rows and columns of an expert's matrices at most.
const MAX_DIM: u32 = 1 << 20;

/// The sizes that the configuration gives to experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    layers: u32,
    first_moe: u32,
    experts: u32,
    inter: u32,
    latent: u32,
}

impl Geometry {
    pub(crate) fn of_config(config: &Meta) -> Result<Self> {
        let get = |key: &str| config.get_u32(key);
        let experts = match get("num_experts")? {
            Some(count) => count,
            None => get("n_routed_experts")?.unwrap_or(0),
        };
        if experts == 0 {
            return Ok(Self { layers: 0, first_moe: 0, experts: 0, inter: 0, latent: 0 });
        }
        let bounded = |key: &str, value: u32, most: u32| match value {
            n if (1..=most).contains(&n) => Ok(n),
            n => Err(config.refuse(key, format!("{n}, expected 1 to {most}"))),
        };
        let layers = config.u32("num_hidden_layers")?;
        let latent_key = "routed_expert_hidden_size";
        let (key, latent) = match get(latent_key)?.filter(|it| *it > 0) {
            Some(latent) => (latent_key, latent),
            None => ("hidden_size", config.u32("hidden_size")?),
        };
        Ok(Self {
            layers: bounded("num_hidden_layers", layers, 1 << 16)?,
            first_moe: get("first_k_dense_replace")?.unwrap_or(0),
            experts: bounded("num_experts", experts, MAX_EXPERTS)?,
            inter: bounded("moe_intermediate_size", config.u32("moe_intermediate_size")?, MAX_DIM)?,
            latent: bounded(key, latent, MAX_DIM)?,
        })
    }

    /// The layers with experts; none if the model has no experts.
    pub(crate) fn moe_layers(&self) -> Range<u32> {
        self.first_moe.min(self.layers)..self.layers
    }

    /// Experts of such a layer.
    pub(crate) fn experts(&self) -> u32 {
        self.experts
    }

    /// The shape of each.
    pub(crate) fn expert(&self) -> Expert {
        Expert { inter: self.inter, latent: self.latent }
    }

    /// `entries` by layer: one for each layer with experts, none for others.
    pub(super) fn match_layers(
        &self,
        config: &Meta,
        entries: Vec<(u32, BankEntry)>,
    ) -> Result<Vec<(u32, BankEntry)>> {
        let wanted = self.moe_layers();
        let refuse = |layer: u32, reason: String| FormatError::Malformed {
            file: config.file().to_owned(),
            item: Item::key(&format!("layers.{layer}")),
            offset: 0,
            reason,
        };
        for (layer, entry) in &entries {
            if !wanted.contains(layer) {
                return Err(refuse(*layer, format!("only layers {wanted:?} have experts")));
            }
            if entry.experts != u64::from(self.experts) {
                return Err(refuse(
                    *layer,
                    format!("{} experts, the model has {}", entry.experts, self.experts),
                ));
            }
        }
        // Sorted and unique, so the first that is missing shifts all after it.
        match wanted.clone().enumerate().find(|(idx, it)| entries.get(*idx).map(|entry| entry.0) != Some(*it))
        {
            Some((_, layer)) => Err(FormatError::Missing {
                file: config.file().to_owned(),
                item: Item::key(&format!("layers.{layer}")),
                hint: format!(" (layers {wanted:?} have experts)"),
            }),
            None => Ok(entries),
        }
    }
}
