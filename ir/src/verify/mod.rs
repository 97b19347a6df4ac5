//! The rules of a module; this list is the specification.
//!
//! Declarations
//! 1. Names of symbols, weights, states and graphs are distinct; those of inputs and outputs within their graph. All but the names of
//!    weights are words; no input is called `v` and a number.
//! 2. A symbol has `lo ≤ hi` and `hi ≥ 1`.
//! 3. A weight has known dimensions, at least 1, a dtype that holds weights, whole blocks in each row, and a size that fits 64 bits.
//! 4. The stored bytes of a weight lie inside its source. A transposed weight is a float matrix.
//! 5. The stored dtype is the declared one, or f16, bf16 or a grouped one under a declared f32. Codes and scales of a grouped one lie apart
//!    (`grouped`); indices and scales of a vector-quantised one lie in records, each inside its own.
//! 6. The parts of a concatenation are declared before it, have its dtype and its shape but for the first dimension, and sum up to it.
//!    A bank `[E, n, k]` has E parts, at most [`MAX_BANK`](crate::text::MAX_BANK). A vector-quantised weight, and no other, names its
//!    codebooks, `f32[stages, entries, 8]`, declared before it.
//! 7. A weight is read by a graph, or is part of one that is, or its codebooks.
//! 8. A state is `f32` or `f16` `[B, S, heads, d]` with known heads and d; its sizes are as in rule 9. A recurrent one is f32.
//!
//! Structure of a graph
//! 9. Ids are in range, and values say where they come from. Sizes are at least 1, and the largest size in bytes fits 64 bits.
//! 10. Each op stands in one order, once; each region has one owner; regions nest at most [`MAX_DEPTH`](crate::text::MAX_DEPTH) deep.
//! 11. A value is used after its definition, and inside the region that defines it.
//! 12. An op has its mandatory operands, its number of results, and a region exactly if it needs one.
//!
//! Meaning of a graph
//! 13. The types of results are those that [`infer`](crate::infer::infer) gives; the value of a weight or state has its declared type.
//! 14. Attributes are in range: `eps`, `scale`, `base` and scalings positive and finite, counts at least 1, bounds of a log decay at
//!     most 0. Only gated ops have the activation `situ`, and no other activation has its parameters.
//! 15. Inputs `token`, `row`, `pos` and `want` are i32 vectors; the first three have one length.
//! 16. States are linear: only the newest version is read, replaced at most once, never inside a region, and the last one is the
//!     output `@` + its name; no other output is a state.
//! 17. `kv_append` writes a cache; `attention` reads a state of keys and a state of values, `latent_attention` one of keys.
//!     `short_conv` and `kda_step` replace a recurrent state, which no other op reads and which is replaced once.
//! 18. `bank_slice` stands in the region of a `for_each_expert` with as many experts as the bank, and takes that region's expert.
//!     `expert_hint` stands at the top level and reads the ids of a `route_top_k` over as many experts as its bank, a weight.
//!
//! Phases
//! 19. `imported`: no linear or short conv has an activation, no linear a residual; no `linear_glu`, no `quant_act`, no `quant` attribute,
//!     no lookup tables, no `expert_hint`.
//! 20. `legal`, `final`: a vector-quantised weight is read through lookup tables alone. Linears over float weights read f32. Linears over integer weights read one and the same fixed-point dtype
//!     everywhere in the module, or f32 if the module has no fixed-point values.
//! 21. `final`: a weight that an op reads has a packing: that of its dtype as the matrix of a linear, columns as codebooks, plain as a
//!     vector; as a table plain or as a matrix.

mod phase;
mod state;
mod structure;
mod types;
mod weights;

use std::fmt;

use waste_plan::ids::{EntityRef, SecondaryMap};

use crate::graph::{Graph, GraphId, Module, OpId, StateId, WeightId};
use crate::text::{
    ValueNames, print_graph_header, print_op, print_output, print_state, print_sym, print_weight,
};
use crate::types::SymId;

/// A module that obeys the rules; only [`verify`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Verified<'m> {
    module: &'m Module,
}

