//! Building graphs: one method an op, result types inferred.
//!
//! Front ends, passes and tests build with nothing else, so every graph they make has the types that `infer` gives.

use std::collections::HashMap;

use waste_plan::{DType, Math, Packing};

use crate::attrs::{Act, RopeScaling, RopeStyle, Scoring, UnaryKind};
use crate::graph::{
    Def, Graph, Module, OpData, OpId, Output, Phase, Region, RegionId, StateId, ValueData, ValueId,
    WeightDecl, WeightId, WeightInit,
};
use crate::infer::infer;
use crate::ops::Op;
use crate::types::TensorType;

mod hybrid;

/// Why an op could not be added: the op and a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{op}: {message}")]
pub struct BuildError {
    /// The op's name.
    pub op: &'static str,
    /// What is wrong, with found and expected.
    pub message: String,
}

/// The result of a builder method.
pub type Built<T = ValueId> = Result<T, BuildError>;

/// Builds one graph, op by op, in execution order.
#[derive(Debug)]
pub struct GraphBuilder<'m> {
    module: &'m Module,
    graph: Graph,
    weights: HashMap<WeightId, ValueId>,
    states: HashMap<StateId, ValueId>,
    open: Vec<RegionId>,
}

impl<'m> GraphBuilder<'m> {
    /// An empty graph over the weights, states and symbols of `module`.
    #[must_use]
    pub fn new(module: &'m Module, name: &str, phase: Phase) -> Self {
        let graph = Graph { name: name.to_owned(), phase, ..Graph::default() };
        Self { module, graph, weights: HashMap::new(), states: HashMap::new(), open: Vec::new() }
    }

    /// The graph so far.
    #[must_use]
    pub const fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The module that the graph belongs to.
    #[must_use]
    pub const fn module(&self) -> &'m Module {
        self.module
    }

    /// Declares the next input.
    pub fn input(&mut self, name: &str, ty: TensorType) -> ValueId {
        let def = Def::Input(u32::try_from(self.graph.inputs.len()).expect("few inputs"));
        let value = self.graph.values.push(ValueData { ty, def, name: name.to_owned() });
        self.graph.inputs.push(value);
        value
    }

    /// The value of a weight; the same value at each call.
    pub fn weight(&mut self, weight: WeightId) -> ValueId {
        let ty = &self.module.weights[weight].ty;
        *self.weights.entry(weight).or_insert_with(|| {
            self.graph.values.push(ValueData {
                ty: ty.clone(),
                def: Def::Weight(weight),
                name: String::new(),
            })
        })
    }

    /// The version of a state at the start of the call.
    pub fn state(&mut self, state: StateId) -> ValueId {
        let ty = &self.module.states[state].ty;
        *self.states.entry(state).or_insert_with(|| {
            self.graph.values.push(ValueData { ty: ty.clone(), def: Def::State(state), name: String::new() })
        })
    }

    /// Declares the next output.
    pub fn output(&mut self, name: &str, value: ValueId) {
        self.graph.outputs.push(Output { name: name.to_owned(), value });
    }

    /// The finished graph.
    ///
    /// # Panics
    /// If a region is still open.
    #[must_use]
    pub fn finish(self) -> Graph {
        assert!(self.open.is_empty(), "a region of graph '{}' is still open", self.graph.name);
        self.graph
    }

    /// Opens a region with arguments of the given types; ops go into it until [`Self::close_region`].
    pub fn open_region(&mut self, args: &[TensorType]) -> (RegionId, Vec<ValueId>) {
        let region = self.graph.regions.push(Region::default());
        let args: Vec<ValueId> = args
            .iter()
            .enumerate()
            .map(|(i, ty)| {
                let def = Def::Arg(region, u32::try_from(i).expect("few arguments"));
                self.graph.values.push(ValueData { ty: ty.clone(), def, name: String::new() })
            })
            .collect();
        self.graph.regions[region].args.clone_from(&args);
        self.open.push(region);
        (region, args)
    }

    /// Closes the innermost open region.
    ///
    /// # Panics
    /// If no region is open.
    pub fn close_region(&mut self, yields: &[ValueId]) -> RegionId {
        let region = self.open.pop().expect("an open region");
        self.graph.regions[region].yields = yields.to_vec();
        region
    }

    /// Adds any op; the typed methods below are spelled with this one.
    ///
    /// # Errors
    /// If the operands do not fit the op.
    pub fn push(&mut self, op: Op, operands: &[Option<ValueId>], region: Option<RegionId>) -> Built<OpId> {
        let types = infer(&self.graph, &op, operands, region)
            .map_err(|message| BuildError { op: op.name(), message })?;
        let id = self.graph.ops.push(OpData {
            op,
            operands: operands.into(),
            results: smallvec::SmallVec::new(),
            region,
        });
        for (i, ty) in types.into_iter().enumerate() {
            let def = Def::Op(id, u32::try_from(i).expect("few results"));
            let value = self.graph.values.push(ValueData { ty, def, name: String::new() });
            self.graph.ops[id].results.push(value);
        }
        match self.open.last() {
            Some(region) => self.graph.regions[*region].order.push(id),
            None => self.graph.order.push(id),
        }
        Ok(id)
    }

    fn one(&mut self, op: Op, operands: &[ValueId]) -> Built {
        let mut slots: Vec<Option<ValueId>> = operands.iter().copied().map(Some).collect();
        slots.resize(op.operand_names().len(), None);
        let id = self.push(op, &slots, None)?;
        Ok(self.graph.ops[id].results[0])
    }

    fn two(&mut self, op: Op, operands: &[Option<ValueId>]) -> Built<(ValueId, ValueId)> {
        let id = self.push(op, operands, None)?;
        let results = &self.graph.ops[id].results;
        Ok((results[0], results[1]))
    }
}

