//! Bytes and operations of a call, predicted from the plan alone.
//!
//! - a weight is read once a call, however many tokens the call has; of a table only the rows looked up;
//! - a cache is read once a call up to the last position attended, and written once a token; a recurrent state is read and
//!   written once a call; of experts as many are read as there are pairs of a token and an expert, at most all;
//! - other operands (activations) are read and written once: most stay in a cache, so they are kept apart;
//! - a multiplication and the addition of its product are two operations; elementwise ops count as `per_element` says.
//!
//! Sums saturate: a plan file may claim any sizes.

use std::ops::AddAssign;

use waste_plan::schema::{Operand, Place, Plan, Program, StateKind, Step, StepKind};

/// A call, as far as cost goes: tokens of one row that follow `past` accepted ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallShape {
    /// Tokens.
    pub tokens: u32,
    /// Rows of logits.
    pub want: u32,
    /// Tokens before them.
    pub past: u32,
}

/// What a step, a call or many calls cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of packed weights.
    pub weights: u64,
    /// Bytes of states, read and written.
    pub states: u64,
    /// Bytes of activations, logits and ids, read and written.
    pub others: u64,
    /// Arithmetic operations.
    pub flops: u64,
}

impl Cost {
    /// Bytes that must come from memory: weights and states.
    #[must_use]
    pub const fn memory(&self) -> u64 {
        self.weights.saturating_add(self.states)
    }

    /// All bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.memory().saturating_add(self.others)
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, it: Self) {
        self.weights = self.weights.saturating_add(it.weights);
        self.states = self.states.saturating_add(it.states);
        self.others = self.others.saturating_add(it.others);
        self.flops = self.flops.saturating_add(it.flops);
    }
}

/// The program that a session takes for a call of one row: the smallest that fits; `None` if none does.
#[must_use]
pub fn program_for(plan: &Plan, tokens: u32, want: u32) -> Option<usize> {
    let fits = |it: &Program| tokens <= it.tokens && want <= it.want && (tokens == 1 || it.name != "decode");
    let fitting = (0..plan.programs.len()).filter(|at| fits(&plan.programs[*at]));
    fitting.min_by_key(|at| plan.programs[*at].tokens)
}

/// The cost of a whole call of `program`.
#[must_use]
pub fn call_cost(plan: &Plan, program: &Program, call: CallShape) -> Cost {
    let mut sum = Cost::default();
    program.steps.iter().for_each(|it| sum += step_cost(plan, it, call));
    sum
}

/// The cost of one step of a call.
#[must_use]
pub fn step_cost(plan: &Plan, step: &Step, call: CallShape) -> Cost {
    let mut cost = Cost { flops: flops(plan, step, call), ..Cost::default() };
    for operand in &step.reads {
        match operand.place {
            Place::Weight(id) => {
                cost.weights = cost.weights.saturating_add(weight_bytes(plan, step, id, call))
            }
            Place::State(id) => {
                cost.states = cost.states.saturating_add(cache_bytes(plan, id, attended(call)))
            }
            Place::Scratch(_) | Place::Io(_) => {
                cost.others = cost.others.saturating_add(operand_bytes(operand, call))
            }
        }
    }
    for operand in &step.writes {
        match operand.place {
            Place::Weight(_) => {}
            Place::State(id) => cost.states = cost.states.saturating_add(cache_bytes(plan, id, call.tokens)),
            Place::Scratch(_) | Place::Io(_) => {
                cost.others = cost.others.saturating_add(operand_bytes(operand, call))
            }
        }
    }
    cost
}

/// Positions that the last token of a call attends to.
fn attended(call: CallShape) -> u32 {
    call.past.saturating_add(call.tokens)
}

fn operand_bytes(operand: &Operand, call: CallShape) -> u64 {
    operand.rows.count(call.tokens, call.want).saturating_mul(operand.row_bytes().unwrap_or(0))
}

