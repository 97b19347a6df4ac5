//! Stored bytes to weights.

use waste_plan::{DType, LowRank, VqCode, vq};

use crate::graph::{Module, SourceId, Steps, WeightDecl, WeightId, WeightInit};
use crate::types::{Dim, TensorType};

/// Where an evaluator gets its weights: row-major elements in the declared shape, or a sentence why not.
pub type WeightSource<'a> = dyn Fn(WeightId) -> Result<Vec<f64>, String> + 'a;

/// Where an evaluator gets one matrix of a bank: row-major elements of `[n, k]`, or a sentence why not.
pub type MatrixSource<'a> = dyn Fn(WeightId, u32) -> Result<Vec<f64>, String> + 'a;

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
        WeightInit::Concat(parts) => {
            let mut all = Vec::new();
            for part in parts {
                let part = decode_weight(module, *part, read)?;
                all.reserve_exact(part.len());
                all.extend(part);
            }
            Ok(all)
        }
        WeightInit::Merged { base, terms } => {
            let mut sums = decode_weight(module, *base, read)?;
            for term in terms {
                add_term(module, &decl.ty, term, &mut sums, read)?;
            }
            // Rounded once: the weight is f32.
            Ok(sums.into_iter().map(|it| f64::from(it as f32)).collect())
        }
        WeightInit::Bank { .. } | WeightInit::Grouped { .. } | WeightInit::Records { .. } => {
            let (count, _, _) = extent(decl)?;
            let mut all = Vec::new();
            for e in 0..count {
                all.extend(decode_matrix(module, id, e, read)?);
            }
            Ok(all)
        }
    }
}

/// Matrix `e` of a bank `[E, n, k]` of a verified module, `[n, k]`, from the bytes of its sources.
///
/// # Errors
/// What `read` says, that it gave too few bytes, or that there is no such matrix.
pub fn decode_matrix(
    module: &Module,
    id: WeightId,
    e: u32,
    read: &ReadBytes<'_>,
) -> Result<Vec<f64>, String> {
    let decl = &module.weights[id];
    let (count, rows, cols) = extent(decl)?;
    if e >= count {
        return Err(format!("matrix {e} of {count}"));
    }
    match &decl.init {
        WeightInit::Bank { stored, parts } => {
            let matrix = TensorType::new(decl.ty.dtype, decl.ty.shape.dims().get(1..).ok_or("no bank")?);
            let (source, offset) = parts.get(e as usize).ok_or("no such part")?;
            elements(module, &matrix, (*source, *offset, *stored), read)
        }
        WeightInit::Grouped { source, stored, codes, scales } => {
            let at = |it: Steps| it.at(u64::from(e)).ok_or("a place beyond 64 bits");
            grouped(*stored, (rows, cols), (at(*codes)?, at(*scales)?), &|at, len| read(*source, at, len))
        }
        WeightInit::Records { source, first, stride, indices, scales } => {
            let code = decl.ty.dtype.vq().ok_or("no code")?;
            let books = decode_weight(module, decl.books.ok_or("no codebooks")?, read)?;
            let record = Steps { first: *first, step: *stride }.at(u64::from(e)).ok_or("no such record")?;
            let read = |at: u64, len: u64| read(*source, record + at, len);
            coded(code, &books, (rows, cols), (*indices, *scales), &read)
        }
        WeightInit::Stored { .. }
        | WeightInit::Transposed { .. }
        | WeightInit::Concat(_)
        | WeightInit::Merged { .. } => {
            let size = (rows * cols) as usize;
            let all = decode_weight(module, id, read)?;
            Ok(all.chunks_exact(size).nth(e as usize).ok_or("no such matrix")?.to_vec())
        }
    }
}

