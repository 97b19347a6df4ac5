//! Pairs of tokens and experts in plain loops.

use std::rc::Rc;

use super::Tensor;
use super::math::{Res, activate, add_scaled, dot};
use crate::attrs::Act;

/// The expert of each pair, and the row of x that it reads.
pub(super) struct Pairs<'a> {
    order: &'a [i32],
    groups: &'a [i32],
    gather: bool,
}

impl<'a> Pairs<'a> {
    pub(super) const fn new(order: &'a [i32], groups: &'a [i32], gather: bool) -> Self {
        Self { order, groups, gather }
    }

    /// Experts with their pairs.
    fn groups(&self) -> impl Iterator<Item = (i32, std::ops::Range<usize>)> + '_ {
        let at = |it: i32| usize::try_from(it).unwrap_or(0);
        let starts = self.groups.chunks_exact(2).zip(self.groups[2..].chunks_exact(2));
        starts.map(move |(this, next)| (this[0], at(this[1])..at(next[1])))
    }

    /// The row of x for pair `p` if x has `rows` rows.
    fn row(&self, p: usize, rows: usize) -> usize {
        let each = self.order.len() / rows.max(1);
        if self.gather { usize::try_from(self.order[p]).unwrap_or(0) / each.max(1) } else { p }
    }
}

/// Order, groups and slots of `ids`.
pub(super) fn sort(ids: &Tensor, experts: u32) -> Res<[Tensor; 3]> {
    let (k, ids) = (ids.cols(), ids.i32s());
    let experts = i32::try_from(experts).unwrap_or(i32::MAX);
    if let Some(bad) = ids.iter().find(|it| !(0..experts).contains(*it)) {
        return Err(format!("expert {bad} of {experts}"));
    }
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by_key(|it| ids[*it]);
    let number = |it: usize| i32::try_from(it).unwrap_or(i32::MAX);
    let mut groups = Vec::new();
    for (p, at) in order.iter().enumerate() {
        if p == 0 || ids[order[p - 1]] != ids[*at] {
            groups.extend([ids[*at], number(p)]);
        }
    }
    let whole = 2 * (usize::try_from(experts).unwrap_or(0) + 1);
    while groups.len() < whole {
        groups.extend([experts, number(order.len())]);
    }
    let mut slots: Vec<i32> = (0..order.len()).map(number).collect();
    slots.sort_by_key(|p| order[usize::try_from(*p).unwrap_or(0)] / k);
    let order: Vec<i32> = order.into_iter().map(number).collect();
    Ok([Tensor::ids(&order), Tensor::ids(&groups), Tensor::ids(&slots)])
}

pub(super) fn gather(x: &Tensor, order: &[i32]) -> Tensor {
    let pairs = Pairs::new(order, &[], true);
    let rows = x.rows().len();
    let data = (0..order.len()).filter_map(|p| x.row(pairs.row(p, rows))).flatten().copied().collect();
    Tensor::matrix(x.cols(), data)
}

/// y[p] = act(x[p] · wᵀ), w the matrix of n rows that `matrix` gives for the expert of pair p.
pub(super) fn linear<E>(
    x: &Tensor,
    n: usize,
    pairs: &Pairs<'_>,
    act: Act,
    mut matrix: impl FnMut(i32) -> Result<Rc<Tensor>, E>,
) -> Result<Tensor, E> {
    let (rows, mut out) = (x.rows().len(), vec![0.0; pairs.order.len() * n]);
    for (expert, group) in pairs.groups().filter(|it| !it.1.is_empty()) {
        let w = matrix(expert)?;
        for p in group {
            let x = x.row(pairs.row(p, rows)).unwrap_or(&[]);
            out[p * n..][..n].iter_mut().zip(w.rows()).for_each(|(y, w)| *y = activate(act, dot(x, w)));
        }
    }
    Ok(Tensor::matrix(n, out))
}

pub(super) fn sum(x: &Tensor, weights: &Tensor, order: &[i32], slots: &[i32]) -> Tensor {
    let (k, n) = (weights.cols(), x.cols());
    let at = |it: i32| usize::try_from(it).unwrap_or(0);
    let mut out = vec![0.0; weights.rows().len() * n];
    for ((y, slots), weights) in out.chunks_exact_mut(n).zip(slots.chunks_exact(k)).zip(weights.rows()) {
        for p in slots {
            add_scaled(y, weights[at(order[at(*p)]) % k], x.row(at(*p)).unwrap_or(&[]));
        }
    }
    Tensor::matrix(n, out)
}
