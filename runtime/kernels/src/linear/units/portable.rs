//! The definitions: block by block, unit by unit; the integers of a unit are laid out once for all tokens, 16 outputs at a time.

use waste_plan::units::{UnitScale, exponent_scale};
use waste_plan::{LANES, Packing, UnitLayout};

use super::check;
use crate::linear::portable::halves;
use crate::quant_act::portable::recombine;
use crate::view::{FxRows, RowsF32, TileMut};

/// Most inputs of a unit.
const MOST: usize = 256;
/// Least inputs of a group: what [`FxRows::sums`] are sums of.
const LEAST: usize = 16;

/// A unit with its bits put together.
struct Unit {
    /// w of each input.
    integers: [[i8; LANES]; MOST],
    /// s and t of each group.
    scales: [[i32; LANES]; MOST / LEAST],
    minima: [[i32; LANES]; MOST / LEAST],
    d: [f32; LANES],
    m: [f32; LANES],
}

impl Unit {
    #[inline(always)]
    const fn zeroed() -> Self {
        Self {
            integers: [[0; LANES]; MOST],
            scales: [[0; LANES]; MOST / LEAST],
            minima: [[0; LANES]; MOST / LEAST],
            d: [0.0; LANES],
            m: [0.0; LANES],
        }
    }

    #[inline(always)]
    fn read(&mut self, layout: &UnitLayout, unit: &[u8]) {
        for (i, integers) in self.integers[..layout.inputs].iter_mut().enumerate() {
            *integers = std::array::from_fn(|lane| layout.integer(unit, lane, i));
        }
        for j in 0..layout.inputs / layout.group {
            self.scales[j] = std::array::from_fn(|lane| layout.group_scale(unit, lane, j));
            if layout.minima && layout.has_group_scales() {
                self.minima[j] = std::array::from_fn(|lane| layout.group_minimum(unit, lane, j));
            }
        }
        self.d = unit_scales(layout, unit);
        if layout.minima {
            self.m = halves(&unit[layout.m_at()..], 0);
        }
    }
}

/// The float scales of a unit.
#[inline(always)]
pub(crate) fn unit_scales(layout: &UnitLayout, unit: &[u8]) -> [f32; LANES] {
    let d = &unit[layout.d_at()..];
    match layout.scale {
        UnitScale::Half => halves(d, 0),
        UnitScale::Exponent => std::array::from_fn(|lane| exponent_scale(d[lane])),
    }
}

#[inline(always)]
pub(crate) fn linear_units_fixed24(
    packing: Packing,
    w: &[u8],
    k: usize,
    x: &FxRows<'_>,
    y: &mut TileMut<'_>,
) {
    fixed::<3>(packing, w, k, x, y);
}

#[inline(always)]
pub(crate) fn linear_units_fixed16(
    packing: Packing,
    w: &[u8],
    k: usize,
    x: &FxRows<'_>,
    y: &mut TileMut<'_>,
) {
    fixed::<2>(packing, w, k, x, y);
}

#[inline(always)]
pub(crate) fn linear_units_fixed8(packing: Packing, w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
    fixed::<1>(packing, w, k, x, y);
}

#[inline(always)]
fn fixed<const PLANES: usize>(packing: Packing, w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
    assert_eq!((x.n(), x.layout().planes), (k, PLANES), "inputs and planes of the activations");
    each_unit(packing, w, k, x.rows(), y, |layout, unit, from, t, acc| {
        for at in (0..layout.inputs).step_by(layout.step()) {
            add_step::<PLANES>(layout, unit, (from, at), x, t, acc);
        }
    });
}

#[inline(always)]
pub(crate) fn linear_units_f32(packing: Packing, w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>) {
    assert_eq!(x.cols(), k, "inputs of the activations");
    each_unit(packing, w, k, x.rows(), y, |layout, unit, from, t, acc| {
        let x = &x.row(t)[from..from + layout.inputs];
        for (j, x) in x.chunks_exact(layout.group).enumerate() {
            let mut sums = [0.0f32; LANES];
            for (x, w) in x.iter().zip(&unit.integers[j * layout.group..]) {
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum = f32::from(*w).mul_add(*x, *sum);
                }
            }
            for r in 0..LANES {
                acc[r] = (unit.d[r] * as_float(unit.scales[j][r])).mul_add(sums[r], acc[r]);
            }
            if layout.minima {
                let u = x.iter().fold(0.0, |u, x| u + x);
                for (r, acc) in acc.iter_mut().enumerate() {
                    *acc = minimum(layout, unit, j, r).mul_add(u, *acc);
                }
            }
        }
    });
}

/// What is added to each weight of group `j` of row `r`.
#[inline(always)]
fn minimum(layout: &UnitLayout, unit: &Unit, j: usize, r: usize) -> f32 {
    if layout.has_group_scales() { -(unit.m[r] * as_float(unit.minima[j][r])) } else { unit.m[r] }
}

#[inline(always)]
fn as_float(it: i32) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "bytes")]
    let it = it as f32;
    it
}

