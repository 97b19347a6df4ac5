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
use crate::low_rank::LowRank;
use crate::pack::Packing;
pub use crate::words::StateKind;

mod step;

pub use step::{GATHER_ROWS, MAX_HEAD_COLS, Operand, Place, RING_COLS, Rows, Situ, Step, StepKind, Tile};

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
    /// Banks of expert records that stay in their files and are read when they are needed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub banks: Vec<Bank>,
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
    /// Experts that a layer guesses for the next one; 0: none.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub lookahead: u32,
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weight {
    /// The source's name, or the parts' names joined by `+`.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Matrices side by side: one an expert or a head; 1 for an ordinary weight.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub bank: u32,
    /// Rows of one matrix (1 for a vector).
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
    /// Stored tensors whose rows make this weight, one after the other; of a bank, matrix by matrix.
    pub parts: Vec<Part>,
    /// Where its matrices are in the records of a bank; such a weight has no bytes and no parts of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<Records>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
const fn is_zero_u32(n: &u32) -> bool {
    *n == 0
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
const fn is_one(n: &u32) -> bool {
    *n == 1
}

impl Weight {
    /// Stored bytes of part `index`; a vector's part counts its elements as rows. `None` if there is no such part or size.
    #[must_use]
    pub fn part_bytes(&self, index: usize) -> Option<u64> {
        let part = self.parts.get(index)?;
        let elems = match (self.rows, self.bank, self.parts.len()) {
            (1, 1, 1) => self.cols,
            (1, 1, _) => part.rows,
            _ => part.rows.checked_mul(self.cols)?,
        };
        match part.stored.grouped() {
            // Every row is filled up to whole groups.
            Some(layout) => layout.row_bytes(self.cols)?.checked_mul(part.rows),
            None => part.stored.row_bytes(elems),
        }
    }

    /// Stored bytes of the scales of part `index`, if they lie apart ([`Part::scales`]); `None` if there is no such part or size.
    #[must_use]
    pub fn scale_bytes(&self, index: usize) -> Option<u64> {
        let part = self.parts.get(index)?;
        part.stored.grouped()?.scale_bytes(self.cols).checked_mul(part.rows)
    }

    /// Bytes of one matrix in the weight's layout: all of an ordinary weight.
    #[must_use]
    pub const fn matrix_bytes(&self) -> u64 {
        self.bytes / if self.bank == 0 { 1 } else { self.bank as u64 }
    }
}

/// The records of one layer's experts: expert e's are the `bytes` bytes at `offset + e · bytes` of their file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bank {
    /// The number of the layer in the model.
    pub layer: u32,
    /// Index into [`Plan::sources`].
    pub source: u32,
    /// Where expert 0's record begins.
    pub offset: u64,
    /// Bytes of a record, and from one to the next.
    pub bytes: u64,
    /// How many experts there are.
    pub experts: u32,
    /// The first codebook of the layer, as records must name it.
    pub codebooks: u32,
}

/// Where the matrices of a vector-quantised weight lie in the records of a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Records {
    /// Index into [`Plan::banks`].
    pub bank: u32,
    /// Where the index stream begins in a record.
    pub indices: u64,
    /// Where the scales `f16[rows]` begin in a record.
    pub scales: u64,
}

/// A stored tensor, or the rows of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Index into [`Plan::sources`].
    pub source: u32,
    /// First byte.
    pub offset: u64,
    /// First byte of the scales, where the format keeps them apart ([`crate::GroupedLayout`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scales: Option<u64>,
    /// Element type in the file.
    pub stored: DType,
    /// Rows of the weight that it makes.
    pub rows: u64,
    /// Whether the file holds the transpose.
    pub transposed: bool,
    /// Low-rank terms added to it, in order: only to float matrices, and the weight is then f32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terms: Vec<LowRank>,
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
    /// Of a cache: rows, positions (a multiple of 32), heads, head width. Of a recurrent state: rows and the three dimensions of
    /// a row's part, such as heads, key width and value width.
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

impl Port {
    /// Its bytes; `u64::MAX`, which no space has, for those of a forged plan that are more.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // Both elements that a port may have take four bytes.
        (u64::from(self.rows) * u64::from(self.cols)).saturating_mul(4)
    }
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
    /// The expert cache: [`Memory::expert_slots`] records.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub experts: u64,
    /// Records that the expert cache holds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub expert_slots: u64,
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
        let text = self.text.saturating_add(self.experts);
        fixed.saturating_add(self.thread.saturating_mul(PEAK_THREADS)).saturating_add(text)
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
