//! The stages in order, and the request and errors of planning.

use waste_ir::verify::Verified;
use waste_ir::{Module, Phase, SourceDecl, StateDecl, ValueId};
use waste_plan::DType;
use waste_plan::schema::{
    KV_TILE, Memory, Model, Operand, Options, Plan, Port, PortName, Program, Source, State, StateKind,
    VERSION,
};

use crate::barriers::place_barriers;
use crate::experts::{recommended_slots, slot_bytes, top_k};
use crate::liveness::{liveness, lower_bound};
use crate::lower::{Lowered, lower};
use crate::memory::PlanIds;
use crate::place::place;
use crate::weights::{PlanWeights, plan_weights};

/// What a plan is made for, beside the graphs.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// Compiler name and version.
    pub producer: String,
    /// Sizes and arithmetic; they agree with the module's symbols.
    pub options: Options,
    /// Parameters, each stored tensor counted once.
    pub params: u64,
    /// Bytes of all stored tensors.
    pub source_bytes: u64,
    /// Measured memory of tokenizer and text.
    pub text_bytes: u64,
    /// Ids that end a generation.
    pub stop_ids: Vec<u32>,
    /// Records that the expert cache holds; `None`: what [`recommended_slots`] says.
    pub expert_slots: Option<u64>,
}

/// Why a graph cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A graph is not in the phase that planning needs.
    #[error("graph '{graph}' is {found}, planning needs {expected}")]
    Phase {
        /// The graph.
        graph: String,
        /// Its phase.
        found: &'static str,
        /// `final`.
        expected: &'static str,
    },
    /// An op has no step on this target.
    #[error("op '{op}' has no step on target cpu yet")]
    Unsupported {
        /// The op.
        op: &'static str,
    },
    /// A program lacks an input.
    #[error("graph '{graph}' has no input '{name}'")]
    NoInput {
        /// The graph.
        graph: String,
        /// The input.
        name: String,
    },
    /// An input or output that the runtime does not know.
    #[error("'{0}' is no port")]
    UnknownPort(String),
    /// A weight value without a declaration that is used.
    #[error("{0} is a weight that no op reads")]
    DeadWeight(ValueId),
    /// A value with a shape that no kernel takes.
    #[error("{value} has type {ty}, which no kernel takes")]
    Shape {
        /// The value.
        value: ValueId,
        /// Its type.
        ty: String,
    },
    /// A size over 2^64 bytes.
    #[error("{0} needs more than 2^64 bytes")]
    TooLarge(ValueId),
    /// A weight over 2^64 bytes or of rank over 2.
    #[error("weight '{name}' has no packed size")]
    WeightSize {
        /// The weight.
        name: String,
    },
    /// A weight without a layout.
    #[error("weight '{name}' has no packed layout: 'select-layout' did not run")]
    NoPacking {
        /// The weight.
        name: String,
    },
    /// A reshape of columns that are not contiguous.
    #[error("{0} reshapes a slice, whose rows are not contiguous")]
    StridedReshape(ValueId),
    /// A state that is no cache.
    #[error(
        "state '{name}' must be f32 or f16 [rows, positions, heads, width] with positions a multiple of 32, or recurrent and f32"
    )]
    BadState {
        /// The state.
        name: String,
    },
}

/// Plans every graph of a verified module in phase `final`. The weights' CRCs are zero until they are packed.
///
/// # Errors
/// If an op has no step, a shape no kernel, or a size no 64 bits.
pub fn plan(verified: &Verified<'_>, request: &PlanRequest) -> Result<Plan, PlanError> {
    let module = verified.module();
    for graph in module.graphs.values() {
        if graph.phase != Phase::Final {
            let (found, expected) = (graph.phase.name(), Phase::Final.name());
            return Err(PlanError::Phase { graph: graph.name.clone(), found, expected });
        }
    }
    let PlanWeights { weights, banks, index, bank_of } = plan_weights(module)?;
    let states = plan_states(module)?;
    let ports = plan_ports(module, &request.options);
    let ids = PlanIds { weights: index, banks: bank_of, states: (0..).take(states.len()).collect() };

    let mut memory = Memory {
        weights: end(weights.iter().map(|it| (it.offset, it.bytes))),
        states: end(states.iter().map(|it| (it.offset, it.bytes))),
        io: end(ports.iter().map(|it| (it.offset, it.bytes()))),
        text: request.text_bytes,
        placement: "empty".into(),
        ..Memory::default()
    };
    let mut programs = Vec::new();
    for graph in module.graphs.values() {
        let lowered = lower(module, graph, &ids, &ports)?;
        programs.push(plan_program(&lowered, graph.name.clone(), &mut memory));
    }
    if !banks.is_empty() {
        let recommended = recommended_slots(&banks, top_k(&programs));
        let all = banks.iter().map(|it| u64::from(it.experts)).sum();
        memory.expert_slots = request.expert_slots.unwrap_or(recommended).min(all).max(1);
        memory.experts = memory.expert_slots.saturating_mul(slot_bytes(&banks));
    }
    Ok(Plan {
        version: VERSION,
        producer: request.producer.clone(),
        target: "cpu".into(),
        model: Model {
            name: module.info.name.clone(),
            arch: module.info.arch.clone(),
            ctx_trained: module.info.ctx_trained,
            vocab: module.info.vocab,
            params: request.params,
            source_bytes: request.source_bytes,
        },
        options: request.options.clone(),
        sources: module.sources.values().map(plan_source).collect(),
        banks,
        weights,
        states,
        ports,
        memory,
        programs,
        stop_ids: request.stop_ids.clone(),
    })
}

