//! Which bytes a value occupies: a place in one of the four spaces, or a part of a buffer class in scratch.
//!
//! A *class* is a set of values that share one buffer: a value, its views, and results written in place over it.
//! Classes are disjoint, so liveness and placement never need exceptions.

use waste_ir::{Def, Dim, Graph, Module, Op, ValueId};
use waste_plan::DType;
use waste_plan::ids::{EntityRef, PrimaryMap, SecondaryMap};
use waste_plan::schema::{Operand, Place, Port, PortName, Rows};

use crate::planner::PlanError;

waste_plan::entity!(/// A buffer in scratch.
    ClassId, "class");

/// The space a value lies in, before scratch offsets are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// A buffer class in scratch.
    Class(ClassId),
    /// The io space.
    Io,
    /// A weight of the plan.
    Weight(u32),
    /// A state of the plan.
    State(u32),
}

/// Where a value lies: rows of `cols` elements, `stride` bytes apart, from `offset` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loc {
    pub(crate) space: Space,
    pub(crate) offset: u64,
    pub(crate) stride: u64,
    pub(crate) dtype: DType,
    pub(crate) rows: Rows,
    pub(crate) cols: u32,
}

impl Loc {
    /// The operand of a plan, `base` being the offset of the class.
    pub(crate) fn operand(&self, base: impl Fn(ClassId) -> u64) -> Operand {
        let place = match self.space {
            Space::Class(class) => Place::Scratch(base(class) + self.offset),
            Space::Io => Place::Io(self.offset),
            Space::Weight(id) => Place::Weight(id),
            Space::State(id) => Place::State(id),
        };
        Operand { place, dtype: self.dtype, rows: self.rows, cols: self.cols, stride: self.stride }
    }
}

/// A buffer in scratch.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    /// Bytes at the largest T and R.
    pub(crate) bytes: u64,
    /// Every value that lies in it.
    pub(crate) members: Vec<ValueId>,
}

/// Where every value of one graph lies.
pub(crate) struct MemoryMap<'a> {
    module: &'a Module,
    graph: &'a Graph,
    tokens: Dim,
    want: Dim,
    locs: SecondaryMap<ValueId, Option<Loc>>,
    pub(crate) classes: PrimaryMap<ClassId, Class>,
}

/// Indices of plan weights and states by IR id.
pub(crate) struct PlanIds {
    pub(crate) weights: Vec<Option<u32>>,
    /// The bank that the records of an IR weight lie in.
    pub(crate) banks: Vec<Option<u32>>,
    pub(crate) states: Vec<u32>,
}

impl<'a> MemoryMap<'a> {
    /// Places inputs, weights, states and the values that go to output ports; nothing in scratch yet.
    pub(crate) fn new(
        module: &'a Module,
        graph: &'a Graph,
        ids: &PlanIds,
        ports: &[Port],
    ) -> Result<Self, PlanError> {
        let first_dim = |name: &str| {
            let value = graph
                .input(name)
                .ok_or_else(|| PlanError::NoInput { graph: graph.name.clone(), name: name.into() })?;
            Ok::<Dim, PlanError>(graph.ty(value).shape.dims()[0])
        };
        let (tokens, want) = (first_dim("token")?, first_dim("want")?);
        let mut map =
            Self { module, graph, tokens, want, locs: SecondaryMap::new(None), classes: PrimaryMap::new() };
        for (value, data) in graph.values.iter() {
            let space = match data.def {
                Def::Weight(id) => {
                    Space::Weight(ids.weights[id.index()].ok_or(PlanError::DeadWeight(value))?)
                }
                Def::State(id) => Space::State(ids.states[id.index()]),
                Def::Input(_) => {
                    map.bind_port(value, &data.name, ports)?;
                    continue;
                }
                Def::Op(..) | Def::Arg(..) => continue,
            };
            let (rows, cols) = map.matrix(value)?;
            map.locs[value] = Some(Loc { space, offset: 0, stride: 0, dtype: data.ty.dtype, rows, cols });
        }
        for output in &graph.outputs {
            if !output.name.starts_with('@') {
                map.bind_port(output.value, &output.name, ports)?;
            }
        }
        Ok(map)
    }

    /// Where `value` lies.
    pub(crate) fn loc(&self, value: ValueId) -> Loc {
        self.locs[value].expect("operands are placed before their uses")
    }

    /// Whether `value` has a place already (an output port).
    pub(crate) fn is_placed(&self, value: ValueId) -> bool {
        self.locs[value].is_some()
    }

