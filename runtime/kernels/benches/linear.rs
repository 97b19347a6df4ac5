//! Speed of the linears on one thread: `cargo bench -p waste-kernels --bench linear [-- FILTER…]`.
//!
//! The clock is the thread's own processor time, so that other work on the machine disturbs less.
//! Every argument must occur in the line's name (row, shape, tier), e.g. `-- w4m_fixed24 T=1`. A line is the
//! best and the median of 101 samples of about 0.3 ms; the spread is the interquartile range over the median. Activations are quantised before the
//! clock starts. Weights beyond the caches are read in full every time. GB/s counts weight bytes.
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

#[path = "../tests/common/mod.rs"]
mod common;
mod timing;

use common::{Linear, LinearFn, Quantised, Rng, linears, weights};
use waste_kernels::{CpuFeatures, Isa, KernelTable, RowsF32, TileMut};
use waste_plan::LANES;

use timing::{SAMPLES, Times, time};

/// Rows of a tile, as the executor would cut them.
const TILE_ROWS: usize = 128;

fn main() {
    let filters: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let cpu = CpuFeatures::detect();
    println!("best tier: {}; tiles of {TILE_ROWS} rows; {SAMPLES} samples", cpu.best().name());
    for linear in linears() {
        let unit = linear.packing.units().map_or(32, |it| it.inputs);
        let shapes =
            [(576, 576), (576, 1536), (1536, 576), (576, 49152), (2048, 512), (2048, 2048), (2048, 32768)];
        for (k, n) in shapes.into_iter().filter(|(k, _)| k % unit == 0) {
            for tokens in [1, 16, 64, 256] {
                for isa in Isa::ALL.into_iter().filter(|&isa| isa != Isa::Portable && cpu.has(isa)) {
                    let packing = linear.packing.name();
                    let name = format!("{} {packing} K={k} N={n} T={tokens} {}", linear.name, isa.name());
                    let is_asked = |it: &String| {
                        name.split(' ').any(|word| word == it) || linear.name.contains(it.as_str())
                    };
                    if (n < 10_000 || tokens == 1) && filters.iter().all(is_asked) {
                        report(&name, linear, &KernelTable::new(cpu.capped(isa)), k, n, tokens);
                    }
                }
            }
        }
    }
}

fn report(name: &str, linear: Linear, table: &KernelTable, k: usize, n: usize, tokens: usize) {
    let rng = &mut Rng(1);
    let w = weights(linear.packing, n.div_ceil(LANES), k, rng);
    let x = rng.vec(tokens * k, Rng::normal);
    let mut y = vec![0.0; tokens * n];
    let once: Box<dyn FnMut() + '_> = match linear.call {
        LinearFn::Fixed(math, call) => {
            let x = Quantised::new(table, math, &x, k);
            let (w, y) = (&w, &mut y);
            Box::new(move || tiles(linear, w, k, n, tokens, y, |w, y| call(table, w, k, &x.rows(), y)))
        }
        LinearFn::FixedUnits(math, call) => {
            let x = Quantised::new(table, math, &x, k);
            let (w, y) = (&w, &mut y);
            let packing = linear.packing;
            Box::new(move || {
                tiles(linear, w, k, n, tokens, y, |w, y| call(table, packing, w, k, &x.rows(), y));
            })
        }
        LinearFn::FloatUnits(call) => {
            let x = RowsF32::new(&x, tokens, k, k);
            let (w, y) = (&w, &mut y);
            let packing = linear.packing;
            Box::new(move || tiles(linear, w, k, n, tokens, y, |w, y| call(table, packing, w, k, &x, y)))
        }
        LinearFn::Float(call) => {
            let x = RowsF32::new(&x, tokens, k, k);
            let (w, y) = (&w, &mut y);
            Box::new(move || tiles(linear, w, k, n, tokens, y, |w, y| call(table, w, k, &x, y)))
        }
    };
    let Times { best, median, spread } = time(once);
    let (weights, bytes) = ((k * n) as f64, w.len() as f64);
    let flops = 2.0 * weights * tokens as f64;
    println!(
        "{name:<56} best {:>6.1} Gw/s {:>6.1} GFLOP/s {:>5.1} GB/s   median {:>6.1} GFLOP/s, {:>8.1} us ± {:.0} %",
        weights / best * 1e-9,
        flops / best * 1e-9,
        bytes / best * 1e-9,
        flops / median * 1e-9,
        median * 1e6,
        spread * 100.0
    );
}

/// Runs `call` on every tile of rows and up to 256 tokens.
fn tiles(
    linear: Linear,
    w: &[u8],
    k: usize,
    n: usize,
    tokens: usize,
    y: &mut [f32],
    call: impl Fn(&[u8], &mut TileMut<'_>),
) {
    let tile_bytes = TILE_ROWS / LANES * linear.packing.block_bytes(k);
    let mut y = TileMut::from_slice(y, tokens, n, n);
    for (i, w) in w.chunks(tile_bytes).enumerate() {
        call(w, &mut y.sub(0..tokens, i * TILE_ROWS..n.min((i + 1) * TILE_ROWS)));
    }
}
