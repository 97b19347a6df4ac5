//! Graph to plan: order, liveness, placement, steps, and the checker that trusts none of them.
//!
//! | file | stage |
//! |---|---|
//! | `memory` | which bytes each value occupies: spaces, buffer classes, views |
//! | `lower` | op to step, with in-place sharing |
//! | `liveness` | `[def, last use]` of each buffer class in steps |
//! | `place` | offsets in the scratch arena, several heuristics, the smallest kept |
//! | `barriers` | where threads must meet |
//! | `tile` | how each step's work is cut |
//! | `check` | the plan checker; shares no code with the stages above |
//!
//! Stages are pure functions. Deliberately absent: packing of weight bytes (`waste_plan::pack`) and any timing of this machine.
#![forbid(unsafe_code)]

mod barriers;
pub mod check;
mod experts;
mod liveness;
mod lower;
mod memory;
mod place;
mod planner;
mod tile;
mod weights;

pub use experts::{recommended_slots, slot_bytes, top_k};
pub use planner::{PlanError, PlanRequest, plan};
