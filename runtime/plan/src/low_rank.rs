//! Low-rank terms of a weight: an adapter adds scale · B·A to a stored matrix W of `[n, k]`, with B `[n, rank]` and A `[rank, k]`
//! (LoRA, Hu et al. 2021, §4.1).
//!
//! Arithmetic: all factors are exact in f64; the product is summed over the rank in ascending order, multiplied by the scale and added
//! to the row of W, all in f64. Who asked for the row rounds it, once, after the last term.

use serde::{Deserialize, Serialize};

use crate::dtype::DType;

/// One term, whose factors lie row-major in one source. `S`: how sources are numbered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LowRank<S = u32> {
    /// The file.
    pub source: S,
    /// Element type of both factors: f32, f16 or bf16.
    pub stored: DType,
    /// First byte of A.
    pub a: u64,
    /// First byte of B.
    pub b: u64,
    /// Rows of A and columns of B.
    pub rank: u32,
    /// What the product is multiplied by.
    pub scale: f64,
}

impl<S> LowRank<S> {
    /// The same term under another number of its source.
    pub fn at<T>(self, source: T) -> LowRank<T> {
        let Self { stored, a, b, rank, scale, .. } = self;
        LowRank { source, stored, a, b, rank, scale }
    }

    /// Whether type, rank and scale make sense.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.stored.is_float() && self.rank > 0 && self.scale.is_finite()
    }

    /// Bytes of A for a matrix of `cols` columns; `None` beyond 64 bits.
    #[must_use]
    pub fn a_bytes(&self, cols: u64) -> Option<u64> {
        self.stored.row_bytes(cols)?.checked_mul(u64::from(self.rank))
    }

    /// Bytes of B for a matrix of `rows` rows; `None` beyond 64 bits.
    #[must_use]
    pub fn b_bytes(&self, rows: u64) -> Option<u64> {
        self.stored.row_bytes(u64::from(self.rank))?.checked_mul(rows)
    }

    /// Adds row `row` of the term to `sums`. `factors`: all bytes of A and of B.
    ///
    /// # Panics
    /// If the factors are shorter than the term says; callers have compared it with its source.
    pub fn add_row(&self, row: usize, factors: [&[u8]; 2], sums: &mut [f64]) {
        let rank = self.rank as usize;
        let bytes = self.stored.block().map_or(0, |it| it.bytes as usize);
        let row_of = |factor: &[u8], row: usize, out: &mut [f32]| {
            let size = out.len() * bytes;
            self.stored.decode(&factor[row * size..][..size], out);
        };
        let (mut b, mut a) = (vec![0f32; rank], vec![0f32; sums.len()]);
        row_of(factors[1], row, &mut b);
        let mut product = vec![0f64; sums.len()];
        for (j, b) in b.into_iter().enumerate() {
            row_of(factors[0], j, &mut a);
            product.iter_mut().zip(&a).for_each(|(sum, a)| *sum += f64::from(b) * f64::from(*a));
        }
        sums.iter_mut().zip(product).for_each(|(sum, it)| *sum += self.scale * it);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_the_scaled_product() {
        let le = |all: &[f32]| -> Vec<u8> {
            all.iter().flat_map(|it| half::bf16::from_f32(*it).to_le_bytes()).collect()
        };
        // A = [[1, 2, 3], [4, 5, 6]], B = [[1, 0], [-1, 0.5]].
        let (a, b) = (le(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), le(&[1.0, 0.0, -1.0, 0.5]));
        let term = LowRank { source: 0, stored: DType::BF16, a: 0, b: 0, rank: 2, scale: 2.0 };
        assert_eq!((term.a_bytes(3), term.b_bytes(2)), (Some(12), Some(8)));
        let mut sums = [10.0, 20.0, 30.0];
        term.add_row(1, [&a, &b], &mut sums);
        assert_eq!(sums, [12.0, 21.0, 30.0]);
        for bad in [LowRank { rank: 0, ..term.clone() }, LowRank { scale: f64::NAN, ..term.clone() }] {
            assert!(term.is_sound() && !bad.is_sound());
        }
    }
}
