//! The graph: ops and values in arenas, in execution order; and the module that graphs share.
//!
//! Invariants (held by the builder, demanded by the verifier)
//! - every operand is defined earlier in `order`, or is a graph input, a weight, a state, or an argument of an enclosing region;
//! - `order` holds each live op exactly once; ops of a region are in the region's own `order`.
//!
//! Deliberately absent: use lists (computed by [`crate::view`]) and any mutation other than building.

use smallvec::SmallVec;
pub use waste_plan::StateKind;
use waste_plan::ids::PrimaryMap;
use waste_plan::{DType, LowRank, Packing};

use crate::ops::Op;
use crate::types::{Shape, Syms, TensorType};

waste_plan::entity!(/// An operation in a [`Graph`].
    OpId, "op");
waste_plan::entity!(/// An SSA value: an op's result, a graph input, a region argument, a weight or a state.
    ValueId, "v");
waste_plan::entity!(/// A region in a [`Graph`].
    RegionId, "region");
waste_plan::entity!(/// A graph of a [`Module`].
    GraphId, "graph");
waste_plan::entity!(/// A weight of a [`Module`].
    WeightId, "weight");
waste_plan::entity!(/// A state of a [`Module`].
    StateId, "state");
waste_plan::entity!(/// A source file of a [`Module`].
    SourceId, "@");

/// What a model becomes: graphs over the same weights and states.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Module {
    /// Model facts that the text must carry: architecture name, context, vocabulary.
    pub info: ModelInfo,
    /// Files that weights come from.
    pub sources: PrimaryMap<SourceId, SourceDecl>,
    /// Symbolic sizes.
    pub syms: Syms,
    /// Where the bytes of each weight are; never the bytes.
    pub weights: PrimaryMap<WeightId, WeightDecl>,
    /// What lives on between calls.
    pub states: PrimaryMap<StateId, StateDecl>,
    /// The programs: `decode` and `prefill`.
    pub graphs: PrimaryMap<GraphId, Graph>,
}

/// Facts about the model as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelInfo {
    /// The model's name, for people.
    pub name: String,
    /// The architecture, such as `llama`.
    pub arch: String,
    /// Positions it was trained for.
    pub ctx_trained: u32,
    /// Size of the vocabulary.
    pub vocab: u32,
}

/// A file that weights come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceDecl {
    /// The path as text may carry it: relative to the text's own folder, or absolute.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 of the file's header and tensor table, lower-case hex.
    pub header_sha256: String,
}

/// Where the bytes of a weight come from.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightInit {
    /// Row-major elements in a source file. `stored` is the declared dtype, or f16 or bf16 widened exactly to a declared f32.
    Stored {
        /// The file.
        source: SourceId,
        /// First byte.
        offset: u64,
        /// The dtype in the file.
        stored: DType,
    },
    /// The transpose of a stored float matrix: the file holds `[k, n]`, the weight is `[n, k]` (GPT-2's Conv1D).
    Transposed {
        /// The file.
        source: SourceId,
        /// First byte.
        offset: u64,
        /// The dtype in the file.
        stored: DType,
    },
    /// Rows of other weights, one after the other (`merge-linears`).
    Concat(Vec<WeightId>),
    /// A bank `[E, n, k]` of E row-major matrices, each somewhere in a source: experts, or the heads of one stored matrix.
    Bank {
        /// The dtype in the files.
        stored: DType,
        /// The file and first byte of each matrix.
        parts: Vec<(SourceId, u64)>,
    },
    /// A matrix whose codes and scales lie apart in a source ([`waste_plan::GroupedLayout`]), or a bank `[E, n, k]` of such. `stored` is the
    /// declared dtype, or widened exactly to a declared f32.
    Grouped {
        /// The file.
        source: SourceId,
        /// The dtype in the file.
        stored: DType,
        /// Where the codes of each matrix begin.
        codes: Steps,
        /// Where its scales begin.
        scales: Steps,
    },
    /// A bank `[E, n, k]` of vector-quantised matrices, matrix e in the record that begins at byte `first + e · stride`.
    Records {
        /// The file.
        source: SourceId,
        /// First byte of the first record.
        first: u64,
        /// Bytes of a record.
        stride: u64,
        /// Where the index stream begins in a record.
        indices: u64,
        /// Where the f16 scales of the rows begin in a record.
        scales: u64,
    },
    /// A stored float matrix with low-rank terms added, in order ([`LowRank`]): the sum in f64, rounded once to the declared f32.
    Merged {
        /// What they are added to: [`WeightInit::Stored`] or [`WeightInit::Transposed`].
        base: WeightId,
        /// What is added to it, at least one.
        terms: Vec<LowRank<SourceId>>,
    },
}

