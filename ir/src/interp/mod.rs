//! The reference evaluator: any graph, in f64, slowly and obviously.
//!
//! It is the oracle for passes, kernels and devices (numerics §7): the op table's formulas in plain loops, `quant_act` and `quant`
//! the identity, `lut_build` too (what reads its tables decodes the matrix), caches unrounded.
//!
//! Invariants
//! - each output element is a function of its own token's history, so splitting a prompt into calls changes no bit;
//! - the value of a linear depends on its own row of weights only, so concatenating matrices changes no bit.
//!
//! Deliberately absent: speed (only decoded weights are kept), symbols other than those bound by the inputs, and rollback: a failed
//! call may leave cache rows written at its own positions.

mod experts;
mod hybrid;
mod math;
mod ops;
mod tensor;
mod weights;

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use waste_plan::DType;
use waste_plan::ids::SecondaryMap;

use crate::graph::{Def, Graph, GraphId, Module, OpId, StateId, ValueId, WeightId};
use crate::text::{ValueNames, print_op};
use crate::types::{Dim, SymId, TensorType};
use crate::verify::Verified;

pub use tensor::{Data, Tensor};
pub use weights::{MatrixSource, ReadBytes, WeightSource, decode_matrix, decode_weight};

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InterpError {
    /// The module has no such graph.
    #[error("no graph '{0}'")]
    NoGraph(String),
    /// An input is missing, or not of its type.
    #[error("input '{name}': {message}")]
    Input {
        /// The input.
        name: String,
        /// What is wrong, with found and expected.
        message: String,
    },
    /// A weight cannot be had.
    #[error("weight {name:?}: {message}")]
    Weight {
        /// The weight.
        name: String,
        /// What its source says.
        message: String,
    },
    /// An op met values that it cannot take: an id, row or position out of range.
    #[error("{op}: {message}")]
    Op {
        /// The printed op.
        op: String,
        /// What is wrong, with found and expected.
        message: String,
    },
}

/// The inputs of a call, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs(BTreeMap<String, Tensor>);

impl Inputs {
    /// The inputs of a decoder: ids, rows and positions of T tokens, and the R tokens whose logits are wanted.
    #[must_use]
    pub fn tokens(token: &[i32], row: &[i32], pos: &[i32], want: &[i32]) -> Self {
        let all = [("token", token), ("row", row), ("pos", pos), ("want", want)];
        all.into_iter().fold(Self::default(), |it, (name, ids)| it.with(name, Tensor::ids(ids)))
    }

    /// These inputs and one more.
    #[must_use]
    pub fn with(mut self, name: &str, value: Tensor) -> Self {
        self.0.insert(name.to_owned(), value);
        self
    }
}

/// An evaluator of one module, with the states that live between calls.
pub struct Interp<'m> {
    module: &'m Module,
    source: &'m WeightSource<'m>,
    matrices: Option<&'m MatrixSource<'m>>,
    weights: HashMap<WeightId, Rc<Tensor>>,
    /// Elements that may be kept beside those of `weights`.
    room: usize,
    states: SecondaryMap<StateId, Vec<f64>>,
}

impl std::fmt::Debug for Interp<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interp").field("module", &self.module.info.name).finish_non_exhaustive()
    }
}

impl<'m> Interp<'m> {
    /// An evaluator with empty states; weights are asked for when they are first used, and kept.
    #[must_use]
    pub fn new(module: Verified<'m>, source: &'m WeightSource<'m>) -> Self {
        let states = SecondaryMap::new(Vec::new());
        Self {
            module: module.module(),
            source,
            matrices: None,
            weights: HashMap::new(),
            room: usize::MAX,
            states,
        }
    }

    /// The same evaluator, which asks `matrices` for each matrix of an expert when it is used, and keeps none: for banks that do not fit
    /// in memory.
    #[must_use]
    pub const fn with_matrices(mut self, matrices: &'m MatrixSource<'m>) -> Self {
        self.matrices = Some(matrices);
        self
    }

