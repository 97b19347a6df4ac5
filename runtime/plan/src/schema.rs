//! The plan: everything the runtime needs, every byte and every step.
//!
//! Invariants (held by the planner, proved by `codegen::check`, bounded by [`crate::validate::validate`])
//! - scratch, io, states and weights are four separate spaces; no operand crosses from one into another;
//! - `peak` is the sum of all parts of [`Memory`];
//! - `barrier` stands before every step that reads or overwrites bytes which another thread may have touched since
//!   the last barrier.
//!
//! Sizes and offsets are u64 bytes; counts of elements are u32. Append only: a field never changes meaning.

use serde::{Deserialize, Serialize};

use crate::dtype::{DType, Math};
use crate::pack::Packing;
pub use crate::words::StateKind;
use crate::words::{Act, RopeStyle, UnaryKind};

/// The version this build writes.
pub const VERSION: u32 = 1;

/// A compiled model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Schema version.
    pub version: u32,
    /// Compiler name and version.
    pub producer: String,
    /// `cpu`: ISA-neutral.
    pub target: String,
    /// What model this is.
    pub model: Model,
    /// What it was compiled for.
    pub options: Options,
    /// The files that weights came from.
    pub sources: Vec<Source>,
    /// Every weight that a step reads.
    pub weights: Vec<Weight>,
    /// Every state.
    pub states: Vec<State>,
    /// The caller's arrays, in the io space.
    pub ports: Vec<Port>,
    /// All memory, in bytes by kind.
    pub memory: Memory,
    /// `decode` and `prefill`.
    pub programs: Vec<Program>,
    /// Ids that end a generation.
    pub stop_ids: Vec<u32>,
}

/// Facts about the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Name for people.
    pub name: String,
    /// Architecture.
    pub arch: String,
    /// Positions it was trained for.
    pub ctx_trained: u32,
    /// Vocabulary size.
    pub vocab: u32,
    /// Number of parameters, each stored tensor counted once.
    pub params: u64,
    /// Bytes of all stored tensors as the source has them.
    pub source_bytes: u64,
}

/// What a plan was compiled for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Positions of each row's cache.
    pub ctx: u32,
    /// Rows: sequences side by side.
    pub batch: u32,
    /// Most tokens of one prefill step.
    pub chunk: u32,
    /// Most rows of logits of one step.
    pub want: u32,
    /// Element type of the caches.
    pub kv: DType,
    /// Arithmetic of linears over integer weights.
    pub math: Math,
    /// Passes that ran, in order.
    pub passes: Vec<String>,
}

/// A file that weights came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Path relative to the plan's folder, or absolute.
    pub path: String,
    /// Length.
    pub bytes: u64,
    /// SHA-256 of header and tensor table, lower-case hex.
    pub header_sha256: String,
}

/// A weight as steps read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weight {
    /// The source's name, or the parts' names joined by `+`.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Rows (1 for a vector).
    pub rows: u64,
    /// Columns.
    pub cols: u64,
    /// Layout.
    pub packing: Packing,
    /// Bytes in that layout.
    pub bytes: u64,
    /// Byte offset in the weight space (the weights section, or counted memory where weights stay outside).
    pub offset: u64,
    /// CRC-32C of the packed bytes.
    pub crc32c: u32,
    /// Stored tensors whose rows make this weight, one after the other.
    pub parts: Vec<Part>,
}

impl Weight {
    /// Stored bytes of part `index`; a vector's part counts its elements as rows. `None` if there is no such part or size.
    #[must_use]
    pub fn part_bytes(&self, index: usize) -> Option<u64> {
        let part = self.parts.get(index)?;
        let elems = match (self.rows, self.parts.len()) {
            (1, 1) => self.cols,
            (1, _) => part.rows,
            _ => part.rows.checked_mul(self.cols)?,
        };
        part.stored.row_bytes(elems)
    }
}

/// A stored tensor, or the rows of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Index into [`Plan::sources`].
    pub source: u32,
    /// First byte.
    pub offset: u64,
    /// Element type in the file.
    pub stored: DType,
    /// Rows of the weight that it makes.
    pub rows: u64,
    /// Whether the file holds the transpose.
    pub transposed: bool,
}

/// What lives on between calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// How it lies.
    pub kind: StateKind,
    /// Rows, positions, heads, head width. Positions are a multiple of 32.
    pub shape: [u32; 4],
    /// Bytes.
    pub bytes: u64,
    /// Byte offset in the state space.
    pub offset: u64,
}

/// Positions in one tile of a cache.
pub const KV_TILE: u32 = 32;

/// An array of the caller's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// What it is.
    pub name: PortName,
    /// Element type: i32 or f32.
    pub dtype: DType,
    /// Most rows.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// Byte offset in the io space.
    pub offset: u64,
}

