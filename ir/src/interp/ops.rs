//! One op: its operands looked up, its results stored; ops that own a region or touch a state.

use std::rc::Rc;

use super::math::{
    Res, activate, add_scaled, argmax, bank_slice, dot, gather, layer_norm, linear, map, matmul, per_row,
    rms_norm, rope, rope_angles, rope_frequencies, route_top_k, softmax, unary, zip,
};
use super::{Frame, InterpError, Tensor};
use crate::graph::{OpId, StateId};
use crate::ops::Op;
use crate::types::Dim;

impl Frame<'_, '_> {
    pub(super) fn op(&mut self, id: OpId) -> Result<(), InterpError> {
        let op = &self.graph.ops[id];
        let results = match op.op {
            Op::KvAppend {} => return self.kv_append(id),
            Op::ForEachExpert { experts } => vec![self.for_each_expert(id, experts)?],
            Op::RouteTopK { k, scoring, renorm, scale } => {
                let (logits, bias) = (self.operand(id, 0)?, self.optional(id, 1)?);
                route_top_k(&logits, bias.as_deref(), k as usize, (scoring, renorm, f64::from(scale))).into()
            }
            Op::Attention { scale } => vec![self.attention(id, f64::from(scale))?],
            _ => vec![self.plain(id)?],
        };
        for (value, result) in op.results.iter().zip(results) {
            self.values[*value] = Some(Rc::new(result));
        }
        Ok(())
    }

    /// The result of an op that has neither region nor state, and one result.
    fn plain(&mut self, id: OpId) -> Result<Tensor, InterpError> {
        let x = self.operand(id, 0)?;
        let y = match &self.graph.ops[id].op {
            Op::Embed {} | Op::QuantAct { .. } | Op::Unary { .. } | Op::Slice { .. } | Op::Reshape { .. } => {
                None
            }
            Op::Argmax {} | Op::FiniteCheck {} => None,
            Op::RopeAngles { .. } => self.optional(id, 1)?,
            _ => Some(self.operand(id, 1)?),
        };
        let result = match &self.graph.ops[id].op {
            Op::Embed {} => gather(&*self.operand(id, 1)?, x.i32s()),
            Op::QuantAct { .. } => Ok(x.as_ref().clone()),
            Op::Linear { act } => {
                let (bias, residual) = (self.optional(id, 2)?, self.optional(id, 3)?);
                linear(&x, second(&y), bias.as_deref(), *act, residual.as_deref())
            }
            Op::LinearGlu { act, .. } => {
                let up = matmul(&x, &*self.operand(id, 2)?);
                zip(&matmul(&x, second(&y)), &up, |gate, up| activate(*act, gate) * up)
            }
            Op::Add {} => zip(&x, second(&y), |lhs, rhs| lhs + rhs),
            Op::Mul {} => zip(&x, second(&y), |lhs, rhs| lhs * rhs),
            Op::Unary { kind } => Ok(map(&x, |it| unary(*kind, it))),
            Op::Glu { act } => zip(&x, second(&y), |gate, up| activate(*act, gate) * up),
            Op::RmsNorm { eps, .. } => Ok(rms_norm(&x, second(&y), f64::from(*eps))),
            Op::LayerNorm { eps, .. } => {
                Ok(layer_norm(&x, second(&y), self.optional(id, 2)?.as_deref(), f64::from(*eps)))
            }
            Op::RopeAngles { dims, base, scaling } => {
                Ok(rope_angles(x.i32s(), &rope_frequencies(*dims, *base, *scaling, y.as_deref())))
            }
            Op::Rope { head_dim, style } => Ok(rope(&x, second(&y), *head_dim as usize, *style)),
            Op::SelectRows {} => gather(&x, second(&y).i32s()),
            Op::Slice { start, len } => {
                let columns = *start as usize..(*start + *len) as usize;
                let data = x.rows().flat_map(|row| &row[columns.clone()]).copied().collect();
                Ok(Tensor::matrix(*len as usize, data))
            }
            Op::Reshape { cols } => Ok(Tensor::matrix(*cols as usize, x.f64s().to_vec())),
            Op::Argmax {} => Ok(per_row(&x, argmax)),
            Op::FiniteCheck {} => Ok(per_row(&x, |row| i32::from(row.iter().all(|it| it.is_finite())))),
            Op::BankSlice {} => bank_slice(&x, second(&y).i32s()),
            Op::KvAppend {} | Op::Attention { .. } | Op::RouteTopK { .. } | Op::ForEachExpert { .. } => {
                unreachable!("handled by the caller")
            }
        };
        result.map_err(|message| self.error(id, message))
    }

    /// The state in operand `slot`, allocated when it is first met.
    fn cache(&mut self, id: OpId, slot: usize) -> Result<Cache, InterpError> {
        let value = self.graph.ops[id].operand(slot);
        let state = self.graph.state(value).expect("verified: rule 17");
        let upper = |dim: &Dim| usize::try_from(dim.upper(&self.interp.module.syms)).ok();
        let sizes: Option<Vec<usize>> = self.graph.ty(value).shape.dims().iter().map(upper).collect();
        let elements = |it: &Vec<usize>| it.iter().try_fold(1usize, |n, it| n.checked_mul(*it));
        let sizes = sizes.filter(|it| elements(it).is_some_and(|n| n <= LARGEST));
        let Some([rows, positions, heads, d]) = sizes.as_deref() else {
            return Err(self.error(id, format!("a cache of more than {LARGEST} elements is not evaluated")));
        };
        let cache = Cache { state, rows: *rows, positions: *positions, heads: *heads, d: *d };
        if self.interp.states[state].is_empty() {
            self.interp.states[state] = vec![0.0; cache.rows * cache.positions * cache.width()];
        }
        Ok(cache)
    }

