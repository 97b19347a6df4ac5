//! Packed weights whose codes and scales lie together, unit by unit: GGML's K-quants and their kin.
//!
//! A packed block of 16 rows (`crate::pack`) is a run of *units* of 32 or 256 inputs, the inputs of one stored block. A unit of n inputs
//! is, one part after the other:
//!
//! | part | type |
//! |---|---|
//! | low bits of the codes, b = 4 or 2 | `u8 [n·b/32][16 rows][4]`: a byte holds inputs k, k + 4, k + 8, …, from its lowest bits on |
//! | high bits, b = 0, 1 or 2 | the same |
//! | integer scales, units of 256 only | `i8` or `u8 [n/group][16]` |
//! | integer minima, units of 256 with minima | `u8 [n/group][16]` |
//! | scale d of the unit | `f16 [16]`, or `u8 [16]`: 2^(e − 128) |
//! | minimum m of the unit, formats with minima | `f16 [16]` |
//!
//! So four bits lie as those of `W4` do, and a quad of inputs of 16 rows is 64 bytes of one line, shifted and masked.
//!
//! | packing | stored as | code bits | weight | bytes for 256 inputs of a row, stored |
//! |---|---|---|---|---|
//! | `W5` | Q5_0 | 4 + 1 | d · (c − 16) | 176 |
//! | `W5M` | Q5_1 | 4 + 1 | d · c + m | 192 |
//! | `W4T` | IQ4_NL | 4 | d · table\[c\] | 144 |
//! | `W4E` | MXFP4 | 4 | d · table\[c\] | 136 |
//! | `K2` | Q2_K | 2 | d · s · c − m · t, groups of 16 | 100, stored in 84 |
//! | `K3` | Q3_K | 2 + 1 | d · s · (c − 4), groups of 16 | 114, stored in 110 |
//! | `K4` | Q4_K | 4 | d · s · c − m · t, groups of 32 | 148, stored in 144 |
//! | `K5` | Q5_K | 4 + 1 | d · s · c − m · t, groups of 32 | 180, stored in 176 |
//! | `K6` | Q6_K | 4 + 2 | d · s · (c − 32), groups of 16 | 210 |
//! | `K4T` | IQ4_XS | 4 | d · s · table\[c\], groups of 32 | 138, stored in 136 |
//!
//! Where more bytes are packed than stored, 4- and 6-bit integer scales s and minima t have become bytes; nothing else is widened.
//!
//! Invariant: d, s, t, m and the integer of a code are those of the file; nothing is requantised.
//!
//! Deliberately absent: the file's own order of bits (`crate::stored`), and any fast decode.

use crate::pack::{LANES, Packing};

/// IQ4's 16 weights. Source: `kvalues_iq4nl` of GGML (ggml-common.h).
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of OCP's E2M1, whose sign is the highest bit (OCP Microscaling Formats 1.0, §5.3.3).
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The integer that a code stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// The code less this.
    Minus(i8),
    /// An entry of a table.
    Table([i8; 16]),
}

/// Where the scale of a unit comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitScale {
    /// An f16.
    Half,
    /// A byte e: 2^(e − 128), e ≤ 254.
    Exponent,
}

/// How one unit of a packing lies, and what its codes mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitLayout {
    /// Inputs of a unit: 32, or 256 where groups have integer scales.
    pub inputs: usize,
    /// Inputs of a group: 16 or 32.
    pub group: usize,
    /// Low bits of a code: 4 or 2.
    pub low: usize,
    /// High bits of a code: 0, 1 or 2.
    pub high: usize,
    /// What a code stands for.
    pub codes: Codes,
    /// Whether the integer scales have a sign.
    pub signed: bool,
    /// How the unit's scale is written.
    pub scale: UnitScale,
    /// Whether there are minima.
    pub minima: bool,
}

impl UnitLayout {
    const fn small(high: usize, codes: Codes, scale: UnitScale, minima: bool) -> Self {
        Self { inputs: 32, group: 32, low: 4, high, codes, signed: false, scale, minima }
    }

    const fn large(group: usize, low: usize, high: usize, codes: Codes, signed: bool, minima: bool) -> Self {
        Self { inputs: 256, group, low, high, codes, signed, scale: UnitScale::Half, minima }
    }

