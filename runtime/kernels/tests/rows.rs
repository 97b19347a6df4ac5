//! Every row of every tier of this machine against the portable definition, bit by bit.
//!
//! A case runs one row over lengths, tails, odd shapes and hostile values and returns all it wrote; two NaNs count as
//! equal. A row without a case fails.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
#[path = "rows/kimi.rs"]
mod kimi;

use common::lut::{LUTS, Lut, Matrix};
use common::{Flavor, LinearFn, Rng, UNITS, rounds, tables, weights};
use half::f16;
use waste_kernels::attention::{KvTiles, TILE, scratch_len, tiles};
use waste_kernels::{FxRowMut, KernelTable, RowsF32, TileMut, Unary};
use waste_plan::{FxLayout, LANES, Packing, VqCode};

/// What a case observed.
#[derive(Default)]
struct Seen(Vec<u32>);

impl Seen {
    fn floats(&mut self, y: &[f32]) {
        self.0.extend(y.iter().map(|y| if y.is_nan() { 0x7fc0_0000 } else { y.to_bits() }));
    }
    fn halves(&mut self, y: &[f16]) {
        self.0.extend(y.iter().map(|y| if y.is_nan() { 0x7e00 } else { y.to_bits().into() }));
    }
    fn bytes(&mut self, y: &[i8]) {
        self.0.extend(y.iter().map(|&y| i32::from(y).cast_unsigned()));
    }
}

#[test]
fn every_tier_has_the_bits_of_the_portable_rows() {
    let tables = tables();
    let (_, reference) = &tables[0];
    for row in reference.rows() {
        let want = run(reference, row.name);
        assert!(!want.is_empty(), "{} was not observed", row.name);
        for (tier, table) in &tables[1..] {
            // A row of a lower tier is the one of that tier's table.
            if table.rows().any(|it| it.name == row.name && it.isa.name() != tier) {
                continue;
            }
            let got = run(table, row.name);
            assert_eq!(got.len(), want.len(), "{} on {tier}", row.name);
            if let Some(at) = (0..want.len()).find(|&i| got[i] != want[i]) {
                let (got, want) = (f32::from_bits(got[at]), f32::from_bits(want[at]));
                panic!("{} on {tier}: element {at} is {got:e}, portable {want:e}", row.name);
            }
        }
    }
}

