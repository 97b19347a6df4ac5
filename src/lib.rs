//! `waste`: a compute-graph compiler and planned executor for large language models.
//!
//! A model is lowered once into a typed op graph, improved by passes, planned into a file that states every byte and
//! every step, and then executed by a small runtime that only walks that plan.
//!
//! | module | holds |
//! |---|---|
//! | [`compile`] | all stages in order: [`compile::compile`], [`compile::Compiled`] |
//! | [`generate`] | prompts continued over a [`Session`] |
//! | [`chat`] | conversations over turns, saved and continued |
//! | [`cache`] | compiled plans kept between runs |
//! | [`embedded`] | the model that ships in the program |
//! | [`convert`] | checkpoints to `.waste` containers |
//! | [`formats`], [`models`], [`text`] | model files, architectures, tokenizers |
//! | [`report`] | tables, statistics and predictions about plans |
//! | [`progress`] | how far long work has come |
//! | [`random`] | random numbers, the same on any machine |
#![forbid(unsafe_code)]

pub mod cache;
pub mod chat;
pub mod compile;
pub mod convert;
pub mod embedded;
pub mod formats;
pub mod generate;
pub mod models;
pub mod progress;
pub mod random;
pub mod report;
pub mod text;

pub use waste_plan::schema::Plan;
pub use waste_runtime::{LoadedPlan, Session, SessionOptions};