    /// The layout of the units of `packing`, if it is one of those.
    #[must_use]
    #[inline]
    pub const fn of(packing: Packing) -> Option<Self> {
        Some(match packing {
            Packing::W5 => Self::small(1, Codes::Minus(16), UnitScale::Half, false),
            Packing::W5M => Self::small(1, Codes::Minus(0), UnitScale::Half, true),
            Packing::W4T => Self::small(0, Codes::Table(IQ4), UnitScale::Half, false),
            Packing::W4E => Self::small(0, Codes::Table(E2M1), UnitScale::Exponent, false),
            Packing::K2 => Self::large(16, 2, 0, Codes::Minus(0), false, true),
            Packing::K3 => Self::large(16, 2, 1, Codes::Minus(4), true, false),
            Packing::K4 => Self::large(32, 4, 0, Codes::Minus(0), false, true),
            Packing::K5 => Self::large(32, 4, 1, Codes::Minus(0), false, true),
            Packing::K6 => Self::large(16, 4, 2, Codes::Minus(32), true, false),
            Packing::K4T => Self::large(32, 4, 0, Codes::Table(IQ4), true, false),
            _ => return None,
        })
    }

    /// Whether groups have integer scales, and minima if there are any.
    #[must_use]
    #[inline]
    pub const fn has_group_scales(&self) -> bool {
        self.inputs == 256
    }

    /// Inputs of one scale step: those that share a float scale and an activation scale (numerics §2).
    #[must_use]
    #[inline]
    pub const fn step(&self) -> usize {
        if self.inputs < 128 { self.inputs } else { 128 }
    }

    /// Byte offset of the high bits.
    #[must_use]
    #[inline]
    pub const fn high_at(&self) -> usize {
        self.inputs * LANES * self.low / 8
    }

    /// Byte offset of the integer scales.
    #[must_use]
    #[inline]
    pub const fn scales_at(&self) -> usize {
        self.high_at() + self.inputs * LANES * self.high / 8
    }

    const fn group_bytes(&self) -> usize {
        if self.has_group_scales() { self.inputs / self.group * LANES } else { 0 }
    }

    /// Byte offset of the integer minima.
    #[must_use]
    #[inline]
    pub const fn minima_at(&self) -> usize {
        self.scales_at() + self.group_bytes()
    }

    /// Byte offset of the unit's scales.
    #[must_use]
    #[inline]
    pub const fn d_at(&self) -> usize {
        self.minima_at() + if self.minima { self.group_bytes() } else { 0 }
    }

    /// Byte offset of the unit's minima.
    #[must_use]
    #[inline]
    pub const fn m_at(&self) -> usize {
        self.d_at()
            + match self.scale {
                UnitScale::Half => 2 * LANES,
                UnitScale::Exponent => LANES,
            }
    }

    /// Bytes of a unit.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.m_at() + if self.minima { 2 * LANES } else { 0 }
    }

    /// The code of input `i` of row `lane`.
    ///
    /// # Panics
    /// If `unit` is shorter than a unit, or the input or row is not in it.
    #[inline(always)]
    #[must_use]
    pub const fn code(&self, unit: &[u8], lane: usize, i: usize) -> u8 {
        let low = bits(unit, 0, self.low, lane, i);
        if self.high == 0 { low } else { low | bits(unit, self.high_at(), self.high, lane, i) << self.low }
    }

    /// The integer of input `i` of row `lane`.
    ///
    /// # Panics
    /// As [`UnitLayout::code`].
    #[inline(always)]
    #[must_use]
    pub const fn integer(&self, unit: &[u8], lane: usize, i: usize) -> i8 {
        self.integer_of(self.code(unit, lane, i))
    }

    /// The integer that `code` stands for.
    #[inline(always)]
    #[must_use]
    pub const fn integer_of(&self, code: u8) -> i8 {
        match self.codes {
            Codes::Minus(bias) => code.cast_signed() - bias,
            Codes::Table(table) => table[code as usize & 15],
        }
    }

    /// The integer scale of group `j` of row `lane`; 1 where there are none.
    ///
    /// # Panics
    /// As [`UnitLayout::code`].
    #[inline(always)]
    #[must_use]
    pub const fn group_scale(&self, unit: &[u8], lane: usize, j: usize) -> i32 {
        if !self.has_group_scales() {
            return 1;
        }
        let byte = unit[self.scales_at() + j * LANES + lane];
        if self.signed { byte.cast_signed() as i32 } else { byte as i32 }
    }

    /// The integer minimum of group `j` of row `lane` of a unit that has them.
    ///
    /// # Panics
    /// As [`UnitLayout::code`].
    #[inline(always)]
    #[must_use]
    pub const fn group_minimum(&self, unit: &[u8], lane: usize, j: usize) -> i32 {
        unit[self.minima_at() + j * LANES + lane] as i32
    }

    /// Sets the code of input `i` of row `lane`, which is 0 as yet.
    ///
    /// # Panics
    /// As [`UnitLayout::code`].
    pub(crate) const fn put_code(&self, unit: &mut [u8], lane: usize, i: usize, code: u8) {
        put_bits(unit, 0, self.low, (lane, i), code & ((1 << self.low) - 1));
        if self.high > 0 {
            put_bits(unit, self.high_at(), self.high, (lane, i), code >> self.low);
        }
    }
}

