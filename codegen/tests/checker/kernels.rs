//! What each kernel depends on, in symbols: a result element is a hash of exactly the elements that go into it.
//!
//! Plan and graph run through the same [`element`], one over the plan's memory, the other over ideal values. Two results are
//! equal only if they were made by the same arithmetic from the same inputs.

use waste_ir::{Graph, Op, OpData, RopeScaling, ValueId};
use waste_plan::Math;
use waste_plan::schema::{Operand, StepKind};

/// Mixes a number into a hash (splitmix64's finaliser).
pub(crate) const fn mix(hash: u64, with: u64) -> u64 {
    let mut z = (hash ^ with.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A hash of text.
pub(crate) fn name(text: &str) -> u64 {
    text.bytes().fold(0, |hash, byte| mix(hash, u64::from(byte)))
}

/// Where the operands of an op are read.
pub(crate) trait Operands {
    /// A hash of elements `from .. to` of a row of operand `slot`; of all of it for weights.
    fn row(&mut self, slot: usize, row: u64, from: u64, to: u64) -> u64;
    /// Elements in a row of operand `slot`.
    fn cols(&self, slot: usize) -> u64;
    /// Columns of operand `slot`, padding left out.
    fn width(&self, slot: usize) -> u64;
    /// The number that an element of an input stands for.
    fn number(&mut self, slot: usize, row: u64) -> u64;
    /// A hash of the vectors of positions `0 ..= pos` in the cache at operand `slot`.
    fn cached(&mut self, slot: usize, row: u64, pos: u64, head: u64) -> u64;
    /// Heads of the cache at operand `slot`.
    fn heads(&self, slot: usize) -> u64;
    /// The number of operands.
    fn len(&self) -> usize;
}

/// The family of a kernel, as far as dependences go, and a hash of its attributes.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) family: Family,
    attrs: u64,
    /// Columns of one head of the result, where heads matter.
    pub(crate) head: u64,
    /// Query heads of an attention.
    heads: u64,
    /// Whether the last operand is a residual.
    residual: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Embed,
    /// Each element from its whole row, and weights.
    Row,
    /// Each element from a whole row and weights, then one element of the residual.
    Product,
    /// Each element from the same element of all operands.
    Elementwise,
    Angles,
    Rope,
    Append,
    Attention,
    Select,
}

/// Element (`row`, `col`) of the result; `col` counts units of four bytes.
pub(crate) fn element(kernel: &Kernel, x: &mut impl Operands, row: u64, col: u64) -> u64 {
    let start = mix(kernel.attrs, col);
    match kernel.family {
        Family::Embed => {
            let id = x.number(0, row);
            mix(mix(start, id), x.row(1, 0, 0, 0))
        }
        Family::Row => (0..x.len()).fold(start, |hash, slot| whole(hash, x, slot, row)),
        Family::Product => {
            let n_whole = x.len() - usize::from(kernel.residual);
            let hash = (0..n_whole).fold(start, |hash, slot| whole(hash, x, slot, row));
            if kernel.residual { mix(hash, x.row(n_whole, row, col, col + 1)) } else { hash }
        }
        Family::Elementwise => {
            (0..x.len()).fold(kernel.attrs, |hash, slot| mix(hash, x.row(slot, row, col, col + 1)))
        }
        Family::Angles => {
            let pos = x.number(0, row);
            (1..x.len()).fold(mix(start, pos), |hash, slot| mix(hash, x.row(slot, 0, 0, 0)))
        }
        Family::Rope => {
            let from = col / kernel.head * kernel.head;
            let angles = x.cols(1);
            mix(mix(start, x.row(0, row, from, from + kernel.head)), x.row(1, row, 0, angles))
        }
        Family::Append => mix(kernel.attrs, x.row(0, row, col * kernel.head, (col + 1) * kernel.head)),
        Family::Attention => attention(kernel, x, row, col),
        Family::Select => {
            let want = x.number(1, row);
            mix(kernel.attrs, x.row(0, want, col, col + 1))
        }
    }
}

fn whole(hash: u64, x: &mut impl Operands, slot: usize, row: u64) -> u64 {
    let cols = x.cols(slot);
    mix(mix(hash, x.width(slot)), x.row(slot, row, 0, cols))
}

fn attention(kernel: &Kernel, x: &mut impl Operands, row: u64, col: u64) -> u64 {
    let (sequence, pos) = (x.number(3, row), x.number(4, row));
    let head = col / kernel.head;
    let d = x.cols(0) / kernel.heads;
    let cache_head = head / (kernel.heads / x.heads(1).max(1)).max(1);
    let hash = mix(mix(kernel.attrs, col), x.row(0, row, head * d, (head + 1) * d));
    let (keys, values) = (x.cached(1, sequence, pos, cache_head), x.cached(2, sequence, pos, cache_head));
    mix(mix(hash, keys), values)
}

fn quantised(quant: Option<Math>) -> &'static str {
    quant.map_or("f32 result", Math::name)
}

