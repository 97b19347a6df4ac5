//! The walk: which value each byte range contains, step by step.
//!
//! A step says which op it carries out; what it must read comes from the graph. A write kills what it overlaps, byte for
//! byte: of a value whose columns are partly overwritten the rest can still be read.

use std::collections::{HashMap, HashSet};

use waste_ir::{Def, Graph, Op, OpData, OpId, ValueId};
use waste_plan::ids::EntityRef;
use waste_plan::overlap::Runs;
use waste_plan::schema::{Operand, Place, PortName, Program, Step, StepKind};

use super::decls::Decls;
use super::error::{CheckError, Fault, same};
use super::operands::{Space, Symbols, base, bytes, expected};
use super::runmap::{EntryKey, RunMap};
use super::{MAX_FAULTS, kinds};

/// What the walk saw of scratch, step by step.
#[derive(Default)]
pub(super) struct Trace {
    pub(super) steps: Vec<Traced>,
}

/// One step's part of a [`Trace`]; values are bases of views.
#[derive(Default)]
pub(super) struct Traced {
    /// The results in scratch and their bytes.
    pub(super) results: Vec<(ValueId, Runs)>,
    /// What it reads.
    pub(super) reads: Vec<ValueId>,
    /// The operand that the first result lies over.
    pub(super) over: Option<ValueId>,
}

/// Walks `program`, which claims to compute `graph`.
pub(super) fn walk(
    decls: &Decls<'_>,
    graph: &Graph,
    program: &Program,
    errors: &mut Vec<CheckError>,
) -> Trace {
    let mut walk = Walk::new(decls, graph, program, errors);
    walk.sizes();
    walk.inputs();
    for (i, step) in program.steps.iter().enumerate() {
        if walk.errors.len() >= MAX_FAULTS {
            break;
        }
        let traced = walk.step(i, step).unwrap_or_else(|fault| {
            walk.errors.push(CheckError::step(&program.name, i, fault));
            Traced::default()
        });
        walk.trace.steps.push(traced);
    }
    walk.end();
    walk.trace
}

/// The bytes of a value that were overwritten, by whom.
struct Hole {
    runs: Runs,
    value: ValueId,
    step: usize,
}

/// Where a base value was written.
#[derive(Clone, Copy)]
struct Home {
    operand: Operand,
    space: Space,
    key: EntryKey,
}

struct Walk<'a, 'e> {
    decls: &'a Decls<'a>,
    graph: &'a Graph,
    program: &'a Program,
    errors: &'e mut Vec<CheckError>,
    symbols: Symbols,
    /// Ops of the top level that need a step.
    wanted: HashSet<OpId>,
    done: HashMap<OpId, usize>,
    homes: HashMap<ValueId, Home>,
    scratch: RunMap<(ValueId, Vec<Hole>)>,
    io: RunMap<(ValueId, Vec<Hole>)>,
    /// Who overwrote a value as a whole.
    gone: HashMap<ValueId, (ValueId, usize)>,
    /// The current version of each state of the plan.
    versions: HashMap<u32, ValueId>,
    trace: Trace,
}

impl<'a, 'e> Walk<'a, 'e> {
    fn new(
        decls: &'a Decls<'a>,
        graph: &'a Graph,
        program: &'a Program,
        errors: &'e mut Vec<CheckError>,
    ) -> Self {
        Self {
            decls,
            graph,
            program,
            errors,
            symbols: Symbols::of(graph),
            // A hint may be left out: no value depends on it.
            wanted: graph
                .order
                .iter()
                .copied()
                .filter(|it| !graph.ops[*it].op.is_view() && !graph.ops[*it].op.has_effect())
                .collect(),
            done: HashMap::new(),
            homes: HashMap::new(),
            scratch: RunMap::new(),
            io: RunMap::new(),
            gone: HashMap::new(),
            versions: HashMap::new(),
            trace: Trace::default(),
        }
    }

    fn fault(&mut self, fault: Fault) {
        self.errors.push(CheckError::program(&self.program.name, fault));
    }

    /// Reports a fault of a step whose result is recorded all the same, so that one fault shows once.
    fn step_fault(&mut self, step: usize, checked: Result<(), Fault>) {
        self.errors.extend(checked.err().map(|it| CheckError::step(&self.program.name, step, it)));
    }

    /// The program's T and R are the largest values of the graph's symbols.
    fn sizes(&mut self) {
        let syms = &self.decls.module.syms;
        let pairs = [
            ("tokens", self.program.tokens, self.symbols.tokens),
            ("want", self.program.want, self.symbols.want),
        ];
        for (what, found, sym) in pairs {
            let most = sym.and_then(|it| syms.get(it)).map(|it| it.hi);
            if let Err(fault) = most.map_or(Ok(()), |most| same(what, &found, &most)) {
                self.fault(fault);
            }
        }
    }

    /// Inputs lie in their ports; states have their first version.
    fn inputs(&mut self) {
        let graph = self.graph;
        for value in &graph.inputs {
            if let Err(fault) = self.input(*value) {
                self.fault(fault);
            }
        }
        for (value, data) in graph.values.iter() {
            if let Def::State(id) = data.def
                && let Some(state) = self.decls.state(id)
            {
                self.versions.insert(state, value);
            }
        }
    }

