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
use crate::formats::{FormatError, Meta, shown};

use super::Result;
use super::ffn::{Ffn, GatedAct};
use super::keys::{columns, epsilon, get_positive, positive};
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

/// The keys of a configuration that say how to route.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoeKeys<'a> {
    /// How many experts; absent or 0 is no experts.
    pub(super) experts: &'a str,
    pub(super) k: &'a str,
    pub(super) width: &'a str,
    /// How many groups, and how many of them compete.
    pub(super) groups: Option<[&'a str; 2]>,
    /// How many experts' widths every token passes.
    pub(super) shared: Option<&'a str>,
    /// The word for the scoring, and what holds without it.
    pub(super) scoring: (Option<&'a str>, Scoring),
    /// Whether the weights are divided by their sum, and what holds without the key.
    pub(super) renorm: (Option<&'a str>, bool),
    pub(super) scale: Option<&'a str>,
}

impl MoeConfig {
    /// Reads `keys`; the experts are not latent.
    pub(super) fn read(meta: &Meta, keys: &MoeKeys<'_>) -> std::result::Result<Option<Self>, FormatError> {
        let Some(n) = meta.get_u32(keys.experts)?.filter(|it| *it > 0) else { return Ok(None) };
        let k = positive(meta, keys.k)?;
        let (mut groups, mut keep) = (1, 1);
        if let Some([groups_key, keep_key]) = keys.groups {
            groups = get_positive(meta, groups_key)?.unwrap_or(1);
            keep = get_positive(meta, keep_key)?.unwrap_or(groups);
            if !n.is_multiple_of(groups) || keep > groups {
                return Err(meta.refuse(groups_key, format!("{keep} of {groups} groups of {n} experts")));
            }
        }
        if k > n / groups * keep {
            return Err(meta.refuse(keys.k, format!("{k} of {} experts", n / groups * keep)));
        }
        let width = positive(meta, keys.width)?;
        let shared_width = match keys.shared {
            Some(key) => match meta.get_u32(key)? {
                None | Some(0) => None,
                Some(n) => Some(columns(meta, key, n, width)?),
            },
            None => None,
        };
        let renorm = match keys.renorm.0 {
            Some(key) => meta.get_bool(key)?.unwrap_or(keys.renorm.1),
            None => keys.renorm.1,
        };
        let scale = keys.scale.map_or(Ok(1.0), |it| epsilon(meta, it, Some(1.0)))?;
        let scoring = scoring(meta, keys)?;
        Ok(Some(Self {
            experts: n,
            k,
            groups,
            keep,
            scoring,
            renorm,
            scale,
            width,
            shared_width,
            latent: None,
        }))
    }
}

fn scoring(meta: &Meta, keys: &MoeKeys<'_>) -> std::result::Result<Scoring, FormatError> {
    let Some(key) = keys.scoring.0 else { return Ok(keys.scoring.1) };
    match meta.get_str(key)? {
        None => Ok(keys.scoring.1),
        Some("sigmoid") => Ok(Scoring::Sigmoid),
        Some("softmax") => Ok(Scoring::Softmax),
        Some(other) => {
            let reason = format!("'{}' is not supported (sigmoid and softmax are)", shown(other));
            Err(meta.refuse(key, reason))
        }
    }
}

/// How a format names the tensors of a layer, after the layer's own name.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoeNames {
    pub(super) router: &'static str,
    /// A correction of the ranks, if the format has one.
    pub(super) bias: Option<&'static str>,
    pub(super) experts: ExpertNames,
    /// Gate, up and down of the block that every token passes.
    pub(super) shared: [&'static str; 3],
    /// Into the latents, out of them, and their norm.
    pub(super) latent: [&'static str; 3],
}

/// Where the experts' matrices are: gate, up and down.
#[derive(Clone, Copy, Debug)]
pub(super) enum ExpertNames {
    /// Tensors of their own: `{before}{number}{matrix}`.
    Each { before: &'static str, matrices: [&'static str; 3] },
    /// All experts in one tensor of three dimensions.
    Stacked([&'static str; 3]),
}

/// The matrices of an expert, as records name them.
const KINDS: [MatrixKind; 3] = [MatrixKind::Gate, MatrixKind::Up, MatrixKind::Down];

impl ExpertNames {
    /// Matrix `i`, gate, up or down, of all experts of `layer`.
    fn take(
        self,
        weights: &mut Weights<'_>,
        layer: &str,
        i: usize,
        [experts, rows, cols]: [u32; 3],
    ) -> Result<WeightId> {
        match self {
            Self::Each { before, matrices } => {
                let name = |e: &str| format!("{layer}{before}{e}{}", matrices[i]);
                if let Some(coded) = weights.coded_bank(layer, KINDS[i], &name("*"), [rows, cols])? {
                    return Ok(coded);
                }
                weights.bank(&name("*"), (0..experts).map(|e| name(&e.to_string())), rows, cols)
            }
            Self::Stacked(names) => weights.stacked(&format!("{layer}{}", names[i]), [experts, rows, cols]),
        }
    }
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
                into: weights.matrix(&name(names.latent[0]), cols, hidden)?,
                out: weights.matrix(&name(names.latent[1]), hidden, cols)?,
                norm: is_normed.then(|| weights.vector(&name(names.latent[2]), cols)).transpose()?,
            }),
            None => None,
        };
        let cols = c.latent.map_or(hidden, |it| it.0);
        let shapes = [[c.width, cols], [c.width, cols], [cols, c.width]];
        let mut bank =
            |i: usize| names.experts.take(weights, layer, i, [c.experts, shapes[i][0], shapes[i][1]]);
        let (gate, up, down) = (bank(0)?, bank(1)?, bank(2)?);
        let bias = names.bias.map(name).filter(|it| weights.has(it));
        Ok(Self {
            router: weights.matrix(&name(names.router), c.experts, hidden)?,
            bias: bias.map(|it| weights.vector(&it, c.experts)).transpose()?,
            gate,
            up,
            down,
            shared: match c.shared_width {
                Some(width) => Some(Ffn::take(weights, names.shared.map(name), hidden, width)?),
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