/// Frequencies to ten digits: the two sides may round differently.
fn angles(freqs: impl Iterator<Item = f64>) -> String {
    freqs.map(|it| format!("{it:.9e} ")).collect()
}

impl Kernel {
    fn new(family: Family, attrs: impl AsRef<str>) -> Self {
        Self { family, attrs: name(attrs.as_ref()), head: 1, heads: 1, residual: false }
    }

    /// What a step computes into `y`.
    pub(crate) fn of_step(kind: &StepKind, y: &Operand) -> Self {
        let kernel = Self::family_of_step(kind, y);
        Self { attrs: mix(kernel.attrs, y.cols.into()), ..kernel }
    }

    fn family_of_step(kind: &StepKind, y: &Operand) -> Self {
        use Family::{Angles, Append, Attention, Elementwise, Embed, Product, Rope, Row, Select};
        let y_cols = u64::from(y.cols).max(1);
        match kind {
            StepKind::Embed => Self::new(Embed, "embed"),
            StepKind::QuantAct { math } => Self::new(Row, format!("quant {}", math.name())),
            StepKind::Linear { act, bias, residual } => {
                Self { residual: *residual, ..Self::new(Product, format!("linear {} {bias}", act.name())) }
            }
            StepKind::LinearGlu { act, situ: _, quant } => {
                Self::new(Row, format!("linear_glu {} {}", act.name(), quantised(*quant)))
            }
            StepKind::Add => Self::new(Elementwise, "add"),
            StepKind::Mul => Self::new(Elementwise, "mul"),
            StepKind::Unary { kind } => Self::new(Elementwise, format!("unary {}", kind.name())),
            StepKind::Glu { act, situ: _ } => Self::new(Elementwise, format!("glu {}", act.name())),
            StepKind::RmsNorm { eps, quant } => Self::new(Row, format!("rms {eps:e} {}", quantised(*quant))),
            StepKind::LayerNorm { eps, bias: _, quant } => {
                Self::new(Row, format!("layer {eps:e} {}", quantised(*quant)))
            }
            StepKind::RopeAngles { freqs, .. } => Self::new(Angles, angles(freqs.iter().copied())),
            StepKind::Rope { head_dim, skip: _, style } => {
                let head = u64::from(*head_dim).max(1);
                Self { head, ..Self::new(Rope, format!("rope {}", style.name())) }
            }
            StepKind::KvAppend => Self { head: y_cols, ..Self::new(Append, "append") },
            StepKind::Attention { scale, heads } => {
                let heads = u64::from(*heads).max(1);
                Self {
                    head: (y_cols / heads).max(1),
                    heads,
                    ..Self::new(Attention, format!("attention {scale:e}"))
                }
            }
            StepKind::SelectRows => Self::new(Select, "select"),
            StepKind::Argmax => Self::new(Row, "argmax"),
            StepKind::FiniteCheck => Self::new(Row, "finite"),
            other => unreachable!("the suite has no '{}'", other.name()),
        }
    }

