//! Result types of the ops that hybrid models bring: heads with matrices of their own, delta and latent attention, mixing.

use waste_plan::DType;

use super::{InferError, Operands, f32_matrix};
use crate::ops::Op;
use crate::types::{Dim, TensorType};

type One = Result<TensorType, InferError>;
/// y and the next version of a state.
type Stepped = Result<Vec<TensorType>, InferError>;

/// A bank of matrices: how many, and their rows and columns.
pub(super) fn bank(o: &Operands<'_>, slot: usize) -> Result<[u32; 3], InferError> {
    let ty = o.get(slot)?;
    match *ty.shape.dims() {
        [Dim::Const(e), Dim::Const(n), Dim::Const(k)]
            if ty.dtype.is_float() || ty.dtype.is_integer_weight() =>
        {
            Ok([e, n, k])
        }
        _ => Err(format!("'{}' must be a weight [E, n, k] of known shape", o.name(slot))),
    }
}

/// Rows that are `heads` for each of some tokens.
fn whole_heads(rows: Dim, heads: u32) -> Result<(), InferError> {
    match rows.divided(heads) {
        Some(_) => Ok(()),
        None => Err(format!("{rows:?} rows are no whole tokens of {heads} heads")),
    }
}

pub(super) fn head_linear(o: &Operands<'_>) -> One {
    let (rows, k) = o.activations(0)?;
    let [heads, n, bank_k] = bank(o, 1)?;
    o.equal("columns of 'bank'", bank_k, k)?;
    whole_heads(rows, heads)?;
    Ok(f32_matrix(rows, n))
}

pub(super) fn head_linear_t(o: &Operands<'_>) -> One {
    let (rows, n) = o.matrix(0)?;
    let [heads, bank_n, k] = bank(o, 1)?;
    o.equal("rows of 'bank'", bank_n, n)?;
    whole_heads(rows, heads)?;
    Ok(f32_matrix(rows, k))
}

pub(super) fn concat(o: &Operands<'_>) -> One {
    let ((rows, a), (rhs_rows, b)) = (o.matrix(0)?, o.matrix(1)?);
    o.equal("rows of 'rhs'", rhs_rows, rows)?;
    let cols = a.checked_add(b).ok_or_else(|| format!("{a} + {b} are too many columns"))?;
    Ok(f32_matrix(rows, cols))
}

/// The type of operand 0 for an op over groups of `group` columns.
fn grouped(o: &Operands<'_>, group: u32) -> One {
    let (rows, n) = o.matrix(0)?;
    if group == 0 || n % group != 0 {
        return Err(format!("{n} columns are no whole groups of {group}"));
    }
    Ok(f32_matrix(rows, n))
}

pub(super) fn l2_norm(o: &Operands<'_>, dim: u32) -> One {
    grouped(o, dim)
}

pub(super) fn gated_rms_norm(o: &Operands<'_>) -> One {
    o.equal("shape of 'gate'", o.matrix(1)?, o.matrix(0)?)?;
    let Some(d) = o.typed(2, DType::F32, 1)?.shape.cols() else {
        return Err("'w' must be of known length".to_owned());
    };
    grouped(o, d)
}

pub(super) fn attn_res_mix(o: &Operands<'_>) -> One {
    let (rows, h) = o.matrix(0)?;
    for slot in [1, 2] {
        o.get(slot)?;
        o.vector(slot, h)?;
    }
    if o.optional(3).is_some() {
        let (block_rows, n) = o.matrix(3)?;
        o.equal("rows of 'blocks'", block_rows, rows)?;
        if h == 0 || n % h != 0 {
            return Err(format!("{n} columns of 'blocks' are no whole blocks of {h}"));
        }
    }
    Ok(f32_matrix(rows, h))
}

/// `row` and `pos` in slots `slot` and `slot + 1` have one entry a token.
fn places(o: &Operands<'_>, slot: usize, tokens: Dim) -> Result<(), InferError> {
    o.equal("length of 'row'", o.ids(slot)?, tokens)?;
    o.equal("length of 'pos'", o.ids(slot + 1)?, tokens)
}

