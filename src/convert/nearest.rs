//! The nearest centroid of a vector: the inner loop of fitting and of encoding.
//!
//! |x − c|² is least where |c|²/2 − x·c is, which costs 8 multiplications a centroid. Centroids are laid out in blocks of 16,
//! dimension by dimension, so that one instruction works on several of them. Sums are taken in the order of dimensions,
//! each step rounded: the same index on every machine.

use crate::formats::container::VEC_DIM;

/// A vector of weights.
pub(super) type Vector = [f32; VEC_DIM];

/// Centroids of a block.
const LANES: usize = 16;

/// Centroids of a stage at most.
const MAX_ENTRIES: usize = 256;

/// The centroids of one stage, ready to be searched.
#[derive(Clone, Debug)]
pub(super) struct Book {
    centroids: Vec<Vector>,
    /// Half the squared length of each.
    half_norms: Vec<[f32; LANES]>,
    /// By block and dimension.
    dims: Vec<[[f32; LANES]; VEC_DIM]>,
}

impl Book {
    /// # Panics
    /// If `centroids` are not a multiple of 16, at most 256.
    pub(super) fn new(centroids: Vec<Vector>) -> Self {
        assert!(centroids.len().is_multiple_of(LANES) && centroids.len() <= MAX_ENTRIES, "whole blocks");
        let blocks = centroids.as_chunks::<LANES>().0;
        let half_norm = |c: &Vector| c.iter().fold(0.0, |sum, x| sum + x * x) * 0.5;
        let half_norms = blocks.iter().map(|block| block.each_ref().map(half_norm)).collect();
        let transposed = |block: &[Vector; LANES]| std::array::from_fn(|d| block.map(|c| c[d]));
        let dims = blocks.iter().map(transposed).collect();
        Self { centroids, half_norms, dims }
    }

    pub(super) fn centroids(&self) -> &[Vector] {
        &self.centroids
    }

    /// The index of the centroid nearest to `x`, the first of equals; `x` is finite.
    pub(super) fn nearest(&self, x: &Vector) -> u8 {
        let mut scores = [[0.0; LANES]; MAX_ENTRIES / LANES];
        let mut least = [f32::INFINITY; LANES];
        for ((norms, dims), out) in self.half_norms.iter().zip(&self.dims).zip(&mut scores) {
            let mut acc = *norms;
            for (x, lanes) in x.iter().zip(dims) {
                for (acc, c) in acc.iter_mut().zip(lanes) {
                    *acc -= x * c;
                }
            }
            *out = acc;
            for (least, it) in least.iter_mut().zip(acc) {
                *least = if it < *least { it } else { *least };
            }
        }
        let least = least.into_iter().fold(f32::INFINITY, |a, b| if b < a { b } else { a });
        let all = scores.as_flattened();
        let at = all[..self.centroids.len()].iter().position(|it| *it == least);
        at.map_or(0, |it| it as u8)
    }

    /// Takes the nearest centroid off `x` and tells which it was.
    pub(super) fn subtract_nearest(&self, x: &mut Vector) -> u8 {
        let index = self.nearest(x);
        let centroid = &self.centroids[usize::from(index)];
        x.iter_mut().zip(centroid).for_each(|(x, c)| *x -= c);
        index
    }
}

/// The squared length of `x`, in f64.
pub(super) fn square(x: &Vector) -> f64 {
    x.iter().map(|it| f64::from(*it) * f64::from(*it)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Xoshiro256PlusPlus;

    fn vector(rng: &mut Xoshiro256PlusPlus) -> Vector {
        std::array::from_fn(|_| (rng.next_f64() * 2.0 - 1.0) as f32)
    }

    #[test]
    fn it_is_the_nearest_by_definition() {
        let mut rng = Xoshiro256PlusPlus::from_seed(3);
        for entries in [16, 64, 256] {
            let book = Book::new((0..entries).map(|_| vector(&mut rng)).collect());
            for _ in 0..200 {
                let x = vector(&mut rng);
                let distance = |c: &Vector| square(&std::array::from_fn(|d| x[d] - c[d]));
                let found = distance(&book.centroids()[usize::from(book.nearest(&x))]);
                let best = book.centroids().iter().map(distance).fold(f64::INFINITY, f64::min);
                assert!(found <= best + 1e-6, "{found} {best}");
            }
        }
    }

    #[test]
    fn the_first_of_equals_wins() {
        let mut centroids = vec![[1.0; VEC_DIM]; 64];
        centroids[5] = [0.25; VEC_DIM];
        centroids[40] = [0.25; VEC_DIM];
        let book = Book::new(centroids);
        let mut x = [0.25; VEC_DIM];
        assert_eq!(book.subtract_nearest(&mut x), 5);
        assert_eq!(x, [0.0; VEC_DIM]);
        assert_eq!(book.nearest(&[9.0; VEC_DIM]), 0);
    }
}
