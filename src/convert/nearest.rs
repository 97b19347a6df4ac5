//! The nearest centroid of a vector: the inner loop of fitting and of encoding.
//!
//! |x − c|² is least where |c|²/2 − x·c is, which costs 8 multiplications a centroid. Centroids are laid out in blocks of 4,
//! dimension by dimension, so that one instruction of the baseline works on a block. Sums are taken in the order of
//! dimensions, each step rounded: the same index on every machine.

use crate::formats::container::VEC_DIM;

/// A vector of weights.
pub(super) type Vector = [f32; VEC_DIM];

/// Centroids of a block.
const LANES: usize = 4;

/// Centroids of a stage at most.
const MAX_ENTRIES: usize = 256;

/// The centroids of one stage, ready to be searched.
#[derive(Clone, Debug)]
pub(super) struct Book {
    centroids: Vec<Vector>,
    blocks: Vec<Block>,
}

/// Centroids side by side.
#[derive(Clone, Debug)]
struct Block {
    /// Half the squared length of each.
    half_norms: [f32; LANES],
    /// By dimension.
    dims: [[f32; LANES]; VEC_DIM],
}

impl Book {
    /// # Panics
    /// If `centroids` are not a multiple of 4, at most 256.
    pub(super) fn new(centroids: Vec<Vector>) -> Self {
        assert!(centroids.len().is_multiple_of(LANES) && centroids.len() <= MAX_ENTRIES, "whole blocks");
        let half_norm = |c: &Vector| c.iter().fold(0.0, |sum, x| sum + x * x) * 0.5;
        let block = |block: &[Vector; LANES]| Block {
            half_norms: block.each_ref().map(half_norm),
            dims: std::array::from_fn(|d| block.map(|c| c[d])),
        };
        let blocks = centroids.as_chunks::<LANES>().0.iter().map(block).collect();
        Self { centroids, blocks }
    }

    pub(super) fn centroids(&self) -> &[Vector] {
        &self.centroids
    }

    /// The index of the centroid nearest to `x`, the first of equals; `x` is finite.
    pub(super) fn nearest(&self, x: &Vector) -> u8 {
        let x = *x;
        // Of each lane the least score and the block it is in. Loops over indices: with iterators the compiler does not
        // vectorise them, which costs a factor of five.
        let mut least = [f32::INFINITY; LANES];
        let mut found = [0u32; LANES];
        for (number, block) in self.blocks.iter().enumerate() {
            let mut scores = block.half_norms;
            for (lane, score) in scores.iter_mut().enumerate() {
                // Spelled out, or the compiler keeps a loop of eight.
                let part = |d: usize| x[d] * block.dims[d][lane];
                let low = *score - part(0) - part(1) - part(2) - part(3);
                *score = low - part(4) - part(5) - part(6) - part(7);
            }
            for lane in 0..LANES {
                let is_less = scores[lane] < least[lane];
                least[lane] = if is_less { scores[lane] } else { least[lane] };
                found[lane] = if is_less { number as u32 } else { found[lane] };
            }
        }
        let (mut best, mut at) = (f32::INFINITY, 0);
        for lane in 0..LANES {
            let index = found[lane] * LANES as u32 + lane as u32;
            if least[lane] < best || (least[lane] == best && index < at) {
                (best, at) = (least[lane], index);
            }
        }
        at as u8
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
    use crate::random::Xoshiro256PlusPlus;

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