/// Adds scale · B·A to the elements of an `[n, k]`: B is `[n, rank]`, A `[rank, k]`.
fn add_term(
    module: &Module,
    ty: &TensorType,
    term: &LowRank<SourceId>,
    sums: &mut [f64],
    read: &ReadBytes<'_>,
) -> Result<(), String> {
    let [n, k] = *ty.shape.dims() else { return Err("low-rank terms are added to matrices".to_owned()) };
    let rank = Dim::Const(term.rank);
    let matrix = |at: u64, dims: [Dim; 2]| {
        elements(module, &TensorType::new(DType::F32, &dims), (term.source, at, term.stored), read)
    };
    let (a, b) = (matrix(term.a, [rank, k])?, matrix(term.b, [n, rank])?);
    let (rank, k) = (term.rank as usize, k.known().ok_or("no columns")? as usize);
    for (i, sum) in sums.iter_mut().enumerate() {
        let product: f64 = (0..rank).map(|j| b[i / k * rank + j] * a[j * k + i % k]).sum();
        *sum += term.scale * product;
    }
    Ok(())
}

/// Matrices, rows and columns of a weight.
fn extent(decl: &WeightDecl) -> Result<(u32, u64, u64), String> {
    let dims: Option<Vec<u32>> = decl.ty.shape.dims().iter().map(|it| it.known()).collect();
    match dims.as_deref() {
        Some([n, k]) => Ok((1, u64::from(*n), u64::from(*k))),
        Some([e, n, k]) => Ok((*e, u64::from(*n), u64::from(*k))),
        _ => Err("no matrix of known shape".to_owned()),
    }
}

/// Reads bytes of one source, or of one record of it.
type Read<'a> = dyn Fn(u64, u64) -> Result<Vec<u8>, String> + 'a;

/// As many bytes as were asked for.
fn read_all(read: &Read<'_>, at: u64, len: Option<u64>) -> Result<Vec<u8>, String> {
    let len = len.ok_or("a size beyond 64 bits")?;
    let bytes = read(at, len)?;
    if bytes.len() as u64 == len {
        return Ok(bytes);
    }
    Err(format!("found {} bytes, expected {len}", bytes.len()))
}

/// A matrix whose codes and scales lie at two places.
fn grouped(
    stored: DType,
    (rows, cols): (u64, u64),
    (codes, scales): (u64, u64),
    read: &Read<'_>,
) -> Result<Vec<f64>, String> {
    let layout = stored.grouped().ok_or_else(|| format!("{} is no grouped dtype", stored.name()))?;
    let row_bytes = layout.row_bytes(cols).ok_or("a row beyond 64 bits")?;
    let codes = read_all(read, codes, row_bytes.checked_mul(rows))?;
    let scales = read_all(read, scales, layout.scale_bytes(cols).checked_mul(rows))?;
    // As long as their bytes, which were there, make it.
    let mut all = Vec::with_capacity((rows * cols) as usize);
    let mut row = vec![0.0; cols as usize];
    let rows =
        codes.chunks_exact(row_bytes as usize).zip(scales.chunks_exact(layout.scale_bytes(cols) as usize));
    for (codes, scales) in rows {
        layout.decode_row(codes, scales, &mut row);
        all.extend(row.iter().copied().map(f64::from));
    }
    Ok(all)
}

/// A vector-quantised matrix whose indices and scales lie at two places.
fn coded(
    code: VqCode,
    books: &[f64],
    (rows, cols): (u64, u64),
    (indices, scales): (u64, u64),
    read: &Read<'_>,
) -> Result<Vec<f64>, String> {
    let indices = read_all(read, indices, code.index_bytes(rows, cols))?;
    let scales = read_all(read, scales, rows.checked_mul(2))?;
    #[expect(clippy::cast_possible_truncation, reason = "declared f32: the decode gave these")]
    let books: Vec<f32> = books.iter().map(|it| *it as f32).collect();
    let k = cols as usize;
    let mut all = vec![0.0; rows as usize * k];
    let mut row_scales = vec![0.0; rows as usize];
    DType::F16.decode(&scales, &mut row_scales);
    for ((row, out), scale) in all.chunks_exact_mut(k).enumerate().zip(row_scales) {
        vq::decode_row(code, &indices, &books, scale, row, k, out);
    }
    Ok(all)
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
    let n = n.ok_or_else(too_large)?;
    let mut decoded = vec![0.0f32; usize::try_from(n).map_err(|_| too_large())?];
    let bytes = read_all(&|at, len| read(source, at, len), offset, stored.row_bytes(n))?;
    stored.decode(&bytes, &mut decoded);
    Ok(decoded.into_iter().map(f64::from).collect())
}
