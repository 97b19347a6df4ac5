//! The `waste` program: parses the command line, runs one verb, owns the exit codes.
//!
//! | code | means |
//! |---|---|
//! | 0 | done; also where the reader of stdout went away |
//! | 1 | bad input or model |
//! | 2 | usage |
//! | 3 | a check found a difference |
//! | 4 | more memory is needed than there is or than is allowed |
//! | 130 | Ctrl-C |
#![forbid(unsafe_code)]

mod cli;
mod env;

use std::process::ExitCode;

use waste_runtime::sys::CountingAllocator;

/// `exec -o json` shows that no step allocates.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    cli::main()
}
