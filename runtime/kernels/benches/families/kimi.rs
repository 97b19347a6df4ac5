//! The rows that Kimi-Linear needs, in the shapes of Kimi-Linear-48B-A3B.

use half::f16;
use waste_kernels::attention::{TILE, tiles};
use waste_kernels::{KernelTable, RouteRule, RowsF32, STATE_COLS, TileMut, latent_scratch_len};
use waste_plan::Scoring;

use super::common::Rng;
use super::report;

pub(crate) fn rows(tier: &str, table: &KernelTable) {
    for tokens in [1, 64] {
        convolution(tier, table, tokens);
        steps(tier, table, tokens, 1);
    }
    steps(tier, table, 1, 32);
    heads(tier, table);
    for (queries, positions) in [(1, 512), (8, 512), (32, 512), (32, 4096)] {
        latents(tier, table, queries, positions);
    }
    // One head's key matrix from L1/L2, and a layer's 32 of them one after the other.
    transposed(tier, table, 1);
    transposed(tier, table, 32);
    routes(tier, table);
}

fn convolution(tier: &str, table: &KernelTable, tokens: usize) {
    let (rng, c, taps) = (&mut Rng(1), 4096, 4);
    let (x, w) = (rng.vec(tokens * c, Rng::normal), rng.vec(c * taps, Rng::normal));
    let ring = rng.vec((taps - 1) * c, Rng::normal);
    let (mut next, mut y) = (ring.clone(), vec![0.0; tokens * c]);
    report(tier, &format!("short_conv {c} × {tokens}"), tokens * c * taps, || {
        let mut y = TileMut::from_slice(&mut y, tokens, c, c);
        table.short_conv(&RowsF32::new(&x, tokens, c, c), &w, taps, &ring, &mut next, &mut y);
    });
}

/// All columns of some heads of 128 × 128, both halves of their state in turn as decode does.
fn steps(tier: &str, table: &KernelTable, tokens: usize, heads: usize) {
    let (rng, d) = (&mut Rng(2), 128);
    let (q, k, v) =
        (rng.vec(tokens * d, Rng::unit), rng.vec(tokens * d, Rng::unit), rng.vec(tokens * d, Rng::unit));
    let (decay, beta) = (rng.vec(tokens * d, |_| 0.5), rng.vec(tokens, |_| 0.1));
    let rows = |x| RowsF32::new(x, tokens, d, d);
    let (q, k, v, decay) = (rows(&q), rows(&k), rows(&v), rows(&decay));
    let (mut from, mut to) = (vec![0.0; heads * d * d], vec![0.0; heads * d * d]);
    let mut o = vec![0.0; tokens * d];
    let name = format!("kda_step {heads} × 128 × 128, {tokens} tokens");
    report(tier, &name, heads * tokens * d * d, || {
        for (from, to) in from.chunks(d * STATE_COLS).zip(to.chunks_mut(d * STATE_COLS)) {
            let mut o = TileMut::from_slice(&mut o, tokens, STATE_COLS, d);
            table.kda_step(&q, &k, &v.columns(0..STATE_COLS), &decay, &beta, Some(from), to, &mut o);
        }
        std::mem::swap(&mut from, &mut to);
    });
}

fn heads(tier: &str, table: &KernelTable) {
    let (rng, n) = (&mut Rng(3), 128);
    let (x, w, mut y) = (rng.vec(n, Rng::normal), rng.vec(n, Rng::normal), vec![0.0; n]);
    report(tier, "kda_gate 128", n, || table.kda_gate(&x, &w, 0.4, 0.0, &mut y));
    report(tier, "l2_norm 128", n, || table.l2_norm(&x, 1e-6, 0.09, &mut y));
    report(tier, "gated_rms_norm 128", n, || table.gated_rms_norm(&x, &w, &w, 1e-5, &mut y));
    let (x, h) = (rng.vec(10 * 2304, Rng::normal), 2304);
    let mut y = vec![0.0; h];
    report(tier, "attn_res_mix 9 × 2304", 10 * h, || {
        table.attn_res_mix(&x[h..], &x[..h], &x[..h], &x[..h], 1e-5, &mut y);
    });
    report(tier, "situ 2304", h, || table.situ(&x[..h], &x[h..2 * h], 4.0, 25.0, &mut y));
}

fn latents(tier: &str, table: &KernelTable, queries: usize, positions: usize) {
    let (rng, kl, r) = (&mut Rng(4), 512, 64);
    let (q, q_rope) = (rng.vec(queries * kl, Rng::normal), rng.vec(queries * r, Rng::normal));
    let cache = rng.vec(tiles(positions) * (kl + r) * TILE, Rng::normal);
    let half: Vec<f16> = cache.iter().map(|&x| f16::from_f32(x)).collect();
    let n_pos = vec![positions as u32; queries];
    let (mut scratch, mut out) = (vec![0.0; latent_scratch_len(queries, kl)], vec![0.0; queries * kl]);
    let (q, q_rope) = (RowsF32::new(&q, queries, kl, kl), RowsF32::new(&q_rope, queries, r, r));
    let work = queries * positions * (2 * kl + r);
    report(tier, &format!("latent_attention_f32 {queries} × {positions}"), work, || {
        let mut out = TileMut::from_slice(&mut out, queries, kl, kl);
        table.latent_attention_f32(&q, &q_rope, &n_pos, &cache, 0.07, &mut scratch, &mut out);
    });
    report(tier, &format!("latent_attention_f16 {queries} × {positions}"), work, || {
        let mut out = TileMut::from_slice(&mut out, queries, kl, kl);
        table.latent_attention_f16(&q, &q_rope, &n_pos, &half, 0.07, &mut scratch, &mut out);
    });
}

fn transposed(tier: &str, table: &KernelTable, heads: usize) {
    let (rng, n, k) = (&mut Rng(5), 128, 512);
    let (x, mut y) = (rng.vec(n, Rng::normal), vec![0.0; k]);
    let w: Vec<u8> = (0..heads * n * k).flat_map(|_| rng.normal().to_le_bytes()).collect();
    let half: Vec<u8> = (0..heads * n * k).flat_map(|_| f16::from_f32(rng.normal()).to_le_bytes()).collect();
    for (name, call, w, bytes) in [
        ("f32", KernelTable::head_linear_t_f32 as fn(&KernelTable, &[u8], &[f32], &mut [f32]), &w, 4),
        ("f16", KernelTable::head_linear_t_f16, &half, 2),
        ("bf16", KernelTable::head_linear_t_bf16, &half, 2),
    ] {
        report(tier, &format!("head_linear_t_{name} {heads} × 128 × 512"), heads * n * k, || {
            w.chunks(bytes * n * k).for_each(|w| call(table, w, &x, &mut y));
        });
    }
}

fn routes(tier: &str, table: &KernelTable) {
    for (experts, k) in [(256, 8), (896, 16)] {
        let rng = &mut Rng(6);
        let (logits, bias) = (rng.vec(experts, Rng::normal), rng.vec(experts, Rng::normal));
        let (mut ids, mut weights, mut scratch) = (vec![0; k], vec![0.0; k], vec![0.0; 2 * experts]);
        let rule = RouteRule { scoring: Scoring::Sigmoid, groups: 1, keep: 1, renorm: true, scale: 2.446 };
        report(tier, &format!("route_top_k {k} of {experts}"), experts, || {
            table.route_top_k(&logits, Some(&bias), &rule, &mut scratch, &mut ids, &mut weights);
        });
    }
}