#[inline(always)]
pub(crate) fn embed_units(packing: Packing, block: &[u8], k: usize, lane: usize, out: &mut [f32]) {
    let layout = packing.units().expect("a packing in units");
    assert!(lane < LANES && block.len() >= packing.block_bytes(k), "a row of a packed block");
    for (unit, y) in block.chunks_exact(layout.bytes()).zip(out[..k].chunks_exact_mut(layout.inputs)) {
        let d = unit_scales(&layout, unit)[lane];
        let m = if layout.minima { halves(&unit[layout.m_at()..], 0)[lane] } else { 0.0 };
        for (i, y) in y.iter_mut().enumerate() {
            let j = i / layout.group;
            // d · s has at most 19 significant bits; the one rounding is that of the product and the sum.
            let scale = d * as_float(layout.group_scale(unit, lane, j));
            let w = f32::from(layout.integer(unit, lane, i));
            let minimum = match (layout.minima, layout.has_group_scales()) {
                (false, _) => {
                    *y = scale * w;
                    continue;
                }
                (true, false) => m,
                (true, true) => -(m * as_float(layout.group_minimum(unit, lane, j))),
            };
            *y = scale.mul_add(w, minimum);
        }
    }
}

/// `add(layout, unit, its first input, token, 16 accumulators)` for every unit of every block and every token.
#[inline(always)]
fn each_unit(
    packing: Packing,
    w: &[u8],
    k: usize,
    tokens: usize,
    y: &mut TileMut<'_>,
    add: impl Fn(&UnitLayout, &Unit, usize, usize, &mut [f32; LANES]),
) {
    let layout = check(packing, w, k, tokens, y);
    let mut unit = Unit::zeroed();
    for (b, block) in w.chunks_exact(packing.block_bytes(k)).take(y.cols().div_ceil(LANES)).enumerate() {
        let cols = b * LANES..y.cols().min((b + 1) * LANES);
        for (u, bytes) in block.chunks_exact(layout.bytes()).take(k / layout.inputs).enumerate() {
            unit.read(&layout, bytes);
            for t in 0..y.rows() {
                let y = &mut y.row_mut(t)[cols.clone()];
                let mut acc = [0.0; LANES];
                if u > 0 {
                    acc[..y.len()].copy_from_slice(y);
                }
                add(&layout, &unit, u * layout.inputs, t, &mut acc);
                y.copy_from_slice(&acc[..y.len()]);
            }
        }
    }
}

/// Adds the step at input `at` of a unit whose first input is `from`, times token `t`.
#[inline(always)]
fn add_step<const PLANES: usize>(
    layout: &UnitLayout,
    unit: &Unit,
    (from, at): (usize, usize),
    x: &FxRows<'_>,
    t: usize,
    acc: &mut [f32; LANES],
) {
    let planes: [&[i8]; PLANES] = std::array::from_fn(|p| &x.plane(t, p)[from + at..][..layout.step()]);
    let sums: [&[i16]; PLANES] = std::array::from_fn(|p| &x.sums(t, p)[(from + at) / LEAST..]);
    let xs = x.xs(t)[(from + at) / waste_plan::FX_GROUP];
    let first = at / layout.group;
    let mut products = [[0i32; LANES]; PLANES];
    let mut minima = [[0i32; LANES]; PLANES];
    for j in 0..layout.step() / layout.group {
        let inputs = j * layout.group..(j + 1) * layout.group;
        let integers = &unit.integers[at + inputs.start..][..layout.group];
        for p in 0..PLANES {
            let of_group = plane_sums(integers, &planes[p][inputs.clone()]);
            let of_x = sums[p][inputs.start / LEAST..inputs.end / LEAST].iter().map(|it| i32::from(*it));
            let of_x: i32 = of_x.sum();
            for r in 0..LANES {
                products[p][r] += unit.scales[first + j][r] * of_group[r];
                minima[p][r] += unit.minima[first + j][r] * of_x;
            }
        }
    }
    let s = |sums: &[[i32; LANES]; PLANES], r: usize| {
        recombine(std::array::from_fn::<_, PLANES, _>(|p| sums[p][r]))
    };
    for (r, acc) in acc.iter_mut().enumerate() {
        *acc = s(&products, r).mul_add(unit.d[r] * xs, *acc);
    }
    if !layout.minima {
        return;
    }
    let z = x.z(t)[(from + at) / 32];
    for (r, acc) in acc.iter_mut().enumerate() {
        *acc = if layout.has_group_scales() {
            s(&minima, r).mul_add(-(unit.m[r] * xs), *acc)
        } else {
            z.mul_add(unit.m[r] * xs, *acc)
        };
    }
}

/// Σ w · x of a group, per row.
#[inline(always)]
fn plane_sums(integers: &[[i8; LANES]], x: &[i8]) -> [i32; LANES] {
    let mut sums = [0i32; LANES];
    for (w, x) in integers.iter().zip(x) {
        for (sum, w) in sums.iter_mut().zip(w) {
            *sum += i32::from(*w) * i32::from(*x);
        }
    }
    sums
}
