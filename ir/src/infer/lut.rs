//! Result types of the ops that multiply vector-quantised matrices by lookup tables.

use waste_plan::vq::VEC_DIM;
use waste_plan::{DType, LutLayout, VqCode};

use super::experts::sorted_rows;
use super::{InferError, Operands, f32_matrix};
use crate::types::{Dim, TensorType};

type One = Result<TensorType, InferError>;

pub(super) fn build(o: &Operands<'_>, layout: LutLayout) -> One {
    let (rows, k) = positions(o)?;
    books(o, 1, layout.code)?;
    Ok(TensorType::matrix(DType::Lut(layout.code, layout.tables), rows, k))
}

/// Rows and columns of operand 0, whole positions.
fn positions(o: &Operands<'_>) -> Result<(Dim, u32), InferError> {
    let (rows, k) = o.matrix(0)?;
    if !k.is_multiple_of(VEC_DIM as u32) {
        return Err(format!("{k} columns of 'x' are no whole positions of {VEC_DIM}"));
    }
    Ok((rows, k))
}

/// Demands that operand `slot` holds the codebooks of `code`.
fn books(o: &Operands<'_>, slot: usize, code: VqCode) -> Result<(), InferError> {
    let expected = books_type(code);
    if *o.get(slot)? != expected {
        let dims = expected.shape;
        return Err(format!("'books' of {} must be f32{:?}", code.name(), dims.dims()));
    }
    Ok(())
}

/// `f32[stages, entries, 8]`.
pub(crate) fn books_type(code: VqCode) -> TensorType {
    let dims = [code.stages(), code.entries(), VEC_DIM].map(|it| u32::try_from(it).expect("a few hundred"));
    TensorType::new(DType::F32, &dims.map(Dim::Const))
}

/// Rows, inputs and code of the tables in operand 0.
fn tables(o: &Operands<'_>) -> Result<(Dim, u32, VqCode), InferError> {
    let ty = o.get(0)?;
    match (ty.dtype.lut(), ty.shape.dims()) {
        (Some(layout), [rows, Dim::Const(k)]) => Ok((*rows, *k, layout.code)),
        _ => Err(format!("'lut' must be lookup tables [m, k], found {}", ty.dtype.name())),
    }
}

/// Demands that operand 1 is vector-quantised in `code` with rows of `k`.
fn coded(o: &Operands<'_>, (code, k): (VqCode, u32), found_k: u32) -> Result<(), InferError> {
    let found = o.get(1)?.dtype;
    if found.vq() != Some(code) {
        let (found, name) = (found.name(), o.name(1));
        return Err(format!("tables of {} do not multiply '{name}' of {found}", code.name()));
    }
    o.equal(&format!("columns of '{}'", o.name(1)), found_k, k)
}

pub(super) fn apply(o: &Operands<'_>) -> One {
    let (rows, k, code) = tables(o)?;
    let [Dim::Const(n), Dim::Const(w_k)] = *o.get(1)?.shape.dims() else {
        return Err("'w' must be a matrix of known shape".to_owned());
    };
    coded(o, (code, k), w_k)?;
    Ok(f32_matrix(rows, n))
}

pub(super) fn expert(o: &Operands<'_>, gather: bool) -> One {
    let (rows, k, code) = tables(o)?;
    let (experts, n, bank_k) = bank(o)?;
    coded(o, (code, k), bank_k)?;
    Ok(f32_matrix(sorted_rows(o, gather, (rows, experts), (2, 3))?, n))
}

pub(super) fn expert_vq(o: &Operands<'_>, code: VqCode, gather: bool) -> One {
    let (rows, k) = positions(o)?;
    let (experts, n, bank_k) = bank(o)?;
    coded(o, (code, k), bank_k)?;
    books(o, 4, code)?;
    Ok(f32_matrix(sorted_rows(o, gather, (rows, experts), (2, 3))?, n))
}

/// Matrices of the bank in operand 1, and the rows and columns of each.
fn bank(o: &Operands<'_>) -> Result<(u32, u32, u32), InferError> {
    match *o.get(1)?.shape.dims() {
        [Dim::Const(experts), Dim::Const(n), Dim::Const(k)] => Ok((experts, n, k)),
        _ => Err("'bank' must be a weight [E, n, k] of known shape".to_owned()),
    }
}
