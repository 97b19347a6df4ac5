//! Stored bytes to weights.

use waste_plan::DType;

use crate::graph::{Module, SourceId, WeightId, WeightInit};
use crate::types::TensorType;

/// Where an evaluator gets its weights: row-major elements in the declared shape, or a sentence why not.
pub type WeightSource<'a> = dyn Fn(WeightId) -> Result<Vec<f64>, String> + 'a;

/// Reads bytes of a source: (source, first byte, bytes).
pub type ReadBytes<'a> = dyn Fn(SourceId, u64, u64) -> Result<Vec<u8>, String> + 'a;

/// A weight of a verified module from the bytes of its sources: decoded, transposed, concatenated.
///
/// # Errors
/// What `read` says, or that it gave too few bytes.
pub fn decode_weight(module: &Module, id: WeightId, read: &ReadBytes<'_>) -> Result<Vec<f64>, String> {
    let decl = &module.weights[id];
    match &decl.init {
        WeightInit::Stored { source, offset, stored } => {
            elements(module, &decl.ty, (*source, *offset, *stored), read)
        }
        WeightInit::Transposed { source, offset, stored } => {
            let file = elements(module, &decl.ty, (*source, *offset, *stored), read)?;
            let n = decl.ty.shape.dims().first().and_then(|it| it.known()).ok_or("no rows")? as usize;
            Ok((0..n).flat_map(|row| file[row..].iter().step_by(n).copied()).collect())
        }
        WeightInit::Bank { stored, parts } => {
            let matrix = TensorType::new(decl.ty.dtype, decl.ty.shape.dims().get(1..).ok_or("no bank")?);
            let mut all = Vec::new();
            for (source, offset) in parts {
                all.extend(elements(module, &matrix, (*source, *offset, *stored), read)?);
            }
            Ok(all)
        }
        WeightInit::Concat(parts) => {
            let mut all = Vec::new();
            for part in parts {
                all.extend(decode_weight(module, *part, read)?);
            }
            Ok(all)
        }
    }
}

/// The elements of a weight in the order of its file.
fn elements(
    module: &Module,
    ty: &TensorType,
    (source, offset, stored): (SourceId, u64, DType),
    read: &ReadBytes<'_>,
) -> Result<Vec<f64>, String> {
    let too_large = || format!("{} is too large to decode", ty.display(&module.syms));
    let n = ty.shape.dims().iter().try_fold(1u64, |n, dim| n.checked_mul(dim.upper(&module.syms)));
    let bytes = n.and_then(|it| stored.row_bytes(it)).ok_or_else(too_large)?;
    let bytes = read(source, offset, bytes)?;
    let mut decoded = vec![0.0f32; n.and_then(|it| usize::try_from(it).ok()).ok_or_else(too_large)?];
    let expected = stored.row_bytes(decoded.len() as u64);
    if expected != Some(bytes.len() as u64) {
        return Err(format!("found {} bytes, expected {}", bytes.len(), expected.unwrap_or(0)));
    }
    stored.decode(&bytes, &mut decoded);
    Ok(decoded.into_iter().map(f64::from).collect())
}