fn run(table: &KernelTable, name: &str) -> Vec<u32> {
    let mut seen = Seen::default();
    let rng = &mut Rng(7);
    for linear in common::linears().into_iter().filter(|it| it.name == name) {
        linears(linear, table, rng, &mut seen);
    }
    if !seen.0.is_empty() {
        return seen.0;
    }
    if kimi::case(table, name, rng, &mut seen) {
        return seen.0;
    }
    if let Some(lut) = LUTS.into_iter().find(|it| [it.build_name, it.apply_name].contains(&name)) {
        luts(lut, table, rng, &mut seen);
        return seen.0;
    }
    if let Some(lut) = LUTS.into_iter().find(|it| it.linear_name == name) {
        vq_linears(lut, table, rng, &mut seen);
        return seen.0;
    }
    match name {
        "quant_act_fx24" => quant_acts(table, 3, KernelTable::quant_act_fx24, &mut seen),
        "quant_act_fx16" => quant_acts(table, 2, KernelTable::quant_act_fx16, &mut seen),
        "quant_act_fx8" => quant_acts(table, 1, KernelTable::quant_act_fx8, &mut seen),
        "lut_scale" => each_row(
            rng,
            |x, w, y| {
                let scales: Vec<u8> = w.iter().flat_map(|&w| f16::from_f32(w).to_le_bytes()).collect();
                table.lut_scale(&scales, x, y);
            },
            &mut seen,
        ),
        "unary" => unaries(table, rng, &mut seen),
        "glu" => glus(table, rng, &mut seen),
        "add" => each_row(rng, |x, w, y| table.add(x, w, y), &mut seen),
        "mul" => each_row(rng, |x, w, y| table.mul(x, w, y), &mut seen),
        "add_scaled" => each_row(
            rng,
            |x, w, y| {
                y.copy_from_slice(x);
                table.add_scaled(y, w.first().copied().unwrap_or(1.0), w);
            },
            &mut seen,
        ),
        "add_assign" => each_row(
            rng,
            |x, w, y| {
                y.copy_from_slice(x);
                table.add_assign(y, w);
            },
            &mut seen,
        ),
        "rms_norm" => each_row(rng, |x, w, y| table.rms_norm(x, w, 1e-5, y), &mut seen),
        "layer_norm" => each_row(rng, |x, w, y| table.layer_norm(x, w, &w[..y.len()], 1e-5, y), &mut seen),
        "rope_half" => ropes(table, KernelTable::rope_half, rng, &mut seen),
        "rope_pair" => ropes(table, KernelTable::rope_pair, rng, &mut seen),
        "kv_write_k_f32" => writes(rng, |t, p, x| table.kv_write_k_f32(t, p, x), Seen::floats, &mut seen),
        "kv_write_v_f32" => writes(rng, |t, p, x| table.kv_write_v_f32(t, p, x), Seen::floats, &mut seen),
        "kv_write_k_f16" => writes(rng, |t, p, x| table.kv_write_k_f16(t, p, x), Seen::halves, &mut seen),
        "kv_write_v_f16" => writes(rng, |t, p, x| table.kv_write_v_f16(t, p, x), Seen::halves, &mut seen),
        "attention_f32" => attentions(table, KernelTable::attention_f32, |x| x, rng, &mut seen),
        "attention_f16" => attentions(table, KernelTable::attention_f16, f16::from_f32, rng, &mut seen),
        "embed_f32" => embeds(table, KernelTable::embed_f32, Packing::F32, rng, &mut seen),
        "embed_f16" => embeds(table, KernelTable::embed_f16, Packing::F16, rng, &mut seen),
        "embed_bf16" => embeds(table, KernelTable::embed_bf16, Packing::BF16, rng, &mut seen),
        "embed_w8" => embeds(table, KernelTable::embed_w8, Packing::W8, rng, &mut seen),
        "embed_w4" => embeds(table, KernelTable::embed_w4, Packing::W4, rng, &mut seen),
        "embed_w4m" => embeds(table, KernelTable::embed_w4m, Packing::W4M, rng, &mut seen),
        "embed_units" => {
            for packing in UNITS {
                let call =
                    |block: &[u8], k, lane, out: &mut [f32]| table.embed_units(packing, block, k, lane, out);
                packed_rows(call, packing, rng, &mut seen);
            }
        }
        "embed_plain_f16" => plain_rows(table, KernelTable::embed_plain_f16, &mut seen),
        "embed_plain_bf16" => plain_rows(table, KernelTable::embed_plain_bf16, &mut seen),
        "argmax_f32" => scans(rng, &mut seen, |x, seen| {
            let best = table.argmax_f32(x);
            seen.floats(&[best.value]);
            seen.0.push(best.id as u32);
        }),
        "first_non_finite" => scans(rng, &mut seen, |x, seen| {
            seen.0.push(table.first_non_finite(x).map_or(u32::MAX, |it| it as u32));
        }),
        other => panic!("row {other} has no case"),
    }
    seen.0
}

