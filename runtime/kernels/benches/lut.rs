//! Speed of the lookup-table rows on one thread: `cargo bench -p waste-kernels --bench lut [-- FILTER…]`.
//!
//! Shapes are the experts of Kimi-Linear (gate and up 1024 x 2304, down 2304 x 1024) and the gate of K3's (3072 x
//! 3584). Every argument must occur in the line's name (row, code, shape, tier). An apply counts lookups (rows ·
//! positions · stages), a build floating-point operations (2 · k · stages · entries), quantisation uncounted; a linear of
//! several tokens, which builds and applies, lookups. Indices come from the caches, as the clock and samples of `linear`
//! have it.
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

#[path = "../tests/common/mod.rs"]
mod common;
mod timing;

use common::lut::{LUTS, Lut, Matrix};
use common::{Rng, tables};
use timing::{Times, time};
use waste_kernels::KernelTable;
use waste_plan::VqCode;

/// Bytes of indices that no cache holds.
const FROM_MEMORY: usize = 128 << 20;

fn main() {
    let filters: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    for (tier, table) in tables().split_off(1) {
        for &code in VqCode::ALL {
            for (rows, k) in [(1024, 2304), (3072, 3584), (2304, 1024)] {
                for lut in LUTS {
                    let name = format!("{} {} {rows}x{k} {tier}", lut.tables.name(), code.name());
                    if filters.iter().all(|it| name.contains(it.as_str())) {
                        report(&name, lut, &table, &Matrix::random(code, rows, k, &mut Rng(1)));
                    }
                }
            }
        }
    }
}

fn report(name: &str, lut: Lut, table: &KernelTable, matrix: &Matrix) {
    let x = Rng(2).vec(matrix.k, Rng::normal);
    let code = matrix.code;
    let mut tables = matrix.build(table, lut, &x, 0..matrix.positions());
    let building = time(|| {
        (lut.build)(table, code, &x, &matrix.transposed, 0..matrix.positions(), &mut tables);
    });
    let mut acc = vec![0.0; matrix.rows];
    let applying = time(|| {
        acc.fill(0.0);
        (lut.apply)(table, code, &tables, &matrix.indices, 0..matrix.positions(), matrix.k, &mut acc);
    });
    let lookups = matrix.rows * matrix.positions() * code.stages();
    for tokens in [1, 3, 4, 8] {
        let x = Rng(3).vec(tokens * matrix.k, Rng::normal);
        let scales = vec![0x3c; 2 * matrix.rows];
        let times = time(|| drop(matrix.linear(table, lut, &x, &scales)));
        println!("{name:<36} linear of {tokens} {} G lookups/s", figures(tokens * lookups, &times));
    }
    // Experts come from memory, one after the other.
    let many: Vec<Vec<u8>> =
        (0..FROM_MEMORY.div_ceil(matrix.indices.len())).map(|_| matrix.indices.clone()).collect();
    let mut at = 0;
    let cold = time(|| {
        acc.fill(0.0);
        at = (at + 1) % many.len();
        (lut.apply)(table, code, &tables, &many[at], 0..matrix.positions(), matrix.k, &mut acc);
    });
    println!("{name:<36} apply from memory {} G lookups/s", figures(lookups, &cold));
    let flops = 2 * matrix.k * code.stages() * code.entries();
    println!(
        "{name:<36} apply {} G lookups/s   build {} GFLOP/s",
        figures(lookups, &applying),
        figures(flops, &building)
    );
}

fn figures(work: usize, times: &Times) -> String {
    let Times { best, median, spread } = times;
    let rate = work as f64 / best * 1e-9;
    format!("{:>8.1} us (best {rate:>6.2}, ± {:.0} %)", median * 1e6, spread * 100.0)
}