/// Bytes of weight `id` that `step` reads: all, or the rows looked up, or the matrices of the experts that may be chosen.
fn weight_bytes(plan: &Plan, step: &Step, id: u32, call: CallShape) -> u64 {
    let Some(weight) = plan.weights.get(id as usize) else { return 0 };
    match step.kind {
        StepKind::Embed => (weight.bytes / weight.rows.max(1)).saturating_mul(u64::from(call.tokens)),
        StepKind::ExpertLinear { .. }
        | StepKind::ExpertGlu { .. }
        | StepKind::ExpertLut { .. }
        | StepKind::ExpertVq { .. } => {
            let pairs = step.writes.first().map_or(0, |it| it.rows.count(call.tokens, call.want));
            let in_record = weight.dtype.vq().map(|it| {
                // Indices and a scale a row.
                it.index_bytes(weight.rows, weight.cols).unwrap_or(0).saturating_add(2 * weight.rows)
            });
            in_record.unwrap_or(weight.matrix_bytes()).saturating_mul(pairs.min(u64::from(weight.bank)))
        }
        _ => weight.bytes,
    }
}

/// Bytes of `positions` positions of one row of state `id`.
fn cache_bytes(plan: &Plan, id: u32, positions: u32) -> u64 {
    let Some(state) = plan.states.get(id as usize) else { return 0 };
    if state.kind == StateKind::Recurrent {
        // One half is read, the other written, by the step that names the state once.
        return state.bytes / u64::from(state.shape[0]).max(1);
    }
    let [_, most, heads, width] = state.shape;
    let elems = u64::from(heads).saturating_mul(u64::from(width));
    let position = state.dtype.row_bytes(elems).unwrap_or(0);
    position.saturating_mul(u64::from(positions.min(most)))
}

fn flops(plan: &Plan, step: &Step, call: CallShape) -> u64 {
    let weighted = |operand: &Operand| match operand.place {
        Place::Weight(id) => plan.weights.get(id as usize).map_or(0, |it| it.rows.saturating_mul(it.cols)),
        Place::Scratch(_) | Place::Io(_) | Place::State(_) => 0,
    };
    let rows = |operand: &Operand| operand.rows.count(call.tokens, call.want);
    match &step.kind {
        StepKind::Linear { .. }
        | StepKind::HeadLinear
        | StepKind::HeadLinearT
        | StepKind::ExpertLinear { .. } => {
            let matrix = step.reads.get(1).map_or(0, weighted);
            matrix.saturating_mul(2).saturating_mul(step.writes.first().map_or(0, rows))
        }
        StepKind::LinearGlu { .. } | StepKind::ExpertGlu { .. } => {
            let matrices: u64 = step.reads.iter().skip(1).map(weighted).fold(0, u64::saturating_add);
            matrices.saturating_mul(2).saturating_mul(step.writes.first().map_or(0, rows))
        }
        StepKind::LatentAttention { heads, .. } => {
            let width = match step.reads.get(1).map(|it| it.place) {
                Some(Place::State(id)) => plan.states.get(id as usize).map_or(0, |it| u64::from(it.shape[3])),
                _ => 0,
            };
            let values = step.writes.first().map_or(0, |it| u64::from(it.cols));
            attended_pairs(call)
                .saturating_mul(u64::from(*heads))
                .saturating_mul(width + values)
                .saturating_mul(2)
        }
        // A lookup and an addition for each stage of each position.
        StepKind::ExpertLut { .. } => {
            let lut = step.reads.first();
            let stages = lut.and_then(|it| it.dtype.lut()).map_or(0, |it| it.code.stages() as u64);
            let positions = lut.map_or(0, |it| u64::from(it.cols) / 8);
            let outputs = step.writes.first().map_or(0, |it| rows(it).saturating_mul(u64::from(it.cols)));
            outputs.saturating_mul(positions).saturating_mul(stages)
        }
        StepKind::ExpertVq { code, .. } => {
            let inputs = step.reads.first().map_or(0, |it| u64::from(it.cols));
            let (pairs, outputs) = step.writes.first().map_or((0, 0), |it| (rows(it), u64::from(it.cols)));
            let (stages, entries) = (code.stages() as u64, code.entries() as u64);
            let lookups = (inputs / 8).saturating_mul(outputs).saturating_mul(stages);
            let build = inputs.saturating_mul(2 * stages * entries);
            lookups.saturating_add(build).saturating_mul(pairs)
        }
        StepKind::LutBuild { code, .. } => {
            let inputs = step.reads.first().map_or(0, |it| rows(it).saturating_mul(u64::from(it.cols)));
            inputs.saturating_mul(2 * (code.stages() * code.entries()) as u64)
        }
        StepKind::KdaStep => {
            // Decay, product with k, update and product with q: seven operations an element of S.
            let width = |slot: usize| step.reads.get(slot).map_or(0, |it| u64::from(it.cols));
            let per_token = (width(1) / width(4).max(1)).saturating_mul(width(2)).saturating_mul(7);
            per_token.saturating_mul(u64::from(call.tokens))
        }
        StepKind::ShortConv { .. } => {
            let taps = step.reads.get(1).map_or(0, |it| u64::from(it.cols));
            let elems = step.writes.first().map_or(0, |it| rows(it).saturating_mul(u64::from(it.cols)));
            elems.saturating_mul(2 * taps)
        }
        StepKind::Attention { heads, .. } => {
            let width = |operand: &Operand| match operand.place {
                Place::State(id) => plan.states.get(id as usize).map_or(0, |it| u64::from(it.shape[3])),
                Place::Scratch(_) | Place::Io(_) | Place::Weight(_) => 0,
            };
            let widths: u64 = step.reads.iter().map(width).sum();
            attended_pairs(call).saturating_mul(u64::from(*heads)).saturating_mul(widths).saturating_mul(2)
        }
        kind => {
            let elems = |it: &Operand| rows(it).saturating_mul(u64::from(it.cols));
            step.writes.first().map_or(0, elems).saturating_mul(per_element(kind))
        }
    }
}

