//! The ops of hybrid models in plain loops: heads with matrices of their own, delta and latent attention, mixing.

use super::math::{activate, add_scaled, dot, map, softmax, unary};
use super::{Frame, InterpError, Tensor};
use crate::attrs::{Act, UnaryKind};
use crate::graph::OpId;

/// The matrix of head `r mod H` for row r.
fn matrix_of(bank: &Tensor, r: usize) -> &[f64] {
    let size = bank.shape[1] * bank.shape[2];
    &bank.f64s()[r % bank.shape[0] * size..][..size]
}

pub(super) fn head_linear(x: &Tensor, bank: &Tensor) -> Tensor {
    let (n, k) = (bank.shape[1], bank.shape[2]);
    let rows = x.rows().enumerate();
    let data = rows.flat_map(|(r, x)| matrix_of(bank, r).chunks_exact(k).map(move |w| dot(x, w))).collect();
    Tensor::matrix(n, data)
}

pub(super) fn head_linear_t(x: &Tensor, bank: &Tensor) -> Tensor {
    let k = bank.shape[2];
    let mut out = vec![0.0; x.f64s().len() / x.cols() * k];
    for ((r, x), y) in x.rows().enumerate().zip(out.chunks_exact_mut(k)) {
        for (x, w) in x.iter().zip(matrix_of(bank, r).chunks_exact(k)) {
            add_scaled(y, *x, w);
        }
    }
    Tensor::matrix(k, out)
}

pub(super) fn concat(lhs: &Tensor, rhs: &Tensor) -> Tensor {
    let rows = lhs.rows().zip(rhs.rows());
    let data = rows.flat_map(|(lhs, rhs)| lhs.iter().chain(rhs)).copied().collect();
    Tensor::matrix(lhs.cols() + rhs.cols(), data)
}

pub(super) fn l2_norm(x: &Tensor, dim: usize, eps: f64, scale: f64) -> Tensor {
    let mut out = x.f64s().to_vec();
    for group in out.chunks_exact_mut(dim) {
        let norm = (dot(group, group) + eps).sqrt();
        group.iter_mut().for_each(|it| *it *= scale / norm);
    }
    Tensor::matrix(x.cols(), out)
}

pub(super) fn gated_rms_norm(x: &Tensor, gate: &Tensor, w: &Tensor, eps: f64) -> Tensor {
    let (w, mut out) = (w.f64s(), x.f64s().to_vec());
    for (x, gate) in out.chunks_exact_mut(w.len()).zip(gate.f64s().chunks_exact(w.len())) {
        let rms = (dot(x, x) / w.len() as f64 + eps).sqrt();
        for ((x, w), gate) in x.iter_mut().zip(w).zip(gate) {
            *x = *x / rms * w * unary(UnaryKind::Sigmoid, *gate);
        }
    }
    Tensor::matrix(x.cols(), out)
}

pub(super) fn attn_res_mix(
    x: &Tensor,
    norm: &Tensor,
    proj: &Tensor,
    blocks: Option<&Tensor>,
    eps: f64,
) -> Tensor {
    let h = x.cols();
    let query: Vec<f64> = norm.f64s().iter().zip(proj.f64s()).map(|(norm, proj)| norm * proj).collect();
    let mut out = Vec::with_capacity(x.f64s().len());
    for (t, x) in x.rows().enumerate() {
        let earlier = blocks.and_then(|it| it.row(t)).unwrap_or(&[]);
        let all: Vec<&[f64]> = std::iter::once(x).chain(earlier.chunks_exact(h)).collect();
        let score = |v: &&[f64]| dot(v, &query) / (dot(v, v) / h as f64 + eps).sqrt();
        let mut p: Vec<f64> = all.iter().map(score).collect();
        softmax(&mut p);
        let mut y = vec![0.0; h];
        for (p, v) in p.iter().zip(all) {
            add_scaled(&mut y, *p, v);
        }
        out.extend(y);
    }
    Tensor::matrix(h, out)
}

pub(super) fn kda_gate(z: &Tensor, a_log: &Tensor, dt_bias: &Tensor, lower_bound: f64) -> Tensor {
    let d = z.cols() / a_log.f64s().len();
    let factor = |(i, z): (usize, &f64)| {
        let (a, b) = (a_log.f64s()[i / d].exp(), z + dt_bias.f64s()[i]);
        let g = match lower_bound {
            0.0 => -a * unary(UnaryKind::Softplus, b),
            bound => bound * unary(UnaryKind::Sigmoid, a * b),
        };
        g.exp()
    };
    let data = z.rows().flat_map(|row| row.iter().enumerate().map(factor)).collect();
    Tensor::matrix(z.cols(), data)
}