    /// The same evaluator, which keeps decoded weights of at most so many elements, of 8 bytes each: the first ones that fit. Others are
    /// asked for at every use.
    #[must_use]
    pub const fn keeping(mut self, elements: usize) -> Self {
        self.room = elements;
        self
    }

    /// Runs a graph: its outputs by name, but for states, which stay inside.
    ///
    /// # Errors
    /// If the graph, an input or a weight is missing or wrong, or an id, row or position is out of range.
    pub fn run(&mut self, graph: &str, inputs: &Inputs) -> Result<BTreeMap<String, Tensor>, InterpError> {
        let mut frame = self.frame(self.graph(graph)?, inputs)?;
        frame.order(&frame.graph.order)?;
        let mut outputs = BTreeMap::new();
        for output in frame.graph.outputs.iter().filter(|it| !it.name.starts_with('@')) {
            outputs.insert(output.name.clone(), frame.value(output.value)?.as_ref().clone());
        }
        Ok(outputs)
    }

    /// Runs a graph, and keeps every value of it.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_all(&mut self, graph: &str, inputs: &Inputs) -> Result<CallValues, InterpError> {
        let mut frame = self.frame(self.graph(graph)?, inputs)?;
        frame.order(&frame.graph.order)?;
        let mut values = SecondaryMap::new(None);
        for (value, _) in frame.graph.values.iter() {
            values[value] = frame.values[value].take().map(Rc::unwrap_or_clone);
        }
        Ok(CallValues(values))
    }

    fn graph(&self, name: &str) -> Result<GraphId, InterpError> {
        let found = self.module.graphs.iter().find(|it| it.1.name == name);
        found.map(|it| it.0).ok_or_else(|| InterpError::NoGraph(name.to_owned()))
    }

    /// The elements of a state `[B, S, heads, d]` at the largest B and S; empty before anything was appended.
    #[must_use]
    pub fn state(&self, name: &str) -> Option<&[f64]> {
        let (id, _) = self.module.states.iter().find(|it| it.1.name == name)?;
        Some(&self.states[id])
    }

    fn frame(&mut self, id: GraphId, inputs: &Inputs) -> Result<Frame<'_, 'm>, InterpError> {
        let graph = &self.module.graphs[id];
        let mut values = SecondaryMap::new(None);
        let mut syms = SecondaryMap::new(None);
        for &value in &graph.inputs {
            let data = &graph.values[value];
            let error = |message| InterpError::Input { name: data.name.clone(), message };
            let given = inputs.0.get(&data.name).ok_or_else(|| error("it is missing".to_owned()))?;
            bind(self.module, &mut syms, &data.ty, given).map_err(error)?;
            values[value] = Some(Rc::new(given.clone()));
        }
        Ok(Frame { interp: self, graph, values })
    }

    fn weight(&mut self, id: WeightId) -> Result<Rc<Tensor>, InterpError> {
        if let Some(weight) = self.weights.get(&id) {
            return Ok(Rc::clone(weight));
        }
        let decl = &self.module.weights[id];
        let error = |message| InterpError::Weight { name: decl.name.clone(), message };
        let data = (self.source)(id).map_err(error)?;
        let known = decl.ty.shape.dims().iter().map(|it| it.known().expect("verified: rule 3") as usize);
        let shape: Vec<usize> = known.collect();
        let expected = shape.iter().product::<usize>();
        if data.len() != expected {
            return Err(error(format!("found {} elements, expected {expected}", data.len())));
        }
        let weight = Rc::new(Tensor { shape, data: Data::F64(data) });
        if let Some(room) = self.room.checked_sub(expected) {
            self.room = room;
            self.weights.insert(id, Rc::clone(&weight));
        }
        Ok(weight)
    }
}