    fn kv_append(&mut self, id: OpId) -> Result<(), InterpError> {
        let cache = self.cache(id, 0)?;
        let (x, row, pos) = (self.operand(id, 1)?, self.operand(id, 2)?, self.operand(id, 3)?);
        for (x, (row, pos)) in x.rows().zip(row.i32s().iter().zip(pos.i32s())) {
            let at = cache.place(*row, *pos).map_err(|message| self.error(id, message))? * cache.width();
            self.interp.states[cache.state][at..at + cache.width()].copy_from_slice(x);
        }
        Ok(())
    }

    fn attention(&mut self, id: OpId, scale: f64) -> Result<Tensor, InterpError> {
        let (q, row, pos) = (self.operand(id, 0)?, self.operand(id, 3)?, self.operand(id, 4)?);
        let (k_cache, v_cache) = (self.cache(id, 1)?, self.cache(id, 2)?);
        let (k, v) = (&self.interp.states[k_cache.state], &self.interp.states[v_cache.state]);
        let (d, n_heads) = (k_cache.d, q.cols() / k_cache.d);
        let group = n_heads / k_cache.heads;
        let mut out = Vec::new();
        for (q, (row, pos)) in q.rows().zip(row.i32s().iter().zip(pos.i32s())) {
            let last = k_cache.place(*row, *pos).map_err(|message| self.error(id, message))?;
            let first = last / k_cache.positions * k_cache.positions;
            for (h, q) in q.chunks_exact(d).enumerate() {
                let g = h / group;
                let mut p: Vec<f64> =
                    (first..=last).map(|at| scale * dot(q, k_cache.head(k, at, g))).collect();
                softmax(&mut p);
                let mut y = vec![0.0; v_cache.d];
                for (p, at) in p.iter().zip(first..) {
                    add_scaled(&mut y, *p, v_cache.head(v, at, g));
                }
                out.extend(y);
            }
        }
        Ok(Tensor::matrix(n_heads * v_cache.d, out))
    }

    fn for_each_expert(&mut self, id: OpId, experts: u32) -> Result<Tensor, InterpError> {
        let op = &self.graph.ops[id];
        let (x, ids, weights) = (self.operand(id, 0)?, self.operand(id, 1)?, self.operand(id, 2)?);
        let region = &self.graph.regions[op.region.expect("verified: rule 12")];
        let cols = self.graph.ty(op.results[0]).shape.cols().expect("verified: rule 13") as usize;
        let experts = i32::try_from(experts).unwrap_or(i32::MAX);
        if let Some(bad) = ids.i32s().iter().find(|it| !(0..experts).contains(*it)) {
            return Err(self.error(id, format!("expert {bad} of {experts}")));
        }
        let n_tokens = x.f64s().len() / x.cols();
        let mut out = vec![0.0; n_tokens * cols];
        let mut routed: Vec<(i32, usize, f64)> = Vec::new();
        for (i, (expert, weight)) in ids.i32s().iter().zip(weights.f64s()).enumerate() {
            routed.push((*expert, i / ids.cols(), *weight));
        }
        routed.sort_by_key(|it| it.0);
        for tokens in routed.chunk_by(|lhs, rhs| lhs.0 == rhs.0) {
            let rows = tokens.iter().filter_map(|it| x.row(it.1)).flatten().copied().collect();
            self.values[region.args[0]] = Some(Rc::new(Tensor::ids(&[tokens[0].0])));
            self.values[region.args[1]] = Some(Rc::new(Tensor::matrix(x.cols(), rows)));
            self.order(&region.order)?;
            let y = self.value(region.yields[0])?;
            for (y, (_, token, weight)) in y.rows().zip(tokens) {
                add_scaled(&mut out[token * cols..][..cols], *weight, y);
            }
        }
        Ok(Tensor::matrix(cols, out))
    }
}

/// The second operand, which the verifier has shown to be there.
fn second(y: &Option<Rc<Tensor>>) -> &Tensor {
    y.as_deref().expect("verified: rule 12")
}

/// Elements of the largest cache that is evaluated: 8 GiB.
const LARGEST: usize = 1 << 30;

/// A state and its sizes.
struct Cache {
    state: StateId,
    rows: usize,
    positions: usize,
    heads: usize,
    d: usize,
}

impl Cache {
    /// Elements of one position.
    const fn width(&self) -> usize {
        self.heads * self.d
    }

    /// The index of (row, pos) among all positions of all rows.
    fn place(&self, row: i32, pos: i32) -> Res<usize> {
        let inside = |at: i32, n: usize| usize::try_from(at).ok().filter(|it| *it < n);
        match (inside(row, self.rows), inside(pos, self.positions)) {
            (Some(row), Some(pos)) => Ok(row * self.positions + pos),
            _ => Err(format!(
                "row {row}, position {pos} of a cache of {} rows of {}",
                self.rows, self.positions
            )),
        }
    }

    /// Head `g` of place `at`.
    fn head<'a>(&self, elements: &'a [f64], at: usize, g: usize) -> &'a [f64] {
        &elements[at * self.width() + g * self.d..][..self.d]
    }
}
