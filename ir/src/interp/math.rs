//! The op table's formulas over tensors, in plain loops; std's functions for exp, tanh and the like, libm's for erf.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use super::{Data, Tensor};
use crate::attrs::{Act, RopeScaling, RopeStyle, Scoring, UnaryKind};

/// A result, or a sentence why an op cannot take its operands.
pub(super) type Res<T = Tensor> = Result<T, String>;

pub(super) fn map(x: &Tensor, f: impl Fn(f64) -> f64) -> Tensor {
    Tensor { shape: x.shape.clone(), data: Data::F64(x.f64s().iter().map(|it| f(*it)).collect()) }
}

/// Elementwise; a region may bring together values of the same type but of different tokens.
pub(super) fn zip(lhs: &Tensor, rhs: &Tensor, f: impl Fn(f64, f64) -> f64) -> Res {
    if lhs.shape != rhs.shape {
        return Err(format!("found the shapes {:?} and {:?}", lhs.shape, rhs.shape));
    }
    let data = lhs.f64s().iter().zip(rhs.f64s()).map(|(lhs, rhs)| f(*lhs, *rhs)).collect();
    Ok(Tensor { shape: lhs.shape.clone(), data: Data::F64(data) })
}

pub(super) fn per_row(x: &Tensor, f: impl Fn(&[f64]) -> i32) -> Tensor {
    Tensor::ids(&x.rows().map(f).collect::<Vec<_>>())
}

/// Rows `ids` of `table`.
pub(super) fn gather(table: &Tensor, ids: &[i32]) -> Res {
    let mut data = Vec::with_capacity(ids.len() * table.cols());
    for &id in ids {
        let row = usize::try_from(id).ok().and_then(|it| table.f64s().chunks_exact(table.cols()).nth(it));
        data.extend(row.ok_or_else(|| format!("row {id} of {}", table.f64s().len() / table.cols()))?);
    }
    Ok(Tensor::matrix(table.cols(), data))
}