    fn bind_port(&mut self, value: ValueId, name: &str, ports: &[Port]) -> Result<(), PlanError> {
        let name = PortName::from_name(name).ok_or_else(|| PlanError::UnknownPort(name.into()))?;
        let port = ports
            .iter()
            .find(|it| it.name == name)
            .ok_or_else(|| PlanError::UnknownPort(name.name().into()))?;
        let (rows, cols) = self.matrix(value)?;
        let dtype = self.graph.ty(value).dtype;
        let stride = u64::from(cols) * 4;
        self.locs[value] = Some(Loc { space: Space::Io, offset: port.offset, stride, dtype, rows, cols });
        Ok(())
    }

    /// Rows and columns of a value: a vector of T ids is T rows of one column.
    pub(crate) fn matrix(&self, value: ValueId) -> Result<(Rows, u32), PlanError> {
        let ty = self.graph.ty(value);
        let dims = ty.shape.dims();
        let (outer, cols) = match dims {
            [rows @ Dim::Scaled { .. }] => (*rows, 1),
            [Dim::Const(cols)] => (Dim::Const(1), *cols),
            [rows, Dim::Const(cols)] => (*rows, *cols),
            [Dim::Const(bank), Dim::Const(rows), Dim::Const(cols)] => {
                (Dim::Const(bank.checked_mul(*rows).ok_or(PlanError::TooLarge(value))?), *cols)
            }
            [Dim::Const(b), Dim::Const(s), Dim::Const(h), Dim::Const(d)] => {
                let rows =
                    b.checked_mul(*s).and_then(|it| it.checked_mul(*h)).ok_or(PlanError::TooLarge(value))?;
                (Dim::Const(rows), *d)
            }
            _ => return Err(PlanError::Shape { value, ty: ty.display(&self.module.syms).to_string() }),
        };
        let rows = match outer {
            Dim::Const(n) => Rows::Fixed(n),
            Dim::Scaled { sym, mul } if Dim::sym(sym) == self.tokens => Rows::Tokens(mul),
            Dim::Scaled { sym, mul } if Dim::sym(sym) == self.want => Rows::Want(mul),
            Dim::Scaled { .. } => {
                return Err(PlanError::Shape { value, ty: ty.display(&self.module.syms).to_string() });
            }
        };
        Ok((rows, cols))
    }

    /// The largest number of rows of `rows` in this graph.
    pub(crate) fn most(&self, rows: Rows) -> u64 {
        let (tokens, want) = self.limits();
        rows.count(tokens, want)
    }

    /// Most tokens and most wanted rows of a call.
    pub(crate) fn limits(&self) -> (u32, u32) {
        let upper = |dim: Dim| u32::try_from(dim.upper(&self.module.syms)).unwrap_or(u32::MAX);
        (upper(self.tokens), upper(self.want))
    }

    /// Gives `value` a buffer of its own: dense rows.
    pub(crate) fn fresh(&mut self, value: ValueId) -> Result<(), PlanError> {
        let (rows, cols) = self.matrix(value)?;
        let dtype = self.graph.ty(value).dtype;
        let stride = dtype.row_bytes(u64::from(cols)).ok_or(PlanError::TooLarge(value))?;
        let bytes = stride.checked_mul(self.most(rows)).ok_or(PlanError::TooLarge(value))?;
        let bytes = bytes.checked_next_multiple_of(64).ok_or(PlanError::TooLarge(value))?;
        let class = self.classes.push(Class { bytes, members: vec![value] });
        self.locs[value] = Some(Loc { space: Space::Class(class), offset: 0, stride, dtype, rows, cols });
        Ok(())
    }

    /// Lets `value` lie exactly where `loc` is.
    pub(crate) fn alias(&mut self, value: ValueId, loc: Loc) {
        if let Space::Class(class) = loc.space {
            self.classes[class].members.push(value);
        }
        self.locs[value] = Some(loc);
    }

    /// Places the result of a view op.
    pub(crate) fn view(&mut self, op: &Op, operand: ValueId, result: ValueId) -> Result<(), PlanError> {
        let mut loc = self.loc(operand);
        let (rows, cols) = self.matrix(result)?;
        match op {
            Op::Slice { start, .. } => loc.offset += u64::from(*start) * 4,
            Op::Reshape { .. } => {
                if loc.stride != u64::from(loc.cols) * 4 {
                    return Err(PlanError::StridedReshape(result));
                }
                loc.stride = u64::from(cols) * 4;
            }
            _ => return Err(PlanError::Unsupported { op: op.name() }),
        }
        (loc.rows, loc.cols) = (rows, cols);
        self.alias(result, loc);
        Ok(())
    }
}