    /// Whether operand 1 is read by row alone: angles, wanted rows.
    pub(crate) fn is_indexed(&self) -> bool {
        matches!(self.family, Family::Rope | Family::Select)
    }

    /// What an op of a graph computes; none for views.
    pub(crate) fn of_op(graph: &Graph, data: &OpData) -> Option<Self> {
        let kernel = Self::family_of_op(graph, data)?;
        let ty = graph.ty(data.results[0]);
        let width = if ty.shape.rank() == 1 { 1 } else { ty.shape.cols().unwrap() };
        Some(Self { attrs: mix(kernel.attrs, width.into()), ..kernel })
    }

    fn family_of_op(graph: &Graph, data: &OpData) -> Option<Self> {
        use Family::{Angles, Append, Attention, Elementwise, Embed, Product, Rope, Row, Select};
        let cols = |value: ValueId| u64::from(graph.ty(value).shape.cols().unwrap_or(1));
        Some(match &data.op {
            Op::Embed {} => Self::new(Embed, "embed"),
            Op::QuantAct { math } => Self::new(Row, format!("quant {}", math.name())),
            Op::Linear { act } => {
                let (bias, residual) = (data.optional(2).is_some(), data.optional(3).is_some());
                Self { residual, ..Self::new(Product, format!("linear {} {bias}", act.name())) }
            }
            Op::LinearGlu { act, quant, .. } => {
                Self::new(Row, format!("linear_glu {} {}", act.name(), quantised(*quant)))
            }
            Op::Add {} => Self::new(Elementwise, "add"),
            Op::Mul {} => Self::new(Elementwise, "mul"),
            Op::Unary { kind } => Self::new(Elementwise, format!("unary {}", kind.name())),
            Op::Glu { act, .. } => Self::new(Elementwise, format!("glu {}", act.name())),
            Op::RmsNorm { eps, quant } => Self::new(Row, format!("rms {eps:e} {}", quantised(*quant))),
            Op::LayerNorm { eps, quant } => Self::new(Row, format!("layer {eps:e} {}", quantised(*quant))),
            Op::RopeAngles { dims, base, scaling } => {
                let freq = |i: u32| rescaled(base.powf(-f64::from(2 * i) / f64::from(*dims)), *scaling);
                Self::new(Angles, angles((0..dims / 2).map(freq)))
            }
            Op::Rope { head_dim, style, .. } => {
                Self { head: u64::from(*head_dim), ..Self::new(Rope, format!("rope {}", style.name())) }
            }
            Op::KvAppend {} => Self { head: cols(data.operand(0)), ..Self::new(Append, "append") },
            Op::Attention { scale } => {
                let heads = cols(data.operand(0)) / cols(data.operand(1));
                let head = cols(data.results[0]) / heads;
                Self { head, heads, ..Self::new(Attention, format!("attention {scale:e}")) }
            }
            Op::SelectRows {} => Self::new(Select, "select"),
            Op::Argmax {} => Self::new(Row, "argmax"),
            Op::FiniteCheck {} => Self::new(Row, "finite"),
            Op::Slice { .. } | Op::Reshape { .. } => return None,
            other => unreachable!("the suite has no '{}'", other.name()),
        })
    }
}

/// Position interpolation, and Llama 3's rule as its model card states it: by wave length against the two bounds.
fn rescaled(freq: f64, scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::None => freq,
        RopeScaling::Linear { factor } => freq / factor,
        RopeScaling::Llama3 { factor, low, high, orig } => {
            // Turns that the original context makes: few turns are stretched, many are kept, between them a ramp.
            let turns = f64::from(orig) * freq / std::f64::consts::TAU;
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            freq * (kept + (1.0 - kept) / factor)
        }
        RopeScaling::Yarn { .. } => unreachable!("the suite has no YaRN"),
    }
}
