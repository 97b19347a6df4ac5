//! Lookup tables against the f64 decode of the matrices they stand for, and against their own definition.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::lut::{LUTS, Lut, Matrix};
use common::{Flavor, Rng, tables};
use half::f16;
use waste_kernels::{CpuFeatures, Isa, KernelTable};
use waste_plan::{Tables, VqCode};

fn portable() -> KernelTable {
    KernelTable::new(CpuFeatures::detect().capped(Isa::Portable))
}

fn lut(tables: Tables) -> Lut {
    LUTS.into_iter().find(|it| it.tables == tables).unwrap()
}

fn relative(got: &[f32], want: &[f64]) -> f64 {
    let norm = |it: &mut dyn Iterator<Item = f64>| it.map(|x| x * x).sum::<f64>().sqrt();
    let error = norm(&mut got.iter().zip(want).map(|(g, w)| f64::from(*g) - w));
    error / norm(&mut want.iter().copied())
}

#[test]
fn tables_are_as_exact_as_their_arithmetic() {
    let (table, rng) = (portable(), &mut Rng(21));
    for &code in VqCode::ALL {
        for (rows, k) in [(200, 2304), (64, 1024), (130, 8 * 37)] {
            let matrix = Matrix::random(code, rows, k, rng);
            for flavor in [Flavor::Normal, Flavor::HeavyTailed, Flavor::Extremes] {
                let x = flavor.fill(k, rng);
                let want = matrix.exact(&x);
                for lut in LUTS {
                    let (least, most) = match lut.tables {
                        Tables::Fixed24 | Tables::F32 => (0.0, 1e-6),
                        Tables::Fixed16 => (1e-6, 2e-4),
                        Tables::Container => (1e-3, 5e-2),
                    };
                    let error = relative(&matrix.apply(&table, lut, &x), &want);
                    let name = format!("{} {} {rows}x{k} {flavor:?}", code.name(), lut.tables.name());
                    assert!((least..most).contains(&error), "{name}: {error:e}");
                }
            }
        }
    }
}