pub(super) fn latent_attention(o: &Operands<'_>) -> One {
    let (rows, latents) = o.matrix(0)?;
    let tokens = o.ids(2)?;
    places(o, 2, tokens)?;
    let heads = match (rows, tokens) {
        (Dim::Const(rows), Dim::Const(tokens)) => rows.is_multiple_of(tokens),
        (Dim::Scaled { sym, mul }, Dim::Scaled { sym: tokens, mul: each }) => {
            sym == tokens && mul.is_multiple_of(each)
        }
        _ => false,
    };
    if !heads {
        return Err(format!("{rows:?} rows of 'q' are no whole heads of {tokens:?} tokens"));
    }
    let rotated = if o.optional(4).is_some() {
        let (rope_rows, r) = o.matrix(4)?;
        o.equal("rows of 'q_rope'", rope_rows, rows)?;
        r
    } else {
        0
    };
    let [_, _, Dim::Const(1), Dim::Const(width)] = *o.get(1)?.shape.dims() else {
        return Err("'cache' must be a state [B, S, 1, kl + r]".to_owned());
    };
    o.equal("width of 'cache'", Some(width), latents.checked_add(rotated))?;
    Ok(f32_matrix(rows, latents))
}

pub(super) fn kda_gate(o: &Operands<'_>) -> One {
    let (rows, n) = o.matrix(0)?;
    let heads = o.typed(1, DType::F32, 1)?.shape.cols();
    o.get(2)?;
    o.vector(2, n)?;
    match heads {
        Some(heads) if heads != 0 && n % heads == 0 => Ok(f32_matrix(rows, n)),
        _ => Err(format!("{n} columns of 'z' are no whole heads by 'a_log'")),
    }
}

pub(super) fn short_conv(o: &Operands<'_>) -> Stepped {
    let ring = o.get(0)?;
    let (rows, channels) = o.matrix(1)?;
    let taps = match *o.typed(2, DType::F32, 2)?.shape.dims() {
        [Dim::Const(c), Dim::Const(taps)] if c == channels && taps >= 2 => taps,
        _ => return Err(format!("'w' must be f32[{channels}, K] with at least 2 taps")),
    };
    places(o, 3, rows)?;
    let kept = [Dim::Const(1), Dim::Const(taps - 1), Dim::Const(channels)];
    if ring.dtype != DType::F32 || ring.shape.dims().get(1..) != Some(&kept) {
        return Err(format!("'ring' must be a state f32[B, 1, {}, {channels}]", taps - 1));
    }
    Ok(vec![f32_matrix(rows, channels), ring.clone()])
}

pub(super) fn kda_step(o: &Operands<'_>) -> Stepped {
    let state = o.get(0)?;
    let (DType::F32, [_, Dim::Const(heads), Dim::Const(dk), Dim::Const(dv)]) =
        (state.dtype, state.shape.dims())
    else {
        return Err("'s' must be a state f32[B, H, Dk, Dv]".to_owned());
    };
    let (rows, _) = o.matrix(1)?;
    let (keys, values) = (heads.checked_mul(*dk), heads.checked_mul(*dv));
    for (slot, cols) in [(1, keys), (2, keys), (3, values), (4, keys), (5, Some(*heads))] {
        let (found_rows, found) = o.matrix(slot)?;
        o.equal(&format!("rows of '{}'", o.name(slot)), found_rows, rows)?;
        o.equal(&format!("columns of '{}'", o.name(slot)), Some(found), cols)?;
    }
    places(o, 6, rows)?;
    let cols = values.ok_or_else(|| format!("{heads} heads of {dv} are too many columns"))?;
    Ok(vec![f32_matrix(rows, cols), state.clone()])
}

/// Checks the groups of `route_top_k` over `experts`; k is at most what the kept groups hold.
pub(super) fn routing(op: &Op, experts: u32) -> Result<(), InferError> {
    let Op::RouteTopK { k, groups, keep, .. } = *op else { return Ok(()) };
    if !experts.is_multiple_of(groups) || keep == 0 || keep > groups {
        return Err(format!("'keep' = {keep} of 'groups' = {groups} over {experts} experts"));
    }
    let candidates = experts / groups * keep;
    if k == 0 || k > candidates {
        return Err(format!("'k' = {k} of {candidates} experts"));
    }
    Ok(())
}
