//! The definitions: ties to the lower index, a NaN never wins.

use super::ArgMax;

const LANES: usize = 32;

#[inline(always)]
pub(crate) fn argmax_f32(x: &[f32]) -> ArgMax {
    let max = maximum(x);
    let id = first(x, |x| x == max).unwrap_or(0);
    // The element and not `max`: of two zeros the first one's sign counts, in whatever order lanes were folded.
    let value = x.get(id).copied().filter(|it| !it.is_nan()).unwrap_or(f32::NEG_INFINITY);
    ArgMax { id, value }
}

#[inline(always)]
pub(crate) fn first_non_finite(x: &[f32]) -> Option<usize> {
    first(x, |x| !x.is_finite())
}

/// The largest number, −inf if there is none.
#[inline(always)]
fn maximum(x: &[f32]) -> f32 {
    let greater = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = greater(*lane, *x);
        }
    }
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |max, x| greater(max, *x))
}

/// The first index whose element satisfies `is_hit`; whole chunks are tested at once.
#[inline(always)]
fn first(x: &[f32], is_hit: impl Fn(f32) -> bool + Copy) -> Option<usize> {
    let (chunks, _) = x.as_chunks::<LANES>();
    let clean =
        chunks.iter().take_while(|chunk| !chunk.iter().fold(false, |any, x| any | is_hit(*x))).count();
    let from = clean * LANES;
    x[from..].iter().position(|x| is_hit(*x)).map(|it| from + it)
}
