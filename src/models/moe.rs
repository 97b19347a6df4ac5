//! Routed experts: a few of many gated feed-forward blocks for each token, and some that every token passes.
//!
//! ```text
//! weights = route_top_k(x·Wrouterᵀ)                    DeepSeek-V3 report 2024, eq. 12–15
//! y = Σ_e weight_e · expert_e(x)                       the naive region: passes hoist what does not depend on e
//! latent (Kimi K3): y = rms_norm(Σ_e weight_e · expert_e(x·Wintoᵀ))·Woutᵀ
//! y = y + shared(x)
//! ```

use waste_ir::{Built, Dim, Op, Scoring, TensorType, ValueId, WeightId};
use waste_plan::DType;

use crate::formats::container::MatrixKind;

use super::Result;
use super::ffn::{Ffn, GatedAct};
use super::program::Body;
use super::weights::Weights;

/// How a layer routes, and the sizes of its experts.
#[derive(Clone, Debug)]
pub(super) struct MoeConfig {
    pub(super) experts: u32,
    pub(super) k: u32,
    pub(super) groups: u32,
    pub(super) keep: u32,
    pub(super) scoring: Scoring,
    pub(super) renorm: bool,
    pub(super) scale: f32,
    /// Columns between an expert's matrices.
    pub(super) width: u32,
    /// As `width`, of the block that every token passes.
    pub(super) shared_width: Option<u32>,
    /// Columns that routed experts read and write, if not those of the model; and whether the sum is normed.
    pub(super) latent: Option<(u32, bool)>,
}

/// How a format names the tensors of a layer, after the layer's own name.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoeNames {
    pub(super) router: &'static str,
    pub(super) bias: &'static str,
    /// Before the number of the expert.
    pub(super) experts: &'static str,
    pub(super) gate: &'static str,
    pub(super) up: &'static str,
    pub(super) down: &'static str,
    pub(super) shared: &'static str,
    pub(super) latent_in: &'static str,
    pub(super) latent_out: &'static str,
    pub(super) latent_norm: &'static str,
}

/// The weights of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moe {
    router: WeightId,
    bias: Option<WeightId>,
    gate: WeightId,
    up: WeightId,
    down: WeightId,
    shared: Option<Ffn>,
    latent: Option<Latent>,
}

#[derive(Clone, Copy, Debug)]
struct Latent {
    into: WeightId,
    norm: Option<WeightId>,
    out: WeightId,
}

impl Moe {
    /// The tensors `{layer}{name}` of `names`.
    pub(super) fn take(
        weights: &mut Weights<'_>,
        layer: &str,
        names: &MoeNames,
        c: &MoeConfig,
        hidden: u32,
    ) -> Result<Self> {
        let name = |part: &str| format!("{layer}{part}");
        let latent = match c.latent {
            Some((cols, is_normed)) => Some(Latent {
                into: weights.matrix(&name(names.latent_in), cols, hidden)?,
                norm: is_normed.then(|| weights.vector(&name(names.latent_norm), cols)).transpose()?,
                out: weights.matrix(&name(names.latent_out), hidden, cols)?,
            }),
            None => None,
        };
        let cols = c.latent.map_or(hidden, |it| it.0);
        let mut bank = |kind: MatrixKind, matrix: &str, rows: u32, cols: u32| {
            let name = format!("{layer}{}*.{matrix}", names.experts);
            if let Some(coded) = weights.coded_bank(layer, kind, &name, [rows, cols])? {
                return Ok(coded);
            }
            let parts = (0..c.experts).map(|e| format!("{layer}{}{e}.{matrix}", names.experts));
            weights.bank(&name, parts, rows, cols)
        };
        let gate = bank(MatrixKind::Gate, names.gate, c.width, cols)?;
        let up = bank(MatrixKind::Up, names.up, c.width, cols)?;
        let down = bank(MatrixKind::Down, names.down, cols, c.width)?;
        let bias = name(names.bias);
        Ok(Self {
            router: weights.matrix(&name(names.router), c.experts, hidden)?,
            bias: weights.has(&bias).then(|| weights.vector(&bias, c.experts)).transpose()?,
            gate,
            up,
            down,
            shared: match c.shared_width {
                Some(width) => Some(Ffn::take(weights, &name(names.shared), hidden, width)?),
                None => None,
            },
            latent,
        })
    }

    /// x: `f32[T, hidden]`; `eps` is that of the latent norm.
    pub(super) fn of(&self, cx: &mut Body<'_>, x: ValueId, c: &MoeConfig, act: GatedAct, eps: f32) -> Built {
        let logits = cx.apply(x, self.router)?;
        let bias = self.bias.map(|it| cx.b.weight(it));
        let route = Op::RouteTopK {
            k: c.k,
            scoring: c.scoring,
            renorm: c.renorm,
            scale: c.scale,
            groups: c.groups,
            keep: c.keep,
        };
        let route = cx.b.push(route, &[Some(logits), bias], None)?;
        let routes = (cx.b.graph().ops[route].results[0], cx.b.graph().ops[route].results[1]);
        let routed = match self.latent {
            Some(latent) => cx.apply(x, latent.into)?,
            None => x,
        };
        let mut y = self.experts(cx, routed, routes, c.experts, act)?;
        if let Some(latent) = self.latent {
            if let Some(norm) = latent.norm {
                let norm = cx.b.weight(norm);
                y = cx.b.rms_norm(y, norm, eps)?;
            }
            y = cx.apply(y, latent.out)?;
        }
        match self.shared {
            Some(shared) => {
                let shared = shared.of(cx, x, act)?;
                cx.b.add(y, shared)
            }
            None => Ok(y),
        }
    }

    fn experts(
        &self,
        cx: &mut Body<'_>,
        x: ValueId,
        routes: (ValueId, ValueId),
        n: u32,
        act: GatedAct,
    ) -> Built {
        let x_ty = cx.b.graph().ty(x).clone();
        let (_, args) = cx.b.open_region(&[TensorType::new(DType::I32, &[Dim::Const(1)]), x_ty]);
        let matrix = |cx: &mut Body<'_>, bank: WeightId| {
            let bank = cx.b.weight(bank);
            cx.b.bank_slice(bank, args[0])
        };
        let gate = matrix(cx, self.gate)?;
        let gate = cx.b.linear(args[1], gate)?;
        let up = matrix(cx, self.up)?;
        let up = cx.b.linear(args[1], up)?;
        let h = act.of(&mut cx.b, gate, up)?;
        let down = matrix(cx, self.down)?;
        let y = cx.b.linear(h, down)?;
        let region = cx.b.close_region(&[y]);
        cx.b.for_each_expert(x, routes, n, region)
    }
}