/// Bytes in equal steps: those of matrix e begin at `first + e · step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Of the first matrix.
    pub first: u64,
    /// From one matrix to the next; 0 where there is but one.
    pub step: u64,
}

impl Steps {
    /// Where matrix `e` begins; `None` beyond 64 bits.
    #[must_use]
    pub fn at(self, e: u64) -> Option<u64> {
        e.checked_mul(self.step)?.checked_add(self.first)
    }
}

impl WeightInit {
    /// The weights that this one is made of.
    #[must_use]
    pub fn parts(&self) -> &[WeightId] {
        match self {
            Self::Concat(parts) => parts,
            Self::Merged { base, .. } => std::slice::from_ref(base),
            Self::Stored { .. } | Self::Transposed { .. } | Self::Bank { .. } => &[],
            Self::Grouped { .. } | Self::Records { .. } => &[],
        }
    }

    /// As [`WeightInit::parts`], to be renumbered.
    pub fn parts_mut(&mut self) -> &mut [WeightId] {
        match self {
            Self::Concat(parts) => parts,
            Self::Merged { base, .. } => std::slice::from_mut(base),
            Self::Stored { .. } | Self::Transposed { .. } | Self::Bank { .. } => &mut [],
            Self::Grouped { .. } | Self::Records { .. } => &mut [],
        }
    }
}

/// A weight: its name in the source, type, origin and packed layout.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightDecl {
    /// The source's own name, or the names of its parts joined by `+`.
    pub name: String,
    /// Type; all dimensions are constants.
    pub ty: TensorType,
    /// Where the bytes come from.
    pub init: WeightInit,
    /// The codebooks of a vector-quantised weight, `f32[stages, entries, 8]`; `None` for any other.
    pub books: Option<WeightId>,
    /// The layout chosen by `select-layout`; `None` before it ran.
    pub packing: Option<Packing>,
}

/// A state: what lives on between calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDecl {
    /// The name in text, such as `k.0`.
    pub name: String,
    /// `dtype[B, S, heads, d]`, or what the recurrence wants after B.
    pub ty: TensorType,
    /// What it holds and how.
    pub kind: StateKind,
}

/// How far a graph has come; the verifier knows the ops that each phase permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Phase {
    /// As a front end built it: no fused ops, no quantised activations.
    #[default]
    Imported,
    /// Fused ops allowed.
    Canonical,
    /// Every linear over integer weights reads quantised activations (or the arithmetic is f32).
    Legal,
    /// Every weight has a packed layout: ready to be planned.
    Final,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 4] = [Self::Imported, Self::Canonical, Self::Legal, Self::Final];
    /// The word in IR text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Imported => "imported",
            Self::Canonical => "canonical",
            Self::Legal => "legal",
            Self::Final => "final",
        }
    }
}

/// One program: inputs, ops in order, outputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// `decode` or `prefill`.
    pub name: String,
    /// How far it has come.
    pub phase: Phase,
    /// All ops, those of regions included.
    pub ops: PrimaryMap<OpId, OpData>,
    /// All values.
    pub values: PrimaryMap<ValueId, ValueData>,
    /// All regions.
    pub regions: PrimaryMap<RegionId, Region>,
    /// Execution order at the top level. Invariant: every operand is defined earlier.
    pub order: Vec<OpId>,
    /// Graph inputs.
    pub inputs: Vec<ValueId>,
    /// Named results, in order.
    pub outputs: Vec<Output>,
}

/// A named result of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// What the runtime asks for: `logits`, `next`, `finite`; or `@` and the name of a state, for its final version.
    pub name: String,
    /// The value.
    pub value: ValueId,
}

/// A nested graph with arguments of its own; it may use outer values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Its arguments.
    pub args: Vec<ValueId>,
    /// Its ops in execution order.
    pub order: Vec<OpId>,
    /// What it yields.
    pub yields: Vec<ValueId>,
}

