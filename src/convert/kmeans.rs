//! Residual k-means: the codebooks of one kind of matrix, one stage after the other on what the stages before left over.
//!
//! Lloyd 1982: assign each vector to its nearest centroid, move each centroid to the mean of its vectors, again. Centroids
//! start on vectors drawn at random; one that loses all its vectors moves to a vector that is worst served.
//!
//! Invariant: the result depends on the vectors and the seed alone. Sums are taken in f64 over chunks of fixed size, and the
//! chunks are added in order, however many threads there are.

use half::f16;
use rayon::prelude::*;

use super::nearest::{Book, Vector, square};
use crate::formats::container::{VEC_DIM, VqCode};
use crate::random::Xoshiro256PlusPlus;

/// Rounds of Lloyd's algorithm.
const ROUNDS: usize = 10;

/// Vectors that are summed by one task.
const CHUNK: usize = 4096;

/// Fits the books of `code` to `vectors`, which become what the last stage leaves over. Centroids are rounded to f16.
pub(super) fn fit(code: VqCode, vectors: &mut [Vector], rng: &mut Xoshiro256PlusPlus) -> Vec<Book> {
    (0..code.stages()).map(|_| fit_stage(code.entries(), vectors, rng)).collect()
}

fn fit_stage(entries: usize, vectors: &mut [Vector], rng: &mut Xoshiro256PlusPlus) -> Book {
    let mut book = Book::new(draw(entries, vectors, rng));
    for _ in 0..ROUNDS {
        let (sums, misfits) = assign(&book, vectors);
        book = Book::new(moved(&sums, book.centroids(), &misfits, vectors));
    }
    let round = |c: &Vector| c.map(|x| f16::from_f32(x).to_f32());
    let book = Book::new(book.centroids().iter().map(round).collect());
    vectors.par_iter_mut().for_each(|it| {
        book.subtract_nearest(it);
    });
    book
}

/// `entries` vectors, no two from the same place unless there are too few; zeros if there are none.
fn draw(entries: usize, vectors: &[Vector], rng: &mut Xoshiro256PlusPlus) -> Vec<Vector> {
    let n = vectors.len();
    if n <= entries {
        return (0..entries)
            .map(|it| vectors.get(it % n.max(1)).copied().unwrap_or([0.0; VEC_DIM]))
            .collect();
    }
    let mut taken = std::collections::HashSet::with_capacity(entries);
    let mut out = Vec::with_capacity(entries);
    while out.len() < entries {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0..n")]
        let at = (rng.next_f64() * n as f64) as usize;
        if taken.insert(at) {
            out.push(vectors[at]);
        }
    }
    out
}

/// The vectors of each centroid, summed.
struct Sums {
    sums: Vec<[f64; VEC_DIM]>,
    counts: Vec<u64>,
}

/// Vectors that their centroids serve worst: squared distance and index, worst first.
type Misfits = Vec<(f64, usize)>;

/// Sums by nearest centroid, and as many misfits of each chunk as there are centroids without a vector in it.
fn assign(book: &Book, vectors: &[Vector]) -> (Sums, Misfits) {
    let entries = book.centroids().len();
    let of_chunk = |(chunk, vectors): (usize, &[Vector])| {
        let mut sums = Sums { sums: vec![[0.0; VEC_DIM]; entries], counts: vec![0; entries] };
        let mut errors = Vec::with_capacity(vectors.len());
        for (idx, x) in vectors.iter().enumerate() {
            let mut rest = *x;
            let at = usize::from(book.subtract_nearest(&mut rest));
            sums.sums[at].iter_mut().zip(x).for_each(|(sum, x)| *sum += f64::from(*x));
            sums.counts[at] += 1;
            errors.push((square(&rest), chunk * CHUNK + idx));
        }
        let empty = sums.counts.iter().filter(|it| **it == 0).count();
        sort_misfits(&mut errors);
        errors.truncate(empty);
        (sums, errors)
    };
    let parts: Vec<_> = vectors.par_chunks(CHUNK).enumerate().map(of_chunk).collect();
    let mut all = Sums { sums: vec![[0.0; VEC_DIM]; entries], counts: vec![0; entries] };
    let mut misfits = Vec::new();
    for (part, errors) in parts {
        all.counts.iter_mut().zip(part.counts).for_each(|(all, it)| *all += it);
        for (all, it) in all.sums.iter_mut().zip(part.sums) {
            all.iter_mut().zip(it).for_each(|(all, it)| *all += it);
        }
        misfits.extend(errors);
    }
    sort_misfits(&mut misfits);
    (all, misfits)
}

