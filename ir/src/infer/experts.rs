//! Result types of the ops that an expert region is flattened into: pairs of tokens and experts.

use waste_plan::{DType, Math};

use super::hybrid::bank;
use super::{InferError, Operands, f32_matrix, produced};
use crate::types::{Dim, TensorType};

type One = Result<TensorType, InferError>;

fn i32s(dim: Dim) -> TensorType {
    TensorType::new(DType::I32, &[dim])
}

pub(super) fn sort(o: &Operands<'_>, experts: u32) -> Result<Vec<TensorType>, InferError> {
    let ids = o.typed(0, DType::I32, 2)?;
    let [rows, Dim::Const(k)] = *ids.shape.dims() else { return Err("'ids' must be i32[T, k]".into()) };
    let pairs = rows.times(k).ok_or("too many pairs")?;
    let groups = experts.checked_add(1).and_then(|it| it.checked_mul(2)).ok_or("too many experts")?;
    Ok(vec![i32s(pairs), i32s(Dim::Const(groups)), i32s(pairs)])
}

/// Rows of pairs, a whole number for each of `tokens`.
fn pairs(o: &Operands<'_>, slot: usize, tokens: Dim) -> Result<Dim, InferError> {
    let found = o.ids(slot)?;
    let whole = match (found, tokens) {
        (Dim::Const(pairs), Dim::Const(tokens)) => tokens > 0 && pairs.is_multiple_of(tokens),
        (Dim::Scaled { sym, mul }, Dim::Scaled { sym: of, mul: each }) => {
            sym == of && mul.is_multiple_of(each)
        }
        _ => false,
    };
    if whole { Ok(found) } else { Err(format!("{found:?} pairs of {tokens:?} tokens")) }
}

pub(super) fn gather(o: &Operands<'_>) -> One {
    let (rows, n) = o.matrix(0)?;
    Ok(f32_matrix(pairs(o, 1, rows)?, n))
}

/// Rows of pairs for the linear of x over the banks in `banks`, and rows of one of their matrices.
fn product(
    o: &Operands<'_>,
    gather: bool,
    banks: &[usize],
    (order, groups): (usize, usize),
) -> Result<(Dim, u32), InferError> {
    let (rows, k) = o.activations(0)?;
    let [experts, n, bank_k] = bank(o, banks[0])?;
    o.equal("columns of the bank", bank_k, k)?;
    for other in &banks[1..] {
        o.equal("type of 'up'", o.get(*other)?, o.get(banks[0])?)?;
    }
    Ok((sorted_rows(o, gather, (rows, experts), (order, groups))?, n))
}

/// Rows of pairs in the slots `order` and `groups` of `experts` experts; operand 0 has `rows`.
pub(super) fn sorted_rows(
    o: &Operands<'_>,
    gather: bool,
    (rows, experts): (Dim, u32),
    (order, groups): (usize, usize),
) -> Result<Dim, InferError> {
    let expected = experts.checked_add(1).and_then(|it| it.checked_mul(2));
    o.equal("length of 'groups'", o.ids(groups)?.known(), expected)?;
    if gather {
        return pairs(o, order, rows);
    }
    let found = o.ids(order)?;
    o.equal(&format!("rows of '{}'", o.name(0)), rows, found)?;
    Ok(found)
}

pub(super) fn linear(o: &Operands<'_>, gather: bool) -> One {
    let (rows, n) = product(o, gather, &[1], (2, 3))?;
    Ok(f32_matrix(rows, n))
}

pub(super) fn glu(o: &Operands<'_>, gather: bool, quant: Option<Math>) -> One {
    let (rows, n) = product(o, gather, &[1, 2], (3, 4))?;
    produced(rows, n, quant)
}

pub(super) fn sum(o: &Operands<'_>) -> One {
    let ((rows, n), (tokens, k)) = (o.matrix(0)?, o.matrix(1)?);
    o.equal("rows of 'x'", Some(rows), tokens.times(k))?;
    o.equal("length of 'order'", o.ids(2)?, rows)?;
    o.equal("length of 'slots'", o.ids(3)?, rows)?;
    Ok(f32_matrix(tokens, n))
}

/// No result: `ids` of tokens, and a bank.
pub(super) fn hint(o: &Operands<'_>) -> Result<Vec<TensorType>, InferError> {
    o.typed(0, DType::I32, 2)?;
    match o.get(1)?.shape.rank() {
        3 => Ok(Vec::new()),
        rank => Err(format!("'bank' must be a weight [E, n, k], found rank {rank}")),
    }
}