/// An op with its operands, results and regions.
#[derive(Clone, Debug, PartialEq)]
pub struct OpData {
    /// What it does.
    pub op: Op,
    /// One entry per name in [`Op::operand_names`]; `None` only where the name ends in `?`.
    pub operands: SmallVec<[Option<ValueId>; 4]>,
    /// Its results.
    pub results: SmallVec<[ValueId; 2]>,
    /// Its region, if it owns one.
    pub region: Option<RegionId>,
}

impl OpData {
    /// The values it reads, in operand order, repeats included.
    pub fn uses(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.operands.iter().flatten().copied()
    }

    /// Operand `slot`, which the verifier has shown to be present.
    ///
    /// # Panics
    /// If the operand is absent.
    #[must_use]
    pub fn operand(&self, slot: usize) -> ValueId {
        self.operands[slot].expect("a mandatory operand")
    }

    /// Operand `slot` if it is there.
    #[must_use]
    pub fn optional(&self, slot: usize) -> Option<ValueId> {
        self.operands.get(slot).copied().flatten()
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Def {
    /// Result `1` of op `0`.
    Op(OpId, u32),
    /// Graph input by position.
    Input(u32),
    /// Region argument by position.
    Arg(RegionId, u32),
    /// A weight of the module.
    Weight(WeightId),
    /// The version of a state at the start of the call.
    State(StateId),
}

/// A value: its type and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueData {
    /// Type.
    pub ty: TensorType,
    /// Origin.
    pub def: Def,
    /// The printed name of a graph input; empty otherwise.
    pub name: String,
}

impl Graph {
    /// Elements type and shape of `value`.
    #[must_use]
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.values[value].ty
    }

    /// The op that defines `value`, if one does.
    #[must_use]
    pub fn def_op(&self, value: ValueId) -> Option<&OpData> {
        match self.values[value].def {
            Def::Op(op, _) => Some(&self.ops[op]),
            Def::Input(_) | Def::Arg(..) | Def::Weight(_) | Def::State(_) => None,
        }
    }

    /// The weight that `value` is, if it is one.
    #[must_use]
    pub fn weight(&self, value: ValueId) -> Option<WeightId> {
        match self.values[value].def {
            Def::Weight(id) => Some(id),
            Def::Op(..) | Def::Input(_) | Def::Arg(..) | Def::State(_) => None,
        }
    }

    /// The state of which `value` is a version, following [`Op::next_state`] back to its start.
    #[must_use]
    pub fn state(&self, value: ValueId) -> Option<StateId> {
        let mut at = value;
        loop {
            match self.values[at].def {
                Def::State(id) => return Some(id),
                Def::Op(op, i) if self.ops[op].op.next_state() == Some(i as usize) => {
                    at = self.ops[op].operand(0);
                }
                Def::Op(..) | Def::Input(_) | Def::Arg(..) | Def::Weight(_) => return None,
            }
        }
    }

    /// The input named `name`.
    #[must_use]
    pub fn input(&self, name: &str) -> Option<ValueId> {
        self.inputs.iter().copied().find(|it| self.values[*it].name == name)
    }
}

impl Module {
    /// The graph named `name`.
    #[must_use]
    pub fn graph(&self, name: &str) -> Option<&Graph> {
        self.graphs.values().find(|it| it.name == name)
    }

    /// Bytes of a value at the upper bounds of its dimensions; of a weight, as files store it, all pieces together. `None` on overflow or
    /// for a dtype whose rows are not whole blocks.
    #[must_use]
    pub fn upper_bytes(&self, ty: &TensorType) -> Option<u64> {
        upper_bytes(&self.syms, ty.dtype, &ty.shape)
    }
}

fn upper_bytes(syms: &Syms, dtype: DType, shape: &Shape) -> Option<u64> {
    let (cols, outer) = shape.dims().split_last()?;
    let (rows, outer) = outer.split_last().map_or((1, outer), |(rows, outer)| (rows.upper(syms), outer));
    let matrix = dtype.matrix_bytes(rows, cols.upper(syms))?;
    outer.iter().try_fold(matrix, |bytes, dim| bytes.checked_mul(dim.upper(syms)))
}