fn plan_program(lowered: &Lowered<'_>, name: String, memory: &mut Memory) -> Program {
    let intervals = liveness(lowered);
    let placement = place(&intervals);
    let mut steps = lowered.close(&placement.offsets);
    place_barriers(&mut steps, |it: &Operand| lowered.map.most(it.rows));
    if placement.bytes >= memory.scratch {
        memory.scratch = placement.bytes;
        memory.placement = placement.heuristic.into();
    }
    memory.scratch_lower_bound = memory.scratch_lower_bound.max(lower_bound(&intervals));
    let (tokens, want) = lowered.map.limits();
    memory.thread = steps.iter().map(|it| it.thread_bytes(tokens, want)).fold(memory.thread, u64::max);
    Program { name, tokens, want, steps }
}

fn end(ranges: impl Iterator<Item = (u64, u64)>) -> u64 {
    ranges.map(|(offset, bytes)| (offset + bytes).next_multiple_of(64)).max().unwrap_or(0)
}

fn plan_source(source: &SourceDecl) -> Source {
    Source { path: source.path.clone(), bytes: source.bytes, header_sha256: source.header_sha256.clone() }
}

fn plan_states(module: &Module) -> Result<Vec<State>, PlanError> {
    let mut offset = 0u64;
    let mut states = Vec::new();
    for decl in module.states.values() {
        let state =
            plan_state(decl, offset).ok_or_else(|| PlanError::BadState { name: decl.name.clone() })?;
        offset = offset
            .checked_add(state.bytes)
            .and_then(|it| it.checked_next_multiple_of(64))
            .ok_or_else(|| PlanError::BadState { name: decl.name.clone() })?;
        states.push(state);
    }
    Ok(states)
}

fn plan_state(decl: &StateDecl, offset: u64) -> Option<State> {
    let known: Vec<u32> = decl.ty.shape.dims().iter().map(|it| it.known()).collect::<Option<_>>()?;
    let shape: [u32; 4] = known.try_into().ok()?;
    let dtype = decl.ty.dtype;
    let name = decl.name.clone();
    if decl.kind == StateKind::Recurrent {
        // Both halves.
        let bytes = shape.iter().try_fold(8u64, |n, dim| n.checked_mul(u64::from(*dim)))?;
        let is_f32 = dtype == DType::F32;
        return is_f32.then_some(State { name, dtype, kind: decl.kind, shape, bytes, offset });
    }
    if !matches!(dtype, DType::F32 | DType::F16) || !shape[1].is_multiple_of(KV_TILE) {
        return None;
    }
    let elems = shape.iter().try_fold(1u64, |n, dim| n.checked_mul(u64::from(*dim)))?;
    let bytes = dtype.row_bytes(elems)?;
    Some(State { name, dtype, kind: decl.kind, shape, bytes, offset })
}

/// The caller's arrays: inputs sized for the largest program, outputs for all wanted rows.
fn plan_ports(module: &Module, options: &Options) -> Vec<Port> {
    let tokens = options.chunk.max(options.batch);
    let want = options.want.max(options.batch);
    let mut offset = 0;
    let port = |name: PortName| {
        let (dtype, rows, cols) = match name {
            PortName::Token | PortName::Row | PortName::Pos => (DType::I32, tokens, 1),
            PortName::Want | PortName::Next | PortName::Finite => (DType::I32, want, 1),
            PortName::Logits => (DType::F32, want, module.info.vocab),
        };
        let port = Port { name, dtype, rows, cols, offset };
        offset = (offset + port.bytes()).next_multiple_of(64);
        port
    };
    PortName::ALL.into_iter().map(port).collect()
}
