//! Matrices whose codes and scales lie apart: the trunk formats of a container.
//!
//! A row of n weights is G = ⌈n / 128⌉ groups with an f16 scale each. The codes of all rows lie together, rows filled up to whole
//! groups; the scales `f16[rows][G]` lie elsewhere.
//!
//! | format | a row's codes | weight i |
//! |---|---|---|
//! | `q8g` | 128·G bytes | scale · i8 |
//! | `q4g` | 64·G bytes, low nibble first | scale · (nibble − 8) |
//! | `q3g` | 48·G + 1 bytes, 3 bits from the lowest on | scale · (code − 4) |
//!
//! Invariant: a weight is the product of 11 and at most 8 significant bits, so f32 holds it exactly.
//!
//! Deliberately absent: other groups, which a reader refuses.

/// Weights that share a scale.
pub const GROUP: u64 = 128;

/// A trunk format, by the bits of its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupedLayout {
    /// 8, 4 or 3.
    pub bits: u32,
}

impl GroupedLayout {
    /// Scales of a row of `n` weights.
    #[must_use]
    pub const fn groups(self, n: u64) -> u64 {
        n.div_ceil(GROUP)
    }

    /// Bytes of the codes of a row of `n` weights; `None` beyond 64 bits.
    #[must_use]
    pub fn row_bytes(self, n: u64) -> Option<u64> {
        // One byte more where a code may cross bytes, so that a reader of two stays in the row.
        let guard = u64::from(self.bits == 3);
        Some(self.groups(n).checked_mul(GROUP / 8)?.checked_mul(u64::from(self.bits))? + guard)
    }

    /// Bytes of the scales of a row of `n` weights.
    #[must_use]
    pub const fn scale_bytes(self, n: u64) -> u64 {
        2 * self.groups(n)
    }

    /// The integer of weight `i` in the codes of a row.
    ///
    /// # Panics
    /// If the row is shorter.
    #[must_use]
    pub const fn integer(self, codes: &[u8], i: usize) -> i8 {
        match self.bits {
            8 => codes[i].cast_signed(),
            4 => (codes[i / 2] >> (4 * (i % 2)) & 15).cast_signed() - 8,
            _ => {
                let (byte, bit) = (i * 3 / 8, i * 3 % 8);
                let pair = u16::from_le_bytes([codes[byte], codes[byte + 1]]);
                ((pair >> bit & 7) as u8).cast_signed() - 4
            }
        }
    }

    /// Decodes one row: the reference decode.
    ///
    /// `codes`, `scales`: those of the row; `out`: `f32[n]`.
    ///
    /// # Panics
    /// If `codes` or `scales` is shorter than a row of n weights.
    pub fn decode_row(self, codes: &[u8], scales: &[u8], out: &mut [f32]) {
        for (i, w) in out.iter_mut().enumerate() {
            let at = 2 * (i / GROUP as usize);
            let scale = half::f16::from_le_bytes([scales[at], scales[at + 1]]).to_f32();
            *w = scale * f32::from(self.integer(codes, i));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn rows_have_the_sizes_of_the_table() {
        let bytes = |bits, n| GroupedLayout { bits }.row_bytes(n);
        assert_eq!([bytes(8, 200), bytes(4, 200), bytes(3, 200)], [Some(256), Some(128), Some(97)]);
        assert_eq!([bytes(8, 1), bytes(4, 128)], [Some(128), Some(64)]);
        assert_eq!(bytes(8, u64::MAX), None);
        assert_eq!(GroupedLayout { bits: 4 }.scale_bytes(129), 4);
    }

    #[test]
    fn codes_come_from_the_lowest_bits_on() {
        // 3 bits: 1, 2, 3, 4 are 0o4321 in the word; the third code crosses no byte, 2 + 3·3 does.
        let mut row = 0o7654_3210u32.to_le_bytes().to_vec();
        row.push(0);
        let three: Vec<i8> = (0..8).map(|i| GroupedLayout { bits: 3 }.integer(&row, i)).collect();
        assert_eq!(three, [-4, -3, -2, -1, 0, 1, 2, 3]);
        let four = GroupedLayout { bits: 4 };
        assert_eq!([four.integer(&[0xf0, 0x18], 0), four.integer(&[0xf0, 0x18], 1)], [-8, 7]);
        assert_eq!([four.integer(&[0xf0, 0x18], 2), four.integer(&[0xf0, 0x18], 3)], [0, -7]);
    }

    #[test]
    fn each_group_has_its_scale() {
        let codes: Vec<u8> = (0..=255).collect();
        let scales = [0.5f32, 4.0].map(|it| half::f16::from_f32(it).to_le_bytes()).concat();
        let mut out = [0.0; 130];
        GroupedLayout { bits: 8 }.decode_row(&codes, &scales, &mut out);
        assert_eq!([out[3], out[127], out[128], out[129]], [1.5, 63.5, -512.0, -508.0]);
    }
}
