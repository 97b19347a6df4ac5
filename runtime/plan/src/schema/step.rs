//! Steps: what one is, what each kind reads and writes, and how operands name memory.

use serde::{Deserialize, Serialize};

use super::KV_TILE;
use crate::dtype::{DType, Math};
use crate::vq::{LutLayout, Tables, VQ_TOKENS, VqCode};
use crate::words::{Act, RopeStyle, Scoring, UnaryKind};

/// Channels of a block of a convolution's ring: a row's half lies as `[C / 64][K − 1][64]` with a narrower last block.
pub const RING_COLS: u32 = 64;

/// Most columns of a head that a step norms.
pub const MAX_HEAD_COLS: u32 = 1024;

/// Rows that a step over gathered rows takes together: they are copied side by side into a thread's scratch.
pub const GATHER_ROWS: u32 = 16;

/// A unit of execution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What it does.
    pub kind: StepKind,
    /// What it reads, in the order of the op's present operands (states excepted: see the kind).
    pub reads: Vec<Operand>,
    /// What it writes.
    pub writes: Vec<Operand>,
    /// How its work is cut.
    pub tile: Tile,
    /// Whether all threads meet before it.
    pub barrier: bool,
    /// Whether it stands in a loop over experts and works on the pairs of the loop's window alone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub window: bool,
    /// The op of the final graph that it carries out.
    pub op: u32,
}

impl Step {
    /// Scratch that one thread needs for a tile: the product of a linear with a residual, both products of a gated one and a
    /// row of either form for its quantised result, a row of a norm and a missing bias, scores and sums of attention, scores
    /// of a router, gathered rows of an expert's linear.
    ///
    /// `tokens`, `want`: the largest call of the program.
    #[must_use]
    pub fn thread_bytes(&self, tokens: u32, want: u32) -> u64 {
        let most = self.writes.first().map_or(0, |it| it.rows.count(tokens, want));
        let (rows, cols) = (u64::from(self.tile.rows).min(most), u64::from(self.tile.cols));
        let x_cols = self.reads.first().map_or(0, |it| u64::from(it.cols));
        let tile = rows.saturating_mul(cols).saturating_mul(4);
        let gathered = |gather: bool, rows: u64| {
            let row = self.reads.first().and_then(Operand::row_bytes).map_or(0, |it| it.next_multiple_of(64));
            if gather { row.saturating_mul(rows) } else { 0 }
        };
        let most_gathered = u64::from(GATHER_ROWS);
        let fx_row = |quant: Option<Math>| {
            quant.and_then(Math::act_dtype).and_then(|it| it.row_bytes(cols)).unwrap_or(0)
        };
        let bytes = match &self.kind {
            StepKind::Linear { residual: true, .. } => tile,
            StepKind::LinearGlu { quant, .. } => tile
                .saturating_mul(2)
                .saturating_add((cols * 4).next_multiple_of(64))
                .saturating_add(fx_row(*quant)),
            StepKind::RmsNorm { quant: Some(_), .. } => x_cols * 4,
            StepKind::LayerNorm { .. } => x_cols * 8,
            StepKind::Attention { .. } => {
                tile.saturating_mul(2).saturating_add(rows.saturating_mul(u64::from(KV_TILE) + 16) * 4)
            }
            StepKind::LatentAttention { .. } => {
                // A few columns of a tile transposed, and for each query its scores and sums.
                rows.saturating_add(u64::from(KV_TILE))
                    .saturating_mul(u64::from(KV_TILE) + 4)
                    .saturating_mul(4)
            }
            StepKind::RouteTopK { .. } => x_cols * 8,
            StepKind::KdaStep => rows * 4,
            StepKind::ShortConv { .. } => {
                self.reads.get(1).map_or(0, |it| u64::from(it.cols)).saturating_mul(u64::from(RING_COLS) * 4)
            }
            StepKind::ExpertSort { experts } => (u64::from(*experts) + u64::from(tokens) + 2) * 4,
            StepKind::ExpertLinear { gather, .. } => gathered(*gather, most_gathered),
            // Running sums of a block of rows.
            StepKind::ExpertLut { .. } => cols.saturating_mul(4),
            // What the kernel asks for, and rows side by side.
            StepKind::ExpertVq { code, tables, gather } => {
                let layout = LutLayout { code: *code, tables: *tables };
                layout.linear_scratch(self.tile.cols as usize) as u64 * 4
                    + gathered(*gather, VQ_TOKENS as u64)
            }
            StepKind::ExpertGlu { gather, quant, .. } => {
                let products = cols.saturating_mul(u64::from(GATHER_ROWS)).saturating_mul(8);
                let row = (cols * 4).next_multiple_of(64);
                products
                    .saturating_add(row)
                    .saturating_add(fx_row(*quant))
                    .saturating_add(gathered(*gather, most_gathered))
            }
            _ => 0,
        };
        bytes.checked_next_multiple_of(64).unwrap_or(u64::MAX)
    }
}

