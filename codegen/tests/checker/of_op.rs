//! What an op of a graph computes, as a [`Kernel`].

use waste_ir::{Dim, Graph, Op, OpData, RopeScaling, ValueId};

use super::kernels::{Family, Kernel, mix};
use super::of_step::{angles, quantised};

/// What an op of a graph computes; none for views.
pub(crate) fn kernel(graph: &Graph, data: &OpData) -> Option<Kernel> {
    let kernel = family(graph, data)?;
    let ty = graph.ty(data.results[0]);
    let width = if ty.shape.rank() == 1 { 1 } else { ty.shape.cols().unwrap() };
    Some(Kernel { attrs: mix(kernel.attrs, width.into()), ..kernel })
}

fn family(graph: &Graph, data: &OpData) -> Option<Kernel> {
    let cols = |value: ValueId| u64::from(graph.ty(value).shape.cols().unwrap_or(1));
    let new = |family, attrs: &str| Kernel::new(family, attrs);
    Some(match &data.op {
        Op::Embed {} => new(Family::Embed, "embed"),
        Op::QuantAct { math } => new(Family::Row, &format!("quant {}", math.name())),
        Op::Linear { act } => {
            let (bias, residual) = (data.optional(2).is_some(), data.optional(3).is_some());
            Kernel { residual, ..new(Family::Product, &format!("linear {} {bias}", act.name())) }
        }
        Op::LinearGlu { act, quant, beta, linear } => {
            new(Family::Row, &format!("linear_glu {} {beta:e} {linear:e} {}", act.name(), quantised(*quant)))
        }
        Op::Add {} => new(Family::Elementwise, "add"),
        Op::Mul {} => new(Family::Elementwise, "mul"),
        Op::Unary { kind } => new(Family::Elementwise, &format!("unary {}", kind.name())),
        Op::Glu { act, beta, linear } => {
            new(Family::Elementwise, &format!("glu {} {beta:e} {linear:e}", act.name()))
        }
        Op::RmsNorm { eps, quant } => new(Family::Row, &format!("rms {eps:e} {}", quantised(*quant))),
        Op::LayerNorm { eps, quant } => new(Family::Row, &format!("layer {eps:e} {}", quantised(*quant))),
        Op::RopeAngles { dims, base, scaling } => {
            let freq = |i: u32| base.powf(-f64::from(2 * i) / f64::from(*dims));
            let all = (0..dims / 2).map(|i| rescaled((i, freq(i)), (*dims, *base), *scaling));
            new(Family::Angles, &angles(all))
        }
        Op::Rope { head_dim, style, skip } => Kernel {
            head: u64::from(*head_dim),
            ..new(Family::Rope, &format!("rope {} {skip}", style.name()))
        },
        Op::KvAppend {} => Kernel { head: cols(data.operand(0)), ..new(Family::Append, "append") },
        Op::Attention { scale } => {
            let heads = cols(data.operand(0)) / cols(data.operand(1));
            let head = cols(data.results[0]) / heads;
            Kernel { head, heads, ..new(Family::Attention, &format!("attention {scale:e}")) }
        }
        Op::SelectRows {} => new(Family::Select, "select"),
        Op::Argmax {} => new(Family::Row, "argmax"),
        Op::FiniteCheck {} => new(Family::Row, "finite"),
        Op::Slice { .. } | Op::Reshape { .. } => return None,
        _ => hybrid(graph, data),
    })
}

