//! The portable rows against plain f64 evaluations of what they mean.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
#[path = "accuracy/kimi.rs"]
mod kimi;

use common::{Flavor, LinearFn, Rng, linears, weight, weights};
use half::f16;
use waste_kernels::attention::{KvTiles, TILE, scratch_len, tiles};
use waste_kernels::{CpuFeatures, FxRowMut, FxRows, Isa, KernelTable, RowsF32, TileMut, Unary};
use waste_plan::{FX_GROUP, FxLayout, LANES, Math};

fn portable() -> KernelTable {
    KernelTable::new(CpuFeatures::detect().capped(Isa::Portable))
}

/// |got − want| / |want| in the Euclidean norm.
fn relative(got: &[f32], want: &[f64]) -> f64 {
    let norm = |it: &mut dyn Iterator<Item = f64>| it.map(|x| x * x).sum::<f64>().sqrt();
    let error = norm(&mut got.iter().zip(want).map(|(g, w)| f64::from(*g) - w));
    error / norm(&mut want.iter().copied())
}

#[test]
fn linears_are_as_exact_as_their_arithmetic() {
    let (table, rng, k, n) = (portable(), &mut Rng(3), 1536, 32);
    for linear in linears() {
        for flavor in [Flavor::Normal, Flavor::HeavyTailed, Flavor::Extremes] {
            let bound = match linear.call {
                LinearFn::Fixed(Math::Fixed16, _) | LinearFn::FixedUnits(Math::Fixed16, _) => 4e-4,
                LinearFn::Fixed(Math::Fixed8, _) | LinearFn::FixedUnits(Math::Fixed8, _) => 8e-2,
                _ => 2e-6,
            };
            let w = weights(linear.packing, n / LANES, k, rng);
            let x = flavor.fill(k, rng);
            let y = linear.apply(&table, &w, k, &x, n);
            let exact = |r| (0..k).map(|i| weight(linear.packing, &w, k, r, i) * f64::from(x[i])).sum();
            let want: Vec<f64> = (0..n).map(exact).collect();
            // Rows that cancel are judged by the size of what cancels.
            let error = relative(&y, &want);
            assert!(error < bound, "{} on {flavor:?}: {error:e}", linear.name);
        }
    }
}

#[test]
fn activations_come_back_within_half_a_step() {
    let (table, rng) = (portable(), &mut Rng(5));
    let quantise = [KernelTable::quant_act_fx8, KernelTable::quant_act_fx16, KernelTable::quant_act_fx24];
    for (planes, quantise) in (1..=3).zip(quantise) {
        let layout = FxLayout { planes };
        for flavor in Flavor::ALL {
            for n in [1, 32, 128, 160, 576] {
                let x = flavor.fill(n, rng);
                let mut bytes = common::Bytes::zeroed(layout.row_bytes(n));
                quantise(&table, &x, &mut FxRowMut::new(&mut bytes, n, layout));
                let rows = FxRows::new(&bytes, 1, n, bytes.len(), layout);
                let q = |i: usize| (0..planes).fold(0, |q, p| q * 256 + i64::from(rows.plane(0, p)[i]));
                for i in 0..layout.padded(n) {
                    let group = &x[i / FX_GROUP * FX_GROUP..n.min((i / FX_GROUP + 1) * FX_GROUP)];
                    let (xs, amax) =
                        (rows.xs(0)[i / FX_GROUP], group.iter().fold(0f32, |a, x| a.max(x.abs())));
                    if group.iter().any(|x| !x.is_finite()) {
                        assert!(xs.is_nan() && q(i) == 0);
                    } else if amax < 2f32.powi(-100) {
                        assert!(xs == 0.0 && q(i) == 0);
                    } else {
                        let x = x.get(i).copied().unwrap_or(0.0);
                        // Two f32 roundings of the scale come on top of the half step.
                        let step = f64::from(amax) / f64::from(layout.q_max());
                        let error = (q(i) as f64 * f64::from(xs) - f64::from(x)).abs();
                        assert!(
                            error <= 0.5 * step + f64::from(x.abs()) * 3e-7,
                            "{x:e} of {amax:e} as {}",
                            q(i)
                        );
                        assert!(q(i).abs() <= i64::from(layout.q_max()));
                    }
                }
                for (j, z) in rows.z(0).iter().enumerate() {
                    let sum = |p: usize| {
                        rows.plane(0, p)[32 * j..][..32].iter().map(|&q| i64::from(q)).sum::<i64>()
                    };
                    let want = (0..planes).fold(0, |z, p| z * 256 + sum(p));
                    assert!((f64::from(*z) - want as f64).abs() <= want.abs() as f64 * 1.2e-7);
                }
            }
        }
    }
}

