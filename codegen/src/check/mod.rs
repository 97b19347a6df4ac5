//! The plan checker: proves of one plan that it computes its module, without trusting the planner.
//!
//! | file | proves |
//! |---|---|
//! | `decls` | weights, states, ports and stated memory are those of the module |
//! | `kinds` | each step does what its op says, attributes included |
//! | `freqs` | rotary frequencies, to the bit |
//! | `operands` | where a graph value must lie, views resolved |
//! | `walk` | no read sees a foreign or dead value; nothing lost, nothing twice; outputs end in their ports |
//! | `barriers` | every dependence between threads is covered by a barrier |
//! | `live` | no two live buffers share a byte; the lower bound of scratch |
//! | `runmap` | which of many strided byte ranges meet a given one |
//!
//! Invariants: it imports nothing of the planner; the structure is validated first, so nothing here is out of bounds; the
//! cost is about O(n log n) in steps.
//!
//! Deliberately absent: the values of weights (their CRCs are checked by the runtime) and the sizes of text and of
//! per-thread memory, which no graph determines.

mod barriers;
mod decls;
mod error;
mod freqs;
mod kinds;
mod live;
mod operands;
mod runmap;
mod walk;

use std::collections::HashSet;

use waste_ir::Verified;
use waste_plan::schema::Plan;

pub use error::{CheckError, Fault, Location};

/// Faults after which a program is not looked at any further.
const MAX_FAULTS: usize = 256;

/// What a checked plan needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// One entry a program, in plan order.
    pub programs: Vec<ProgramReport>,
    /// All memory, in bytes.
    pub peak: u64,
    /// The scratch arena, in bytes.
    pub scratch: u64,
    /// The most bytes of scratch live at one step of any program.
    pub lower_bound: u64,
}

/// What a checked program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramReport {
    /// Its name.
    pub name: String,
    /// Its steps.
    pub steps: usize,
    /// How often all threads meet.
    pub barriers: usize,
    /// One past the last byte of scratch that it touches.
    pub scratch_end: u64,
    /// The most bytes of scratch live at one of its steps.
    pub lower_bound: u64,
}

/// Checks that `plan` computes the final graphs of a verified module.
///
/// # Errors
/// All faults, in order of the plan.
pub fn check(verified: &Verified<'_>, plan: &Plan) -> Result<CheckReport, Vec<CheckError>> {
    let module = verified.module();
    waste_plan::validate::validate(plan).map_err(|errors| {
        errors.into_iter().map(|it| CheckError::plan(Fault::Invalid(it))).collect::<Vec<_>>()
    })?;
    let mut errors = Vec::new();
    let decls = decls::check(module, plan, &mut errors);
    let mut programs = Vec::new();
    let mut seen = HashSet::new();
    for program in &plan.programs {
        let Some(graph) = module.graph(&program.name) else {
            errors.push(CheckError::plan(Fault::NoGraph { program: program.name.clone() }));
            continue;
        };
        seen.insert(program.name.as_str());
        let trace = walk::walk(&decls, graph, program, &mut errors);
        barriers::check(plan, program, &mut errors);
        let lower_bound = live::sweep(program, &trace, &mut errors);
        programs.push(ProgramReport {
            name: program.name.clone(),
            steps: program.steps.len(),
            barriers: program.steps.iter().filter(|it| it.barrier).count(),
            scratch_end: operands::scratch_end(program),
            lower_bound,
        });
    }
    for graph in module.graphs.values().filter(|it| !seen.contains(it.name.as_str())) {
        errors.push(CheckError::plan(Fault::NoProgram { graph: graph.name.clone() }));
    }
    let lower_bound = programs.iter().map(|it| it.lower_bound).max().unwrap_or(0);
    let scratch_end = programs.iter().map(|it| it.scratch_end).max().unwrap_or(0);
    decls::scratch(plan, scratch_end, lower_bound, &mut errors);
    if errors.is_empty() {
        Ok(CheckReport { programs, peak: plan.memory.peak(), scratch: plan.memory.scratch, lower_bound })
    } else {
        Err(errors)
    }
}
