//! Gated feed-forward blocks: y = (act(x·Wgateᵀ) ∘ x·Wupᵀ)·Wdownᵀ (Shazeer 2020).

use waste_ir::{Act, Built, GraphBuilder, ValueId, WeightId};

use crate::formats::Meta;

use super::keys::activation;
use super::program::Body;
use super::weights::Weights;
use super::{Result, keys};

/// The activation of a gated block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum GatedAct {
    /// Of the gate alone.
    Gate(Act),
    /// Of both; see [`waste_ir::Op::Glu`].
    Situ { beta: f32, linear: f32 },
}

impl GatedAct {
    /// From `hidden_act` and, for SiTU, its parameters.
    pub(super) fn from_config(meta: &Meta) -> Result<Self> {
        if meta.get_str("hidden_act")? != Some("situ") {
            return Ok(Self::Gate(activation(meta, "hidden_act", Act::Silu)?));
        }
        let beta = keys::epsilon(meta, "activation_situ_beta", Some(1.0))?;
        let linear = match meta.get_f64("activation_situ_linear_beta")? {
            None => 0.0,
            Some(0.0) => 0.0,
            Some(_) => keys::epsilon(meta, "activation_situ_linear_beta", None)?,
        };
        Ok(Self::Situ { beta, linear })
    }

    pub(super) fn of(self, b: &mut GraphBuilder<'_>, gate: ValueId, up: ValueId) -> Built {
        match self {
            Self::Gate(act) => b.glu(gate, up, act),
            Self::Situ { beta, linear } => b.situ(gate, up, beta, linear),
        }
    }
}

/// The three matrices of a block, without biases.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ffn {
    gate: WeightId,
    up: WeightId,
    down: WeightId,
}

impl Ffn {
    /// The tensors `names` of gate, up and down, between `hidden` and `width` columns.
    pub(super) fn take(
        weights: &mut Weights<'_>,
        [gate, up, down]: [String; 3],
        hidden: u32,
        width: u32,
    ) -> Result<Self> {
        Ok(Self {
            gate: weights.matrix(&gate, width, hidden)?,
            up: weights.matrix(&up, width, hidden)?,
            down: weights.matrix(&down, hidden, width)?,
        })
    }

    pub(super) fn of(self, cx: &mut Body<'_>, x: ValueId, act: GatedAct) -> Built {
        let gate = cx.apply(x, self.gate)?;
        let up = cx.apply(x, self.up)?;
        let h = act.of(&mut cx.b, gate, up)?;
        cx.apply(h, self.down)
    }
}