impl<'m> Verified<'m> {
    /// The module.
    #[must_use]
    pub const fn module(self) -> &'m Module {
        self.module
    }
}

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entity {
    /// A symbol.
    Sym(SymId),
    /// A weight.
    Weight(WeightId),
    /// A state.
    State(StateId),
    /// A graph as a whole: its name, inputs and orders.
    Graph(GraphId),
    /// An op.
    Op(GraphId, OpId),
    /// An output by position.
    Output(GraphId, usize),
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyError {
    /// Where.
    pub at: Entity,
    /// The line of text at fault, without region and comments.
    pub context: String,
    /// The number of the rule in the documentation of [`mod@crate::verify`].
    pub rule: u16,
    /// What is wrong, with found and expected.
    pub message: String,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Entity::Graph(_) | Entity::Sym(_) | Entity::Weight(_) | Entity::State(_) => {}
            Entity::Op(graph, _) | Entity::Output(graph, _) => write!(f, "{graph}: ")?,
        }
        write!(f, "{}: {} (rule {})", self.context, self.message, self.rule)
    }
}

impl std::error::Error for VerifyError {}

/// Checks every rule.
///
/// # Errors
/// All broken rules, in the order of the text. While a declaration or the structure of a graph is broken (rules 1 to 12 but 7),
/// nothing can be said of that graph's meaning and phase, nor of rule 7.
pub fn verify(module: &Module) -> Result<Verified<'_>, Vec<VerifyError>> {
    let mut errors = Errors { module, found: Vec::new() };
    structure::names(&mut errors);
    weights::declarations(&mut errors);
    state::declarations(&mut errors);
    let declared = errors.found.is_empty();
    let mut sound = true;
    let fx = phase::fixed_point(module);
    for (id, graph) in module.graphs.iter() {
        let mut cx = GraphCx {
            id,
            graph,
            names: ValueNames::of(graph),
            order: SecondaryMap::new(0),
            errors: &mut errors,
        };
        let before = cx.errors.found.len();
        structure::graph(&mut cx);
        sound &= cx.errors.found.len() == before;
        if declared && cx.errors.found.len() == before {
            types::graph(&mut cx);
            state::graph(&mut cx);
            phase::graph(&mut cx, fx);
        }
    }
    if declared && sound {
        weights::dead(&mut errors);
    }
    if errors.found.is_empty() {
        return Ok(Verified { module });
    }
    errors.found.sort_by_key(|it| it.0);
    Err(errors.found.into_iter().map(|it| it.1).collect())
}

/// Where an error stands in the text: graph (0: none), then kind or op, then index.
type Place = (usize, usize, usize);

/// The errors found so far.
struct Errors<'m> {
    module: &'m Module,
    found: Vec<(Place, VerifyError)>,
}

impl Errors<'_> {
    fn push(&mut self, at: Entity, place: Place, context: String, rule: u16, message: String) {
        self.found.push((place, VerifyError { at, context, rule, message }));
    }

    fn sym(&mut self, id: SymId, rule: u16, message: String) {
        let context = print_sym(&self.module.syms[id]);
        self.push(Entity::Sym(id), (0, 0, id.index()), context, rule, message);
    }

    fn weight(&mut self, id: WeightId, rule: u16, message: String) {
        let context = print_weight(self.module, &self.module.weights[id]);
        self.push(Entity::Weight(id), (0, 1, id.index()), context, rule, message);
    }

    fn state(&mut self, id: StateId, rule: u16, message: String) {
        let context = print_state(self.module, &self.module.states[id]);
        self.push(Entity::State(id), (0, 2, id.index()), context, rule, message);
    }

    fn graph(&mut self, id: GraphId, rule: u16, message: String) {
        let context = print_graph_header(self.module, &self.module.graphs[id]);
        self.push(Entity::Graph(id), (id.index() + 1, 0, 0), context, rule, message);
    }
}

/// A graph under verification.
struct GraphCx<'a, 'm> {
    id: GraphId,
    graph: &'m Graph,
    names: ValueNames,
    /// The place of each op in print order, from 1; set by `structure`.
    order: SecondaryMap<OpId, usize>,
    errors: &'a mut Errors<'m>,
}

impl<'m> GraphCx<'_, 'm> {
    const fn module(&self) -> &'m Module {
        self.errors.module
    }

    /// The name of a value in messages.
    fn name(&self, value: crate::ValueId) -> String {
        self.names.name(self.module(), self.graph, value)
    }

    fn whole(&mut self, rule: u16, message: String) {
        self.errors.graph(self.id, rule, message);
    }

    fn op(&mut self, op: OpId, rule: u16, message: String) {
        let context = print_op(self.module(), self.graph, &self.names, op);
        let place = (self.id.index() + 1, self.order[op], 0);
        self.errors.push(Entity::Op(self.id, op), place, context, rule, message);
    }

    fn output(&mut self, i: usize, rule: u16, message: String) {
        let context = print_output(self.module(), self.graph, &self.names, i);
        let place = (self.id.index() + 1, usize::MAX, i);
        self.errors.push(Entity::Output(self.id, i), place, context, rule, message);
    }
}
