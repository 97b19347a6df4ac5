//! The typed op graph: what a model means, before and after passes.
//!
//! | file | holds |
//! |---|---|
//! | `types` | element types and symbolic shapes |
//! | `ops`, `attrs` | the op table |
//! | `graph` | arenas of ops and values, the module |
//! | `builder`, `infer` | making graphs; result types |
//! | `verify` | the rules, numbered |
//! | `interp` | the reference evaluator, in f64 |
//! | `view` | use counts, petgraph traits, DOT |
//! | `random` | seeded small modules for tests |
//! | `text`, `canonical` | printer, parser, the numbering they share |
//!
//! Invariants: what can be printed can be parsed; every result type equals its inference; states are linear values.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod attrs;
pub mod builder;
mod canonical;
pub mod graph;
pub mod infer;
pub mod interp;
pub mod ops;
pub mod random;
pub mod text;
pub mod types;
pub mod verify;
pub mod view;

pub use attrs::{Act, Attr, RopeScaling, RopeStyle, Scoring, UnaryKind};
pub use builder::{BuildError, Built, GraphBuilder};
pub use graph::{
    Def, Graph, GraphId, ModelInfo, Module, OpData, OpId, Output, Phase, Region, RegionId, SourceDecl,
    SourceId, StateDecl, StateId, StateKind, Steps, ValueData, ValueId, WeightDecl, WeightId, WeightInit,
};
pub use interp::{
    Inputs, Interp, InterpError, MatrixSource, Tensor, WeightSource, decode_matrix, decode_weight,
};
pub use ops::Op;
pub use text::{ParseError, ValueNames, parse_module, print_graph, print_module, print_op};
pub use types::{Dim, Shape, SymDecl, SymId, Syms, TensorType};
pub use verify::{Entity, Verified, VerifyError, verify};
