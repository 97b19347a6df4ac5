//! Weights, states, ports and stated memory against the module's declarations.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use waste_ir::{Dim, Module, SourceId, StateId, Steps, WeightDecl, WeightId, WeightInit};
use waste_plan::LowRank;
use waste_plan::ids::EntityRef;
use waste_plan::schema::{Part, Plan, PortName, Records};

use super::error::{CheckError, Fault, same};

/// A module and a plan whose states, ports and sources correspond; weights are compared as steps use them.
pub(super) struct Decls<'a> {
    pub(super) module: &'a Module,
    pub(super) plan: &'a Plan,
    states: HashMap<StateId, u32>,
    /// Pairs of module and plan weight that were found equal.
    equal: RefCell<HashSet<(WeightId, u32)>>,
}

/// Compares all that does not depend on a program.
pub(super) fn check<'a>(module: &'a Module, plan: &'a Plan, errors: &mut Vec<CheckError>) -> Decls<'a> {
    let add =
        |errors: &mut Vec<CheckError>, it: Result<(), Fault>| errors.extend(it.err().map(CheckError::plan));
    let info = (&module.info.name, &module.info.arch, module.info.ctx_trained, module.info.vocab);
    let model = (&plan.model.name, &plan.model.arch, plan.model.ctx_trained, plan.model.vocab);
    add(errors, same("model", &model, &info));
    let sources: Vec<_> = plan.sources.iter().map(|it| (&it.path, it.bytes, &it.header_sha256)).collect();
    let declared: Vec<_> =
        module.sources.values().map(|it| (&it.path, it.bytes, &it.header_sha256)).collect();
    add(errors, same("sources", &sources, &declared));

    let by_name: HashMap<&str, u32> =
        plan.states.iter().zip(0..).map(|(it, i)| (it.name.as_str(), i)).collect();
    let mut states = HashMap::new();
    for (id, decl) in module.states.iter() {
        let Some(&i) = by_name.get(decl.name.as_str()) else {
            add(errors, same("state", &"nothing", &decl.name.as_str()));
            continue;
        };
        let it = &plan.states[i as usize];
        let dims: Option<Vec<u32>> = decl.ty.shape.dims().iter().map(|it| it.known()).collect();
        let found = (it.kind, it.dtype, Some(it.shape.to_vec()));
        add(errors, same(&format!("state '{}'", decl.name), &found, &(decl.kind, decl.ty.dtype, dims)));
        states.insert(id, i);
    }
    add(errors, same("number of states", &plan.states.len(), &module.states.len()));

    let memory = &plan.memory;
    let weights = end(plan.weights.iter().map(|it| it.offset.saturating_add(it.bytes)));
    let state_end = end(plan.states.iter().map(|it| it.offset.saturating_add(it.bytes)));
    let io = end(plan.ports.iter().map(|it| it.offset.saturating_add(it.bytes())));
    add(errors, stated("weights memory", memory.weights, weights));
    add(errors, stated("states memory", memory.states, state_end));
    add(errors, stated("io memory", memory.io, io));
    Decls { module, plan, states, equal: RefCell::default() }
}

/// Compares what programs use of scratch with what the plan states.
pub(super) fn scratch(plan: &Plan, end: u64, lower_bound: u64, errors: &mut Vec<CheckError>) {
    let bound = same("scratch lower bound", &plan.memory.scratch_lower_bound, &lower_bound);
    for it in [stated("scratch memory", plan.memory.scratch, end), bound] {
        errors.extend(it.err().map(CheckError::plan));
    }
}

fn end(ends: impl Iterator<Item = u64>) -> u64 {
    ends.max().unwrap_or(0)
}

/// Spaces end with their last byte, or with its line of 64.
fn stated(what: &str, stated: u64, end: u64) -> Result<(), Fault> {
    if stated == end.next_multiple_of(64) { Ok(()) } else { same(what, &stated, &end) }
}

