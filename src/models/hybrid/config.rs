//! What a hybrid decoder is built from, and how formats name its tensors.

use waste_ir::ModelInfo;

use crate::models::ffn::GatedAct;
use crate::models::kda::KdaConfig;
use crate::models::mla::{MlaConfig, MlaNames};
use crate::models::moe::{MoeConfig, MoeNames};

/// What the graphs are built from.
pub(in crate::models) struct Config {
    pub(in crate::models) info: ModelInfo,
    pub(in crate::models) n_layers: u32,
    pub(in crate::models) hidden: u32,
    /// Columns between the matrices of a dense feed-forward.
    pub(in crate::models) ffn: u32,
    pub(in crate::models) eps: f32,
    pub(in crate::models) act: GatedAct,
    /// Whether the head is the embedding.
    pub(in crate::models) is_tied: bool,
    pub(in crate::models) kda: Option<KdaConfig>,
    /// Which layers have delta attention; the others have latent attention.
    pub(in crate::models) is_kda: Vec<bool>,
    pub(in crate::models) mla: MlaConfig,
    pub(in crate::models) moe: Option<MoeConfig>,
    /// Layers before the first with experts.
    pub(in crate::models) first_moe: u32,
    /// Layers of a block, if the model mixes with earlier ones.
    pub(in crate::models) res_block: Option<u32>,
    pub(in crate::models) names: &'static Names,
    /// How names of tensors begin that may be left out.
    pub(in crate::models) harmless: Vec<String>,
}

/// How a format names the tensors.
#[derive(Debug)]
pub(in crate::models) struct Names {
    pub(in crate::models) embed: &'static str,
    pub(in crate::models) final_norm: &'static str,
    pub(in crate::models) head: &'static str,
    /// Before the number of the layer and a dot.
    pub(in crate::models) layer: &'static str,
    pub(in crate::models) attn_norm: &'static str,
    pub(in crate::models) mla: MlaNames,
    pub(in crate::models) ffn_norm: &'static str,
    /// Gate, up and down of a dense feed-forward.
    pub(in crate::models) ffn: [&'static str; 3],
    pub(in crate::models) moe: MoeNames,
}

impl Config {
    /// Delta attention of layer `i`, if it has it.
    pub(super) fn kda_of(&self, i: u32) -> Option<&KdaConfig> {
        self.kda.as_ref().filter(|_| self.is_kda[i as usize])
    }

    /// Experts of layer `i`, if it has any.
    pub(super) fn moe_of(&self, i: u32) -> Option<&MoeConfig> {
        self.moe.as_ref().filter(|_| i >= self.first_moe)
    }

    /// Whether layer `i` is the first of a block.
    pub(super) fn begins_block(&self, i: u32) -> bool {
        self.res_block.is_some_and(|it| i.is_multiple_of(it))
    }

    /// Whether the tensor `name`, which was not taken, may be left out.
    pub(super) fn is_harmless(&self, name: &str) -> bool {
        self.is_tied && name == self.names.head || self.harmless.iter().any(|it| name.starts_with(it))
    }
}