    fn input(&mut self, value: ValueId) -> Result<(), Fault> {
        let name = &self.graph.values[value].name;
        let operand = self.port(value, name, true)?;
        self.settle(value, operand, 0);
        Ok(())
    }

    /// The operand that `value` is when it lies in the port `name`.
    fn port(&self, value: ValueId, name: &str, is_input: bool) -> Result<Operand, Fault> {
        let port = PortName::from_name(name).filter(|it| it.is_input() == is_input);
        let offset = port.and_then(|it| self.decls.port(it));
        let matrix = self.symbols.matrix(self.graph, value);
        let (Some(offset), Some((dtype, rows, cols))) = (offset, matrix) else {
            return Err(same("port", &"nothing", &name).err().unwrap_or(Fault::UnknownValue { value }));
        };
        Ok(Operand { place: Place::Io(offset), dtype, rows, cols, stride: 4 * u64::from(cols) })
    }

    fn step(&mut self, i: usize, step: &Step) -> Result<Traced, Fault> {
        let op = OpId::new(step.op as usize);
        if step.kind.moves_experts() {
            return self.moves(op, step);
        }
        if !self.wanted.contains(&op) {
            return Err(Fault::NoStep { op: step.op });
        }
        if let Some(first) = self.done.insert(op, i) {
            return Err(Fault::Twice { op, first });
        }
        let data = &self.graph.ops[op];
        let kind = kinds::expected(self.graph, data).ok_or(Fault::NoStep { op: step.op })?;
        self.step_fault(i, same("kind", &step.kind, &kind));
        let next_state = data.op.next_state();
        let reads: Vec<ValueId> = data.uses().skip(usize::from(next_state.is_some())).collect();
        same("number of reads", &step.reads.len(), &reads.len())?;
        for (slot, (value, operand)) in reads.iter().zip(&step.reads).enumerate() {
            let read = self.read(*value, operand, &format!("read {slot}"));
            self.step_fault(i, read);
        }
        same("number of writes", &step.writes.len(), &data.results.len())?;
        let mut results = Vec::new();
        for (index, (result, operand)) in data.results.iter().zip(&step.writes).enumerate() {
            if next_state == Some(index) {
                self.next_version(data, *result, index, operand)?;
            } else {
                self.write(i, *result, index, operand)?;
                results.extend(self.in_scratch(operand).map(|it| (*result, it)));
            }
        }
        let first = step.writes.first().map(|it| it.place);
        let in_place = step.kind.in_place().iter().find(|slot| Some(step.reads[**slot].place) == first);
        let bases: Vec<ValueId> = reads.iter().map(|it| base(self.graph, *it)).collect();
        Ok(Traced { results, over: in_place.map(|slot| bases[*slot]), reads: bases })
    }

    /// A step that moves records: it reads whom the router chose, whom a hint names, or the groups of an op that reads the same bank.
    fn moves(&self, op: OpId, step: &Step) -> Result<Traced, Fault> {
        let other = || Fault::OtherRecords { op };
        let data = self.graph.ops.get(op).ok_or(Fault::NoStep { op: step.op })?;
        let value = match (&step.kind, &data.op) {
            (StepKind::ExpertPrefetch { bank, speculative: true }, Op::ExpertHint {}) => {
                let weight = data.optional(1).and_then(|it| self.graph.weight(it));
                if weight.is_some_and(|it| self.decls.is_in_bank(it, *bank)) {
                    data.optional(0)
                } else {
                    None
                }
            }
            (StepKind::ExpertPrefetch { bank, speculative: false }, Op::RouteTopK { .. }) => {
                // Reading ahead changes no result, so which of the router's readers it is for does not matter.
                let is_read = self.graph.ops.values().any(|it| self.reads_bank(it, *bank));
                if is_read { data.results.first().copied() } else { None }
            }
            (StepKind::ExpertWindow { bank, .. } | StepKind::ExpertRelease { bank, .. }, _) => {
                if self.reads_bank(data, *bank) { data.optional(3) } else { None }
            }
            _ => None,
        };
        let value = value.ok_or_else(other)?;
        let operand = step.reads.first().ok_or_else(other)?;
        self.read(value, operand, "read 0")?;
        Ok(Traced { results: Vec::new(), over: None, reads: vec![base(self.graph, value)] })
    }

    /// Whether `data` reads records of bank `bank`.
    fn reads_bank(&self, data: &OpData, bank: u32) -> bool {
        let weight = match data.op {
            Op::ExpertLut { .. } | Op::ExpertVq { .. } => {
                data.optional(1).and_then(|it| self.graph.weight(it))
            }
            _ => None,
        };
        weight.is_some_and(|it| self.decls.is_in_bank(it, bank))
    }

    fn in_scratch(&self, operand: &Operand) -> Option<Runs> {
        match bytes(self.decls.plan, self.program, operand) {
            Some((Space::Scratch, runs)) => Some(runs),
            Some((Space::Io | Space::State, _)) | None => None,
        }
    }