/// The byte and the shift of `width` bits of input `i` of row `lane`, in a part that begins at `at`.
#[inline(always)]
const fn place(at: usize, width: usize, lane: usize, i: usize) -> (usize, usize) {
    let (quads, quad) = (8 / width, i / 4);
    (at + (quad / quads * LANES + lane) * 4 + i % 4, quad % quads * width)
}

#[inline(always)]
const fn bits(unit: &[u8], at: usize, width: usize, lane: usize, i: usize) -> u8 {
    let (byte, shift) = place(at, width, lane, i);
    unit[byte] >> shift & ((1 << width) - 1)
}

const fn put_bits(unit: &mut [u8], at: usize, width: usize, (lane, i): (usize, usize), value: u8) {
    let (byte, shift) = place(at, width, lane, i);
    unit[byte] |= value << shift;
}

/// 2^(e − 128), the scale that a byte of MXFP4 stands for when its codes are doubled; e ≤ 254.
#[inline(always)]
#[must_use]
pub const fn exponent_scale(e: u8) -> f32 {
    // Below 2^-126 there is no exponent left: the two smallest are subnormal.
    f32::from_bits(match e {
        0 => 1 << 21,
        1 => 1 << 22,
        _ => (e as u32 - 1) << 23,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_have_the_bytes_of_the_table() {
        let bytes = |it| UnitLayout::of(it).map(|it| it.bytes() * 256 / it.inputs / LANES);
        let all = [
            (Packing::W5, 176),
            (Packing::W5M, 192),
            (Packing::W4T, 144),
            (Packing::W4E, 136),
            (Packing::K2, 100),
            (Packing::K3, 114),
            (Packing::K4, 148),
            (Packing::K5, 180),
            (Packing::K6, 210),
            (Packing::K4T, 138),
        ];
        for (packing, expected) in all {
            assert_eq!(bytes(packing), Some(expected), "{packing:?}");
        }
        assert_eq!(Packing::ALL.into_iter().filter(|it| it.units().is_some()).count(), all.len());
        assert_eq!(bytes(Packing::W4), None);
    }

    #[test]
    fn every_code_is_read_where_it_was_put() {
        for layout in Packing::ALL.into_iter().filter_map(Packing::units) {
            let mut unit = vec![0; layout.bytes()];
            let code =
                |lane: usize, i: usize| ((lane * 37 + i * 11) % (1 << (layout.low + layout.high))) as u8;
            for (lane, i) in (0..LANES).flat_map(|lane| (0..layout.inputs).map(move |i| (lane, i))) {
                layout.put_code(&mut unit, lane, i, code(lane, i));
            }
            for (lane, i) in (0..LANES).flat_map(|lane| (0..layout.inputs).map(move |i| (lane, i))) {
                assert_eq!(layout.code(&unit, lane, i), code(lane, i));
            }
            assert!(unit[layout.scales_at()..].iter().all(|it| *it == 0), "codes stay before the scales");
        }
    }

    #[test]
    fn exponents_are_powers_of_two() {
        for e in 0..=254u8 {
            let expected = (f64::from(e) - 128.0).exp2();
            assert_eq!(f64::from(exponent_scale(e)), expected, "{e}");
        }
    }
}