/// Pairs of a token of the call and a position that it attends to.
fn attended_pairs(call: CallShape) -> u64 {
    let (tokens, past) = (u64::from(call.tokens), u64::from(call.past));
    tokens.saturating_mul(past).saturating_add(tokens * (tokens + 1) / 2)
}

/// Operations an element of the result; a root, a division or a transcendental function counts as one.
fn per_element(kind: &StepKind) -> u64 {
    match kind {
        StepKind::Add | StepKind::Mul | StepKind::Argmax | StepKind::FiniteCheck => 1,
        StepKind::Unary { .. } => 4,
        StepKind::Glu { .. } => 5,
        StepKind::RmsNorm { .. } => 4,
        StepKind::LayerNorm { .. } => 8,
        StepKind::RopeAngles { .. } => 2,
        StepKind::Rope { .. } => 3,
        StepKind::QuantAct { .. } => 3,
        StepKind::Embed | StepKind::KvAppend | StepKind::SelectRows => 0,
        StepKind::L2Norm { .. } => 4,
        StepKind::KdaGate { .. } => 8,
        StepKind::GatedRmsNorm { .. } => 9,
        StepKind::AttnResMix { .. } => 8,
        StepKind::RouteTopK { .. } => 8,
        StepKind::ExpertSum => 2,
        StepKind::Concat | StepKind::ExpertGather | StepKind::ExpertSort { .. } => 0,
        StepKind::Linear { .. } | StepKind::LinearGlu { .. } | StepKind::Attention { .. } => 0,
        StepKind::HeadLinear | StepKind::HeadLinearT | StepKind::LatentAttention { .. } => 0,
        StepKind::ExpertLinear { .. } | StepKind::ExpertGlu { .. } => 0,
        StepKind::KdaStep | StepKind::ShortConv { .. } => 0,
        StepKind::LutBuild { .. } | StepKind::ExpertLut { .. } | StepKind::ExpertVq { .. } => 0,
        StepKind::ExpertPrefetch { .. } | StepKind::ExpertWindow { .. } | StepKind::ExpertRelease { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use waste_plan::schema::{Memory, Model, Options, Rows, State, StateKind, Tile, Weight};
    use waste_plan::{Act, DType, Math, Packing};

    use super::*;

    fn operand(place: Place, rows: Rows, cols: u32) -> Operand {
        Operand { place, dtype: DType::F32, rows, cols, stride: u64::from(cols) * 4 }
    }

    fn step(kind: StepKind, reads: Vec<Operand>, writes: Vec<Operand>) -> Step {
        Step { kind, reads, writes, tile: Tile { rows: 1, cols: 16 }, barrier: true, window: false, op: 0 }
    }

    fn state(kind: StateKind) -> State {
        let shape = [1, 64, 2, 8];
        State { name: "k.0".into(), dtype: DType::F16, kind, shape, bytes: 64 * 2 * 8 * 2, offset: 0 }
    }

    /// One matrix of 32 × 64, used as a table, by a linear over all tokens and by one over wanted rows; one cache.
    fn plan() -> Plan {
        let w = Weight {
            name: "w".into(),
            dtype: DType::F16,
            bank: 1,
            rows: 32,
            cols: 64,
            packing: Packing::F16,
            bytes: 32 * 64 * 2,
            offset: 0,
            crc32c: 0,
            parts: vec![],
            records: None,
        };
        let weight = operand(Place::Weight(0), Rows::Fixed(32), 64);
        let x = |rows| operand(Place::Scratch(0), rows, 64);
        let y = |rows| operand(Place::Scratch(0), rows, 32);
        let linear = StepKind::Linear { act: Act::None, bias: false, residual: false };
        let tokens = Rows::Tokens(1);
        let caches = [0, 1].map(|id| operand(Place::State(id), Rows::Fixed(64), 16));
        let steps = vec![
            step(StepKind::Embed, vec![operand(Place::Io(0), tokens, 1), weight], vec![x(tokens)]),
            step(linear.clone(), vec![x(tokens), weight], vec![y(tokens)]),
            step(StepKind::KvAppend, vec![operand(Place::Scratch(0), tokens, 16)], vec![caches[0]]),
            step(
                StepKind::Attention { scale: 1.0, heads: 4 },
                vec![y(tokens), caches[0], caches[1]],
                vec![y(tokens)],
            ),
            step(linear, vec![x(Rows::Want(1)), weight], vec![y(Rows::Want(1))]),
        ];
        let program =
            |name: &str, tokens| Program { name: name.into(), tokens, want: 1, steps: steps.clone() };
        Plan {
            version: 1,
            producer: String::new(),
            target: "cpu".into(),
            model: Model {
                name: "m".into(),
                arch: "llama".into(),
                ctx_trained: 64,
                vocab: 32,
                params: 2048,
                source_bytes: 4096,
            },
            options: Options {
                ctx: 64,
                batch: 1,
                chunk: 16,
                want: 1,
                kv: DType::F16,
                math: Math::F32,
                lookahead: 0,
                passes: vec![],
            },
            sources: vec![],
            banks: vec![],
            weights: vec![w],
            states: vec![state(StateKind::Keys), state(StateKind::Values)],
            ports: vec![],
            memory: Memory::default(),
            programs: vec![program("decode", 1), program("prefill", 16)],
            stop_ids: vec![],
        }
    }

    #[test]
    fn weights_count_once_a_call_and_caches_by_position() {
        let plan = plan();
        let cost = |tokens, past| {
            let call = CallShape { tokens, want: 1, past };
            plan.programs[1].steps.iter().map(|it| step_cost(&plan, it, call)).collect::<Vec<_>>()
        };
        let one = cost(1, 10);
        assert_eq!(one.iter().map(|it| it.weights).collect::<Vec<_>>(), [128, 4096, 0, 0, 4096]);
        // A position is 2 heads × 8 × 2 bytes; 11 of them, keys and values.
        assert_eq!(one.iter().map(|it| it.states).collect::<Vec<_>>(), [0, 0, 32, 2 * 11 * 32, 0]);
        assert_eq!(one[1].others, 64 * 4 + 32 * 4);
        assert_eq!(
            one.iter().map(|it| it.flops).collect::<Vec<_>>(),
            [0, 4096, 0, 11 * 4 * (8 + 8) * 2, 4096]
        );

        let many = cost(16, 0);
        assert_eq!(many.iter().map(|it| it.weights).collect::<Vec<_>>(), [16 * 128, 4096, 0, 0, 4096]);
        assert_eq!(many.iter().map(|it| it.states).collect::<Vec<_>>(), [0, 0, 16 * 32, 2 * 16 * 32, 0]);
        let pairs = 16 * 17 / 2;
        assert_eq!(
            many.iter().map(|it| it.flops).collect::<Vec<_>>(),
            [0, 16 * 4096, 0, pairs * 4 * 16 * 2, 4096]
        );
    }

    #[test]
    fn a_call_is_the_sum_of_its_steps() {
        let plan = plan();
        let call = CallShape { tokens: 1, want: 1, past: 0 };
        let sum = call_cost(&plan, &plan.programs[0], call);
        assert_eq!((sum.weights, sum.states), (128 + 2 * 4096, 32 + 2 * 32));
        assert_eq!(sum.memory() + sum.others, sum.bytes());
    }

    #[test]
    fn programs_are_chosen_as_a_session_does() {
        let plan = plan();
        assert_eq!(program_for(&plan, 1, 1), Some(0));
        assert_eq!(program_for(&plan, 2, 1), Some(1));
        assert_eq!(program_for(&plan, 17, 1), None);
        assert_eq!(program_for(&plan, 2, 2), None);
    }
}
