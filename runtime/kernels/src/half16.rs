//! The 16-bit float formats, converted by integer arithmetic alone: exact to f32, round-to-nearest-even from it.
//!
//! They are here, and not `half`'s, because that crate asks the processor at every call; these few operations inline
//! and vectorise. `half::f16` stays the type of memory.

const INFINITY: u32 = 0x7f80_0000;

/// The f32 equal to the binary16 number with these bits.
#[inline(always)]
#[must_use]
pub fn f16_to_f32(bits: u16) -> f32 {
    /// 2^112, the difference of the exponent biases: the multiplication also normalises subnormals, exactly.
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * REBIAS).to_bits();
    let abs = if magnitude >= 0x0f80_0000 { magnitude | INFINITY } else { finite };
    f32::from_bits(abs | u32::from(bits & 0x8000) << 16)
}

/// The binary16 number nearest to `x`, ties to even; what is too large becomes infinite.
#[inline(always)]
#[must_use]
pub fn f32_to_f16(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) & 0x8000;
    let abs = x.to_bits() & 0x7fff_ffff;
    // One unit of a binary16 subnormal is 2^-24, one unit in the last place of numbers in [0.5, 1).
    let subnormal = (f32::from_bits(abs) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let normal = abs.wrapping_add(0xfff + ((abs >> 13) & 1)).wrapping_sub(112 << 23) >> 13;
    let magnitude = match abs {
        0..0x3880_0000 => subnormal,
        0x3880_0000..0x477f_f000 => normal,
        0x477f_f000..=INFINITY => 0x7c00,
        _ => 0x7e00,
    };
    #[expect(clippy::cast_possible_truncation, reason = "both parts are below 2^16")]
    let bits = (sign | magnitude) as u16;
    bits
}

/// The f32 equal to the bfloat16 number with these bits.
#[inline(always)]
#[must_use]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn every_16_bit_pattern_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#06x}");
            let (ours, theirs) = (bf16_to_f32(bits), bf16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#06x}");
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        let around = |bits: u16| {
            let x = f16::from_bits(bits).to_f32().to_bits();
            // The number, the midpoint to the next one (13 bits are dropped), and their neighbours.
            [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff].map(|low| f32::from_bits(x.wrapping_add(low)))
        };
        let edges =
            [65504.0, 65519.99, 65520.0, 1e30, f32::INFINITY, f32::NAN, 2e-8, 2.98e-8, 2.99e-8, 1e-45];
        let all = (0..=u16::MAX).flat_map(around).chain(edges).chain(edges.map(|it: f32| -it));
        for x in all {
            let (ours, theirs) = (f16::from_bits(f32_to_f16(x)), f16::from_f32(x));
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{x:e}");
        }
    }
}
