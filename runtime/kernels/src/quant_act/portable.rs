//! The definition, one function for any number of planes.

use waste_plan::{FX_GROUP, FxLayout};

use crate::view::{FxParts, FxRowMut};

/// Below it a group counts as zero: Q / amax stays finite with a wide margin.
const TINY: f32 = f32::from_bits((127 - 100) << 23);

#[inline(always)]
pub(crate) fn quant_act_fx24(x: &[f32], out: &mut FxRowMut<'_>) {
    quant_act::<3>(x, out);
}

#[inline(always)]
pub(crate) fn quant_act_fx16(x: &[f32], out: &mut FxRowMut<'_>) {
    quant_act::<2>(x, out);
}

#[inline(always)]
pub(crate) fn quant_act_fx8(x: &[f32], out: &mut FxRowMut<'_>) {
    quant_act::<1>(x, out);
}

#[inline(always)]
fn quant_act<const PLANES: usize>(x: &[f32], out: &mut FxRowMut<'_>) {
    assert_eq!((x.len(), PLANES), (out.n(), out.layout().planes), "inputs and planes of a quantised row");
    let np = out.layout().padded(x.len());
    let parts = out.parts();
    let (groups, rest) = x.as_chunks::<FX_GROUP>();
    let mut last = [0.0; FX_GROUP];
    last[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(&last);
    let FxParts { planes, xs, z, sums } = parts;
    for (g, (x, xs)) in groups.iter().chain(last).zip(xs).enumerate() {
        let (scale, q) = quantise::<PLANES>(x);
        *xs = scale;
        let bytes = split::<PLANES>(&q);
        let mut sums_of_32 = [[0i32; FX_GROUP / 32]; PLANES];
        for (p, bytes) in bytes.iter().enumerate() {
            planes[p * np + g * FX_GROUP..][..FX_GROUP].copy_from_slice(bytes);
            for (j, of_16) in bytes.as_chunks::<16>().0.iter().enumerate() {
                let sum = of_16.iter().fold(0i16, |sum, &it| sum + i16::from(it));
                sums[p * (np / 16) + g * (FX_GROUP / 16) + j] = sum;
                sums_of_32[p][j / 2] += i32::from(sum);
            }
        }
        for (j, z) in z[g * (FX_GROUP / 32)..][..FX_GROUP / 32].iter_mut().enumerate() {
            *z = recombine(std::array::from_fn::<_, PLANES, _>(|p| sums_of_32[p][j]));
        }
    }
}

/// The group scale and the quantised values of one group.
#[inline(always)]
fn quantise<const PLANES: usize>(x: &[f32; FX_GROUP]) -> (f32, [i32; FX_GROUP]) {
    let q_max = FxLayout { planes: PLANES }.q_max();
    let zero = [0; FX_GROUP];
    let amax = f32::from_bits(x.iter().fold(0, |max, x| max.max(x.abs().to_bits())));
    let (xs, inverse) = step(amax, q_max);
    let Some(inverse) = inverse else { return (xs, zero) };
    let mut q = zero;
    for (q, x) in q.iter_mut().zip(x) {
        *q = round(x * inverse).clamp(-q_max, q_max);
    }
    (xs, q)
}

/// The scale xs of numbers of magnitude `amax` at most, and Q / amax; `None` if all of them are quantised as zero.
#[inline(always)]
pub(crate) fn step(amax: f32, q_max: i32) -> (f32, Option<f32>) {
    if !amax.is_finite() {
        return (f32::NAN, None);
    }
    if amax < TINY {
        return (0.0, None);
    }
    #[expect(clippy::cast_precision_loss, reason = "Q < 2^24")]
    let q_float = q_max as f32;
    (amax / q_float, Some(q_float / amax))
}

/// `v` to the nearest integer, ties to even, for |v| < 2^23: in 2^23 … 2^24 one unit in the last place is 1, so the
/// sum with 2^23 is rounded as asked and holds the integer in its mantissa.
#[inline(always)]
pub(crate) fn round(v: f32) -> i32 {
    let magnitude = ((v.abs() + 8_388_608.0).to_bits() & 0x007f_ffff).cast_signed();
    let sign = v.to_bits().cast_signed() >> 31;
    (magnitude ^ sign) - sign
}

/// The balanced signed bytes of each value, highest plane first.
#[inline(always)]
fn split<const PLANES: usize>(q: &[i32; FX_GROUP]) -> [[i8; FX_GROUP]; PLANES] {
    let mut bytes = [[0; FX_GROUP]; PLANES];
    let mut rest = *q;
    for plane in bytes.iter_mut().rev() {
        for (byte, rest) in plane.iter_mut().zip(&mut rest) {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the low byte, taken as signed, is what is wanted"
            )]
            let low = *rest as i8;
            *byte = low;
            *rest = (*rest - i32::from(low)) >> 8;
        }
    }
    bytes
}

/// One number from exact plane sums, highest plane first: the `s` of numerics §2.
#[inline(always)]
pub(crate) fn recombine<const PLANES: usize>(sums: [i32; PLANES]) -> f32 {
    const SCALES: [f32; 3] = [1.0, 256.0, 65536.0];
    #[expect(clippy::cast_precision_loss, reason = "rounded to nearest even, as defined")]
    let float = |sum: i32| sum as f32;
    let mut s = float(sums[PLANES - 1]);
    for p in (0..PLANES - 1).rev() {
        s = float(sums[p]).mul_add(SCALES[PLANES - 1 - p], s);
    }
    s
}
