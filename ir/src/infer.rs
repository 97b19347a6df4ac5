//! The result types of each op, from its operand types and attributes.
//!
//! One arm an op; builder, parser and verifier all call [`infer`], so a graph cannot hold a type that the op table does not imply.

mod experts;
mod hybrid;
mod lut;

use waste_plan::{DType, LutLayout, Math};

use crate::graph::Graph;
use crate::ops::Op;
use crate::types::{Dim, TensorType};
use crate::{RegionId, ValueId};

pub(crate) use lut::books_type;

/// Why an op cannot be typed; one sentence with found and expected.
pub type InferError = String;

/// The operands of an op during inference.
struct Operands<'a> {
    graph: &'a Graph,
    op: &'a Op,
    values: &'a [Option<ValueId>],
}

impl<'a> Operands<'a> {
    fn name(&self, slot: usize) -> &'static str {
        self.op.operand_names()[slot].trim_end_matches('?')
    }

    fn optional(&self, slot: usize) -> Option<&'a TensorType> {
        self.values.get(slot).copied().flatten().map(|it| self.graph.ty(it))
    }

    fn get(&self, slot: usize) -> Result<&'a TensorType, InferError> {
        self.optional(slot).ok_or_else(|| format!("operand '{}' is missing", self.name(slot)))
    }

    fn typed(&self, slot: usize, dtype: DType, rank: usize) -> Result<&'a TensorType, InferError> {
        let ty = self.get(slot)?;
        if ty.dtype != dtype || ty.shape.rank() != rank {
            return Err(format!(
                "'{}' must be {} of rank {rank}, found {} of rank {}",
                self.name(slot),
                dtype.name(),
                ty.dtype.name(),
                ty.shape.rank()
            ));
        }
        Ok(ty)
    }

    /// An f32 matrix: its rows and columns.
    fn matrix(&self, slot: usize) -> Result<(Dim, u32), InferError> {
        let ty = self.typed(slot, DType::F32, 2)?;
        Ok((ty.shape.dims()[0], self.const_cols(slot, ty)?))
    }

    /// A matrix of f32 or quantised activations.
    fn activations(&self, slot: usize) -> Result<(Dim, u32), InferError> {
        let ty = self.get(slot)?;
        if (ty.dtype != DType::F32 && ty.dtype.fx().is_none()) || ty.shape.rank() != 2 {
            return Err(format!("'{}' must be an f32 or fx matrix", self.name(slot)));
        }
        Ok((ty.shape.dims()[0], self.const_cols(slot, ty)?))
    }

    /// A weight matrix of any weight dtype: rows and columns.
    fn weight_matrix(&self, slot: usize) -> Result<(u32, u32), InferError> {
        let ty = self.get(slot)?;
        match ty.shape.dims() {
            [Dim::Const(rows), Dim::Const(cols)] if ty.dtype.is_float() || ty.dtype.is_integer_weight() => {
                Ok((*rows, *cols))
            }
            _ => Err(format!("'{}' must be a weight matrix of known shape", self.name(slot))),
        }
    }

    /// The matrix of a linear: as [`Self::weight_matrix`], or vector-quantised.
    fn linear_matrix(&self, slot: usize) -> Result<(u32, u32), InferError> {
        match (self.get(slot)?.dtype.vq(), self.get(slot)?.shape.dims()) {
            (Some(_), [Dim::Const(rows), Dim::Const(cols)]) => Ok((*rows, *cols)),
            _ => self.weight_matrix(slot),
        }
    }

    /// What a region gathers rows of: activations or lookup tables.
    fn gathered(&self, slot: usize) -> Result<(Dim, u32), InferError> {
        let ty = self.get(slot)?;
        if ty.dtype.lut().is_none() || ty.shape.rank() != 2 {
            return self.activations(slot);
        }
        Ok((ty.shape.dims()[0], self.const_cols(slot, ty)?))
    }

    /// An i32 vector: its length.
    fn ids(&self, slot: usize) -> Result<Dim, InferError> {
        Ok(self.typed(slot, DType::I32, 1)?.shape.dims()[0])
    }

    fn const_cols(&self, slot: usize, ty: &TensorType) -> Result<u32, InferError> {
        ty.shape.cols().ok_or_else(|| format!("the last dimension of '{}' must be known", self.name(slot)))
    }

    /// `slot` is absent, or an f32 vector of `n`.
    fn vector(&self, slot: usize, n: u32) -> Result<(), InferError> {
        let Some(ty) = self.optional(slot) else { return Ok(()) };
        if ty.dtype != DType::F32 || ty.shape.dims() != [Dim::Const(n)] {
            return Err(format!("'{}' must be f32[{n}]", self.name(slot)));
        }
        Ok(())
    }

    fn equal<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        found: T,
        expected: T,
    ) -> Result<(), InferError> {
        if found == expected {
            Ok(())
        } else {
            Err(format!("{what}: found {found:?}, expected {expected:?}"))
        }
    }
}