/// How a step's work is cut into tiles: row blocks × column blocks of the (first) result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tile {
    /// Rows a tile.
    pub rows: u32,
    /// Columns a tile; a multiple of 16, or all columns.
    pub cols: u32,
}

/// What a step does; one variant a kernel family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// reads: ids, table.
    Embed,
    /// reads: x.
    QuantAct {
        /// The arithmetic.
        math: Math,
    },
    /// reads: x, w, then bias and residual if present. May write over the residual.
    Linear {
        /// After the bias.
        act: Act,
        /// Whether a bias is read.
        bias: bool,
        /// Whether a residual is read.
        residual: bool,
    },
    /// reads: x, gate, up.
    LinearGlu {
        /// On the gate.
        act: Act,
        /// Of [`Act::Situ`].
        #[serde(default, skip_serializing_if = "Situ::is_neutral")]
        situ: Situ,
        /// Quantised result.
        quant: Option<Math>,
    },
    /// reads: lhs, rhs. May write over either.
    Add,
    /// reads: lhs, rhs. May write over either.
    Mul,
    /// reads: x. May write over it.
    Unary {
        /// The function.
        kind: UnaryKind,
    },
    /// reads: gate, up. May write over either.
    Glu {
        /// On the gate.
        act: Act,
        /// Of [`Act::Situ`].
        #[serde(default, skip_serializing_if = "Situ::is_neutral")]
        situ: Situ,
    },
    /// reads: x, w.
    RmsNorm {
        /// Inside the root.
        eps: f32,
        /// Quantised result.
        quant: Option<Math>,
    },
    /// reads: x, w, then b if present.
    LayerNorm {
        /// Inside the root.
        eps: f32,
        /// Whether a bias is read.
        bias: bool,
        /// Quantised result.
        quant: Option<Math>,
    },
    /// reads: pos, then factors if present.
    RopeAngles {
        /// Radians a position, one per rotated pair; computed at compile with `libm`.
        freqs: Vec<f64>,
        /// Whether divisors of the frequencies are read.
        factors: bool,
    },
    /// reads: x, angles. May write over x.
    Rope {
        /// Width of a head.
        head_dim: u32,
        /// First element of a head that turns.
        #[serde(default, skip_serializing_if = "is_zero")]
        skip: u32,
        /// Which elements turn together.
        style: RopeStyle,
    },
    /// reads: x, row, pos. writes: the state.
    KvAppend,
    /// reads: q, keys state, values state, row, pos.
    Attention {
        /// Factor of the scores.
        scale: f32,
        /// Query heads.
        heads: u32,
    },
    /// reads: x, want.
    SelectRows,
    /// reads: x.
    Argmax,
    /// reads: x.
    FiniteCheck,
    /// reads: lhs, rhs.
    Concat,
    /// reads: x, w, row, pos. writes: y, the ring.
    ShortConv {
        /// On the sums.
        act: Act,
    },
    /// reads: x. May write over it.
    L2Norm {
        /// Width of a head.
        dim: u32,
        /// Inside the root.
        eps: f32,
        /// Factor of the result.
        scale: f32,
    },
    /// reads: z, a_log, dt_bias. May write over z.
    KdaGate {
        /// The largest decay in log space, negative; 0 for none.
        lower_bound: f32,
    },
    /// reads: q, k, v, decay, beta, row, pos. writes: o, the matrix state.
    KdaStep,
    /// reads: x, gate, w. May write over either of the first.
    GatedRmsNorm {
        /// Inside the root.
        eps: f32,
    },
    /// reads: x, a bank over the heads.
    HeadLinear,
    /// reads: x, a plain bank over the heads.
    HeadLinearT,
    /// reads: q, cache, row, pos, then the rotated part of q if present.
    LatentAttention {
        /// Factor of the scores.
        scale: f32,
        /// Query heads.
        heads: u32,
        /// Whether the rotated part is read.
        rope: bool,
    },
    /// reads: x, norm, proj, then blocks if present.
    AttnResMix {
        /// Inside the root.
        eps: f32,
        /// Whether blocks are read.
        blocks: bool,
    },
    /// reads: logits, then bias if present. writes: ids, weights.
    RouteTopK {
        /// Scores from logits.
        scoring: Scoring,
        /// Groups of experts.
        groups: u32,
        /// Groups that compete.
        keep: u32,
        /// Whether chosen scores are divided by their sum.
        renorm: bool,
        /// Factor of the weights.
        scale: f32,
        /// Whether a bias is read.
        bias: bool,
    },
    /// reads: ids. writes: order, groups, slots.
    ExpertSort {
        /// Experts.
        experts: u32,
    },
    /// reads: x, order.
    ExpertGather,
    /// reads: x, bank, order, groups.
    ExpertLinear {
        /// On the result.
        act: Act,
        /// Whether x has a row a token, to be gathered; else a row a pair.
        gather: bool,
    },
    /// reads: x, gate bank, up bank, order, groups.
    ExpertGlu {
        /// On the gate.
        act: Act,
        /// Of [`Act::Situ`].
        #[serde(default, skip_serializing_if = "Situ::is_neutral")]
        situ: Situ,
        /// Quantised result.
        quant: Option<Math>,
        /// As in [`StepKind::ExpertLinear`].
        gather: bool,
    },
    /// reads: x, weights, order, slots.
    ExpertSum,
    /// reads: x, codebooks (a bank of stages, transposed). writes: the tables, in slabs.
    LutBuild {
        /// The code of the matrices that the tables multiply.
        code: VqCode,
        /// The arithmetic.
        tables: Tables,
    },
    /// reads: tables, bank of records, order, groups.
    ExpertLut {
        /// Whether the tables have a row a token; else a row a pair.
        gather: bool,
    },
    /// reads: x, bank of records, order, groups, codebooks. Tables are made where they are used, for a few tokens at a time.
    ExpertVq {
        /// The code of the matrices.
        code: VqCode,
        /// The arithmetic of the tables.
        tables: Tables,
        /// Whether x has a row a token; else a row a pair.
        gather: bool,
    },
    /// reads: ids. Starts reading the records of the experts that are wanted first.
    ExpertPrefetch {
        /// Index into [`Plan::banks`](super::Plan::banks).
        bank: u32,
        /// Whether a guess chose them, best first: they are read after those that are wanted, into slots that nothing is waiting for.
        #[serde(default, skip_serializing_if = "is_false")]
        speculative: bool,
    },
    /// reads: groups. Begins a loop: of the experts that are left it takes the first, waiting until it is there, and those after it that
    /// are there too. The steps up to and including [`StepKind::ExpertRelease`] follow.
    ExpertWindow {
        /// Index into [`Plan::banks`](super::Plan::banks).
        bank: u32,
        /// Steps of the loop after this one, the release included.
        body: u32,
    },
    /// reads: groups. Ends the loop: lets the window's records go, and goes back to the window if experts are left.
    ExpertRelease {
        /// Index into [`Plan::banks`](super::Plan::banks).
        bank: u32,
        /// Steps back to the window.
        body: u32,
    },
}

