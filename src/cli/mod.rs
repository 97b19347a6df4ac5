//! The command line: one file a verb, each with its arguments and `run(&Args, &Cx) -> Result<(), CliError>`.
//!
//! | file | holds |
//! |---|---|
//! | `args` | arguments that verbs share |
//! | `cx` | stdout, stderr, environment, Ctrl-C |
//! | `error` | the one line and the exit code |
//! | `open` | from a model or plan argument to a loaded plan and a session |
//! | `prompts` | what is to be continued, from flags, files or stdin |
//! | the rest | one file a verb |
//!
//! Invariants: results to stdout, all else to stderr; `waste: …` in one line on failure.

mod args;
mod cx;
mod error;
mod open;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

use cx::Cx;
use error::CliError;

use crate::env::Env;
