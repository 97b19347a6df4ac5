//! A floor under the speed of the AVX2 linears: more than a weight a cycle, one token, weights in the second cache.
//!
//! Kernels run at two to twenty. A call that is no longer inlined, or accumulators that live on the stack, cost a factor of ten and change
//! no bit: this is where it shows, in the one test here that looks at a clock (of the thread's own time, best of many). Without optimisation there is nothing to see, so debug builds have no test here.
#![cfg(all(not(debug_assertions), target_arch = "x86_64"))]

mod common;
#[path = "../benches/timing/mod.rs"]
mod timing;

use common::{Linear, Rng, linears, weights};
use waste_kernels::{CpuFeatures, Isa, KernelTable};
use waste_plan::LANES;

const K: usize = 2048;
const N: usize = 256;

/// Weights a cycle of every linear.
const FLOOR: f64 = 1.0;

#[test]
fn every_avx2_linear_multiplies_more_than_a_weight_a_cycle() {
    let cpu = CpuFeatures::detect();
    if !cpu.has(Isa::Avx2) {
        println!("no AVX2 here");
        return;
    }
    let table = KernelTable::new(cpu.capped(Isa::Avx2));
    let slow: Vec<String> = linears().into_iter().filter_map(|it| too_slow(&table, it)).collect();
    assert!(slow.is_empty(), "weights a cycle:\n{}", slow.join("\n"));
}

/// The row and its speed, if that is below the floor in three measurements.
fn too_slow(table: &KernelTable, linear: Linear) -> Option<String> {
    let rng = &mut Rng(3);
    let w = weights(linear.packing, N / LANES, K, rng);
    let x = rng.vec(K, Rng::normal);
    let mut best = 0.0f64;
    for _ in 0..3 {
        let cycle = cycle();
        let times = timing::time(|| {
            std::hint::black_box(linear.apply(table, &w, K, &x, N));
        });
        best = best.max((K * N) as f64 * cycle / times.best);
        if best > FLOOR {
            return None;
        }
    }
    Some(format!("{} {}: {best:.2}", linear.name, linear.packing.name()))
}

/// Seconds of a cycle: a chain of multiplications and additions, each pair of which waits four cycles for the one before (so on x86-64
/// processors but the smallest, which take longer and are then held to less).
fn cycle() -> f64 {
    const CHAIN: u64 = 30_000;
    let factor = std::hint::black_box(0x9e37_79b9_7f4a_7c15u64);
    let times = timing::time(|| {
        let chain = (0..CHAIN).fold(factor, |x, i| x.wrapping_mul(factor).wrapping_add(i));
        std::hint::black_box(chain);
    });
    times.best / CHAIN as f64 / 4.0
}