/// What a call computed: its inputs and the results of its ops.
#[derive(Clone, Debug)]
pub struct CallValues(SecondaryMap<ValueId, Option<Tensor>>);

impl CallValues {
    /// The tensor of a value; `None` for weights and states, and for what stands in a region that did not run.
    #[must_use]
    pub fn get(&self, value: ValueId) -> Option<&Tensor> {
        self.0[value].as_ref()
    }
}

/// Fits `given` to `ty`: dtype, sizes, and symbols that have a value or get one.
fn bind(
    module: &Module,
    syms: &mut SecondaryMap<SymId, Option<u64>>,
    ty: &TensorType,
    given: &Tensor,
) -> Result<(), String> {
    let wrong = || format!("found the shape {:?}, expected {}", given.shape, ty.display(&module.syms));
    if ty.shape.rank() != given.shape.len() || (ty.dtype == DType::I32) != matches!(given.data, Data::I32(_))
    {
        return Err(wrong());
    }
    for (dim, &size) in ty.shape.dims().iter().zip(&given.shape) {
        let size = size as u64;
        match *dim {
            Dim::Const(n) if u64::from(n) == size => {}
            Dim::Scaled { sym, mul } if size.is_multiple_of(u64::from(mul)) => {
                let (decl, value) = (&module.syms[sym], size / u64::from(mul));
                if value < u64::from(decl.lo) || value > u64::from(decl.hi) {
                    return Err(format!("{} = {value} is not in {}..={}", decl.name, decl.lo, decl.hi));
                }
                if *syms[sym].get_or_insert(value) != value {
                    return Err(wrong());
                }
            }
            Dim::Const(_) | Dim::Scaled { .. } => return Err(wrong()),
        }
    }
    Ok(())
}

/// One call under way.
struct Frame<'i, 'm> {
    interp: &'i mut Interp<'m>,
    graph: &'m Graph,
    values: SecondaryMap<ValueId, Option<Rc<Tensor>>>,
}

impl Frame<'_, '_> {
    fn order(&mut self, order: &[OpId]) -> Result<(), InterpError> {
        order.iter().try_for_each(|it| self.op(*it))
    }

    /// The tensor of a value that is no state.
    fn value(&mut self, value: ValueId) -> Result<Rc<Tensor>, InterpError> {
        if let Def::Weight(id) = self.graph.values[value].def {
            return self.interp.weight(id);
        }
        Ok(Rc::clone(self.values[value].as_ref().expect("verified: rule 11")))
    }

    fn operand(&mut self, op: OpId, slot: usize) -> Result<Rc<Tensor>, InterpError> {
        self.value(self.graph.ops[op].operand(slot))
    }

    fn optional(&mut self, op: OpId, slot: usize) -> Result<Option<Rc<Tensor>>, InterpError> {
        self.graph.ops[op].optional(slot).map(|it| self.value(it)).transpose()
    }

    /// Matrix `e` of the bank in operand `slot`.
    fn matrix(&mut self, op: OpId, slot: usize, e: i32) -> Result<Rc<Tensor>, InterpError> {
        let value = self.graph.ops[op].operand(slot);
        let (Some(matrices), Some(id), Ok(at)) =
            (self.interp.matrices, self.graph.weight(value), u32::try_from(e))
        else {
            let bank = self.value(value)?;
            return math::bank_slice(&bank, &[e]).map(Rc::new).map_err(|message| self.error(op, message));
        };
        let name = &self.interp.module.weights[id].name;
        let data = matrices(id, at).map_err(|message| InterpError::Weight { name: name.clone(), message })?;
        let k = self.graph.ty(value).shape.cols().expect("verified: rule 3") as usize;
        Ok(Rc::new(Tensor::matrix(k, data)))
    }

    fn error(&self, op: OpId, message: String) -> InterpError {
        let op = print_op(self.interp.module, self.graph, &ValueNames::of(self.graph), op);
        InterpError::Op { op, message }
    }
}
