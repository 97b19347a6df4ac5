//! One op: its operands looked up, its results stored; ops that own a region or touch a state.

use std::rc::Rc;

use super::math::{
    Res, activate, add_scaled, argmax, bank_slice, dot, gather, layer_norm, linear, map, matmul, per_row, rms_norm, rope,
    rope_angles, rope_frequencies, route_top_k, softmax, unary, zip,
};
use super::{Frame, InterpError, Tensor};
use crate::graph::OpId;
use crate::ops::Op;

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
            Op::Embed {} | Op::QuantAct { .. } | Op::Unary { .. } | Op::Slice { .. } | Op::Reshape { .. } => None,
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

    /// Sizes of the state in operand `slot`: (positions, heads · d, elements).
    fn cache_sizes(&self, id: OpId, slot: usize) -> (usize, usize, usize) {
        let ty = self.graph.ty(self.graph.ops[id].operand(slot));
        let size = |i: usize| {
            let upper = ty.shape.dims()[i].upper(&self.interp.module.syms);
            usize::try_from(upper).expect("verified: rule 9")
        };
        (size(1), size(2) * size(3), size(0) * size(1) * size(2) * size(3))
    }

    fn kv_append(&mut self, id: OpId) -> Result<(), InterpError> {
        let state = self.graph.state(self.graph.ops[id].operand(0)).expect("verified: rule 17");
        let (x, row, pos) = (self.operand(id, 1)?, self.operand(id, 2)?, self.operand(id, 3)?);
        let (positions, width, elements) = self.cache_sizes(id, 0);
        self.interp.states[state].resize(elements, 0.0);
        for (x, at) in x.rows().zip(row.i32s().iter().zip(pos.i32s())) {
            let at = place(elements / (positions * width), positions, at);
            let at = at.map_err(|message| self.error(id, message))? * width;
            self.interp.states[state][at..at + width].copy_from_slice(x);
        }
        Ok(())
    }

    fn attention(&mut self, id: OpId, scale: f64) -> Result<Tensor, InterpError> {
        let op = &self.graph.ops[id];
        let (q, row, pos) = (self.operand(id, 0)?, self.operand(id, 3)?, self.operand(id, 4)?);
        let dims = self.graph.ty(op.operand(1)).shape.dims();
        let heads = dims[2].known().expect("verified: rule 8") as usize;
        let (positions, k_width, elements) = self.cache_sizes(id, 1);
        let (_, v_width, v_elements) = self.cache_sizes(id, 2);
        let mut cache = |slot: usize, elements: usize| {
            let state = self.graph.state(op.operand(slot)).expect("verified: rule 17");
            self.interp.states[state].resize(elements, 0.0);
            state
        };
        let (k, v) = (cache(1, elements), cache(2, v_elements));
        let (k, v) = (&self.interp.states[k], &self.interp.states[v]);
        let (d, dv) = (k_width / heads, v_width / heads);
        let group = q.cols() / d / heads;
        let mut out = Vec::new();
        for (q, (row, pos)) in q.rows().zip(row.i32s().iter().zip(pos.i32s())) {
            let last = place(elements / (positions * k_width), positions, (row, pos));
            let last = last.map_err(|message| self.error(id, message))?;
            let first = last / positions * positions;
            for (h, q) in q.chunks_exact(d).enumerate() {
                let g = h / group;
                let key = |at: usize| &k[at * k_width + g * d..][..d];
                let mut p: Vec<f64> = (first..=last).map(|at| scale * dot(q, key(at))).collect();
                softmax(&mut p);
                let mut y = vec![0.0; dv];
                for (p, at) in p.iter().zip(first..) {
                    add_scaled(&mut y, *p, &v[at * v_width + g * dv..][..dv]);
                }
                out.extend(y);
            }
        }
        Ok(Tensor::matrix(q.cols() / d * dv, out))
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

/// The index of (row, pos) in a cache of `rows` × `positions`.
fn place(rows: usize, positions: usize, (row, pos): (&i32, &i32)) -> Res<usize> {
    let inside = |at: i32, n: usize| usize::try_from(at).ok().filter(|it| *it < n);
    match (inside(*row, rows), inside(*pos, positions)) {
        (Some(row), Some(pos)) => Ok(row * positions + pos),
        _ => Err(format!("row {row}, position {pos} of a cache of {rows} rows of {positions}")),
    }
}