/// A rounding to Q + 1 would wrap the top byte: 2^24 + 255 steps away from the value.
#[test]
fn the_largest_activation_does_not_wrap() {
    let table = portable();
    let layout = FxLayout { planes: 3 };
    for bits in (0x3f80_0000..0x4000_0000u32).step_by(4099) {
        let x = [f32::from_bits(bits), -f32::from_bits(bits), f32::from_bits(bits - 1), 0.5];
        let mut bytes = common::Bytes::zeroed(layout.row_bytes(4));
        table.quant_act_fx24(&x, &mut FxRowMut::new(&mut bytes, 4, layout));
        let rows = FxRows::new(&bytes, 1, 4, bytes.len(), layout);
        assert!(rows.plane(0, 0)[0] == 127 && rows.plane(0, 0)[1] == -127, "{:e}", x[0]);
    }
}

#[test]
fn norms_and_rotations_mean_what_they_say() {
    let (table, rng, n) = (portable(), &mut Rng(9), 577);
    let (x, w, b) = (rng.vec(n, Rng::normal), rng.vec(n, Rng::normal), rng.vec(n, Rng::normal));
    let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let mean = wide.iter().sum::<f64>() / n as f64;
    let moment = |from: f64| wide.iter().map(|x| (x - from).powi(2)).sum::<f64>() / n as f64;
    let mut y = vec![0.0; n];
    table.rms_norm(&x, &w, 1e-5, &mut y);
    let want: Vec<f64> = (0..n).map(|i| wide[i] / (moment(0.0) + 1e-5).sqrt() * f64::from(w[i])).collect();
    assert!(relative(&y, &want) < 3e-7);
    table.layer_norm(&x, &w, &b, 1e-5, &mut y);
    let scale = 1.0 / (moment(mean) + 1e-5).sqrt();
    let want: Vec<f64> =
        (0..n).map(|i| (wide[i] - mean) * scale * f64::from(w[i]) + f64::from(b[i])).collect();
    assert!(relative(&y, &want) < 3e-7);

    let angle = 0.7f32;
    let mut pair = [1.0, 2.0, 9.0, 1.0, 2.0, 9.0];
    table.rope_pair(&mut pair, 3, &[angle.cos()], &[angle.sin()]);
    let turned = [angle.cos() - 2.0 * angle.sin(), 2.0 * angle.cos() + angle.sin()];
    assert!(pair.chunks(3).all(|it| relative(&it[..2], &turned.map(f64::from)) < 2e-7 && it[2] == 9.0));
    let mut halves = [1.0, 5.0, 2.0, 6.0];
    table.rope_half(&mut halves, 4, &[angle.cos(), 1.0], &[angle.sin(), 0.0]);
    assert!(relative(&[halves[0], halves[2]], &turned.map(f64::from)) < 2e-7);
    assert_eq!([halves[1], halves[3]], [5.0, 6.0]);
}

#[test]
fn epilogues_mean_what_they_say() {
    let table = portable();
    let (g, u, mut y) = ([-2.0f32, 0.0, 0.5, 3.0], [1.0f32, -1.0, 2.0, -4.0], [0.0f32; 4]);
    table.glu(Unary::Silu, &g, &u, &mut y);
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let want: Vec<f64> = (0..4).map(|i| silu(f64::from(g[i])) * f64::from(u[i])).collect();
    assert!(relative(&y, &want) < 3e-7);
    table.add(&g, &u, &mut y);
    assert_eq!(y, [-1.0, -1.0, 2.5, -1.0]);
    table.mul(&g, &u, &mut y);
    assert_eq!(y, [-2.0, -0.0, 1.0, -12.0]);
    table.add_assign(&mut y, &g);
    assert_eq!(y, [-4.0, 0.0, 1.5, -9.0]);
    table.unary(Unary::Neg, &mut y);
    assert_eq!(y, [4.0, -0.0, -1.5, 9.0]);
    table.unary(Unary::Relu, &mut y);
    assert_eq!(y, [4.0, 0.0, 0.0, 9.0]);
}

#[test]
fn attention_is_a_softmax_over_what_is_visible() {
    let (table, rng, d, dv, longest) = (portable(), &mut Rng(13), 48, 40, 100);
    let (keys, values) = (rng.vec(longest * d, Rng::normal), rng.vec(longest * dv, Rng::normal));
    let n_pos = [1u32, 31, 32, 33, 64, 100];
    let q = rng.vec(n_pos.len() * d, |rng| 2.0 * rng.normal());
    // Positions that no query sees hold NaNs.
    let mut k = vec![f32::NAN; tiles(longest) * d * TILE];
    let mut v = vec![f32::NAN; tiles(longest) * TILE * dv];
    let mut k16 = vec![f16::NAN; k.len()];
    let mut v16 = vec![f16::NAN; v.len()];
    for pos in 0..longest {
        let (tile, at) = (pos / TILE, pos % TILE);
        let (key, value) = (&keys[pos * d..][..d], &values[pos * dv..][..dv]);
        table.kv_write_k_f32(&mut k[tile * d * TILE..][..d * TILE], at, key);
        table.kv_write_v_f32(&mut v[tile * TILE * dv..][..TILE * dv], at, value);
        table.kv_write_k_f16(&mut k16[tile * d * TILE..][..d * TILE], at, key);
        table.kv_write_v_f16(&mut v16[tile * TILE * dv..][..TILE * dv], at, value);
    }
    let (mut scratch, mut out) = (vec![0.0; scratch_len(n_pos.len())], vec![0.0; n_pos.len() * dv]);
    let rows = RowsF32::new(&q, n_pos.len(), d, d);
    let want: Vec<f64> = (0..n_pos.len())
        .flat_map(|i| softmax_row(&q[i * d..][..d], &keys, &values, n_pos[i] as usize, dv, 0.2))
        .collect();
    let mut tile = TileMut::from_slice(&mut out, n_pos.len(), dv, dv);
    table.attention_f32(&rows, &n_pos, &KvTiles { k: &k, v: &v }, 0.2, &mut scratch, &mut tile);
    assert!(relative(&out, &want) < 1e-6, "{:e}", relative(&out, &want));
    let mut tile = TileMut::from_slice(&mut out, n_pos.len(), dv, dv);
    table.attention_f16(&rows, &n_pos, &KvTiles { k: &k16, v: &v16 }, 0.2, &mut scratch, &mut tile);
    let error = relative(&out, &want);
    assert!(error < 2e-3 && error > 1e-6, "f16 rounds: {error:e}");
}

