//! Elements of recurrences, latent attention and experts.

use super::element::whole;
use super::kernels::{Family, Kernel, Operands, mix, name};
use super::targets::Target;

/// The state that a row begins with: what was accepted, or nothing where the row begins in this call.
fn first_state(x: &mut impl Operands, slot: usize, first: u64, col: u64) -> u64 {
    let (sequence, pos) = (x.number(slot, first, 0), x.number(slot + 1, first, 0));
    if pos == 0 { name("nothing") } else { x.accepted(sequence, col) }
}

/// First and last token that the element is made of.
const fn tokens_of(at: Target) -> (u64, u64) {
    if at.result == 0 { (at.with, at.row) } else { (at.trail, at.with) }
}

/// A channel's last inputs, which reach into the ring while the row has fewer of them in this call.
pub(super) fn conv(kernel: &Kernel, x: &mut impl Operands, at: Target) -> u64 {
    let (first, last) = tokens_of(at);
    let past = x.width(1).saturating_sub(1);
    // An output is made of the token itself and those before it, a ring of the last ones.
    let taken = if at.result == 0 { past + 1 } else { past };
    let here = last + 1 - first;
    let start = last + 1 - here.min(taken);
    let older = if here < taken { first_state(x, 2, first, at.col) } else { 0 };
    let inputs = (start..=last).fold(older, |hash, t| mix(hash, x.row(0, t, at.col, at.col + 1)));
    match at.result {
        0 => mix(mix(mix(kernel.attrs, at.col), inputs), x.row(1, 0, 0, 0)),
        _ => mix(mix(name("ring"), past), inputs),
    }
}

/// A column of a head's state after a token, and what the token reads off it.
pub(super) fn delta(kernel: &Kernel, x: &mut impl Operands, at: Target) -> u64 {
    let (first, last) = tokens_of(at);
    let heads = x.cols(4).max(1);
    let (dk, dv) = (x.cols(1) / heads, (x.cols(2) / heads).max(1));
    let head = at.col / dv;
    let keys = (head * dk, (head + 1) * dk);
    let mut state = first_state(x, 5, first, at.col);
    for t in first..=last {
        for slot in [1, 3] {
            state = mix(state, x.row(slot, t, keys.0, keys.1));
        }
        state = mix(mix(state, x.row(4, t, head, head + 1)), x.row(2, t, at.col, at.col + 1));
    }
    match at.result {
        0 => mix(mix(mix(kernel.attrs, at.col), state), x.row(0, last, keys.0, keys.1)),
        _ => state,
    }
}

pub(super) fn latent(kernel: &Kernel, x: &mut impl Operands, row: u64, col: u64) -> u64 {
    let token = row / kernel.heads;
    let (sequence, pos) = (x.number(2, token, 0), x.number(3, token, 0));
    let mut hash = whole(mix(kernel.attrs, col), x, 0, row);
    if x.len() > 4 {
        hash = whole(hash, x, 4, row);
    }
    mix(hash, x.cached(1, sequence, pos, 0))
}

/// The experts of a token: any of them, by a hash of its scores, but each once.
pub(super) fn route(kernel: &Kernel, x: &mut impl Operands, at: Target) -> u64 {
    let scores = (0..x.len()).fold(kernel.attrs, |hash, slot| whole(hash, x, slot, at.row));
    let tag = mix(mix(scores, at.result as u64), at.col);
    if at.result == 0 {
        let experts = x.cols(0).max(1);
        x.note(tag, (scores + at.col) % experts);
    }
    tag
}

/// What a sort writes at one place: pairs by expert, then token.
pub(super) fn sort(kernel: &Kernel, x: &mut impl Operands, at: Target) -> u64 {
    let (tokens, k) = (x.rows(0), x.cols(0));
    let hash = (0..tokens).fold(kernel.attrs, |hash, t| mix(hash, x.row(0, t, 0, k)));
    let mut pairs: Vec<(u64, u64)> = Vec::new();
    for place in 0..tokens * k {
        pairs.push((x.number(0, place / k, place % k), place));
    }
    pairs.sort_unstable();
    let index = |at: u64| usize::try_from(at).unwrap();
    let number = match at.result {
        0 => pairs[index(at.row)].1,
        1 => {
            let starts: Vec<usize> =
                (0..pairs.len()).filter(|p| *p == 0 || pairs[*p].0 != pairs[*p - 1].0).collect();
            let (expert, first) = match starts.get(index(at.col / 2)) {
                Some(p) => (pairs[*p].0, *p as u64),
                None => (kernel.heads, pairs.len() as u64),
            };
            if at.col.is_multiple_of(2) { expert } else { first }
        }
        _ => {
            let of_token = (0..pairs.len()).filter(|p| pairs[*p].1 / k == at.row / k);
            of_token.map(|p| p as u64).nth(index(at.row % k)).unwrap_or(0)
        }
    };
    let tag = mix(mix(mix(hash, at.result as u64), at.row), at.col);
    x.note(tag, number);
    tag
}

/// The token of pair `pair`, and the hash of what says so.
pub(super) fn token_of(x: &mut impl Operands, order: usize, pair: u64) -> (u64, u64) {
    let each = (x.rows(order) / x.rows(0).max(1)).max(1);
    (x.number(order, pair, 0) / each, x.row(order, pair, 0, 1))
}

/// A pair's row times the matrices of its expert.
pub(super) fn expert(kernel: &Kernel, x: &mut impl Operands, at: Target) -> u64 {
    let (order, _) = kernel.family.pair_slots();
    let (source, trail) = if kernel.gather { token_of(x, order, at.row) } else { (at.row, 0) };
    let hash = mix(mix(mix(kernel.attrs, at.col), at.trail), trail);
    let hash = whole(hash, x, 0, source);
    let hash = if kernel.family == Family::ExpertVq { mix(hash, x.row(4, 0, 0, 0)) } else { hash };
    let banks = if kernel.family == Family::ExpertGlu { 1..3 } else { 1..2 };
    banks.fold(hash, |hash, slot| mix(hash, x.matrix(slot, at.with)))
}

/// The pairs of a token by their weights.
pub(super) fn sum(kernel: &Kernel, x: &mut impl Operands, row: u64, col: u64) -> u64 {
    let k = x.cols(1).max(1);
    (row * k..(row + 1) * k).fold(kernel.attrs, |hash, slot| {
        let pair = x.number(3, slot, 0);
        let rank = x.number(2, pair, 0) % k;
        let trail = mix(x.row(3, slot, 0, 1), x.row(2, pair, 0, 1));
        let weighted = mix(x.row(1, row, rank, rank + 1), x.row(0, pair, col, col + 1));
        mix(mix(hash, trail), weighted)
    })
}