/// The caller's arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortName {
    /// in: `i32[T]`, token ids.
    Token,
    /// in: `i32[T]`, the row of each token.
    Row,
    /// in: `i32[T]`, the position of each token in its row.
    Pos,
    /// in: `i32[R]`, indices of tokens whose logits are wanted.
    Want,
    /// out: `f32[R, vocab]`.
    Logits,
    /// out: `i32[R]`, the greedy choice.
    Next,
    /// out: `i32[R]`, 1 where the logits are all finite.
    Finite,
}

impl PortName {
    /// Every port, in declaration order.
    pub const ALL: [Self; 7] =
        [Self::Token, Self::Row, Self::Pos, Self::Want, Self::Logits, Self::Next, Self::Finite];
    /// The word in IR text and plans.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Row => "row",
            Self::Pos => "pos",
            Self::Want => "want",
            Self::Logits => "logits",
            Self::Next => "next",
            Self::Finite => "finite",
        }
    }
    /// Parses the word.
    #[must_use]
    pub fn from_name(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == word)
    }
    /// Whether the caller writes it and steps only read it.
    #[must_use]
    pub const fn is_input(self) -> bool {
        matches!(self, Self::Token | Self::Row | Self::Pos | Self::Want)
    }
}

/// All memory of a session, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Packed weights (mapped from the plan, or repacked into counted memory).
    pub weights: u64,
    /// States.
    pub states: u64,
    /// The scratch arena, shared by the programs.
    pub scratch: u64,
    /// The caller's arrays.
    pub io: u64,
    /// Scratch of each thread.
    pub thread: u64,
    /// Tokenizer and other text, measured at compile.
    pub text: u64,
    /// The most bytes that are live in scratch at one step: no placement can be smaller.
    pub scratch_lower_bound: u64,
    /// The heuristic that gave the smallest arena.
    pub placement: String,
}

/// Threads that [`Memory::peak`] assumes.
pub const PEAK_THREADS: u64 = 16;

impl Memory {
    /// Everything together, for [`PEAK_THREADS`] threads.
    #[must_use]
    pub const fn peak(&self) -> u64 {
        let fixed =
            self.weights.saturating_add(self.states).saturating_add(self.scratch).saturating_add(self.io);
        fixed.saturating_add(self.thread.saturating_mul(PEAK_THREADS)).saturating_add(self.text)
    }
}

/// An entry point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// `decode` or `prefill`.
    pub name: String,
    /// Most tokens T.
    pub tokens: u32,
    /// Most wanted rows R.
    pub want: u32,
    /// What runs, in order.
    pub steps: Vec<Step>,
}

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
    /// The op of the final graph that it carries out.
    pub op: u32,
}

impl Step {
    /// Scratch that one thread needs for a tile: the product of a linear with a residual, both products of a gated one and a
    /// row of either form for its quantised result, a row of a norm and a missing bias, scores and sums of attention.
    ///
    /// `tokens`, `want`: the largest call of the program.
    #[must_use]
    pub fn thread_bytes(&self, tokens: u32, want: u32) -> u64 {
        let most = self.writes.first().map_or(0, |it| it.rows.count(tokens, want));
        let (rows, cols) = (u64::from(self.tile.rows).min(most), u64::from(self.tile.cols));
        let x_cols = self.reads.first().map_or(0, |it| u64::from(it.cols));
        let tile = rows.saturating_mul(cols).saturating_mul(4);
        let bytes = match self.kind {
            StepKind::Linear { residual: true, .. } => tile,
            StepKind::LinearGlu { quant, .. } => {
                let fx = quant.and_then(Math::act_dtype).and_then(|it| it.row_bytes(cols)).unwrap_or(0);
                tile.saturating_mul(2).saturating_add((cols * 4).next_multiple_of(64)).saturating_add(fx)
            }
            StepKind::RmsNorm { quant: Some(_), .. } => x_cols * 4,
            StepKind::LayerNorm { .. } => x_cols * 8,
            StepKind::Attention { .. } => {
                tile.saturating_mul(2).saturating_add(rows.saturating_mul(u64::from(KV_TILE) + 16) * 4)
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
    /// Index into [`Plan::weights`].
    Weight(u32),
    /// Index into [`Plan::states`].
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
        }
    }

    /// Reads that write 0 may lie exactly over: same place, stride, dtype and columns.
    #[must_use]
    pub const fn in_place(&self) -> &'static [usize] {
        match self {
            Self::Linear { residual: true, bias: true, .. } => &[3],
            Self::Linear { residual: true, bias: false, .. } => &[2],
            Self::Add | Self::Mul | Self::Glu { .. } => &[0, 1],
            Self::Unary { .. } | Self::Rope { .. } => &[0],
            _ => &[],
        }
    }
}
