//! The hash of one result element, family by family; recurrences and experts are in `element_hybrid`.

use super::element_hybrid as hybrid;
use super::kernels::{Family, Kernel, Operands, mix};
use super::targets::Target;

/// The element `at`.
pub(crate) fn element(kernel: &Kernel, x: &mut impl Operands, at: Target) -> u64 {
    let Target { row, col, .. } = at;
    let start = mix(kernel.attrs, col);
    match kernel.family {
        Family::Embed => {
            let id = x.number(0, row, 0);
            mix(mix(start, id), x.row(1, 0, 0, 0))
        }
        Family::Row => (0..x.len()).fold(start, |hash, slot| whole(hash, x, slot, row)),
        Family::Product => {
            let n_whole = x.len() - usize::from(kernel.residual);
            let hash = (0..n_whole).fold(start, |hash, slot| whole(hash, x, slot, row));
            if kernel.residual { mix(hash, x.row(n_whole, row, col, col + 1)) } else { hash }
        }
        Family::Elementwise => {
            (0..x.len()).fold(kernel.attrs, |hash, slot| mix(hash, x.row(slot, row, col, col + 1)))
        }
        Family::Angles => {
            let pos = x.number(0, row, 0);
            (1..x.len()).fold(mix(start, pos), |hash, slot| mix(hash, x.row(slot, 0, 0, 0)))
        }
        Family::Rope => {
            let from = col / kernel.head * kernel.head;
            let (angles, each) = (x.cols(1), (x.rows(0) / x.rows(1).max(1)).max(1));
            mix(mix(start, x.row(0, row, from, from + kernel.head)), x.row(1, row / each, 0, angles))
        }
        Family::Append => mix(kernel.attrs, x.row(0, row, col * kernel.head, (col + 1) * kernel.head)),
        Family::Attention => attention(kernel, x, row, col),
        Family::Select => {
            let want = x.number(1, row, 0);
            mix(kernel.attrs, x.row(0, want, col, col + 1))
        }
        Family::Concat => {
            let left = x.cols(0);
            let it = if col < left {
                x.row(0, row, col, col + 1)
            } else {
                x.row(1, row, col - left, col - left + 1)
            };
            mix(kernel.attrs, it)
        }
        Family::HeadNorm => {
            let from = col / kernel.head * kernel.head;
            let head = mix(start, x.row(0, row, from, from + kernel.head));
            (1..x.len()).fold(head, |hash, slot| mix(hash, x.row(slot, row, col, col + 1)))
        }
        Family::Gate => (0..x.len()).fold(start, |hash, slot| mix(hash, x.row(slot, row, col, col + 1))),
        Family::Conv => hybrid::conv(kernel, x, at),
        Family::Delta => hybrid::delta(kernel, x, at),
        Family::HeadProduct | Family::HeadProductT => {
            let hash = whole(start, x, 0, row);
            mix(hash, x.matrix(1, row % kernel.heads))
        }
        Family::Latent => hybrid::latent(kernel, x, row, col),
        Family::Route => hybrid::route(kernel, x, at),
        Family::Sort => hybrid::sort(kernel, x, at),
        Family::Gather => {
            let (token, trail) = hybrid::token_of(x, 1, row);
            mix(mix(kernel.attrs, trail), x.row(0, token, col, col + 1))
        }
        Family::Expert | Family::ExpertGlu | Family::ExpertLut | Family::ExpertVq => {
            hybrid::expert(kernel, x, at)
        }
        Family::Sum => hybrid::sum(kernel, x, row, col),
        Family::Tables => {
            // A slab of tables is made of 256 inputs.
            let from = col / kernel.head * 256;
            let to = (from + 256).min(x.cols(0));
            mix(mix(start, x.row(0, row, from, to)), x.row(1, 0, 0, 0))
        }
    }
}

/// A whole row of an operand, and how wide it is.
pub(super) fn whole(hash: u64, x: &mut impl Operands, slot: usize, row: u64) -> u64 {
    let cols = x.cols(slot);
    mix(mix(hash, x.width(slot)), x.row(slot, row, 0, cols))
}

fn attention(kernel: &Kernel, x: &mut impl Operands, row: u64, col: u64) -> u64 {
    let (sequence, pos) = (x.number(3, row, 0), x.number(4, row, 0));
    let head = col / kernel.head;
    let d = x.cols(0) / kernel.heads;
    let cache_head = head / (kernel.heads / x.heads(1).max(1)).max(1);
    let hash = mix(mix(kernel.attrs, col), x.row(0, row, head * d, (head + 1) * d));
    let (keys, values) = (x.cached(1, sequence, pos, cache_head), x.cached(2, sequence, pos, cache_head));
    mix(mix(hash, keys), values)
}
