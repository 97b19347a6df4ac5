//! The attributes of step kinds, printed and parsed side by side.

use std::fmt;

use super::lex::{Line, Parsed};
use crate::schema::StepKind;
use crate::words::{Act, RopeStyle, UnaryKind};
use crate::{DType, Math};

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
        StepKind::LinearGlu { act, quant } => {
            push_act(&mut out, *act);
            push_quant(&mut out, *quant);
        }
        StepKind::Unary { kind } => set("kind", kind.name().into()),
        StepKind::Glu { act } => push_act(&mut out, *act),
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
        StepKind::Rope { head_dim, style } => {
            set("head_dim", head_dim.to_string());
            set("style", style.name().into());
        }
        StepKind::Attention { scale, heads } => {
            set("scale", format!("{scale:?}"));
            set("heads", heads.to_string());
        }
        StepKind::Embed
        | StepKind::Add
        | StepKind::Mul
        | StepKind::KvAppend
        | StepKind::SelectRows
        | StepKind::Argmax
        | StepKind::FiniteCheck => {}
    }
    out
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
        "linear_glu" => StepKind::LinearGlu { act: it.act()?, quant: it.quant()? },
        "add" => StepKind::Add,
        "mul" => StepKind::Mul,
        "unary" => {
            it.attr("kind")?;
            StepKind::Unary { kind: it.line.named("function", UnaryKind::from_name)? }
        }
        "glu" => StepKind::Glu { act: it.act()? },
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
            it.attr("style")?;
            StepKind::Rope { head_dim, style: it.line.named("style", RopeStyle::from_name)? }
        }
        "kv_append" => StepKind::KvAppend,
        "attention" => StepKind::Attention { scale: it.float("scale")?, heads: it.int("heads")? },
        "select_rows" => StepKind::SelectRows,
        "argmax" => StepKind::Argmax,
        "finite_check" => StepKind::FiniteCheck,
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

    fn int(&mut self, name: &str) -> Parsed<u32> {
        self.attr(name)?;
        self.line.int()
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