/// One token of one head: o, and `s: [Dk][Dv]` updated.
fn delta_rule(s: &mut [f64], q: &[f64], [k, v, decay]: [&[f64]; 3], beta: f64) -> Vec<f64> {
    let dv = v.len();
    let mut u = vec![0.0; dv];
    for ((s, decay), k) in s.chunks_exact_mut(dv).zip(decay).zip(k) {
        s.iter_mut().for_each(|it| *it *= decay);
        add_scaled(&mut u, *k, s);
    }
    let delta: Vec<f64> = v.iter().zip(&u).map(|(v, u)| beta * (v - u)).collect();
    let mut o = vec![0.0; dv];
    for ((s, k), q) in s.chunks_exact_mut(dv).zip(k).zip(q) {
        add_scaled(s, *k, &delta);
        add_scaled(&mut o, *q, s);
    }
    o
}

impl Frame<'_, '_> {
    pub(super) fn kda_step(&mut self, id: OpId) -> Result<Tensor, InterpError> {
        let s = self.cache(id, 0)?;
        let mut inputs = Vec::new();
        for slot in 1..=5 {
            inputs.push(self.operand(id, slot)?);
        }
        let (row, pos) = (self.operand(id, 6)?, self.operand(id, 7)?);
        // Of the state [B, H, Dk, Dv], `heads` is Dk and `d` is Dv.
        let (dk, dv) = (s.heads, s.d);
        let mut out = Vec::new();
        for (t, (row, pos)) in row.i32s().iter().zip(pos.i32s()).enumerate() {
            let range = s.row(*row).map_err(|message| self.error(id, message))?;
            let state = &mut self.interp.states[s.state][range];
            if *pos == 0 {
                state.fill(0.0);
            }
            let of_token = |i: usize| inputs[i].row(t).expect("verified: rule 13");
            for (h, state) in state.chunks_exact_mut(dk * dv).enumerate() {
                let key = |i: usize| &of_token(i)[h * dk..][..dk];
                let v = &of_token(2)[h * dv..][..dv];
                out.extend(delta_rule(state, key(0), [key(1), v, key(3)], of_token(4)[h]));
            }
        }
        Ok(Tensor::matrix(inputs[2].cols(), out))
    }

    pub(super) fn short_conv(&mut self, id: OpId, act: Act) -> Result<Tensor, InterpError> {
        let ring = self.cache(id, 0)?;
        let (x, w) = (self.operand(id, 1)?, self.operand(id, 2)?);
        let (row, pos) = (self.operand(id, 3)?, self.operand(id, 4)?);
        let channels = x.cols();
        let mut out = Vec::new();
        for (x, (row, pos)) in x.rows().zip(row.i32s().iter().zip(pos.i32s())) {
            let range = ring.row(*row).map_err(|message| self.error(id, message))?;
            let past = &mut self.interp.states[ring.state][range];
            if *pos == 0 {
                past.fill(0.0);
            }
            for (c, (x, w)) in x.iter().zip(w.rows()).enumerate() {
                let past = past.chunks_exact(channels).map(|it| it[c]);
                out.push(past.chain([*x]).zip(w).map(|(x, w)| x * w).sum());
            }
            past.copy_within(channels.., 0);
            let last = past.len() - channels;
            past[last..].copy_from_slice(x);
        }
        Ok(map(&Tensor::matrix(channels, out), |it| activate(act, it)))
    }

    pub(super) fn latent_attention(&mut self, id: OpId, scale: f64) -> Result<Tensor, InterpError> {
        let (q, cache, rotated) = (self.operand(id, 0)?, self.cache(id, 1)?, self.optional(id, 4)?);
        let (row, pos) = (self.operand(id, 2)?, self.operand(id, 3)?);
        let latents = &self.interp.states[cache.state];
        let (kl, heads) = (q.cols(), q.f64s().len() / q.cols() / row.i32s().len().max(1));
        let mut out = Vec::with_capacity(q.f64s().len());
        for (r, q) in q.rows().enumerate() {
            let (row, pos) = (row.i32s()[r / heads], pos.i32s()[r / heads]);
            let last = cache.place(row, pos).map_err(|message| self.error(id, message))?;
            let first = last / cache.positions * cache.positions;
            let rotated = rotated.as_ref().and_then(|it| it.row(r)).unwrap_or(&[]);
            let score = |at: usize| {
                let (c, r) = cache.head(latents, at, 0).split_at(kl);
                scale * (dot(q, c) + dot(rotated, r))
            };
            let mut p: Vec<f64> = (first..=last).map(score).collect();
            softmax(&mut p);
            let mut y = vec![0.0; kl];
            for (p, at) in p.iter().zip(first..) {
                add_scaled(&mut y, *p, &cache.head(latents, at, 0)[..kl]);
            }
            out.extend(y);
        }
        Ok(Tensor::matrix(kl, out))
    }
}