impl Decls<'_> {
    /// The plan's index of a state.
    pub(super) fn state(&self, id: StateId) -> Option<u32> {
        self.states.get(&id).copied()
    }

    /// Source, offset, bytes, and the two places in a record.
    fn place_of(&self, records: Records) -> Option<[u64; 5]> {
        let bank = self.plan.banks.get(records.bank as usize)?;
        Some([u64::from(bank.source), bank.offset, bank.bytes, records.indices, records.scales])
    }

    /// Whether the records of weight `id` lie in bank `bank`.
    pub(super) fn is_in_bank(&self, id: WeightId, bank: u32) -> bool {
        let declared = self.module.weights.get(id).and_then(declared_records);
        let found = self.plan.banks.get(bank as usize).map(|it| [u64::from(it.source), it.offset, it.bytes]);
        declared.zip(found).is_some_and(|(declared, found)| declared[..3] == found)
    }

    /// Offset of a port.
    pub(super) fn port(&self, name: PortName) -> Option<u64> {
        self.plan.ports.iter().find(|it| it.name == name).map(|it| it.offset)
    }

    /// Demands that plan weight `i` is the module's weight `id`: name, type, layout and origin.
    pub(super) fn weight(&self, id: WeightId, i: u32) -> Result<(), Fault> {
        if self.equal.borrow().contains(&(id, i)) {
            return Ok(());
        }
        let (decl, it) = (&self.module.weights[id], &self.plan.weights[i as usize]);
        same("weight", &it.name, &decl.name)?;
        let shape = match decl.ty.shape.dims() {
            [Dim::Const(n)] => Some((1, 1, u64::from(*n))),
            [Dim::Const(n), Dim::Const(k)] => Some((1, u64::from(*n), u64::from(*k))),
            [Dim::Const(bank), Dim::Const(n), Dim::Const(k)] => Some((*bank, u64::from(*n), u64::from(*k))),
            _ => None,
        };
        let found = (it.dtype, Some((it.bank, it.rows, it.cols)), Some(it.packing));
        let what = format!("weight '{}'", decl.name);
        same(&what, &found, &(decl.ty.dtype, shape, decl.packing))?;
        let records = it.records.and_then(|it| self.place_of(it));
        same(&format!("records of '{}'", decl.name), &records, &declared_records(decl))?;
        same(&format!("parts of '{}'", decl.name), &Some(&it.parts), &parts(self.module, id).as_ref())?;
        self.equal.borrow_mut().insert((id, i));
        Ok(())
    }
}

/// As the plan must have them: source, offset, bytes, and the two places in a record.
fn declared_records(decl: &WeightDecl) -> Option<[u64; 5]> {
    match decl.init {
        WeightInit::Records { source, first, stride, indices, scales } => {
            Some([source.index() as u64, first, stride, indices, scales])
        }
        _ => None,
    }
}

/// The stored tensors that make `id`, in order of their rows; `None` if a weight is part of itself, or of too many.
fn parts(module: &Module, id: WeightId) -> Option<Vec<Part>> {
    let mut open = vec![id];
    let mut out = Vec::new();
    for _ in 0..=module.weights.len().saturating_add(65_536) {
        let Some(at) = open.pop() else { return Some(out) };
        let decl = module.weights.get(at)?;
        let rows = match decl.ty.shape.dims() {
            // Rows of a part of a vector count its elements.
            [Dim::Const(n)] | [Dim::Const(n), _] => u64::from(*n),
            [Dim::Const(bank), Dim::Const(n), _] => u64::from(*bank) * u64::from(*n),
            _ => return None,
        };
        let none = Vec::new();
        // The stored part of a matrix with low-rank terms is that of its base.
        let (init, terms) = match &decl.init {
            WeightInit::Merged { base, terms } => (&module.weights.get(*base)?.init, terms),
            plain => (plain, &none),
        };
        let stored = match init {
            WeightInit::Merged { .. } => return None,
            WeightInit::Concat(parts) => {
                open.extend(parts.iter().rev());
                continue;
            }
            WeightInit::Records { .. } => continue,
            WeightInit::Bank { stored, parts } => {
                // One part a matrix.
                let rows = rows / u64::try_from(parts.len()).ok().filter(|it| *it > 0)?;
                for (source, offset) in parts {
                    let source = u32::try_from(source.index()).ok()?;
                    let (offset, stored, terms) = (*offset, *stored, Vec::new());
                    out.push(Part { source, offset, scales: None, stored, rows, transposed: false, terms });
                }
                continue;
            }
            WeightInit::Grouped { source, stored, codes, scales } => {
                // One part a matrix, too.
                let matrices = if let [Dim::Const(bank), _, _] = decl.ty.shape.dims() { *bank } else { 1 };
                let source = u32::try_from(source.index()).ok()?;
                for e in 0..u64::from(matrices) {
                    let place = |it: &Steps| it.step.checked_mul(e).and_then(|by| by.checked_add(it.first));
                    let (offset, scales) = (place(codes)?, Some(place(scales)?));
                    let rows = rows / u64::from(matrices);
                    let (stored, terms) = (*stored, Vec::new());
                    out.push(Part { source, offset, scales, stored, rows, transposed: false, terms });
                }
                continue;
            }
            WeightInit::Stored { source, offset, stored } => (source, offset, stored, false),
            WeightInit::Transposed { source, offset, stored } => (source, offset, stored, true),
        };
        let (source, offset, stored, transposed) = stored;
        let source = u32::try_from(source.index()).ok()?;
        let (offset, stored) = (*offset, *stored);
        let number = |it: &LowRank<SourceId>| u32::try_from(it.source.index()).ok();
        let terms = terms.iter().map(|it| Some(it.clone().at(number(it)?))).collect::<Option<_>>()?;
        out.push(Part { source, offset, scales: None, stored, rows, transposed, terms });
    }
    None
}