/// Eight sums, so that the compiler can keep them in registers; the order is the same for every caller.
pub(super) fn dot(lhs: &[f64], rhs: &[f64]) -> f64 {
    let ((lhs, lhs_rest), (rhs, rhs_rest)) = (lhs.as_chunks::<8>(), rhs.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (lhs, rhs) in lhs.iter().zip(rhs) {
        for i in 0..8 {
            sums[i] += lhs[i] * rhs[i];
        }
    }
    let rest: f64 = lhs_rest.iter().zip(rhs_rest).map(|(lhs, rhs)| lhs * rhs).sum();
    sums.iter().sum::<f64>() + rest
}

/// y += a · x.
pub(super) fn add_scaled(y: &mut [f64], a: f64, x: &[f64]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// x · wᵀ, weight row by weight row: a row stays in cache for all tokens.
pub(super) fn matmul(x: &Tensor, w: &Tensor) -> Tensor {
    let n = w.shape[0];
    let mut out = vec![0.0; x.f64s().len() / x.cols() * n];
    for (j, w) in w.rows().enumerate() {
        for (i, x) in x.rows().enumerate() {
            out[i * n + j] = dot(x, w);
        }
    }
    Tensor::matrix(n, out)
}

pub(super) fn linear(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    act: Act,
    residual: Option<&Tensor>,
) -> Res {
    let mut y = matmul(x, w);
    let n = y.cols();
    if let (Some(bias), Data::F64(y)) = (bias, &mut y.data) {
        for row in y.chunks_exact_mut(n) {
            add_scaled(row, 1.0, bias.f64s());
        }
    }
    let y = map(&y, |it| activate(act, it));
    match residual {
        Some(residual) => zip(&y, residual, |y, residual| y + residual),
        None => Ok(y),
    }
}

pub(super) fn activate(act: Act, x: f64) -> f64 {
    match act {
        Act::None => x,
        Act::Silu => unary(UnaryKind::Silu, x),
        Act::GeluTanh => unary(UnaryKind::GeluTanh, x),
        Act::GeluErf => unary(UnaryKind::GeluErf, x),
        Act::Relu => unary(UnaryKind::Relu, x),
        Act::Situ => unreachable!("verified: rule 14"),
    }
}

/// The activation of a gated op: of gate and up.
pub(super) fn gated(act: Act, beta: f32, linear: f32) -> impl Fn(f64, f64) -> f64 {
    let squash = |x: f64, by: f32| f64::from(by) * (x / f64::from(by)).tanh();
    move |gate, up| match act {
        Act::Situ => {
            let up = if linear > 0.0 { squash(up, linear) } else { up };
            squash(gate, beta) * unary(UnaryKind::Sigmoid, gate) * up
        }
        _ => activate(act, gate) * up,
    }
}

pub(super) fn unary(kind: UnaryKind, x: f64) -> f64 {
    match kind {
        UnaryKind::Silu => x / (1.0 + (-x).exp()),
        UnaryKind::GeluTanh => 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
        UnaryKind::GeluErf => 0.5 * x * (1.0 + libm::erf(x * FRAC_1_SQRT_2)),
        UnaryKind::Relu => x.max(0.0),
        UnaryKind::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        UnaryKind::Softplus if x > 20.0 => x,
        UnaryKind::Softplus => x.exp().ln_1p(),
        UnaryKind::Tanh => x.tanh(),
        UnaryKind::Exp => x.exp(),
        UnaryKind::Neg => -x,
    }
}

pub(super) fn rms_norm(x: &Tensor, w: &Tensor, eps: f64) -> Tensor {
    let mut out = Vec::with_capacity(x.f64s().len());
    for row in x.rows() {
        let mean = row.iter().map(|it| it * it).sum::<f64>() / row.len() as f64;
        let rms = (mean + eps).sqrt();
        out.extend(row.iter().zip(w.f64s()).map(|(x, w)| x / rms * w));
    }
    Tensor::matrix(x.cols(), out)
}

pub(super) fn layer_norm(x: &Tensor, w: &Tensor, b: Option<&Tensor>, eps: f64) -> Tensor {
    let mut out = Vec::with_capacity(x.f64s().len());
    for row in x.rows() {
        let n = row.len() as f64;
        let mean = row.iter().sum::<f64>() / n;
        let var = row.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / n;
        let std = (var + eps).sqrt();
        for (i, (x, w)) in row.iter().zip(w.f64s()).enumerate() {
            out.push((x - mean) / std * w + b.map_or(0.0, |it| it.f64s()[i]));
        }
    }
    Tensor::matrix(x.cols(), out)
}

/// The frequency of each pair, in radians a position.
pub(super) fn rope_frequencies(
    dims: u32,
    base: f64,
    scaling: RopeScaling,
    factors: Option<&Tensor>,
) -> Vec<f64> {
    let frequency = |i: u32| {
        let trained = base.powf(-2.0 * f64::from(i) / f64::from(dims));
        let scaled = match scaling {
            RopeScaling::None => trained,
            RopeScaling::Linear { factor } => trained / factor,
            RopeScaling::Llama3 { factor, low, high, orig } => {
                let turns = f64::from(orig) * trained / (2.0 * PI);
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - kept) * trained / factor + kept * trained
            }
            RopeScaling::Yarn { factor, fast, slow, orig } => {
                let (low, high) = yarn_ramp(dims, base, (fast, slow), orig);
                let ramp = ((f64::from(i) - low) / (high - low)).clamp(0.0, 1.0);
                trained / factor * ramp + trained * (1.0 - ramp)
            }
        };
        scaled / factors.map_or(1.0, |it| it.f64s()[i as usize])
    };
    (0..dims / 2).map(frequency).collect()
}

/// The pairs between which YaRN's ramp rises: those that turn `fast` and `slow` times in `orig` positions.
fn yarn_ramp(dims: u32, base: f64, (fast, slow): (f64, f64), orig: u32) -> (f64, f64) {
    let dims = f64::from(dims);
    let pair = |turns: f64| dims * (f64::from(orig) / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
    let (low, high) = (pair(fast).floor().max(0.0), pair(slow).ceil().min(dims - 1.0));
    (low, if low == high { high + 0.001 } else { high })
}

pub(super) fn rope_angles(pos: &[i32], frequencies: &[f64]) -> Tensor {
    let mut out = Vec::with_capacity(pos.len() * frequencies.len() * 2);
    for &pos in pos {
        out.extend(frequencies.iter().map(|it| (it * f64::from(pos)).cos()));
        out.extend(frequencies.iter().map(|it| (it * f64::from(pos)).sin()));
    }
    Tensor::matrix(2 * frequencies.len(), out)
}

pub(super) fn rope(x: &Tensor, angles: &Tensor, head_dim: usize, style: RopeStyle, skip: usize) -> Tensor {
    let half = angles.cols() / 2;
    let mut out = x.f64s().to_vec();
    for (row, angles) in out.chunks_exact_mut(x.cols()).zip(angles.rows()) {
        let (cos, sin) = angles.split_at(half);
        for head in row.chunks_exact_mut(head_dim) {
            let head = &mut head[skip..];
            for i in 0..half {
                let (at_a, at_b) = match style {
                    RopeStyle::Half => (i, i + half),
                    RopeStyle::Pair => (2 * i, 2 * i + 1),
                };
                let (a, b) = (head[at_a], head[at_b]);
                head[at_a] = a * cos[i] - b * sin[i];
                head[at_b] = b * cos[i] + a * sin[i];
            }
        }
    }
    Tensor::matrix(x.cols(), out)
}

pub(super) fn softmax(x: &mut [f64]) {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    x.iter_mut().for_each(|it| *it = (*it - max).exp());
    let sum: f64 = x.iter().sum();
    x.iter_mut().for_each(|it| *it /= sum);
}

/// The place of the largest element: the first of equals, never a NaN, 0 if there is nothing else.
pub(super) fn argmax(row: &[f64]) -> i32 {
    let mut best = None;
    for (i, x) in row.iter().enumerate() {
        if !x.is_nan() && best.is_none_or(|it: usize| *x > row[it]) {
            best = Some(i);
        }
    }
    i32::try_from(best.unwrap_or(0)).unwrap_or(i32::MAX)
}

/// What `route_top_k` is told.
pub(super) struct Routing {
    pub(super) k: usize,
    pub(super) scoring: Scoring,
    pub(super) renorm: bool,
    pub(super) scale: f64,
    pub(super) groups: usize,
    pub(super) keep: usize,
}

pub(super) fn route_top_k(logits: &Tensor, bias: Option<&Tensor>, routing: &Routing) -> [Tensor; 2] {
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for row in logits.rows() {
        let mut scores = row.to_vec();
        match routing.scoring {
            Scoring::Softmax => softmax(&mut scores),
            Scoring::Sigmoid => scores.iter_mut().for_each(|it| *it = unary(UnaryKind::Sigmoid, *it)),
        }
        let mut ranks = scores.clone();
        if let Some(bias) = bias {
            add_scaled(&mut ranks, 1.0, bias.f64s());
        }
        drop_groups(&mut ranks, routing.groups, routing.keep);
        let best = take_best(&mut ranks, routing.k);
        let chosen: Vec<f64> = best.iter().map(|it| scores[*it as usize]).collect();
        let sum = if routing.renorm { chosen.iter().sum() } else { 1.0 };
        weights.extend(chosen.iter().map(|it| it / sum * routing.scale));
        ids.extend(best);
    }
    let ids = Tensor { shape: vec![ids.len() / routing.k, routing.k], data: Data::I32(ids) };
    [ids, Tensor::matrix(routing.k, weights)]
}

/// The `k` largest, best first; each becomes a NaN, so that it does not win again.
fn take_best(ranks: &mut [f64], k: usize) -> Vec<i32> {
    let mut take = || {
        let best = argmax(ranks);
        ranks[best as usize] = f64::NAN;
        best
    };
    (0..k).map(|_| take()).collect()
}

/// Makes NaN of all but the `keep` groups whose two best sum up to the most.
fn drop_groups(ranks: &mut [f64], groups: usize, keep: usize) {
    if keep == groups {
        return;
    }
    let size = ranks.len() / groups;
    let sum_of_best = |group: &[f64]| -> f64 {
        let mut left = group.to_vec();
        take_best(&mut left, size.min(2)).iter().map(|it| group[*it as usize]).sum()
    };
    let mut sums: Vec<f64> = ranks.chunks_exact(size).map(sum_of_best).collect();
    let kept = take_best(&mut sums, keep);
    for (i, group) in (0..).zip(ranks.chunks_exact_mut(size)) {
        if !kept.contains(&i) {
            group.fill(f64::NAN);
        }
    }
}

pub(super) fn bank_slice(bank: &Tensor, expert: &[i32]) -> Res {
    let (n, k) = (bank.shape[1], bank.shape[2]);
    let matrix = expert.first().and_then(|it| usize::try_from(*it).ok());
    let matrix = matrix.and_then(|it| bank.f64s().chunks_exact(n * k).nth(it));
    let matrix = matrix.ok_or_else(|| format!("expert {expert:?} of {}", bank.shape[0]))?;
    Ok(Tensor::matrix(k, matrix.to_vec()))
}