/// Prefill cuts a row's positions into tiles; the bits must not show it.
#[test]
fn ranges_in_ascending_order_equal_the_whole() {
    for (tier, table) in tables() {
        let rng = &mut Rng(22);
        for &code in VqCode::ALL {
            let matrix = Matrix::random(code, 100, 8 * 77, rng);
            let x = Flavor::HeavyTailed.fill(matrix.k, rng);
            for lut in LUTS {
                let whole = matrix.apply(&table, lut, &x);
                for cuts in [&[0, 32, 77][..], &[0, 64, 77], &[0, 32, 32, 64, 77]] {
                    let mut acc = vec![0.0; matrix.rows];
                    for cut in cuts.windows(2) {
                        matrix.add(&table, lut, &x, cut[0]..cut[1], &mut acc);
                    }
                    assert_eq!(acc, whole, "{} {} {cuts:?} on {tier}", code.name(), lut.apply_name);
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "8..16 of 32 positions")]
fn a_range_does_not_cut_a_block() {
    let matrix = Matrix::random(VqCode::Vq2r, 1, 256, &mut Rng(23));
    matrix.build(&portable(), lut(Tables::Fixed24), &[1.0; 256], 8..16);
}

#[test]
#[should_panic(expected = "indices of 65 rows")]
fn a_stream_holds_all_its_rows() {
    let mut matrix = Matrix::random(VqCode::Vq3r, 65, 64, &mut Rng(23));
    matrix.indices.pop();
    matrix.apply(&portable(), lut(Tables::F32), &[1.0; 64]);
}

#[test]
fn blocks_of_hostile_inputs_stay_what_they_are() {
    for (tier, table) in tables() {
        let rng = &mut Rng(24);
        for &code in VqCode::ALL {
            let matrix = Matrix::random(code, 70, 8 * 50, rng);
            let normal = Flavor::Normal.fill(matrix.k, rng);
            for lut in LUTS {
                let name = format!("{} {} on {tier}", code.name(), lut.apply_name);
                // Nothing in, nothing out, and the sums so far survive.
                let mut acc = vec![3.5; matrix.rows];
                matrix.add(&table, lut, &vec![0.0; matrix.k], 0..50, &mut acc);
                assert!(acc.iter().all(|&it| it == 3.5), "{name}");
                // A block of large numbers does not disturb one of small ones.
                let of = |at: usize, size: f32| -> Vec<f32> {
                    let sized = |(i, x): (usize, &f32)| if i / 256 == at { x * size } else { 0.0 };
                    normal.iter().enumerate().map(sized).collect()
                };
                let (small, large) = (of(0, 1e-20), of(0, 1e30));
                let alone: Vec<f32> = matrix.apply(&table, lut, &of(0, 1.0));
                for (x, size) in [(&small, 1e-20), (&large, 1e30)] {
                    let want: Vec<f64> = alone.iter().map(|&it| f64::from(it) * size).collect();
                    let bound = if lut.tables == Tables::Container { 2e-2 } else { 1e-4 };
                    assert!(relative(&matrix.apply(&table, lut, x), &want) < bound, "{name}");
                }
                // What Q / amax would overflow for counts as zero.
                let tiny = matrix.apply(&table, lut, &of(0, 1e-36));
                assert_eq!(tiny.iter().all(|&it| it == 0.0), lut.tables != Tables::F32, "{name}");
                // A NaN or an infinity is seen in every row.
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x = normal.clone();
                    x[rng.below(matrix.k)] = bad;
                    let acc = matrix.apply(&table, lut, &x);
                    assert!(acc.iter().all(|it| !it.is_finite()), "{name} {bad}");
                }
            }
        }
    }
}

/// VQ4P's 8-bit rule, written out step by step as containers define it.
#[test]
fn the_container_rule_is_vq4ps() {
    let (rng, rows, k) = (&mut Rng(25), 66, 8 * 40);
    let matrix = Matrix::random(VqCode::Vq4p, rows, k, rng);
    let x = Flavor::Normal.fill(k, rng);
    let mut floats = vec![0f32; 40 * 4 * 64];
    for v in 0..40 {
        for s in 0..4 {
            for c in 0..64 {
                let mut sum = 0f32;
                for d in 0..8 {
                    sum = x[8 * v + d].mul_add(matrix.books[(s * 64 + c) * 8 + d], sum);
                }
                floats[(v * 4 + s) * 64 + c] = sum;
            }
        }
    }
    let mut want = vec![0f32; rows];
    let mut in_two_roundings = vec![0f64; rows];
    for block in [0..32, 32..40] {
        let of_block = &floats[block.start * 256..block.end * 256];
        let max = of_block.iter().fold(0f32, |max, t| max.max(t.abs()));
        let (scale, inverse) = (max / 127.0, 127.0 / max);
        let bytes: Vec<i8> =
            of_block.iter().map(|t| (t * inverse).round_ties_even().clamp(-127.0, 127.0) as i8).collect();
        for row in 0..rows {
            let mut sum = 0i16;
            for v in block.clone() {
                let at = ((row / 64) * 40 + v) * 192 + row % 64 * 3;
                let word = matrix.indices[at..at + 3].iter().rev().fold(0u32, |w, &b| w << 8 | u32::from(b));
                for s in 0..4 {
                    let entry = (word >> (6 * s) & 63) as usize;
                    sum += i16::from(bytes[((v - block.start) * 4 + s) * 64 + entry]);
                }
            }
            want[row] = f32::from(sum).mul_add(scale, want[row]);
            in_two_roundings[row] = f64::from(in_two_roundings[row] as f32 + scale * f32::from(sum));
        }
    }
    for (tier, table) in tables() {
        let got = matrix.apply(&table, lut(Tables::Container), &x);
        assert_eq!(got, want, "{tier}");
        assert!(relative(&got, &in_two_roundings) < 1e-6);
    }
}

/// However many tokens are taken together: each has the bits of its own tables, applied and scaled.
#[test]
fn a_linear_has_the_bits_of_its_parts() {
    for (tier, table) in tables() {
        let rng = &mut Rng(26);
        for &code in VqCode::ALL {
            let matrix = Matrix::random(code, 130, 8 * 41, rng);
            let scales: Vec<u8> =
                rng.vec(130, Rng::normal).iter().flat_map(|&it| f16::from_f32(it).to_le_bytes()).collect();
            let mut x = Flavor::HeavyTailed.fill(8 * matrix.k, rng);
            x[2 * matrix.k..3 * matrix.k].fill(0.0);
            x[5 * matrix.k + 17] = f32::INFINITY;
            for lut in LUTS {
                let mut want = vec![0.0; 8 * matrix.rows];
                for (x, y) in x.chunks(matrix.k).zip(want.chunks_mut(matrix.rows)) {
                    table.lut_scale(&scales, &matrix.apply(&table, lut, x), y);
                }
                let bits = |it: &[f32]| -> Vec<u32> {
                    it.iter().map(|it| if it.is_nan() { u32::MAX } else { it.to_bits() }).collect()
                };
                for tokens in 1..=8 {
                    let got = matrix.linear(&table, lut, &x[..tokens * matrix.k], &scales);
                    let name = format!("{} {} of {tokens} on {tier}", code.name(), lut.linear_name);
                    assert_eq!(bits(&got), bits(&want[..got.len()]), "{name}");
                }
            }
        }
    }
}

#[test]
fn scales_keep_their_subnormals() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let acc = vec![3.0; 1 << 16];
    for (tier, table) in tables() {
        let mut y = vec![0.0; 1 << 16];
        table.lut_scale(&all, &acc, &mut y);
        for (bits, y) in (0..=u16::MAX).zip(y) {
            let want = f16::from_bits(bits).to_f32() * 3.0;
            assert!(y == want || y.is_nan() && want.is_nan(), "{bits:#06x} on {tier}");
        }
    }
}
