//! What a step computes, as a [`Kernel`].

use waste_plan::Math;
use waste_plan::schema::{Operand, Place, Rows, Situ, Step, StepKind};

use super::kernels::{Family, Kernel, mix};

/// How a quantised result is named.
pub(super) fn quantised(quant: Option<Math>) -> &'static str {
    quant.map_or("f32 result", Math::name)
}

/// Frequencies to ten digits: the two sides may round differently.
pub(super) fn angles(freqs: impl Iterator<Item = f64>) -> String {
    freqs.map(|it| format!("{it:.9e} ")).collect()
}

fn situ(it: Situ) -> String {
    format!("{:e} {:e}", it.beta, it.linear)
}

/// What a step computes into its first result.
pub(crate) fn kernel(step: &Step) -> Kernel {
    let kernel = family(step, &step.writes[0]);
    Kernel { attrs: mix(kernel.attrs, step.writes[0].cols.into()), ..kernel }
}

fn cols(it: Option<&Operand>) -> u64 {
    it.map_or(1, |it| u64::from(it.cols)).max(1)
}

/// Matrices of the bank that read 1 is, if each has `rows` rows.
fn matrices(step: &Step, rows: u64) -> u64 {
    match step.reads.get(1) {
        Some(Operand { place: Place::Weight(_), rows: Rows::Fixed(n), .. }) => (u64::from(*n) / rows).max(1),
        _ => 1,
    }
}

fn family(step: &Step, y: &Operand) -> Kernel {
    let y_cols = u64::from(y.cols).max(1);
    let new = |family, attrs: &str| Kernel::new(family, attrs);
    match &step.kind {
        StepKind::Embed => new(Family::Embed, "embed"),
        StepKind::QuantAct { math } => new(Family::Row, &format!("quant {}", math.name())),
        StepKind::Linear { act, bias, residual } => {
            Kernel { residual: *residual, ..new(Family::Product, &format!("linear {} {bias}", act.name())) }
        }
        StepKind::LinearGlu { act, situ: it, quant } => {
            new(Family::Row, &format!("linear_glu {} {} {}", act.name(), situ(*it), quantised(*quant)))
        }
        StepKind::Add => new(Family::Elementwise, "add"),
        StepKind::Mul => new(Family::Elementwise, "mul"),
        StepKind::Unary { kind } => new(Family::Elementwise, &format!("unary {}", kind.name())),
        StepKind::Glu { act, situ: it } => {
            new(Family::Elementwise, &format!("glu {} {}", act.name(), situ(*it)))
        }
        StepKind::RmsNorm { eps, quant } => new(Family::Row, &format!("rms {eps:e} {}", quantised(*quant))),
        StepKind::LayerNorm { eps, bias: _, quant } => {
            new(Family::Row, &format!("layer {eps:e} {}", quantised(*quant)))
        }
        StepKind::RopeAngles { freqs, .. } => new(Family::Angles, &angles(freqs.iter().copied())),
        StepKind::Rope { head_dim, skip, style } => {
            let head = u64::from(*head_dim).max(1);
            Kernel { head, ..new(Family::Rope, &format!("rope {} {skip}", style.name())) }
        }
        StepKind::KvAppend => Kernel { head: y_cols, ..new(Family::Append, "append") },
        StepKind::Attention { scale, heads } => {
            let heads = u64::from(*heads).max(1);
            let head = (y_cols / heads).max(1);
            Kernel { head, heads, ..new(Family::Attention, &format!("attention {scale:e}")) }
        }
        StepKind::SelectRows => new(Family::Select, "select"),
        StepKind::Argmax => new(Family::Row, "argmax"),
        StepKind::FiniteCheck => new(Family::Row, "finite"),
        _ => hybrid(step, y_cols),
    }
}

fn hybrid(step: &Step, y_cols: u64) -> Kernel {
    let new = |family, attrs: &str| Kernel::new(family, attrs);
    let read = |slot: usize| cols(step.reads.get(slot));
    match &step.kind {
        StepKind::Concat => new(Family::Concat, "concat"),
        StepKind::ShortConv { act } => new(Family::Conv, &format!("conv {}", act.name())),
        StepKind::L2Norm { dim, eps, scale } => {
            let head = u64::from(*dim).max(1);
            Kernel { head, ..new(Family::HeadNorm, &format!("l2 {dim} {eps:e} {scale:e}")) }
        }
        StepKind::KdaGate { lower_bound } => {
            let head = (y_cols / read(1)).max(1);
            Kernel { head, ..new(Family::Gate, &format!("gate {lower_bound:e}")) }
        }
        StepKind::KdaStep => Kernel { head: (y_cols / read(4)).max(1), ..new(Family::Delta, "delta") },
        StepKind::GatedRmsNorm { eps } => {
            Kernel { head: read(2), ..new(Family::HeadNorm, &format!("gated rms {eps:e}")) }
        }
        StepKind::HeadLinear => {
            let heads = matrices(step, y_cols);
            Kernel { head: y_cols, heads, ..new(Family::HeadProduct, "head linear") }
        }
        StepKind::HeadLinearT => {
            let heads = matrices(step, read(0));
            Kernel { head: y_cols, heads, ..new(Family::HeadProductT, "head linear t") }
        }
        StepKind::LatentAttention { scale, heads, .. } => {
            let heads = u64::from(*heads).max(1);
            Kernel { heads, ..new(Family::Latent, &format!("latent {scale:e}")) }
        }
        StepKind::AttnResMix { eps, .. } => new(Family::Row, &format!("mix {eps:e}")),
        StepKind::RouteTopK { scoring, groups, keep, renorm, scale, .. } => {
            new(Family::Route, &format!("route {} {groups} {keep} {renorm} {scale:e}", scoring.name()))
        }
        StepKind::ExpertSort { experts } => {
            Kernel { heads: u64::from(*experts).max(1), ..new(Family::Sort, &format!("sort {experts}")) }
        }
        StepKind::ExpertGather => Kernel { gather: true, ..new(Family::Gather, "gather") },
        StepKind::ExpertLinear { act, gather } => Kernel {
            heads: matrices(step, y_cols),
            gather: *gather,
            ..new(Family::Expert, &format!("expert {}", act.name()))
        },
        StepKind::ExpertGlu { act, situ: it, quant, gather } => Kernel {
            heads: matrices(step, y_cols),
            gather: *gather,
            ..new(
                Family::ExpertGlu,
                &format!("expert glu {} {} {}", act.name(), situ(*it), quantised(*quant)),
            )
        },
        StepKind::ExpertLut { gather } => {
            Kernel { heads: matrices(step, y_cols), gather: *gather, ..new(Family::ExpertLut, "expert lut") }
        }
        StepKind::ExpertVq { code, tables, gather } => Kernel {
            heads: matrices(step, y_cols),
            gather: *gather,
            ..new(Family::ExpertVq, &format!("expert vq {} {}", code.name(), tables.name()))
        },
        StepKind::ExpertSum => new(Family::Sum, "sum"),
        StepKind::LutBuild { code, tables } => {
            let head = waste_plan::LutLayout { code: *code, tables: *tables }.slab_at(32) as u64 / 64;
            Kernel { head, ..new(Family::Tables, &format!("tables {} {}", code.name(), tables.name())) }
        }
        other => unreachable!("'{}' computes nothing, or is named above", other.name()),
    }
}