fn linears(linear: common::Linear, table: &KernelTable, rng: &mut Rng, seen: &mut Seen) {
    let unit = linear.packing.units().map_or(32, |it| it.inputs);
    let ks: &[usize] = if unit == 256 { &[256, 512, 768] } else { &[32, 64, 96, 128, 160, 320, 576] };
    let tokens = [1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 33, 64, 67];
    let cols = [1usize, 5, 8, 15, 16, 17, 31, 32, 48, 63, 64, 80, 100, 129];
    let n_rounds = if linear.packing.units().is_some() { rounds(24, 4) } else { rounds(60, 2) };
    for round in 0..n_rounds {
        let (k, t) = (ks[rng.below(ks.len())], tokens[rng.below(tokens.len())]);
        let n = if t * k > 8192 { cols[rng.below(7)] } else { cols[rng.below(cols.len())] };
        let flavor = if round % 2 == 0 { Flavor::Normal } else { Flavor::ALL[rng.below(Flavor::ALL.len())] };
        let w = weights(linear.packing, n.div_ceil(LANES), k, rng);
        let x: Vec<f32> = (0..t).flat_map(|_| flavor.fill(k, rng)).collect();
        seen.floats(&linear.apply(table, &w, k, &x, n));
    }
    if matches!(linear.call, LinearFn::FixedUnits(..)) {
        largest_sums(linear, table, rng, seen);
    }
}

/// Byte planes of −128 and 127 times codes of one value under scales of one value: sums at their limits, in every lane.
fn largest_sums(linear: common::Linear, table: &KernelTable, rng: &mut Rng, seen: &mut Seen) {
    let layout = linear.packing.units().unwrap();
    // With one input at Q an f32 is its own quantised value; −32,896 is the bytes 0, −128, −128.
    let x = |value: f32| -> Vec<f32> {
        (0..256).map(|i| if i % 128 == 5 { 8_355_711.0 } else { value }).collect()
    };
    for (codes, scales) in [(0, 0x80), (0, 0x7f), (0xff, 0x80), (0xff, 0x7f), (0xff, 0xff), (0x88, 0xff)] {
        let mut w = weights(linear.packing, 1, 256, rng);
        let payload = linear.packing.payload_bytes(256);
        for unit in w[..payload].chunks_exact_mut(layout.bytes()) {
            unit[..layout.scales_at()].fill(codes);
            unit[layout.scales_at()..layout.d_at()].fill(scales);
        }
        for value in [-32_896.0, 32_639.0, -8_355_711.0, 8_355_711.0] {
            seen.floats(&linear.apply(table, &w, 256, &x(value), 16));
            seen.floats(&linear.apply(table, &w, 256, &[x(value), x(-value)].concat(), 16));
        }
    }
}

