//! What can be wrong with a plan of a module.

use std::fmt;

use waste_ir::{OpId, ValueId};
use waste_plan::validate::ValidateError;

/// A fault and where it shows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {fault}")]
pub struct CheckError {
    /// Where.
    pub at: Location,
    /// What.
    pub fault: Fault,
}

/// Where a fault shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// The plan as a whole.
    Plan,
    /// A program as a whole.
    Program(String),
    /// A step of a program.
    Step(String, usize),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan => f.write_str("plan"),
            Self::Program(name) => write!(f, "{name}"),
            Self::Step(name, step) => write!(f, "{name} #{step}"),
        }
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The structure is out of bounds.
    #[error("{0}")]
    Invalid(ValidateError),
    /// A program without a graph.
    #[error("no graph is named '{program}'")]
    NoGraph {
        /// The program.
        program: String,
    },
    /// A graph without a program.
    #[error("no program is named '{graph}'")]
    NoProgram {
        /// The graph.
        graph: String,
    },
    /// Something is not what the module says.
    #[error("{what}: found {found}, expected {expected}")]
    Differs {
        /// The thing.
        what: String,
        /// As the plan has it.
        found: String,
        /// As the module has it.
        expected: String,
    },
    /// A step names an op that no step may carry out: unknown, a view, or inside a region.
    #[error("op {op} needs no step")]
    NoStep {
        /// Index of the op.
        op: u32,
    },
    /// Two steps carry out the same op.
    #[error("{op} was carried out by step #{first}")]
    Twice {
        /// The op.
        op: OpId,
        /// The first step.
        first: usize,
    },
    /// No step carries out an op.
    #[error("{op} ({name}) is carried out by no step")]
    Lost {
        /// The op.
        op: OpId,
        /// Its name.
        name: &'static str,
    },
    /// A value is read before any step wrote it.
    #[error("{value} was never written")]
    UnknownValue {
        /// The value wanted.
        value: ValueId,
    },
    /// Bytes of a value were overwritten before it is read.
    #[error("{wanted} is wanted where step #{by} wrote {found}")]
    WrongValue {
        /// The value wanted.
        wanted: ValueId,
        /// The value found.
        found: ValueId,
        /// The step that wrote it.
        by: usize,
    },
    /// A version of a state is read or replaced that is not the current one.
    #[error("state '{state}' holds {found}, wanted is {wanted}")]
    WrongVersion {
        /// The state.
        state: String,
        /// The version wanted.
        wanted: ValueId,
        /// The current version.
        found: ValueId,
    },
    /// Two steps between the same barriers touch the same bytes, and one of them writes.
    #[error("{access} what step #{other} {other_access}, with no barrier between")]
    Race {
        /// `reads` or `writes`.
        access: &'static str,
        /// The earlier step.
        other: usize,
        /// `reads` or `writes`.
        other_access: &'static str,
    },
    /// All threads must meet where a loop over experts begins, after it brought records in, and where it ends.
    #[error("no barrier at the edge of a loop over experts")]
    NoMeeting,
    /// A step that moves records names another bank, or an op that reads none.
    #[error("moves records that {op} does not read")]
    OtherRecords {
        /// The op.
        op: OpId,
    },
    /// Two buffers that are live at the same time share bytes of scratch.
    #[error("the buffer of {value} shares bytes with that of {other}, live until step #{until}")]
    Shared {
        /// The value written here.
        value: ValueId,
        /// A value of the other buffer.
        other: ValueId,
        /// The last use of the other buffer.
        until: usize,
    },
}

impl CheckError {
    pub(super) const fn plan(fault: Fault) -> Self {
        Self { at: Location::Plan, fault }
    }

    pub(super) fn program(program: &str, fault: Fault) -> Self {
        Self { at: Location::Program(program.to_owned()), fault }
    }

    pub(super) fn step(program: &str, step: usize, fault: Fault) -> Self {
        Self { at: Location::Step(program.to_owned(), step), fault }
    }
}

/// `Differs` unless `found` equals `expected`.
pub(super) fn same<T: PartialEq + fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), Fault> {
    if found == expected {
        return Ok(());
    }
    let (found, expected) = (format!("{found:?}"), format!("{expected:?}"));
    Err(Fault::Differs { what: what.to_owned(), found, expected })
}