    /// Demands that `operand` is `value`, whole and alive.
    fn read(&self, value: ValueId, operand: &Operand, what: &str) -> Result<(), Fault> {
        if let Some(weight) = self.graph.weight(value) {
            return match operand.place {
                Place::Weight(i) => self.decls.weight(weight, i),
                Place::Scratch(_) | Place::Io(_) | Place::State(_) => Err(Fault::UnknownValue { value }),
            };
        }
        if let Some(id) = self.graph.state(value) {
            let state = self.decls.state(id);
            same(what, &Some(operand.place), &state.map(Place::State))?;
            return self.current(value, state);
        }
        let home = base(self.graph, value);
        let Home { operand: written, space, key } =
            *self.homes.get(&home).ok_or(Fault::UnknownValue { value: home })?;
        same(what, &Some(*operand), &expected(self.graph, value, written))?;
        self.intact(home, space, key, operand)
    }

    /// Demands that no later write touched the bytes of `operand`, which are `value`'s or a part of them.
    fn intact(&self, value: ValueId, space: Space, key: EntryKey, operand: &Operand) -> Result<(), Fault> {
        let map = if space == Space::Scratch { &self.scratch } else { &self.io };
        let Some((_, holes)) = map.get(key) else {
            let (found, by) = self.gone.get(&value).copied().unwrap_or((value, 0));
            return Err(Fault::WrongValue { wanted: value, found, by });
        };
        let runs = bytes(self.decls.plan, self.program, operand).map(|it| it.1);
        match holes.iter().find(|it| runs.is_none_or(|runs| it.runs.overlaps(&runs))) {
            Some(hole) => Err(Fault::WrongValue { wanted: value, found: hole.value, by: hole.step }),
            None => Ok(()),
        }
    }

    /// Demands that `value` is the current version of `state`.
    fn current(&self, value: ValueId, state: Option<u32>) -> Result<(), Fault> {
        let found = state.and_then(|it| self.versions.get(&it)).copied();
        match found {
            Some(found) if found == value => Ok(()),
            Some(found) => {
                let name =
                    state.and_then(|it| self.decls.plan.states.get(it as usize)).map(|it| it.name.clone());
                Err(Fault::WrongVersion { state: name.unwrap_or_default(), wanted: value, found })
            }
            None => Err(Fault::UnknownValue { value }),
        }
    }

    /// Write `index` makes `result` the current version of its state.
    fn next_version(
        &mut self,
        data: &OpData,
        result: ValueId,
        index: usize,
        operand: &Operand,
    ) -> Result<(), Fault> {
        let cache = data.optional(0).ok_or(Fault::UnknownValue { value: result })?;
        let state = self.graph.state(cache).and_then(|it| self.decls.state(it));
        same(&format!("write {index}"), &Some(operand.place), &state.map(Place::State))?;
        self.current(cache, state)?;
        self.versions.extend(state.map(|it| (it, result)));
        Ok(())
    }

    fn write(&mut self, step: usize, value: ValueId, index: usize, operand: &Operand) -> Result<(), Fault> {
        let found = (operand.dtype, operand.rows, operand.cols);
        same(&format!("write {index}"), &Some(found), &self.symbols.matrix(self.graph, value))?;
        self.settle(value, *operand, step);
        Ok(())
    }

    /// Records that `value` now lies at `operand`, and what it overwrites.
    fn settle(&mut self, value: ValueId, operand: Operand, step: usize) {
        let Some((space, runs)) = bytes(self.decls.plan, self.program, &operand) else { return };
        let map = if space == Space::Scratch { &mut self.scratch } else { &mut self.io };
        let met: Vec<(EntryKey, bool)> =
            map.overlapping(&runs).map(|(key, it, _)| (key, runs.contains(it))).collect();
        for (key, is_whole) in met {
            if is_whole {
                if let Some((old, _)) = map.remove(key) {
                    self.gone.insert(old, (value, step));
                }
            } else if let Some((_, holes)) = map.get_mut(key) {
                holes.push(Hole { runs, value, step });
            }
        }
        let key = map.insert(runs, (value, Vec::new()));
        self.homes.insert(value, Home { operand, space, key });
    }

    /// Outputs are in their ports, states have their last version, every op was carried out.
    fn end(&mut self) {
        let graph = self.graph;
        for output in &graph.outputs {
            let checked = match output.name.strip_prefix('@') {
                Some(_) => {
                    let state = graph.state(output.value).and_then(|it| self.decls.state(it));
                    self.current(output.value, state)
                }
                None => {
                    let at = self.port(output.value, &output.name, false);
                    at.and_then(|at| self.read(output.value, &at, &format!("output '{}'", output.name)))
                }
            };
            if let Err(fault) = checked {
                self.fault(fault);
            }
        }
        for op in &graph.order {
            if self.wanted.contains(op) && !self.done.contains_key(op) && self.errors.len() < MAX_FAULTS {
                self.fault(Fault::Lost { op: *op, name: graph.ops[*op].op.name() });
            }
        }
    }
}