fn quant_acts(
    table: &KernelTable,
    planes: usize,
    call: fn(&KernelTable, &[f32], &mut FxRowMut<'_>),
    seen: &mut Seen,
) {
    let rng = &mut Rng(11);
    for n in [1, 31, 32, 100, 127, 128, 129, 160, 255, 576, 1536] {
        for flavor in Flavor::ALL {
            let x = flavor.fill(n, rng);
            let layout = FxLayout { planes };
            // Stale bytes: everything that counts must be written.
            let mut bytes = common::Bytes::zeroed(layout.row_bytes(n));
            bytes.fill(0xa5);
            call(table, &x, &mut FxRowMut::new(&mut bytes, n, layout));
            let rows = waste_kernels::FxRows::new(&bytes, 1, n, bytes.len(), layout);
            for p in 0..planes {
                seen.bytes(rows.plane(0, p));
                seen.0.extend(rows.sums(0, p).iter().map(|&it| i32::from(it).cast_unsigned()));
            }
            seen.floats(rows.xs(0));
            seen.floats(rows.z(0));
        }
    }
}

/// Tables are private to a tier, so a build is seen through its apply and an apply through its build.
fn luts(lut: Lut, table: &KernelTable, rng: &mut Rng, seen: &mut Seen) {
    for round in 0..rounds(40, 4) {
        let code = VqCode::ALL[round % 3];
        let rows = [1, 5, 63, 64, 65, 128, 200][rng.below(7)];
        let positions = [1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 75][rng.below(11)];
        let matrix = Matrix::random(code, rows, positions * 8, rng);
        for flavor in Flavor::ALL {
            let x = flavor.fill(matrix.k, rng);
            let mut acc = rng.vec(rows, Rng::normal);
            matrix.add(table, lut, &x, 0..positions, &mut acc);
            seen.floats(&acc);
        }
    }
}

/// One to eight tokens, each of its own flavor, so that a token's hostile numbers are beside another's.
fn vq_linears(lut: Lut, table: &KernelTable, rng: &mut Rng, seen: &mut Seen) {
    for round in 0..rounds(24, 6) {
        let code = VqCode::ALL[round % 3];
        let rows = [1, 63, 64, 65, 130][rng.below(5)];
        let positions = [1, 15, 16, 17, 33, 75][rng.below(6)];
        let matrix = Matrix::random(code, rows, positions * 8, rng);
        let scales: Vec<u8> =
            rng.vec(rows, Rng::normal).iter().flat_map(|&it| f16::from_f32(it).to_le_bytes()).collect();
        let tokens = 1 + rng.below(8);
        let flavor = |t: usize| Flavor::ALL[(t + round) % Flavor::ALL.len()];
        let x: Vec<f32> = (0..tokens).flat_map(|t| flavor(t).fill(matrix.k, rng)).collect();
        seen.floats(&matrix.linear(table, lut, &x, &scales));
    }
}

/// Lengths around every chunk size, in every flavor.
fn rows_of(rng: &mut Rng, mut f: impl FnMut(&[f32], &mut Rng)) {
    for n in (0..40).chain([63, 64, 65, 127, 576, 1000]) {
        for flavor in Flavor::ALL {
            let x = flavor.fill(n, rng);
            f(&x, rng);
        }
    }
}

fn each_row(rng: &mut Rng, call: impl Fn(&[f32], &[f32], &mut [f32]), seen: &mut Seen) {
    rows_of(rng, |x, rng| {
        let (w, mut y) = (Flavor::HeavyTailed.fill(x.len(), rng), vec![0.0; x.len()]);
        call(x, &w, &mut y);
        seen.floats(&y);
    });
}

fn unaries(table: &KernelTable, rng: &mut Rng, seen: &mut Seen) {
    for &kind in Unary::ALL {
        rows_of(rng, |x, _| {
            for scale in [1.0, 30.0] {
                let mut y: Vec<f32> = x.iter().map(|x| x * scale).collect();
                table.unary(kind, &mut y);
                seen.floats(&y);
            }
        });
        // A sweep over all magnitudes and both signs.
        let mut y: Vec<f32> = (0..1 << 16).map(|high: u32| f32::from_bits(high << 16 | 0x1234)).collect();
        table.unary(kind, &mut y);
        seen.floats(&y);
    }
}

fn glus(table: &KernelTable, rng: &mut Rng, seen: &mut Seen) {
    for &kind in Unary::ALL {
        each_row(rng, |x, w, y| table.glu(kind, x, w, y), seen);
    }
}

fn ropes(
    table: &KernelTable,
    call: fn(&KernelTable, &mut [f32], usize, &[f32], &[f32]),
    rng: &mut Rng,
    seen: &mut Seen,
) {
    for (heads, head_dim, dims) in [(1, 64, 64), (3, 64, 64), (2, 128, 32), (9, 10, 6), (2, 7, 4), (1, 2, 2)]
    {
        let mut x = rng.vec(heads * head_dim, Rng::normal);
        let (cos, sin) = (rng.vec(dims / 2, Rng::unit), rng.vec(dims / 2, Rng::unit));
        call(table, &mut x, head_dim, &cos, &sin);
        seen.floats(&x);
    }
}

fn writes<T: Copy + Default>(
    rng: &mut Rng,
    call: impl Fn(&mut [T], usize, &[f32]),
    observe: fn(&mut Seen, &[T]),
    seen: &mut Seen,
) {
    for d in [1, 7, 8, 64, 100] {
        let mut tile = vec![T::default(); d * TILE];
        for flavor in Flavor::ALL {
            let x: Vec<f32> = flavor.fill(d, rng).iter().map(|x| x * 3000.0).collect();
            call(&mut tile, rng.below(TILE), &x);
            observe(seen, &tile);
        }
    }
}

type Attention<T> =
    fn(&KernelTable, &RowsF32<'_>, &[u32], &KvTiles<'_, T>, f32, &mut [f32], &mut TileMut<'_>);

fn attentions<T>(
    table: &KernelTable,
    call: Attention<T>,
    elem: fn(f32) -> T,
    rng: &mut Rng,
    seen: &mut Seen,
) {
    for (queries, d, dv, longest) in [
        (1, 64, 64, 1),
        (1, 64, 64, 100),
        (3, 64, 64, 33),
        (2, 8, 8, 64),
        (5, 17, 20, 70),
        (12, 64, 64, 130),
        (7, 128, 96, 65),
        (4, 3, 1, 31),
    ] {
        for blow_up in [false, true] {
            let size = if blow_up { 40.0 } else { 1.0 };
            let cache = |row: usize, rng: &mut Rng| -> Vec<T> {
                (0..tiles(longest) * row * TILE).map(|_| elem(size * rng.normal())).collect()
            };
            let (mut k, v) = (cache(d, rng), cache(dv, rng));
            if blow_up {
                k[rng.below(d * TILE)] = elem(f32::NAN);
            }
            let q = rng.vec(queries * d, |rng| size * rng.normal());
            let n_pos: Vec<u32> = (0..queries).map(|_| 1 + rng.below(longest) as u32).collect();
            let (mut scratch, mut out) = (vec![9.0; scratch_len(queries)], vec![9.0; queries * (dv + 1)]);
            let mut tile = TileMut::from_slice(&mut out, queries, dv, dv + 1);
            let kv = KvTiles { k: &k, v: &v };
            call(table, &RowsF32::new(&q, queries, d, d), &n_pos, &kv, 0.125, &mut scratch, &mut tile);
            seen.floats(&out);
        }
    }
}

fn embeds(
    table: &KernelTable,
    call: fn(&KernelTable, &[u8], usize, usize, &mut [f32]),
    packing: Packing,
    rng: &mut Rng,
    seen: &mut Seen,
) {
    packed_rows(|block, k, lane, out| call(table, block, k, lane, out), packing, rng, seen);
}

fn packed_rows(
    call: impl Fn(&[u8], usize, usize, &mut [f32]),
    packing: Packing,
    rng: &mut Rng,
    seen: &mut Seen,
) {
    let unit = packing.units().map_or(32, |it| it.inputs);
    for k in if unit == 256 { [256, 512, 768] } else { [32, 64, 576] } {
        let w = weights(packing, 1, k, rng);
        for lane in 0..LANES {
            let mut out = vec![0.0; k];
            call(&w, k, lane, &mut out);
            seen.floats(&out);
            let exact = |(i, &y): (usize, &f32)| y == common::weight(packing, &w, k, lane, i) as f32;
            assert!(out.iter().enumerate().all(exact), "the reference decode, rounded once");
        }
    }
}

fn plain_rows(table: &KernelTable, call: fn(&KernelTable, &[u8], &mut [f32]), seen: &mut Seen) {
    let row: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for n in [1, 7, 576, 1 << 16] {
        let mut out = vec![0.0; n];
        call(table, &row, &mut out);
        seen.floats(&out);
    }
}

fn scans(rng: &mut Rng, seen: &mut Seen, mut scan: impl FnMut(&[f32], &mut Seen)) {
    rows_of(rng, |x, rng| {
        scan(x, seen);
        // Ties, zeros of both signs, and nothing but NaNs.
        let coarse: Vec<f32> = x.iter().map(|x| (x * 2.0).round()).collect();
        scan(&coarse, seen);
        let zeros = rng.vec(x.len(), |rng| if rng.below(2) == 0 { 0.0 } else { -0.0 });
        scan(&zeros, seen);
        scan(&vec![f32::NAN; x.len()], seen);
        scan(&vec![f32::NEG_INFINITY; x.len()], seen);
    });
}