/// One method an op: see [`Op`] for shapes, formulas and sources. All fail if the operands do not fit.
#[allow(clippy::missing_errors_doc, reason = "one rule for all: the operands do not fit the op")]
impl GraphBuilder<'_> {
    /// See [`Op::Embed`].
    pub fn embed(&mut self, ids: ValueId, w: ValueId) -> Built {
        self.one(Op::Embed {}, &[ids, w])
    }
    /// See [`Op::QuantAct`].
    pub fn quant_act(&mut self, x: ValueId, math: Math) -> Built {
        self.one(Op::QuantAct { math }, &[x])
    }
    /// See [`Op::Linear`], without epilogue.
    pub fn linear(&mut self, x: ValueId, w: ValueId) -> Built {
        self.one(Op::Linear { act: Act::None }, &[x, w])
    }
    /// See [`Op::LinearGlu`].
    pub fn linear_glu(&mut self, x: ValueId, gate: ValueId, up: ValueId, act: Act) -> Built {
        self.one(Op::LinearGlu { act, quant: None, beta: 1.0, linear: 0.0 }, &[x, gate, up])
    }
    /// See [`Op::Add`]. A bias vector is not an operand of `add`: it belongs to [`Op::Linear`].
    pub fn add(&mut self, lhs: ValueId, rhs: ValueId) -> Built {
        self.one(Op::Add {}, &[lhs, rhs])
    }
    /// See [`Op::Mul`].
    pub fn mul(&mut self, lhs: ValueId, rhs: ValueId) -> Built {
        self.one(Op::Mul {}, &[lhs, rhs])
    }
    /// See [`Op::Unary`].
    pub fn unary(&mut self, x: ValueId, kind: UnaryKind) -> Built {
        self.one(Op::Unary { kind }, &[x])
    }
    /// See [`Op::Glu`].
    pub fn glu(&mut self, gate: ValueId, up: ValueId, act: Act) -> Built {
        self.one(Op::Glu { act, beta: 1.0, linear: 0.0 }, &[gate, up])
    }
    /// See [`Op::Glu`] with [`Act::Situ`].
    pub fn situ(&mut self, gate: ValueId, up: ValueId, beta: f32, linear: f32) -> Built {
        self.one(Op::Glu { act: Act::Situ, beta, linear }, &[gate, up])
    }
    /// See [`Op::RmsNorm`].
    pub fn rms_norm(&mut self, x: ValueId, w: ValueId, eps: f32) -> Built {
        self.one(Op::RmsNorm { eps, quant: None }, &[x, w])
    }
    /// See [`Op::LayerNorm`].
    pub fn layer_norm(&mut self, x: ValueId, w: ValueId, b: Option<ValueId>, eps: f32) -> Built {
        let id = self.push(Op::LayerNorm { eps, quant: None }, &[Some(x), Some(w), b], None)?;
        Ok(self.graph.ops[id].results[0])
    }
    /// See [`Op::RopeAngles`].
    pub fn rope_angles(
        &mut self,
        pos: ValueId,
        factors: Option<ValueId>,
        dims: u32,
        base: f64,
        scaling: RopeScaling,
    ) -> Built {
        let id = self.push(Op::RopeAngles { dims, base, scaling }, &[Some(pos), factors], None)?;
        Ok(self.graph.ops[id].results[0])
    }
    /// See [`Op::Rope`].
    pub fn rope(&mut self, x: ValueId, angles: ValueId, head_dim: u32, style: RopeStyle) -> Built {
        self.rope_from(x, angles, head_dim, style, 0)
    }
    /// See [`Op::Rope`], from element `skip` of each head.
    pub fn rope_from(
        &mut self,
        x: ValueId,
        angles: ValueId,
        head_dim: u32,
        style: RopeStyle,
        skip: u32,
    ) -> Built {
        self.one(Op::Rope { head_dim, style, skip }, &[x, angles])
    }
    /// See [`Op::KvAppend`].
    pub fn kv_append(&mut self, cache: ValueId, x: ValueId, row: ValueId, pos: ValueId) -> Built {
        self.one(Op::KvAppend {}, &[cache, x, row, pos])
    }
    /// See [`Op::Attention`].
    pub fn attention(
        &mut self,
        q: ValueId,
        (k, v): (ValueId, ValueId),
        row: ValueId,
        pos: ValueId,
        scale: f32,
    ) -> Built {
        self.one(Op::Attention { scale }, &[q, k, v, row, pos])
    }
    /// See [`Op::SelectRows`].
    pub fn select_rows(&mut self, x: ValueId, want: ValueId) -> Built {
        self.one(Op::SelectRows {}, &[x, want])
    }
    /// See [`Op::Slice`].
    pub fn slice(&mut self, x: ValueId, start: u32, len: u32) -> Built {
        self.one(Op::Slice { start, len }, &[x])
    }
    /// See [`Op::Reshape`].
    pub fn reshape(&mut self, x: ValueId, cols: u32) -> Built {
        self.one(Op::Reshape { cols }, &[x])
    }
    /// See [`Op::Argmax`].
    pub fn argmax(&mut self, x: ValueId) -> Built {
        self.one(Op::Argmax {}, &[x])
    }
    /// See [`Op::FiniteCheck`].
    pub fn finite_check(&mut self, x: ValueId) -> Built {
        self.one(Op::FiniteCheck {}, &[x])
    }
    /// See [`Op::RouteTopK`]; returns (ids, weights).
    pub fn route_top_k(
        &mut self,
        logits: ValueId,
        bias: Option<ValueId>,
        k: u32,
        scoring: Scoring,
        renorm: bool,
        scale: f32,
    ) -> Built<(ValueId, ValueId)> {
        self.two(Op::RouteTopK { k, scoring, renorm, scale, groups: 1, keep: 1 }, &[Some(logits), bias])
    }
    /// See [`Op::BankSlice`].
    pub fn bank_slice(&mut self, bank: ValueId, expert: ValueId) -> Built {
        self.one(Op::BankSlice {}, &[bank, expert])
    }
    /// See [`Op::ForEachExpert`]; `region` was closed just before.
    pub fn for_each_expert(
        &mut self,
        x: ValueId,
        (ids, weights): (ValueId, ValueId),
        experts: u32,
        region: RegionId,
    ) -> Built {
        let slots = [Some(x), Some(ids), Some(weights), None, None];
        let id = self.push(Op::ForEachExpert { experts }, &slots, Some(region))?;
        Ok(self.graph.ops[id].results[0])
    }
    /// A linear with a bias vector: y = x · wᵀ + bias.
    pub fn linear_bias(&mut self, x: ValueId, w: ValueId, bias: ValueId) -> Built {
        let id = self.push(Op::Linear { act: Act::None }, &[Some(x), Some(w), Some(bias), None], None)?;
        Ok(self.graph.ops[id].results[0])
    }
}

impl Module {
    /// Declares a weight stored row-major in a source.
    pub fn add_weight(&mut self, name: &str, ty: TensorType, init: WeightInit) -> WeightId {
        self.weights.push(WeightDecl { name: name.to_owned(), ty, init, books: None, packing: None })
    }

    /// Declares a vector-quantised bank and the codebooks that its indices address.
    pub fn add_vq_bank(&mut self, name: &str, ty: TensorType, init: WeightInit, books: WeightId) -> WeightId {
        self.weights.push(WeightDecl { name: name.to_owned(), ty, init, books: Some(books), packing: None })
    }

    /// The packing of weight `weight`, once chosen.
    #[must_use]
    pub fn packing(&self, weight: WeightId) -> Option<Packing> {
        self.weights[weight].packing
    }

    /// The dtype of weight `weight`.
    #[must_use]
    pub fn weight_dtype(&self, weight: WeightId) -> DType {
        self.weights[weight].ty.dtype
    }
}