fn hybrid(graph: &Graph, data: &OpData) -> Kernel {
    let cols = |value: ValueId| u64::from(graph.ty(value).shape.cols().unwrap_or(1));
    let new = |family, attrs: &str| Kernel::new(family, attrs);
    let y_cols = cols(data.results[0]);
    match &data.op {
        Op::Concat {} => new(Family::Concat, "concat"),
        Op::ShortConv { act } => new(Family::Conv, &format!("conv {}", act.name())),
        Op::L2Norm { dim, eps, scale } => {
            Kernel { head: u64::from(*dim), ..new(Family::HeadNorm, &format!("l2 {dim} {eps:e} {scale:e}")) }
        }
        Op::KdaGate { lower_bound } => {
            let head = y_cols / cols(data.operand(1));
            Kernel { head, ..new(Family::Gate, &format!("gate {lower_bound:e}")) }
        }
        Op::KdaStep {} => Kernel { head: y_cols / cols(data.operand(5)), ..new(Family::Delta, "delta") },
        Op::GatedRmsNorm { eps } => {
            Kernel { head: cols(data.operand(2)), ..new(Family::HeadNorm, &format!("gated rms {eps:e}")) }
        }
        Op::HeadLinear {} => {
            Kernel { head: y_cols, heads: matrices(graph, data), ..new(Family::HeadProduct, "head linear") }
        }
        Op::HeadLinearT {} => Kernel {
            head: y_cols,
            heads: matrices(graph, data),
            ..new(Family::HeadProductT, "head linear t")
        },
        Op::LatentAttention { scale } => {
            let mul = |slot| match graph.ty(data.operand(slot)).shape.dims()[0] {
                Dim::Scaled { mul, .. } => u64::from(mul),
                Dim::Const(_) => unreachable!("queries are counted by tokens"),
            };
            let heads = mul(0) / mul(2);
            Kernel { heads, ..new(Family::Latent, &format!("latent {scale:e}")) }
        }
        Op::AttnResMix { eps } => new(Family::Row, &format!("mix {eps:e}")),
        Op::RouteTopK { k: _, scoring, renorm, scale, groups, keep } => {
            new(Family::Route, &format!("route {} {groups} {keep} {renorm} {scale:e}", scoring.name()))
        }
        Op::ExpertSort { experts } => {
            Kernel { heads: u64::from(*experts), ..new(Family::Sort, &format!("sort {experts}")) }
        }
        Op::ExpertGather {} => Kernel { gather: true, ..new(Family::Gather, "gather") },
        Op::ExpertLinear { act, gather } => Kernel {
            heads: matrices(graph, data),
            gather: *gather,
            ..new(Family::Expert, &format!("expert {}", act.name()))
        },
        Op::ExpertGlu { act, gather, quant, beta, linear } => Kernel {
            heads: matrices(graph, data),
            gather: *gather,
            ..new(
                Family::ExpertGlu,
                &format!("expert glu {} {beta:e} {linear:e} {}", act.name(), quantised(*quant)),
            )
        },
        Op::ExpertLut { gather } => {
            Kernel { heads: matrices(graph, data), gather: *gather, ..new(Family::ExpertLut, "expert lut") }
        }
        Op::ExpertVq { code, tables, gather } => Kernel {
            heads: matrices(graph, data),
            gather: *gather,
            ..new(Family::ExpertVq, &format!("expert vq {} {}", code.name(), tables.name()))
        },
        Op::ExpertSum {} => new(Family::Sum, "sum"),
        Op::LutBuild { code, tables } => {
            let head = waste_plan::LutLayout { code: *code, tables: *tables }.slab_at(32) as u64 / 64;
            Kernel { head, ..new(Family::Tables, &format!("tables {} {}", code.name(), tables.name())) }
        }
        other => unreachable!("the suite has no '{}'", other.name()),
    }
}

/// Matrices of the bank in operand 1.
fn matrices(graph: &Graph, data: &OpData) -> u64 {
    graph.ty(data.operand(1)).shape.dims()[0].known().unwrap().into()
}

/// Frequency `i`: position interpolation, Llama 3's rule as its model card states it, or YaRN's as its paper does: by wave length
/// against two bounds.
fn rescaled((i, freq): (u32, f64), (dims, base): (u32, f64), scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::None => freq,
        RopeScaling::Linear { factor } => freq / factor,
        RopeScaling::Llama3 { factor, low, high, orig } => {
            // Turns that the original context makes: few turns are stretched, many are kept, between them a ramp.
            let turns = f64::from(orig) * freq / std::f64::consts::TAU;
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            freq * (kept + (1.0 - kept) / factor)
        }
        RopeScaling::Yarn { factor, fast, slow, orig } => {
            // The pair that makes so many turns in the original context: orig · base^(−2i/dims) = turns · 2π.
            let pair = |turns: f64| {
                let waves = f64::from(orig) / (turns * std::f64::consts::TAU);
                f64::from(dims) / 2.0 * waves.ln() / base.ln()
            };
            let first = pair(fast).floor().max(0.0);
            let last = pair(slow).ceil().min(f64::from(dims) - 1.0);
            let width = if first == last { 0.001 } else { last - first };
            let stretched = ((f64::from(i) - first) / width).clamp(0.0, 1.0);
            freq * (stretched / factor + 1.0 - stretched)
        }
    }
}
