//! When the values of a plan die, by the graphs that it was made of.
//!
//! A *value* here is what one write begins, with all that is later written in place over it; views of it are parts of it. It dies after
//! the last step that reads it or a part of it. A loop over experts runs several times, so what came before the loop lives until its
//! end; what follows may be written there already.
//!
//! Where values lie is what the plan's own writes say; who reads them, what the graphs say. So a plan whose steps read from elsewhere,
//! or write elsewhere, does not change who dies when, and poisoned execution finds it.

use std::collections::HashMap;

use waste_ir::{Def, Graph, Module, OpData, OpId, ValueId};
use waste_plan::ids::EntityRef;
use waste_plan::schema::{Operand, Place, Plan, Program, Step, StepKind};
use waste_runtime::{Death, Deaths};

use super::buffers::{loops, read_below};

/// A value in scratch: who began it, where, and who reads it last.
struct Life {
    writer: usize,
    place: Operand,
    last: usize,
}

/// What dies at each step of each program of `plan`, whose graphs are `module`'s.
///
/// # Errors
/// If the plan has a program or step that the graphs have not.
pub fn deaths(module: &Module, plan: &Plan) -> Result<Deaths, String> {
    let of = |program: &Program| {
        let name = &program.name;
        let graph = module.graph(name).ok_or_else(|| format!("the plan's graphs have no '{name}'"))?;
        let mut dying: Vec<Vec<Death>> = program.steps.iter().map(|_| Vec::new()).collect();
        for life in lives(graph, program)? {
            if let Some(step) = last_step(program, &life) {
                dying[step].push(Death { writer: life.writer, place: life.place });
            }
        }
        Ok(dying)
    };
    plan.programs.iter().map(of).collect::<Result<_, String>>().map(Deaths)
}

/// The op that `step` carries out.
///
/// # Errors
/// If the graph has none of that number, or one with other results.
pub fn op_of<'g>(graph: &'g Graph, step: &Step) -> Result<&'g OpData, String> {
    let count = graph.ops.len();
    if step.op as usize >= count {
        return Err(format!("a step carries out op {}, the graph '{}' has {count}", step.op, graph.name));
    }
    let op = &graph.ops[OpId::new(step.op as usize)];
    if step.kind.moves_experts() || op.results.len() == step.writes.len() {
        return Ok(op);
    }
    let (kind, name) = (step.kind.name(), op.op.name());
    Err(format!("a {kind} step carries out op {}, which is {name} in the graph '{}'", step.op, graph.name))
}

/// The values that a step reads, in the order of its operands.
fn reads(op: &OpData, step: &Step) -> Vec<ValueId> {
    match step.kind {
        StepKind::ExpertPrefetch { speculative: true, .. } => op.uses().take(1).collect(),
        StepKind::ExpertPrefetch { speculative: false, .. } => {
            op.results.first().copied().into_iter().collect()
        }
        // The groups of pairs, which the op of the loop reads too.
        StepKind::ExpertWindow { .. } | StepKind::ExpertRelease { .. } => op.uses().skip(3).take(1).collect(),
        _ => op.uses().skip(usize::from(op.op.next_state().is_some())).collect(),
    }
}

/// The value that `value` is a view of.
fn origin(graph: &Graph, mut value: ValueId) -> ValueId {
    while let Def::Op(op, _) = graph.values[value].def {
        let op = &graph.ops[op];
        if !op.op.is_view() {
            break;
        }
        value = op.operand(0);
    }
    value
}

fn lives(graph: &Graph, program: &Program) -> Result<Vec<Life>, String> {
    let mut all: Vec<Life> = Vec::new();
    let mut index: HashMap<ValueId, usize> = HashMap::new();
    for (at, step) in program.steps.iter().enumerate() {
        let op = op_of(graph, step)?;
        let read: Vec<ValueId> = reads(op, step).into_iter().map(|it| origin(graph, it)).collect();
        read.iter().filter_map(|it| index.get(it)).for_each(|it| all[*it].last = at);
        for (slot, (operand, result)) in step.writes.iter().zip(&op.results).enumerate() {
            if !matches!(operand.place, Place::Scratch(_)) {
                continue;
            }
            let over = read_below(step).filter(|_| slot == 0);
            let below = over.and_then(|it| read.get(it)).and_then(|it| index.get(it)).copied();
            let life = below.unwrap_or_else(|| {
                all.push(Life { writer: at, place: *operand, last: at });
                all.len() - 1
            });
            index.insert(*result, life);
        }
    }
    Ok(all)
}

/// The step after which `life` is over; `None` if the program ends before.
fn last_step(program: &Program, life: &Life) -> Option<usize> {
    let mut last = life.last;
    for (window, release) in loops(program) {
        if life.writer < window && (window..=release).contains(&last) {
            last = release;
        }
    }
    (last < program.steps.len()).then_some(last)
}
