//! Which result elements a tile makes, and how the kernels of this crate's executor divide a step among tiles.

use std::ops::Range;

use super::kernels::{Family, Kernel, Operands};

/// An element of a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// Which result of the step.
    pub(crate) result: usize,
    pub(crate) row: u64,
    /// Counts units of four bytes, lines of tables, heads of an appended vector, or elements of a row's state.
    pub(crate) col: u64,
    /// The expert of a pair, the last token of a state, the first of an output of a recurrence.
    pub(crate) with: u64,
    /// A hash of what else was followed to get here.
    pub(crate) trail: u64,
}

/// The elements that are made by the tile of `rows` by `cols` of what [`Kernel::extent`] says.
pub(crate) fn targets(
    kernel: &Kernel,
    x: &mut impl Operands,
    rows: Range<u64>,
    cols: &Range<u64>,
) -> Vec<Target> {
    let plain = |result: usize, row: u64, col: u64| Target { result, row, col, with: 0, trail: 0 };
    let all = |result: usize, rows: Range<u64>, cols: Range<u64>| {
        rows.flat_map(move |row| cols.clone().map(move |col| plain(result, row, col)))
    };
    match kernel.family {
        Family::Conv | Family::Delta => recurrence(kernel, x, rows, cols),
        Family::HeadProduct | Family::HeadProductT => {
            let at = |it: Target| Target {
                row: it.row * kernel.heads + it.col / kernel.head,
                col: it.col % kernel.head,
                ..it
            };
            all(0, rows, cols.clone()).map(at).collect()
        }
        Family::Route => all(0, rows.clone(), cols.clone()).chain(all(1, rows, cols.clone())).collect(),
        // Every tile of a sort does all of it.
        Family::Sort => {
            let pairs = x.rows(0) * x.cols(0);
            let groups = 2 * (kernel.heads + 1);
            all(0, 0..pairs, 0..1).chain(all(1, 0..1, 0..groups)).chain(all(2, 0..pairs, 0..1)).collect()
        }
        // A tile takes the first of its experts.
        it if it.is_by_expert() => pairs_of_expert(kernel, x, rows.start, cols),
        _ => all(0, rows, cols.clone()).collect(),
    }
}

/// All tokens of a row from the first to the last of the tile, then the row's state.
fn recurrence(kernel: &Kernel, x: &mut impl Operands, rows: Range<u64>, cols: &Range<u64>) -> Vec<Target> {
    let slot = if kernel.family == Family::Conv { 2 } else { 5 };
    let sequences: Vec<u64> = rows.clone().map(|t| x.number(slot, t, 0)).collect();
    let mut out = Vec::new();
    let mut first = rows.start;
    for run in sequences.chunk_by(|a, b| a == b) {
        let end = first + run.len() as u64;
        for col in cols.clone() {
            let made = (first..end).map(|row| Target { result: 0, row, col, with: first, trail: 0 });
            out.extend(made);
            out.push(Target { result: 1, row: run[0], col, with: end - 1, trail: first });
        }
        first = end;
    }
    out
}

/// All pairs of the expert that has place `group` among those that have any.
fn pairs_of_expert(kernel: &Kernel, x: &mut impl Operands, group: u64, cols: &Range<u64>) -> Vec<Target> {
    let (order, groups) = kernel.family.pair_slots();
    let expert = x.number(groups, 0, 2 * group);
    if expert >= kernel.heads {
        return Vec::new();
    }
    let pairs = x.rows(order);
    let first = x.number(groups, 0, 2 * group + 1).min(pairs);
    let end = x.number(groups, 0, 2 * group + 3).min(pairs);
    let trail = x.row(groups, 0, 2 * group, 2 * group + 4);
    let made = |row: u64| cols.clone().map(move |col| Target { result: 0, row, col, with: expert, trail });
    (first..end).flat_map(made).collect()
}