fn f32_matrix(rows: Dim, cols: u32) -> TensorType {
    TensorType::matrix(DType::F32, rows, cols)
}

/// f32, or the quantised form that `quant` asks for.
fn produced(rows: Dim, cols: u32, quant: Option<Math>) -> Result<TensorType, InferError> {
    let dtype = match quant {
        None => DType::F32,
        Some(math) => math.act_dtype().ok_or("'quant' must name a fixed-point arithmetic")?,
    };
    Ok(TensorType::matrix(dtype, rows, cols))
}

/// The types of the results of `op` over `values` in `graph` (`region`: its region, already built).
///
/// # Errors
/// A sentence that names the operand or attribute at fault.
pub fn infer(
    graph: &Graph,
    op: &Op,
    values: &[Option<ValueId>],
    region: Option<RegionId>,
) -> Result<Vec<TensorType>, InferError> {
    let o = Operands { graph, op, values };
    if values.len() != op.operand_names().len() {
        return Err(format!(
            "'{}' takes {} operands, found {}",
            op.name(),
            op.operand_names().len(),
            values.len()
        ));
    }
    if op.has_region() != region.is_some() {
        return Err(format!(
            "'{}' {} a region",
            op.name(),
            if op.has_region() { "needs" } else { "takes no" }
        ));
    }
    let one = |ty: TensorType| Ok(vec![ty]);
    match op {
        Op::Embed {} => {
            let tokens = o.ids(0)?;
            let (_, n) = o.weight_matrix(1)?;
            one(f32_matrix(tokens, n))
        }
        Op::QuantAct { math } => {
            let (rows, n) = o.matrix(0)?;
            one(produced(rows, n, Some(*math))?)
        }
        Op::Linear { .. } => {
            let (rows, k) = o.activations(0)?;
            let (n, wk) = o.linear_matrix(1)?;
            o.equal("columns of 'w'", wk, k)?;
            o.vector(2, n)?;
            if o.optional(3).is_some() {
                o.equal("shape of 'residual'", o.matrix(3)?, (rows, n))?;
            }
            one(f32_matrix(rows, n))
        }
        Op::LinearGlu { quant, .. } => {
            let (rows, k) = o.activations(0)?;
            let (n, wk) = o.weight_matrix(1)?;
            o.equal("columns of 'gate'", wk, k)?;
            o.equal("type of 'up'", o.get(2)?, o.get(1)?)?;
            one(produced(rows, n, *quant)?)
        }
        Op::Add {} | Op::Mul {} | Op::Glu { .. } => {
            let lhs = o.matrix(0)?;
            o.equal("shape of the second operand", o.matrix(1)?, lhs)?;
            one(f32_matrix(lhs.0, lhs.1))
        }
        Op::Unary { .. } => {
            let (rows, n) = o.matrix(0)?;
            one(f32_matrix(rows, n))
        }
        Op::RmsNorm { quant, .. } => {
            let (rows, n) = o.matrix(0)?;
            o.get(1)?;
            o.vector(1, n)?;
            one(produced(rows, n, *quant)?)
        }
        Op::LayerNorm { quant, .. } => {
            let (rows, n) = o.matrix(0)?;
            o.get(1)?;
            o.vector(1, n)?;
            o.vector(2, n)?;
            one(produced(rows, n, *quant)?)
        }
        Op::RopeAngles { dims, .. } => {
            if *dims == 0 || dims % 2 != 0 {
                return Err(format!("'dims' must be even and positive, found {dims}"));
            }
            o.vector(1, dims / 2)?;
            one(f32_matrix(o.ids(0)?, *dims))
        }
        Op::Rope { head_dim, skip, .. } => {
            let (rows, n) = o.matrix(0)?;
            let (angle_rows, dims) = o.matrix(1)?;
            o.equal("rows of 'angles'", angle_rows, rows)?;
            let end = skip.checked_add(dims).filter(|it| it <= head_dim);
            if *head_dim == 0 || n % head_dim != 0 || end.is_none() || dims % 2 != 0 {
                return Err(format!(
                    "{n} columns are no heads of {head_dim} with {dims} rotated from {skip}"
                ));
            }
            one(f32_matrix(rows, n))
        }
        Op::HeadLinear {} => one(hybrid::head_linear(&o)?),
        Op::HeadLinearT {} => one(hybrid::head_linear_t(&o)?),
        Op::Concat {} => one(hybrid::concat(&o)?),
        Op::L2Norm { dim, .. } => one(hybrid::l2_norm(&o, *dim)?),
        Op::GatedRmsNorm { .. } => one(hybrid::gated_rms_norm(&o)?),
        Op::AttnResMix { .. } => one(hybrid::attn_res_mix(&o)?),
        Op::LatentAttention { .. } => one(hybrid::latent_attention(&o)?),
        Op::KdaGate { .. } => one(hybrid::kda_gate(&o)?),
        Op::ShortConv { .. } => hybrid::short_conv(&o),
        Op::KdaStep {} => hybrid::kda_step(&o),
        Op::KvAppend {} => {
            let cache = o.get(0)?;
            let (rows, n) = o.matrix(1)?;
            let [_, _, Dim::Const(heads), Dim::Const(d)] = *cache.shape.dims() else {
                return Err("'cache' must be a state [B, S, heads, d]".into());
            };
            o.equal("columns of 'x'", Some(n), heads.checked_mul(d))?;
            o.equal("length of 'row'", o.ids(2)?, rows)?;
            o.equal("length of 'pos'", o.ids(3)?, rows)?;
            one(cache.clone())
        }
        Op::Attention { .. } => {
            let (rows, n) = o.matrix(0)?;
            o.equal("length of 'row'", o.ids(3)?, rows)?;
            o.equal("length of 'pos'", o.ids(4)?, rows)?;
            let (k, v) = (o.get(1)?.shape.dims(), o.get(2)?.shape.dims());
            let ([kb, ks, Dim::Const(heads), Dim::Const(d)], [vb, vs, v_heads, Dim::Const(dv)]) = (k, v)
            else {
                return Err("'k' and 'v' must be states [B, S, heads, d]".into());
            };
            o.equal("rows, positions and heads of 'v'", (vb, vs, v_heads), (kb, ks, &Dim::Const(*heads)))?;
            if *d == 0 || *heads == 0 || n % d != 0 || n / d % heads != 0 {
                return Err(format!("{n} columns of 'q' are no multiple of {heads} heads of {d}"));
            }
            let cols = (n / d)
                .checked_mul(*dv)
                .ok_or_else(|| format!("{} heads of {dv} are too many columns", n / d))?;
            one(f32_matrix(rows, cols))
        }
        Op::SelectRows {} => {
            let (_, n) = o.matrix(0)?;
            one(f32_matrix(o.ids(1)?, n))
        }
        Op::Slice { start, len } => {
            let (rows, n) = o.matrix(0)?;
            if *len == 0 || start.checked_add(*len).is_none_or(|end| end > n) {
                return Err(format!("columns {start} + {len} leave a row of {n}"));
            }
            one(f32_matrix(rows, *len))
        }
        Op::Reshape { cols } => {
            let (rows, n) = o.matrix(0)?;
            let rows = rows.times(n).and_then(|it| it.divided(*cols));
            let rows = rows.ok_or_else(|| format!("rows of {n} do not fold into rows of {cols}"))?;
            one(f32_matrix(rows, *cols))
        }
        Op::Argmax {} | Op::FiniteCheck {} => one(TensorType::new(DType::I32, &[o.matrix(0)?.0])),
        Op::RouteTopK { k, .. } => {
            let (rows, experts) = o.matrix(0)?;
            o.vector(1, experts)?;
            hybrid::routing(op, experts)?;
            Ok(vec![TensorType::matrix(DType::I32, rows, *k), f32_matrix(rows, *k)])
        }
        Op::ForEachExpert { .. } => {
            let (rows, _) = o.gathered(0)?;
            let ids = o.typed(1, DType::I32, 2)?;
            o.equal("shape of 'weights'", &o.typed(2, DType::F32, 2)?.shape, &ids.shape)?;
            o.equal("rows of 'ids'", ids.shape.dims()[0], rows)?;
            let mut gathered = Vec::new();
            for slot in [0, 3, 4].into_iter().filter(|it| o.optional(*it).is_some()) {
                let (found, cols) = o.gathered(slot)?;
                o.equal(&format!("rows of '{}'", o.name(slot)), found, rows)?;
                gathered.push((o.get(slot)?.dtype, cols));
            }
            one(f32_matrix(rows, region_cols(graph, region, &gathered)?))
        }
        Op::ExpertSort { experts } => experts::sort(&o, *experts),
        Op::ExpertGather {} => one(experts::gather(&o)?),
        Op::ExpertLinear { gather, .. } => one(experts::linear(&o, *gather)?),
        Op::ExpertGlu { gather, quant, .. } => one(experts::glu(&o, *gather, *quant)?),
        Op::ExpertSum {} => one(experts::sum(&o)?),
        Op::ExpertHint {} => experts::hint(&o),
        Op::LutBuild { code, tables } => one(lut::build(&o, LutLayout { code: *code, tables: *tables })?),
        Op::LutApply {} => one(lut::apply(&o)?),
        Op::ExpertLut { gather } => one(lut::expert(&o, *gather)?),
        Op::ExpertVq { code, gather, .. } => one(lut::expert_vq(&o, *code, *gather)?),
        Op::BankSlice {} => {
            let bank = o.get(0)?;
            o.equal("type of 'expert'", o.get(1)?, &TensorType::new(DType::I32, &[Dim::Const(1)]))?;
            let [_, n, k] = *bank.shape.dims() else {
                return Err("'bank' must be a weight [E, n, k]".into());
            };
            one(TensorType::new(bank.dtype, &[n, k]))
        }
    }
}

