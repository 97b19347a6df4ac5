//! Cases of the rows that Kimi-Linear needs.

use half::{bf16, f16};
use waste_kernels::attention::{TILE, tiles};
use waste_kernels::{KernelTable, RouteRule, RowsF32, STATE_COLS, TileMut, latent_scratch_len};
use waste_plan::Scoring;

use super::common::{Flavor, Rng};
use super::{Seen, each_row, rows_of};

/// Runs the case of row `name`; false where it is not one of these.
pub(crate) fn case(table: &KernelTable, name: &str, rng: &mut Rng, seen: &mut Seen) -> bool {
    match name {
        "short_conv" => convolutions(table, rng, seen),
        "kda_gate" => {
            for lower_bound in [0.0, -5.0] {
                each_row(rng, |x, w, y| table.kda_gate(x, w, w.len() as f32 * 0.01, lower_bound, y), seen);
            }
        }
        "l2_norm" => each_row(rng, |x, _, y| table.l2_norm(x, 1e-6, 0.088, y), seen),
        "kda_step" => steps(table, rng, seen),
        "gated_rms_norm" => rows_of(rng, |x, rng| {
            let gate = Flavor::HeavyTailed.fill(x.len(), rng);
            let (w, mut y) = (rng.vec(x.len(), Rng::normal), vec![9.0; x.len()]);
            table.gated_rms_norm(x, &gate, &w, 1e-5, &mut y);
            seen.floats(&y);
        }),
        "latent_attention_f32" => latents(table, KernelTable::latent_attention_f32, |x| x, rng, seen),
        "latent_attention_f16" => latents(table, KernelTable::latent_attention_f16, f16::from_f32, rng, seen),
        "head_linear_t_f32" => {
            transposed(table, KernelTable::head_linear_t_f32, |x| x.to_le_bytes().to_vec(), rng, seen);
        }
        "head_linear_t_f16" => {
            let elem = |x| f16::from_f32(x).to_le_bytes().to_vec();
            transposed(table, KernelTable::head_linear_t_f16, elem, rng, seen);
        }
        "head_linear_t_bf16" => {
            let elem = |x| bf16::from_f32(x).to_le_bytes().to_vec();
            transposed(table, KernelTable::head_linear_t_bf16, elem, rng, seen);
        }
        "route_top_k" => routes(table, rng, seen),
        "attn_res_mix" => mixtures(table, rng, seen),
        "situ" => {
            for (beta, linear) in [(4.0, 25.0), (1.0, 0.0)] {
                each_row(rng, |x, w, y| table.situ(x, w, beta, linear, y), seen);
            }
        }
        _ => return false,
    }
    true
}

fn convolutions(table: &KernelTable, rng: &mut Rng, seen: &mut Seen) {
    for (tokens, channels, taps) in [
        (1, 1, 4),
        (1, 64, 4),
        (2, 33, 4),
        (3, 16, 4),
        (4, 8, 4),
        (9, 70, 4),
        (40, 48, 4),
        (5, 19, 1),
        (2, 24, 2),
        (7, 21, 7),
    ] {
        for flavor in Flavor::ALL {
            let x = flavor.fill(tokens * (channels + 5), rng);
            let w = rng.vec(channels * taps, Rng::normal);
            let ring = flavor.fill((taps - 1) * channels, rng);
            let (mut next, mut y) = (vec![9.0; ring.len()], vec![9.0; tokens * (channels + 3)]);
            let rows = RowsF32::new(&x, tokens, channels, channels + 5);
            let mut tile = TileMut::from_slice(&mut y, tokens, channels, channels + 3);
            table.short_conv(&rows, &w, taps, &ring, &mut next, &mut tile);
            seen.floats(&next);
            seen.floats(&y);
        }
    }
}

fn steps(table: &KernelTable, rng: &mut Rng, seen: &mut Seen) {
    for (tokens, dk, c) in [
        (1, 128, STATE_COLS),
        (1, 7, 1),
        (2, 64, 16),
        (3, 128, STATE_COLS),
        (5, 33, 31),
        (4, 16, 24),
        (20, 40, 8),
    ] {
        let c: usize = c.min(STATE_COLS);
        for flavor in Flavor::ALL {
            let k = flavor.fill(tokens * dk, rng);
            let q = rng.vec(tokens * dk, Rng::normal);
            let decay = rng.vec(tokens * dk, |rng| rng.unit().abs());
            let v = rng.vec(tokens * (c + 9), Rng::normal);
            let beta = rng.vec(tokens, |rng| rng.unit().abs());
            let from = rng.vec(dk * c, Rng::normal);
            for from in [Some(&from[..]), None] {
                let (mut to, mut o) = (vec![9.0; dk * c], vec![9.0; tokens * (c + 2)]);
                let rows = |x| RowsF32::new(x, tokens, dk, dk);
                let v = RowsF32::new(&v, tokens, c, c + 9);
                let mut tile = TileMut::from_slice(&mut o, tokens, c, c + 2);
                table.kda_step(&rows(&q), &rows(&k), &v, &rows(&decay), &beta, from, &mut to, &mut tile);
                seen.floats(&to);
                seen.floats(&o);
            }
        }
    }
}

