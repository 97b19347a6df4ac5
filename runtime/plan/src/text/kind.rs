//! The attributes of step kinds, printed and parsed side by side.

use std::fmt;

use super::lex::{Line, Parsed};
use crate::schema::{Situ, StepKind};
use crate::words::{Act, RopeStyle, Scoring, UnaryKind};
use crate::{DType, Math, Tables, VqCode};

/// Prints the attributes of a kind as ` {name=value, flag}`, or nothing if it has none to print.
pub(super) struct KindText<'a>(pub(super) &'a StepKind);

impl fmt::Display for KindText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in attrs(self.0).into_iter().enumerate() {
            write!(f, "{}{name}", if i == 0 { " {" } else { ", " })?;
            if let Some(value) = value {
                write!(f, "={value}")?;
            }
        }
        f.write_str(if attrs(self.0).is_empty() { "" } else { "}" })
    }
}

type Attrs = Vec<(&'static str, Option<String>)>;

/// Attributes that are not neutral, flags without a value, in the order in which they are parsed.
fn attrs(kind: &StepKind) -> Attrs {
    let mut out = Attrs::new();
    let mut set = |name, value: String| out.push((name, Some(value)));
    match kind {
        StepKind::QuantAct { math } => set("math", math.name().into()),
        StepKind::Linear { act, bias, residual } => {
            push_act(&mut out, *act);
            push_flag(&mut out, "bias", *bias);
            push_flag(&mut out, "residual", *residual);
        }
        StepKind::LinearGlu { act, situ, quant } => {
            push_act(&mut out, *act);
            push_situ(&mut out, *situ);
            push_quant(&mut out, *quant);
        }
        StepKind::Unary { kind } => set("kind", kind.name().into()),
        StepKind::Glu { act, situ } => {
            push_act(&mut out, *act);
            push_situ(&mut out, *situ);
        }
        StepKind::RmsNorm { eps, quant } => {
            set("eps", format!("{eps:?}"));
            push_quant(&mut out, *quant);
        }
        StepKind::LayerNorm { eps, bias, quant } => {
            set("eps", format!("{eps:?}"));
            push_flag(&mut out, "bias", *bias);
            push_quant(&mut out, *quant);
        }
        StepKind::RopeAngles { freqs, factors } => {
            set("freqs", format!("{freqs:?}"));
            push_flag(&mut out, "factors", *factors);
        }
        StepKind::Rope { head_dim, skip, style } => {
            set("head_dim", head_dim.to_string());
            if *skip > 0 {
                set("skip", skip.to_string());
            }
            set("style", style.name().into());
        }
        StepKind::Attention { scale, heads } => {
            set("scale", format!("{scale:?}"));
            set("heads", heads.to_string());
        }
        StepKind::ShortConv { act } => push_act(&mut out, *act),
        StepKind::L2Norm { dim, eps, scale } => {
            set("dim", dim.to_string());
            set("eps", format!("{eps:?}"));
            set("scale", format!("{scale:?}"));
        }
        StepKind::KdaGate { lower_bound } => set("lower_bound", format!("{lower_bound:?}")),
        StepKind::GatedRmsNorm { eps } => set("eps", format!("{eps:?}")),
        StepKind::LatentAttention { scale, heads, rope } => {
            set("scale", format!("{scale:?}"));
            set("heads", heads.to_string());
            push_flag(&mut out, "rope", *rope);
        }
        StepKind::AttnResMix { eps, blocks } => {
            set("eps", format!("{eps:?}"));
            push_flag(&mut out, "blocks", *blocks);
        }
        StepKind::RouteTopK { scoring, groups, keep, renorm, scale, bias } => {
            set("scoring", scoring.name().into());
            set("groups", groups.to_string());
            set("keep", keep.to_string());
            set("scale", format!("{scale:?}"));
            push_flag(&mut out, "renorm", *renorm);
            push_flag(&mut out, "bias", *bias);
        }
        StepKind::ExpertSort { experts } => set("experts", experts.to_string()),
        StepKind::ExpertLinear { act, gather } => {
            push_act(&mut out, *act);
            push_flag(&mut out, "gather", *gather);
        }
        StepKind::ExpertGlu { act, situ, quant, gather } => {
            push_act(&mut out, *act);
            push_situ(&mut out, *situ);
            push_quant(&mut out, *quant);
            push_flag(&mut out, "gather", *gather);
        }
        StepKind::LutBuild { code, tables } => {
            set("code", code.name().into());
            set("tables", tables.name().into());
        }
        StepKind::ExpertLut { gather } => push_flag(&mut out, "gather", *gather),
        StepKind::ExpertVq { code, tables, gather } => {
            set("code", code.name().into());
            set("tables", tables.name().into());
            push_flag(&mut out, "gather", *gather);
        }
        StepKind::ExpertPrefetch { bank, speculative } => {
            set("bank", bank.to_string());
            push_flag(&mut out, "speculative", *speculative);
        }
        StepKind::ExpertWindow { bank, body } | StepKind::ExpertRelease { bank, body } => {
            set("bank", bank.to_string());
            set("body", body.to_string());
        }
        StepKind::Embed
        | StepKind::Add
        | StepKind::Mul
        | StepKind::KvAppend
        | StepKind::SelectRows
        | StepKind::Argmax
        | StepKind::FiniteCheck
        | StepKind::Concat
        | StepKind::KdaStep
        | StepKind::HeadLinear
        | StepKind::HeadLinearT
        | StepKind::ExpertGather
        | StepKind::ExpertSum => {}
    }
    out
}

fn push_situ(out: &mut Attrs, situ: Situ) {
    if !situ.is_neutral() {
        out.push(("beta", Some(format!("{:?}", situ.beta))));
        out.push(("linear", Some(format!("{:?}", situ.linear))));
    }
}

fn push_act(out: &mut Attrs, act: Act) {
    if act != Act::None {
        out.push(("act", Some(act.name().into())));
    }
}

fn push_flag(out: &mut Attrs, name: &'static str, is_set: bool) {
    if is_set {
        out.push((name, None));
    }
}

fn push_quant(out: &mut Attrs, quant: Option<Math>) {
    if let Some(math) = quant {
        out.push(("quant", Some(math.name().into())));
    }
}

/// Reads the attributes of the kind named `name`, up to and including the closing brace.
pub(super) fn parse(name: &str, line: &mut Line<'_>) -> Parsed<StepKind> {
    let mut braces = Braces { line, is_open: false, n_taken: 0 };
    let kind = kind(name, &mut braces)?;
    braces.close()?;
    Ok(kind)
}

fn kind(name: &str, it: &mut Braces<'_, '_>) -> Parsed<StepKind> {
    Ok(match name {
        "embed" => StepKind::Embed,
        "quant_act" => StepKind::QuantAct { math: it.math("math")? },
        "linear" => {
            StepKind::Linear { act: it.act()?, bias: it.takes("bias"), residual: it.takes("residual") }
        }
        "linear_glu" => StepKind::LinearGlu { act: it.act()?, situ: it.situ()?, quant: it.quant()? },
        "add" => StepKind::Add,
        "mul" => StepKind::Mul,
        "unary" => {
            it.attr("kind")?;
            StepKind::Unary { kind: it.line.named("function", UnaryKind::from_name)? }
        }
        "glu" => StepKind::Glu { act: it.act()?, situ: it.situ()? },
        "rms_norm" => StepKind::RmsNorm { eps: it.float("eps")?, quant: it.quant()? },
        "layer_norm" => {
            StepKind::LayerNorm { eps: it.float("eps")?, bias: it.takes("bias"), quant: it.quant()? }
        }
        "rope_angles" => {
            it.attr("freqs")?;
            StepKind::RopeAngles { freqs: it.line.list(Line::float)?, factors: it.takes("factors") }
        }
        "rope" => {
            let head_dim = it.int("head_dim")?;
            let skip = it.int_or("skip", 0)?;
            it.attr("style")?;
            StepKind::Rope { head_dim, skip, style: it.line.named("style", RopeStyle::from_name)? }
        }
        "kv_append" => StepKind::KvAppend,
        "attention" => StepKind::Attention { scale: it.float("scale")?, heads: it.int("heads")? },
        "select_rows" => StepKind::SelectRows,
        "argmax" => StepKind::Argmax,
        "finite_check" => StepKind::FiniteCheck,
        _ => return family(name, it),
    })
}

/// The kinds of recurrent layers, latent attention and experts.
fn family(name: &str, it: &mut Braces<'_, '_>) -> Parsed<StepKind> {
    Ok(match name {
        "concat" => StepKind::Concat,
        "short_conv" => StepKind::ShortConv { act: it.act()? },
        "l2_norm" => {
            StepKind::L2Norm { dim: it.int("dim")?, eps: it.float("eps")?, scale: it.float("scale")? }
        }
        "kda_gate" => StepKind::KdaGate { lower_bound: it.float("lower_bound")? },
        "kda_step" => StepKind::KdaStep,
        "gated_rms_norm" => StepKind::GatedRmsNorm { eps: it.float("eps")? },
        "head_linear" => StepKind::HeadLinear,
        "head_linear_t" => StepKind::HeadLinearT,
        "latent_attention" => StepKind::LatentAttention {
            scale: it.float("scale")?,
            heads: it.int("heads")?,
            rope: it.takes("rope"),
        },
        "attn_res_mix" => StepKind::AttnResMix { eps: it.float("eps")?, blocks: it.takes("blocks") },
        "route_top_k" => {
            it.attr("scoring")?;
            StepKind::RouteTopK {
                scoring: it.line.named("scoring", Scoring::from_name)?,
                groups: it.int("groups")?,
                keep: it.int("keep")?,
                scale: it.float("scale")?,
                renorm: it.takes("renorm"),
                bias: it.takes("bias"),
            }
        }
        "expert_sort" => StepKind::ExpertSort { experts: it.int("experts")? },
        "expert_gather" => StepKind::ExpertGather,
        "expert_linear" => StepKind::ExpertLinear { act: it.act()?, gather: it.takes("gather") },
        "expert_glu" => StepKind::ExpertGlu {
            act: it.act()?,
            situ: it.situ()?,
            quant: it.quant()?,
            gather: it.takes("gather"),
        },
        "expert_sum" => StepKind::ExpertSum,
        "lut_build" => {
            let (code, tables) = it.lut()?;
            StepKind::LutBuild { code, tables }
        }
        "expert_lut" => StepKind::ExpertLut { gather: it.takes("gather") },
        "expert_vq" => {
            let (code, tables) = it.lut()?;
            StepKind::ExpertVq { code, tables, gather: it.takes("gather") }
        }
        "expert_prefetch" => {
            StepKind::ExpertPrefetch { bank: it.int("bank")?, speculative: it.takes("speculative") }
        }
        "expert_window" => StepKind::ExpertWindow { bank: it.int("bank")?, body: it.int("body")? },
        "expert_release" => StepKind::ExpertRelease { bank: it.int("bank")?, body: it.int("body")? },
        _ => return Err(it.line.error(format!("unknown step kind '{name}'"))),
    })
}

/// Attributes between braces, the braces left out where there is no attribute.
struct Braces<'l, 'a> {
    line: &'l mut Line<'a>,
    is_open: bool,
    n_taken: usize,
}

impl Braces<'_, '_> {
    /// Reads the name of an attribute if it is next, with the brace or comma before it.
    fn takes(&mut self, name: &str) -> bool {
        self.is_open = self.is_open || self.line.takes('{');
        let is_next = self.is_open && self.line.takes_item(name, self.n_taken == 0);
        self.n_taken += usize::from(is_next);
        is_next
    }

    fn close(self) -> Parsed<()> {
        if self.is_open { self.line.mark('}') } else { Ok(()) }
    }

    fn attr(&mut self, name: &str) -> Parsed<()> {
        if !self.takes(name) {
            return Err(self.line.error(format!("expected the attribute '{name}'")));
        }
        self.line.mark('=')
    }

    fn lut(&mut self) -> Parsed<(VqCode, Tables)> {
        self.attr("code")?;
        let code = self.line.named("code", VqCode::from_name)?;
        self.attr("tables")?;
        Ok((code, self.line.named("tables", Tables::from_name)?))
    }

    fn int(&mut self, name: &str) -> Parsed<u32> {
        self.attr(name)?;
        self.line.int()
    }

    fn int_or(&mut self, name: &str, default: u32) -> Parsed<u32> {
        if !self.takes(name) {
            return Ok(default);
        }
        self.line.mark('=')?;
        self.line.int()
    }

    fn situ(&mut self) -> Parsed<Situ> {
        if !self.takes("beta") {
            return Ok(Situ::default());
        }
        self.line.mark('=')?;
        Ok(Situ { beta: self.line.float()?, linear: self.float("linear")? })
    }

    fn float(&mut self, name: &str) -> Parsed<f32> {
        self.attr(name)?;
        self.line.float()
    }

    fn math(&mut self, name: &str) -> Parsed<Math> {
        self.attr(name)?;
        self.line.named("arithmetic", Math::from_name)
    }

    fn act(&mut self) -> Parsed<Act> {
        if !self.takes("act") {
            return Ok(Act::None);
        }
        self.line.mark('=')?;
        self.line.named("activation", Act::from_name)
    }

    fn quant(&mut self) -> Parsed<Option<Math>> {
        if !self.takes("quant") {
            return Ok(None);
        }
        self.line.mark('=')?;
        self.line.named("arithmetic", Math::from_name).map(Some)
    }
}

/// Reads a dtype.
pub(super) fn dtype(line: &mut Line<'_>) -> Parsed<DType> {
    line.named("dtype", DType::from_name)
}
