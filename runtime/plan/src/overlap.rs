//! Whether two strided byte ranges of one space share a byte.
//!
//! An operand is `rows` runs of `len` bytes, `stride` bytes apart, so column slices of one buffer are disjoint although
//! their spans overlap. Validation, the plan checker and debug assertions of the runtime all ask this one question.
//!
//! Invariant: [`Runs::overlaps`] never says "no" for runs that share a byte. It says "yes" for disjoint runs only when
//! their strides differ and both have more than [`EXACT_ROWS`] rows.
//!
//! Deliberately absent: any notion of space, value or time; callers compare runs of the same space only.

use crate::schema::Operand;

/// Rows up to which runs of different strides are compared one by one.
pub const EXACT_ROWS: u64 = 1 << 12;

/// `rows` runs of `len` bytes, the first at `start`, `stride` bytes from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    start: u64,
    rows: u64,
    len: u64,
    stride: u64,
}

impl Runs {
    /// Runs of the given geometry; `None` if they are empty, overlap one another, or end past 2^62 bytes.
    ///
    /// Rows without gaps become one run, so that a matrix and its row-major reshapes are equal.
    #[must_use]
    pub fn new(start: u64, rows: u64, len: u64, stride: u64) -> Option<Self> {
        if rows == 0 || len == 0 || (rows > 1 && stride < len) {
            return None;
        }
        let end = (rows - 1).checked_mul(stride)?.checked_add(len)?.checked_add(start)?;
        if end > 1 << 62 {
            return None;
        }
        if rows == 1 || stride == len {
            return Some(Self { start, rows: 1, len: len * rows, stride: len * rows });
        }
        Some(Self { start, rows, len, stride })
    }

    /// The bytes of an operand that begins at byte `start` of its space, in a call of `tokens` and `want`.
    #[must_use]
    pub fn of(operand: &Operand, start: u64, tokens: u32, want: u32) -> Option<Self> {
        Self::new(start, operand.rows.count(tokens, want), operand.row_bytes()?, operand.stride)
    }

    /// The first byte.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// One past the last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start + (self.rows - 1) * self.stride + self.len
    }

    /// Whether the two share a byte.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        if self.end() <= other.start || other.end() <= self.start {
            return false;
        }
        let (few, many) = if self.rows <= other.rows { (self, other) } else { (other, self) };
        if few.stride == many.stride {
            return few.overlaps_in_step(many);
        }
        few.rows > EXACT_ROWS || (0..few.rows).any(|i| many.meets(few.start + i * few.stride, few.len))
    }

    /// Whether every byte of `other` is one of `self`.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        if other.start < self.start || other.end() > self.end() {
            return false;
        }
        if self.rows == 1 {
            return true;
        }
        // Gaps lie between the runs of `self`: `other` must not touch one.
        let gaps = Self {
            start: self.start + self.len,
            rows: self.rows - 1,
            len: self.stride - self.len,
            stride: self.stride,
        };
        !gaps.overlaps(other)
    }

    /// Whether a run touches bytes `start .. start + len`.
    fn meets(&self, start: u64, len: u64) -> bool {
        let end = start + len;
        if end <= self.start {
            return false;
        }
        // The last run that begins before `end` reaches furthest right.
        let last = ((end - 1 - self.start) / self.stride).min(self.rows - 1);
        self.start + last * self.stride + self.len > start
    }

    /// Equal strides: runs i and j meet if `d + (j − i) · stride` lies strictly between −other.len and self.len.
    fn overlaps_in_step(&self, other: &Self) -> bool {
        let stride = i128::from(self.stride);
        let d = i128::from(other.start) - i128::from(self.start);
        // The smallest shift that brings `other` past −other.len, among those that exist.
        let lowest = (-i128::from(other.len) - d).div_euclid(stride) + 1;
        let shift = lowest.max(1 - i128::from(self.rows));
        shift < i128::from(other.rows) && d + shift * stride < i128::from(self.len)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn bytes(it: &Runs) -> Vec<u64> {
        (0..it.rows).flat_map(|i| (0..it.len).map(move |b| it.start + i * it.stride + b)).collect()
    }

    /// A small generator with a fixed seed (xorshift64*).
    fn next(state: &mut u64, below: u64) -> u64 {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below
    }

    fn random(state: &mut u64) -> Runs {
        let len = 1 + next(state, 7);
        let stride = len + next(state, 9);
        Runs::new(next(state, 40), 1 + next(state, 6), len, stride).unwrap()
    }

    #[test]
    fn overlap_and_containment_equal_the_sets_of_bytes() {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        let (mut met, mut held) = (0, 0);
        for _ in 0..20_000 {
            let (a, mut b) = (random(&mut state), random(&mut state));
            if next(&mut state, 2) == 0 && b.rows > 1 && a.rows > 1 && b.len <= a.stride {
                b.stride = a.stride;
            }
            let (set_a, set_b) = (bytes(&a), bytes(&b));
            let meet = set_a.iter().any(|it| set_b.contains(it));
            let hold = set_b.iter().all(|it| set_a.contains(it));
            assert_eq!(a.overlaps(&b), meet, "{a:?} {b:?}");
            assert_eq!(b.overlaps(&a), meet, "{b:?} {a:?}");
            assert_eq!(a.contains(&b), hold, "{a:?} {b:?}");
            met += u32::from(meet);
            held += u32::from(hold);
        }
        assert!(met > 2000 && held > 200, "{met} {held}: the cases must include both answers");
    }

    #[test]
    fn rows_without_gaps_are_one_run() {
        assert_eq!(Runs::new(64, 4, 16, 16), Runs::new(64, 1, 64, 640));
        assert_eq!(Runs::new(0, 2, 8, 4), None);
        assert_eq!(Runs::new(u64::MAX - 4, 1, 8, 8), None);
    }
}