fn sort_misfits(all: &mut Misfits) {
    all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
}

/// Each centroid at the mean of its vectors; those without any at the misfits, in order.
fn moved(sums: &Sums, before: &[Vector], misfits: &Misfits, vectors: &[Vector]) -> Vec<Vector> {
    let mut misfits = misfits.iter().filter(|it| it.0 > 0.0);
    let each = sums.sums.iter().zip(&sums.counts).zip(before);
    each.map(|((sum, count), before)| {
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let mean = |sum: &f64| (sum / *count as f64) as f32;
        match count {
            0 => misfits.next().map_or(*before, |it| vectors[it.1]),
            _ => sum.each_ref().map(mean),
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn noise(n: usize) -> Vec<Vector> {
        let mut rng = Xoshiro256PlusPlus::from_seed(5);
        // Sums of uniforms: roughly normal, variance 1/3.
        let mut one = || (0..4).map(|_| rng.next_f64() - 0.5).sum::<f64>() as f32;
        (0..n).map(|_| std::array::from_fn(|_| one())).collect()
    }

    fn energy(vectors: &[Vector]) -> f64 {
        vectors.iter().map(square).sum()
    }

    #[test]
    fn every_stage_leaves_less() {
        let vectors = noise(6000);
        let mut left = vectors.clone();
        let books = fit(VqCode::Vq2r, &mut left, &mut Xoshiro256PlusPlus::from_seed(1));
        assert_eq!((books.len(), books[0].centroids().len()), (2, 256));
        // 8 bits for 8 normal dimensions leave about 2^-2 of the energy a stage, less what 8 dimensions gain.
        let share = energy(&left) / energy(&vectors);
        assert!((0.03..0.13).contains(&share), "{share}");
        for book in &books {
            assert!(book.centroids().iter().flatten().all(|it| f16::from_f32(*it).to_f32() == *it));
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut vectors = noise(3 * CHUNK + 100);
            let mut rng = Xoshiro256PlusPlus::from_seed(9);
            let books = pool.install(|| fit(VqCode::Vq4p, &mut vectors, &mut rng));
            books.iter().flat_map(|it| it.centroids().to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(3));
    }

    #[test]
    fn a_centroid_without_vectors_moves_to_a_misfit() {
        // 200 equal vectors and 15 others: most of the drawn centroids are equal, yet all others get their own.
        let mut vectors = vec![[0.5; VEC_DIM]; 200];
        vectors.extend((0..15).map(|it| [it as f32 - 20.0; VEC_DIM]));
        let book = fit_stage(16, &mut vectors, &mut Xoshiro256PlusPlus::from_seed(2));
        assert_eq!(energy(&vectors), 0.0, "{:?}", book.centroids());
    }

    #[test]
    fn few_vectors_are_their_own_centroids() {
        for n in [0, 1, 7] {
            let mut vectors: Vec<Vector> =
                noise(n).iter().map(|it| it.map(|x| (x * 64.0).round() / 64.0)).collect();
            let books = fit(VqCode::Vq3r, &mut vectors, &mut Xoshiro256PlusPlus::from_seed(2));
            assert_eq!((books.len(), energy(&vectors)), (3, 0.0));
        }
    }
}
