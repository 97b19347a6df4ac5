//! One op: its operands looked up, its results stored; ops that own a region or touch a state.

use std::rc::Rc;

use super::math::{
    Res, Routing, add_scaled, argmax, dot, gated, gather, layer_norm, linear, map, matmul, per_row, rms_norm,
    rope, rope_angles, rope_frequencies, route_top_k, softmax, unary, zip,
};
use super::{Frame, InterpError, Tensor, experts, hybrid};
use crate::attrs::Act;
use crate::graph::{OpId, StateId};
use crate::ops::Op;
use crate::types::Dim;

impl Frame<'_, '_> {
    pub(super) fn op(&mut self, id: OpId) -> Result<(), InterpError> {
        let op = &self.graph.ops[id];
        let results = match op.op {
            Op::KvAppend {} => return self.kv_append(id),
            // Where a record is changes no value.
            Op::ExpertHint {} => return Ok(()),
            Op::ForEachExpert { experts } => vec![self.for_each_expert(id, experts)?],
            Op::RouteTopK { k, scoring, renorm, scale, groups, keep } => {
                let (logits, bias) = (self.operand(id, 0)?, self.optional(id, 1)?);
                let routing = Routing {
                    k: k as usize,
                    scoring,
                    renorm,
                    scale: f64::from(scale),
                    groups: groups as usize,
                    keep: keep as usize,
                };
                route_top_k(&logits, bias.as_deref(), &routing).into()
            }
            Op::Attention { scale } => vec![self.attention(id, f64::from(scale))?],
            Op::LatentAttention { scale } => vec![self.latent_attention(id, f64::from(scale))?],
            Op::ShortConv { act } => vec![self.short_conv(id, act)?],
            Op::KdaStep {} => vec![self.kda_step(id)?],
            Op::BankSlice {} => {
                let expert = self.operand(id, 1)?.i32s().first().copied();
                let matrix = self.matrix(id, 0, expert.unwrap_or(-1))?;
                vec![Rc::unwrap_or_clone(matrix)]
            }
            Op::ExpertLinear { act, gather } => vec![self.expert_product(id, (1, 2), gather, act)?],
            Op::ExpertLut { gather } | Op::ExpertVq { gather, .. } => {
                vec![self.expert_product(id, (1, 2), gather, Act::None)?]
            }
            Op::ExpertGlu { act, gather, beta, linear, .. } => {
                let gate = self.expert_product(id, (1, 3), gather, Act::None)?;
                let up = self.expert_product(id, (2, 3), gather, Act::None)?;
                let y = zip(&gate, &up, gated(act, beta, linear));
                vec![y.map_err(|message| self.error(id, message))?]
            }
            Op::ExpertSort { experts } => {
                let sorted = experts::sort(&*self.operand(id, 0)?, experts);
                sorted.map_err(|message| self.error(id, message))?.into()
            }
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
            Op::LutBuild { .. } => None,
            Op::Embed {} | Op::QuantAct { .. } | Op::Unary { .. } | Op::Slice { .. } | Op::Reshape { .. } => {
                None
            }
            Op::Argmax {} | Op::FiniteCheck {} | Op::L2Norm { .. } | Op::ExpertSort { .. } => None,
            Op::RopeAngles { .. } => self.optional(id, 1)?,
            _ => Some(self.operand(id, 1)?),
        };
        let result = match &self.graph.ops[id].op {
            Op::Embed {} => gather(&*self.operand(id, 1)?, x.i32s()),
            // Tables are another form of x: what multiplies them decodes its matrix.
            Op::QuantAct { .. } | Op::LutBuild { .. } => Ok(x.as_ref().clone()),
            Op::LutApply {} => Ok(matmul(&x, second(&y))),
            Op::Linear { act } => {
                let (bias, residual) = (self.optional(id, 2)?, self.optional(id, 3)?);
                linear(&x, second(&y), bias.as_deref(), *act, residual.as_deref())
            }
            Op::LinearGlu { act, beta, linear, .. } => {
                let up = matmul(&x, &*self.operand(id, 2)?);
                zip(&matmul(&x, second(&y)), &up, gated(*act, *beta, *linear))
            }
            Op::Add {} => zip(&x, second(&y), |lhs, rhs| lhs + rhs),
            Op::Mul {} => zip(&x, second(&y), |lhs, rhs| lhs * rhs),
            Op::Unary { kind } => Ok(map(&x, |it| unary(*kind, it))),
            Op::Glu { act, beta, linear } => zip(&x, second(&y), gated(*act, *beta, *linear)),
            Op::RmsNorm { eps, .. } => Ok(rms_norm(&x, second(&y), f64::from(*eps))),
            Op::LayerNorm { eps, .. } => {
                Ok(layer_norm(&x, second(&y), self.optional(id, 2)?.as_deref(), f64::from(*eps)))
            }
            Op::RopeAngles { dims, base, scaling } => {
                Ok(rope_angles(x.i32s(), &rope_frequencies(*dims, *base, *scaling, y.as_deref())))
            }
            Op::Rope { head_dim, style, skip } => {
                Ok(rope(&x, second(&y), *head_dim as usize, *style, *skip as usize))
            }
            Op::HeadLinear {} => Ok(hybrid::head_linear(&x, second(&y))),
            Op::HeadLinearT {} => Ok(hybrid::head_linear_t(&x, second(&y))),
            Op::Concat {} => Ok(hybrid::concat(&x, second(&y))),
            Op::L2Norm { dim, eps, scale } => {
                Ok(hybrid::l2_norm(&x, *dim as usize, f64::from(*eps), f64::from(*scale)))
            }
            Op::GatedRmsNorm { eps } => {
                Ok(hybrid::gated_rms_norm(&x, second(&y), &*self.operand(id, 2)?, f64::from(*eps)))
            }
            Op::AttnResMix { eps } => {
                let (proj, blocks) = (self.operand(id, 2)?, self.optional(id, 3)?);
                Ok(hybrid::attn_res_mix(&x, second(&y), &proj, blocks.as_deref(), f64::from(*eps)))
            }
            Op::KdaGate { lower_bound } => {
                Ok(hybrid::kda_gate(&x, second(&y), &*self.operand(id, 2)?, f64::from(*lower_bound)))
            }
            Op::SelectRows {} => gather(&x, second(&y).i32s()),
            Op::Slice { start, len } => {
                let columns = *start as usize..(*start + *len) as usize;
                let data = x.rows().flat_map(|row| &row[columns.clone()]).copied().collect();
                Ok(Tensor::matrix(*len as usize, data))
            }
            Op::Reshape { cols } => Ok(Tensor::matrix(*cols as usize, x.f64s().to_vec())),
            Op::Argmax {} => Ok(per_row(&x, argmax)),
            Op::FiniteCheck {} => Ok(per_row(&x, |row| i32::from(row.iter().all(|it| it.is_finite())))),
            Op::ExpertGather {} => Ok(experts::gather(&x, second(&y).i32s())),
            Op::ExpertSum {} => {
                let (order, slots) = (self.operand(id, 2)?, self.operand(id, 3)?);
                Ok(experts::sum(&x, second(&y), order.i32s(), slots.i32s()))
            }
            Op::KvAppend {} | Op::Attention { .. } | Op::RouteTopK { .. } | Op::ForEachExpert { .. } => {
                unreachable!("handled by the caller")
            }
            Op::LatentAttention { .. } | Op::ShortConv { .. } | Op::KdaStep {} | Op::ExpertSort { .. } => {
                unreachable!("handled by the caller")
            }
            Op::BankSlice {}
            | Op::ExpertLinear { .. }
            | Op::ExpertGlu { .. }
            | Op::ExpertLut { .. }
            | Op::ExpertVq { .. }
            | Op::ExpertHint {} => {
                unreachable!("handled by the caller")
            }
        };
        result.map_err(|message| self.error(id, message))
    }