/// Columns of what an expert region yields, after checking its arguments: the expert, and N rows of each of `gathered`.
fn region_cols(
    graph: &Graph,
    region: Option<RegionId>,
    gathered: &[(DType, u32)],
) -> Result<u32, InferError> {
    let region = &graph.regions[region.ok_or("a region is needed")?];
    let [y] = region.yields[..] else { return Err("the region must yield one value".into()) };
    let Some((expert, args)) = region.args.split_first().filter(|it| it.1.len() == gathered.len()) else {
        return Err(format!("the region must take the expert and {} more", gathered.len()));
    };
    if graph.ty(*expert) != &TensorType::new(DType::I32, &[Dim::Const(1)]) {
        return Err("the region's first argument must be i32[1]".into());
    }
    let (y, first) = (graph.ty(y), graph.ty(args[0]));
    let (Some(n), Some(yn), Some(cols)) = (first.shape.rows(), y.shape.rows(), y.shape.cols()) else {
        return Err("the region must map matrices of N rows to one".into());
    };
    for (i, (arg, (dtype, cols))) in args.iter().zip(gathered).enumerate() {
        let expected = TensorType::matrix(*dtype, n, *cols);
        if graph.ty(*arg) != &expected {
            return Err(format!("argument {} of the region must be {}[N, {cols}]", i + 1, dtype.name()));
        }
    }
    if yn != n || y.dtype != DType::F32 {
        return Err("the region must yield f32[N, h']".into());
    }
    Ok(cols)
}