fn softmax_row(q: &[f32], keys: &[f32], values: &[f32], n: usize, dv: usize, scale: f64) -> Vec<f64> {
    let dot = |k: &[f32]| q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() * scale;
    let scores: Vec<f64> = keys.chunks(q.len()).take(n).map(dot).collect();
    let max = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
    let p: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = p.iter().sum();
    (0..dv).map(|c| (0..n).map(|i| p[i] * f64::from(values[i * dv + c])).sum::<f64>() / sum).collect()
}

/// Cutting queries into blocks in any way must not change a bit (chunked prefill, decode).
#[test]
fn attention_of_a_query_does_not_depend_on_its_block() {
    for (tier, table) in common::tables() {
        let (rng, d, dv, queries) = (&mut Rng(17), 64, 64, 11);
        let n_pos: Vec<u32> = (0..queries as u32).map(|i| 40 + 7 * i).collect();
        let cache = |n: usize, rng: &mut Rng| rng.vec(tiles(128) * n * TILE, Rng::normal);
        let (q, k, v) = (rng.vec(queries * d, Rng::normal), cache(d, rng), cache(dv, rng));
        let run = |block: usize| {
            let mut out = vec![0.0; queries * dv];
            for from in (0..queries).step_by(block) {
                let n = block.min(queries - from);
                let (q, n_pos) = (RowsF32::new(&q[from * d..], n, d, d), &n_pos[from..from + n]);
                let mut tile = TileMut::from_slice(&mut out[from * dv..], n, dv, dv);
                let kv = KvTiles { k: &k, v: &v };
                table.attention_f32(&q, n_pos, &kv, 0.125, &mut vec![0.0; scratch_len(n)], &mut tile);
            }
            out.iter().map(|y: &f32| y.to_bits()).collect::<Vec<_>>()
        };
        let alone = run(1);
        assert!([2, 3, 4, 11].into_iter().all(|block| run(block) == alone), "{tier}");
    }
}

/// Cutting a matrix and a batch into tiles in any way must not change a bit.
#[test]
fn a_linear_does_not_depend_on_its_tiles() {
    for (tier, table) in common::tables().split_off(1) {
        for linear in linears() {
            let k = linear.packing.units().map_or(288, |it| if it.inputs == 256 { 512 } else { 288 });
            let (rng, n, tokens) = (&mut Rng(19), 80, 13);
            let w = weights(linear.packing, n / LANES, k, rng);
            let x = rng.vec(tokens * k, Rng::normal);
            let whole = linear.apply(&table, &w, k, &x, n);
            let block_bytes = linear.packing.block_bytes(k);
            for (t, x) in x.chunks(k).enumerate() {
                for (b, w) in w.chunks(2 * block_bytes).enumerate() {
                    let cols = 32.min(n - 32 * b);
                    let part = linear.apply(&table, w, k, x, cols);
                    let same =
                        part.iter().zip(&whole[t * n + 32 * b..]).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{} on {tier}: token {t}, columns from {}", linear.name, 32 * b);
                }
            }
        }
    }
}

#[test]
fn scans_find_the_first() {
    let table = portable();
    let mut x = vec![0.0f32; 100];
    x[70] = 2.0;
    x[40] = 2.0;
    x[3] = f32::NAN;
    let best = table.argmax_f32(&x);
    assert_eq!((best.id, best.value), (40, 2.0));
    assert_eq!(table.first_non_finite(&x), Some(3));
    assert_eq!(table.first_non_finite(&x[4..]), None);
    x[90] = f32::NEG_INFINITY;
    assert_eq!(table.first_non_finite(&x[4..]), Some(86));
    assert_eq!(table.argmax_f32(&[-0.0, 0.0]).value.to_bits(), (-0.0f32).to_bits());
    assert_eq!(table.argmax_f32(&[]).value, f32::NEG_INFINITY);
}