    /// The product of x and the bank in slot `bank` over pairs, whose order and groups are in slot `order` and the next.
    fn expert_product(
        &mut self,
        id: OpId,
        (bank, order): (usize, usize),
        gather: bool,
        act: Act,
    ) -> Result<Tensor, InterpError> {
        let (x, groups, order) =
            (self.operand(id, 0)?, self.operand(id, order + 1)?, self.operand(id, order)?);
        let n =
            self.graph.ty(self.graph.ops[id].results[0]).shape.cols().expect("verified: rule 13") as usize;
        let pairs = experts::Pairs::new(order.i32s(), groups.i32s(), gather);
        experts::linear(&x, n, &pairs, act, |e| self.matrix(id, bank, e))
    }

    /// The state in operand `slot`, allocated when it is first met.
    pub(super) fn cache(&mut self, id: OpId, slot: usize) -> Result<Cache, InterpError> {
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
        let (ids, weights) = (self.operand(id, 1)?, self.operand(id, 2)?);
        let mut gathered = vec![self.operand(id, 0)?];
        for slot in [3, 4] {
            gathered.extend(self.optional(id, slot)?);
        }
        let region = &self.graph.regions[op.region.expect("verified: rule 12")];
        let cols = self.graph.ty(op.results[0]).shape.cols().expect("verified: rule 13") as usize;
        let experts = i32::try_from(experts).unwrap_or(i32::MAX);
        if let Some(bad) = ids.i32s().iter().find(|it| !(0..experts).contains(*it)) {
            return Err(self.error(id, format!("expert {bad} of {experts}")));
        }
        let mut out = vec![0.0; ids.i32s().len() / ids.cols() * cols];
        let mut routed: Vec<(i32, usize, f64)> = Vec::new();
        for (i, (expert, weight)) in ids.i32s().iter().zip(weights.f64s()).enumerate() {
            routed.push((*expert, i / ids.cols(), *weight));
        }
        routed.sort_by_key(|it| it.0);
        for tokens in routed.chunk_by(|lhs, rhs| lhs.0 == rhs.0) {
            self.values[region.args[0]] = Some(Rc::new(Tensor::ids(&[tokens[0].0])));
            for (arg, x) in region.args[1..].iter().zip(&gathered) {
                let rows = tokens.iter().filter_map(|it| x.row(it.1)).flatten().copied().collect();
                self.values[*arg] = Some(Rc::new(Tensor::matrix(x.cols(), rows)));
            }
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

/// A state and its sizes; of a recurrent one, `positions`, `heads` and `d` are whatever stands after the rows.
pub(super) struct Cache {
    pub(super) state: StateId,
    pub(super) rows: usize,
    pub(super) positions: usize,
    pub(super) heads: usize,
    pub(super) d: usize,
}

impl Cache {
    /// Elements of one position.
    pub(super) const fn width(&self) -> usize {
        self.heads * self.d
    }

    /// The index of (row, pos) among all positions of all rows.
    pub(super) fn place(&self, row: i32, pos: i32) -> Res<usize> {
        let inside = |at: i32, n: usize| usize::try_from(at).ok().filter(|it| *it < n);
        match (inside(row, self.rows), inside(pos, self.positions)) {
            (Some(row), Some(pos)) => Ok(row * self.positions + pos),
            _ => Err(format!(
                "row {row}, position {pos} of a cache of {} rows of {}",
                self.rows, self.positions
            )),
        }
    }

    /// The elements of row `row` among those of all rows.
    pub(super) fn row(&self, row: i32) -> Res<std::ops::Range<usize>> {
        let first = self.place(row, 0)? * self.width();
        Ok(first..first + self.positions * self.width())
    }

    /// Head `g` of place `at`.
    pub(super) fn head<'a>(&self, elements: &'a [f64], at: usize, g: usize) -> &'a [f64] {
        &elements[at * self.width() + g * self.d..][..self.d]
    }
}
