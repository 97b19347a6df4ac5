//! Reads a plan and prints its memory map: what every byte is for, before anything runs.
//!
//! `cargo run --example memory_map -- m.wplan`
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::path::Path;

use waste_runtime::{LoadedPlan, needed_bytes};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: memory_map PLAN")?;
    let loaded = LoadedPlan::open(Path::new(&path))?;
    let plan = loaded.plan();
    println!("{} for {} ({})", path, plan.model.name, plan.model.arch);
    for weight in &plan.weights {
        let at = weight.offset;
        println!("weights {at:>12} +{:<10} {} as {}", weight.bytes, weight.name, weight.packing.name());
    }
    for state in &plan.states {
        println!("states  {:>12} +{:<10} {} {:?}", state.offset, state.bytes, state.name, state.shape);
    }
    for port in &plan.ports {
        let bytes = port.bytes();
        println!("io      {:>12} +{bytes:<10} {}", port.offset, port.name.name());
    }
    let memory = &plan.memory;
    println!("scratch {:>12} +{:<10} (lower bound {})", 0, memory.scratch, memory.scratch_lower_bound);
    println!("all of it with one thread: {} bytes", needed_bytes(plan, 1));
    Ok(())
}