/// Parameters of [`Act::Situ`]: beta · tanh(g / beta) · sigmoid(g) · (linear > 0 ? linear · tanh(u / linear) : u).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Situ {
    /// Bound of the gate.
    pub beta: f32,
    /// Bound of the linear half; 0 for none.
    pub linear: f32,
}

impl Default for Situ {
    fn default() -> Self {
        Self { beta: 1.0, linear: 0.0 }
    }
}

impl Situ {
    /// Whether this is the default, which all other activations have.
    #[must_use]
    pub fn is_neutral(&self) -> bool {
        *self == Self::default()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
const fn is_false(it: &bool) -> bool {
    !*it
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
const fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// The number of rows of an operand in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// A constant.
    Fixed(u32),
    /// This many for each token of the call.
    Tokens(u32),
    /// This many for each wanted row of the call.
    Want(u32),
}

impl Rows {
    /// The count in a call of `tokens` tokens and `want` wanted rows.
    #[must_use]
    pub const fn count(self, tokens: u32, want: u32) -> u64 {
        match self {
            Self::Fixed(n) => n as u64,
            Self::Tokens(n) => n as u64 * tokens as u64,
            Self::Want(n) => n as u64 * want as u64,
        }
    }
}

/// A matrix that a step reads or writes: rows of `cols` elements, `stride` bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operand {
    /// The space and where in it.
    pub place: Place,
    /// Element type.
    pub dtype: DType,
    /// How many rows.
    pub rows: Rows,
    /// Columns.
    pub cols: u32,
    /// Bytes from one row to the next (0 for weights and states: they have layouts of their own).
    pub stride: u64,
}

/// A place in one of the four spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Byte offset in the scratch arena.
    Scratch(u64),
    /// Byte offset in the io space.
    Io(u64),
    /// Index into [`Plan::weights`](super::Plan::weights).
    Weight(u32),
    /// Index into [`Plan::states`](super::Plan::states).
    State(u32),
}

