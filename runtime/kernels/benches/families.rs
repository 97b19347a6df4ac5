//! Speed of the rows around the linears on one thread: `cargo bench -p waste-kernels --bench families`,
//! `… -- kda conv` for the lines that name one of these.
//!
//! Shapes are those of a small model (hidden 576, inner 1536, heads of 64); clock and samples as in `linear`.
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "families/kimi.rs"]
mod kimi;
mod timing;

use common::{Quantised, Rng, tables};
use half::f16;
use timing::{Times, time};
use waste_kernels::attention::{KvTiles, TILE, scratch_len, tiles};
use waste_kernels::{KernelTable, RowsF32, TileMut, Unary};
use waste_plan::Math;

fn main() {
    for (tier, table) in tables().split_off(1) {
        rows(&tier, &table);
        kimi::rows(&tier, &table);
        for (queries, positions) in [(3, 512), (3, 4096), (48, 512)] {
            attention(&tier, &table, queries, positions);
        }
    }
}

/// One line: `elems` elements (or multiply-adds) a call.
fn report(tier: &str, name: &str, elems: usize, once: impl FnMut()) {
    let mut wanted = std::env::args().skip(1).filter(|it| !it.starts_with("--")).peekable();
    if wanted.peek().is_some() && !wanted.any(|it| name.contains(&it)) {
        return;
    }
    let Times { best, median, spread } = time(once);
    let rate = elems as f64 / best * 1e-9;
    println!(
        "{tier:<9} {name:<34} best {rate:>7.2} G/s {:>8.2} us   ± {:.0} %",
        median * 1e6,
        spread * 100.0
    );
}

fn rows(tier: &str, table: &KernelTable) {
    let (rng, n) = (&mut Rng(1), 1536);
    let (x, w, mut y) = (rng.vec(n, Rng::normal), rng.vec(n, Rng::normal), vec![0.0; n]);
    for math in [Math::Fixed24, Math::Fixed16] {
        // The memory of the result is allocated anew, as no step of a plan would.
        report(tier, &format!("quant_act {}", math.name()), n, || {
            Quantised::new(table, math, &x, n);
        });
    }
    report(tier, "rms_norm", n, || table.rms_norm(&x, &w, 1e-5, &mut y));
    report(tier, "layer_norm", n, || table.layer_norm(&x, &w, &w, 1e-5, &mut y));
    for kind in [Unary::Silu, Unary::GeluTanh, Unary::GeluErf] {
        report(tier, &format!("glu {kind:?}"), n, || table.glu(kind, &x, &w, &mut y));
    }
    report(tier, "add", n, || table.add(&x, &w, &mut y));
    report(tier, "rope_half", n, || table.rope_half(&mut y, 64, &w[..32], &w[32..64]));
    let logits = rng.vec(49152, Rng::normal);
    report(tier, "argmax of 49152", logits.len(), || {
        std::hint::black_box(table.argmax_f32(&logits));
    });
    report(tier, "first_non_finite of 49152", logits.len(), || {
        std::hint::black_box(table.first_non_finite(&logits));
    });
}

fn attention(tier: &str, table: &KernelTable, queries: usize, positions: usize) {
    let (rng, d) = (&mut Rng(2), 64);
    let q = rng.vec(queries * d, Rng::normal);
    let n_pos = vec![positions as u32; queries];
    let (mut scratch, mut out) = (vec![0.0; scratch_len(queries)], vec![0.0; queries * d]);
    let k = rng.vec(tiles(positions) * d * TILE, Rng::normal);
    let half: Vec<f16> = k.iter().map(|&x| f16::from_f32(x)).collect();
    let work = 2 * queries * positions * d;
    let q = RowsF32::new(&q, queries, d, d);
    report(tier, &format!("attention_f32 {queries} × {positions}"), work, || {
        let mut out = TileMut::from_slice(&mut out, queries, d, d);
        table.attention_f32(&q, &n_pos, &KvTiles { k: &k, v: &k }, 0.125, &mut scratch, &mut out);
    });
    report(tier, &format!("attention_f16 {queries} × {positions}"), work, || {
        let mut out = TileMut::from_slice(&mut out, queries, d, d);
        table.attention_f16(&q, &n_pos, &KvTiles { k: &half, v: &half }, 0.125, &mut scratch, &mut out);
    });
}