type Latent<T> =
    fn(&KernelTable, &RowsF32<'_>, &RowsF32<'_>, &[u32], &[T], f32, &mut [f32], &mut TileMut<'_>);

fn latents<T>(table: &KernelTable, call: Latent<T>, elem: fn(f32) -> T, rng: &mut Rng, seen: &mut Seen) {
    for (queries, kl, r, longest) in [
        (1, 64, 16, 1),
        (1, 512, 64, 70),
        (3, 64, 0, 33),
        (8, 96, 32, 100),
        (5, 17, 3, 64),
        (11, 40, 8, 130),
        (2, 3, 1, 31),
        (4, 200, 64, 65),
    ] {
        for blow_up in [false, true] {
            let size = if blow_up { 30.0 } else { 1.0 };
            let d = kl + r;
            let mut cache: Vec<T> =
                (0..tiles(longest) * d * TILE).map(|_| elem(size * rng.normal())).collect();
            let longest = if blow_up {
                // A NaN that only queries of the full length see.
                let last = longest - 1;
                let at = (last / TILE * d + rng.below(d)) * TILE + last % TILE;
                cache[at] = elem(f32::NAN);
                longest
            } else {
                longest
            };
            let (q, q_rope) = (rng.vec(queries * (d + 1), Rng::normal), rng.vec(queries * r, Rng::normal));
            let n_pos: Vec<u32> = (0..queries).map(|_| 1 + rng.below(longest) as u32).collect();
            let mut scratch = vec![9.0; latent_scratch_len(queries, kl)];
            let mut out = vec![9.0; queries * (kl + 1)];
            let mut tile = TileMut::from_slice(&mut out, queries, kl, kl + 1);
            let (q, q_rope) = (RowsF32::new(&q, queries, kl, d + 1), RowsF32::new(&q_rope, queries, r, r));
            call(table, &q, &q_rope, &n_pos, &cache, 0.07, &mut scratch, &mut tile);
            seen.floats(&out);
        }
    }
}

fn transposed(
    table: &KernelTable,
    call: fn(&KernelTable, &[u8], &[f32], &mut [f32]),
    elem: fn(f32) -> Vec<u8>,
    rng: &mut Rng,
    seen: &mut Seen,
) {
    for (n, k) in [(1, 1), (128, 512), (3, 7), (16, 40), (5, 100), (2, 33), (31, 64), (9, 8)] {
        for flavor in Flavor::ALL {
            // One byte in front: the kernel asks for no alignment.
            let w: Vec<u8> = std::iter::once(0).chain((0..n * k).flat_map(|_| elem(rng.normal()))).collect();
            let mut y = vec![9.0; k];
            call(table, &w[1..], &flavor.fill(n, rng), &mut y);
            seen.floats(&y);
        }
    }
}

fn routes(table: &KernelTable, rng: &mut Rng, seen: &mut Seen) {
    for (experts, k, groups, keep) in [
        (256, 8, 1, 1),
        (896, 16, 1, 1),
        (64, 6, 8, 3),
        (8, 8, 4, 1),
        (5, 2, 5, 2),
        (1, 1, 1, 1),
        (33, 4, 1, 1),
    ] {
        for flavor in Flavor::ALL {
            for (scoring, renorm) in [(Scoring::Sigmoid, true), (Scoring::Softmax, false)] {
                let coarse = rng.below(2) == 0;
                let mut logits = flavor.fill(experts, rng);
                if coarse {
                    logits.iter_mut().for_each(|x| *x = x.round());
                }
                let bias = flavor.fill(experts, rng);
                for bias in [None, Some(&bias[..])] {
                    let (mut ids, mut weights) = (vec![-1; k], vec![9.0; k]);
                    let rule = RouteRule { scoring, groups, keep, renorm, scale: 2.446 };
                    let mut scratch = vec![9.0; 2 * experts];
                    table.route_top_k(&logits, bias, &rule, &mut scratch, &mut ids, &mut weights);
                    seen.0.extend(ids.iter().map(|it| it.cast_unsigned()));
                    seen.floats(&weights);
                }
            }
        }
    }
}

fn mixtures(table: &KernelTable, rng: &mut Rng, seen: &mut Seen) {
    for (blocks, h) in [(0, 33), (1, 16), (3, 100), (9, 576), (20, 5)] {
        for flavor in Flavor::ALL {
            let (history, x) = (flavor.fill(blocks * h, rng), rng.vec(h, Rng::normal));
            let (norm, proj) = (rng.vec(h, Rng::normal), rng.vec(h, Rng::normal));
            let mut y = vec![9.0; h];
            table.attn_res_mix(&history, &x, &norm, &proj, 1e-5, &mut y);
            seen.floats(&y);
        }
    }
}