impl Operand {
    /// Bytes of one row, without the gap to the next.
    #[must_use]
    pub fn row_bytes(&self) -> Option<u64> {
        self.dtype.row_bytes(u64::from(self.cols))
    }

    /// Bytes from the first to the last of `n` rows; `None` on overflow.
    #[must_use]
    pub fn span(&self, n: u64) -> Option<u64> {
        if n == 0 {
            return Some(0);
        }
        (n - 1).checked_mul(self.stride)?.checked_add(self.row_bytes()?)
    }
}

impl StepKind {
    /// The name of the kernel family.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::QuantAct { .. } => "quant_act",
            Self::Linear { .. } => "linear",
            Self::LinearGlu { .. } => "linear_glu",
            Self::Add => "add",
            Self::Mul => "mul",
            Self::Unary { .. } => "unary",
            Self::Glu { .. } => "glu",
            Self::RmsNorm { .. } => "rms_norm",
            Self::LayerNorm { .. } => "layer_norm",
            Self::RopeAngles { .. } => "rope_angles",
            Self::Rope { .. } => "rope",
            Self::KvAppend => "kv_append",
            Self::Attention { .. } => "attention",
            Self::SelectRows => "select_rows",
            Self::Argmax => "argmax",
            Self::FiniteCheck => "finite_check",
            Self::Concat => "concat",
            Self::ShortConv { .. } => "short_conv",
            Self::L2Norm { .. } => "l2_norm",
            Self::KdaGate { .. } => "kda_gate",
            Self::KdaStep => "kda_step",
            Self::GatedRmsNorm { .. } => "gated_rms_norm",
            Self::HeadLinear => "head_linear",
            Self::HeadLinearT => "head_linear_t",
            Self::LatentAttention { .. } => "latent_attention",
            Self::AttnResMix { .. } => "attn_res_mix",
            Self::RouteTopK { .. } => "route_top_k",
            Self::ExpertSort { .. } => "expert_sort",
            Self::ExpertGather => "expert_gather",
            Self::ExpertLinear { .. } => "expert_linear",
            Self::ExpertGlu { .. } => "expert_glu",
            Self::ExpertSum => "expert_sum",
            Self::LutBuild { .. } => "lut_build",
            Self::ExpertLut { .. } => "expert_lut",
            Self::ExpertVq { .. } => "expert_vq",
            Self::ExpertPrefetch { .. } => "expert_prefetch",
            Self::ExpertWindow { .. } => "expert_window",
            Self::ExpertRelease { .. } => "expert_release",
        }
    }

    /// Whether it only moves expert records: no arithmetic, no results.
    #[must_use]
    pub const fn moves_experts(&self) -> bool {
        matches!(self, Self::ExpertPrefetch { .. } | Self::ExpertWindow { .. } | Self::ExpertRelease { .. })
    }

    /// Whether its last write is a state: all other writes are activations.
    #[must_use]
    pub const fn writes_state(&self) -> bool {
        matches!(self, Self::KvAppend | Self::ShortConv { .. } | Self::KdaStep)
    }

    /// The number of results, states included.
    #[must_use]
    pub const fn n_writes(&self) -> usize {
        match self {
            Self::ExpertSort { .. } => 3,
            Self::ExpertPrefetch { .. } | Self::ExpertWindow { .. } | Self::ExpertRelease { .. } => 0,
            Self::ShortConv { .. } | Self::KdaStep | Self::RouteTopK { .. } => 2,
            _ => 1,
        }
    }

    /// Reads that write 0 may lie exactly over: same place, stride, dtype and columns.
    #[must_use]
    pub const fn in_place(&self) -> &'static [usize] {
        match self {
            Self::Linear { residual: true, bias: true, .. } => &[3],
            Self::Linear { residual: true, bias: false, .. } => &[2],
            Self::Add | Self::Mul | Self::Glu { .. } | Self::GatedRmsNorm { .. } => &[0, 1],
            Self::Unary { .. } | Self::Rope { .. } | Self::L2Norm { .. } | Self::KdaGate { .. } => &[0],
            _ => &[],
        }
    }
}
