//! Rules 3 to 7: weights.

use waste_plan::ids::SecondaryMap;
use waste_plan::vq::VEC_DIM;
use waste_plan::{DType, LowRank};

use super::Errors;
use crate::graph::{Def, Module, SourceId, Steps, WeightDecl, WeightId, WeightInit};
use crate::infer::books_type;
use crate::text::MAX_BANK;
use crate::types::{Dim, TensorType};

/// Rules 3 to 6.
pub(super) fn declarations(errors: &mut Errors<'_>) {
    let module = errors.module;
    for (id, weight) in module.weights.iter() {
        if let Err(message) = type_rule(module, &weight.ty) {
            errors.weight(id, 3, message);
        } else if let Err((rule, message)) = init_rule(module, id, weight) {
            errors.weight(id, rule, message);
        } else if let Err(message) = books_rule(module, id, weight) {
            errors.weight(id, 6, message);
        }
    }
}

/// The dimensions of a type without symbols.
fn sizes(ty: &TensorType) -> Option<Vec<u32>> {
    ty.shape.dims().iter().map(|it| it.known()).collect()
}

fn type_rule(module: &Module, ty: &TensorType) -> Result<(), String> {
    let sizes = sizes(ty).ok_or("the dimensions of a weight must be known")?;
    if sizes.is_empty() || sizes.contains(&0) {
        return Err("a weight has at least one dimension, and none of 0".to_owned());
    }
    if !ty.dtype.is_float() && !ty.dtype.is_integer_weight() && ty.dtype.vq().is_none() {
        return Err(format!("{} holds no weights", ty.dtype.name()));
    }
    match module.upper_bytes(ty) {
        Some(_) => Ok(()),
        None => {
            let block = ty.dtype.block().map_or(VEC_DIM as u32, |it| it.elems);
            Err(format!("rows must be whole blocks of {block}, and the bytes fit 64 bits"))
        }
    }
}

fn init_rule(module: &Module, id: WeightId, weight: &WeightDecl) -> Result<(), (u16, String)> {
    match &weight.init {
        WeightInit::Stored { source, offset, stored } => {
            inside(module, *source, *offset, *stored, &weight.ty)?;
            stored_rule(*stored, weight.ty.dtype)
        }
        WeightInit::Transposed { source, offset, stored } => {
            let [n, k] = *weight.ty.shape.dims() else {
                return Err((4, "only a matrix can be transposed".to_owned()));
            };
            if !stored.is_float() {
                return Err((4, format!("{} is no float and cannot be transposed", stored.name())));
            }
            inside(module, *source, *offset, *stored, &TensorType::new(weight.ty.dtype, &[k, n]))?;
            stored_rule(*stored, weight.ty.dtype)
        }
        WeightInit::Concat(parts) => concat_rule(module, id, parts, &weight.ty).map_err(|it| (6, it)),
        WeightInit::Bank { stored, parts } => {
            let [e, n, k] = *weight.ty.shape.dims() else {
                return Err((6, "a bank is [E, n, k]".to_owned()));
            };
            if Some(parts.len() as u64) != e.known().map(u64::from) || parts.len() > MAX_BANK {
                return Err((6, format!("the bank has {} parts of at most {MAX_BANK}", parts.len())));
            }
            let matrix = TensorType::new(weight.ty.dtype, &[n, k]);
            for (source, offset) in parts {
                inside(module, *source, *offset, *stored, &matrix)?;
            }
            stored_rule(*stored, weight.ty.dtype)
        }
        WeightInit::Merged { base, terms } => merged_rule(module, id, (*base, terms), &weight.ty),
        WeightInit::Grouped { source, stored, codes, scales } => {
            grouped_rule(module, *source, *stored, [*codes, *scales], &weight.ty)
        }
        WeightInit::Records { source, first, stride, indices, scales } => {
            let places = [*first, *stride, *indices, *scales];
            records_rule(module, *source, places, &weight.ty)
        }
    }
}

/// Rules 4 and 5 for a matrix or a bank in groups.
fn grouped_rule(
    module: &Module,
    source: SourceId,
    stored: DType,
    [codes, scales]: [Steps; 2],
    ty: &TensorType,
) -> Result<(), (u16, String)> {
    let layout = stored.grouped().ok_or_else(|| (5, format!("{} is no grouped dtype", stored.name())))?;
    if stored != ty.dtype && ty.dtype != DType::F32 {
        return Err((5, format!("{} is stored where {} is declared", stored.name(), ty.dtype.name())));
    }
    let (count, rows, cols) = match sizes(ty).as_deref() {
        Some([n, k]) => (1, u64::from(*n), u64::from(*k)),
        Some([e, n, k]) => (u64::from(*e), u64::from(*n), u64::from(*k)),
        _ => return Err((5, "a grouped weight is a matrix or a bank of them".to_owned())),
    };
    let lengths = [layout.row_bytes(cols), Some(layout.scale_bytes(cols))];
    for (steps, row) in [codes, scales].into_iter().zip(lengths) {
        let end = row.and_then(|it| it.checked_mul(rows)?.checked_add(steps.at(count - 1)?));
        ends_inside(module, source, end)?;
    }
    Ok(())
}

/// Rules 4 and 5 for a bank in records.
fn records_rule(
    module: &Module,
    source: SourceId,
    [first, stride, indices, scales]: [u64; 4],
    ty: &TensorType,
) -> Result<(), (u16, String)> {
    let (Some(code), [Dim::Const(e), Dim::Const(n), Dim::Const(k)]) = (ty.dtype.vq(), ty.shape.dims()) else {
        return Err((5, "records hold vector-quantised banks [E, n, k]".to_owned()));
    };
    let (e, n, k) = (u64::from(*e), u64::from(*n), u64::from(*k));
    for (what, at, len) in [("indices", indices, code.index_bytes(n, k)), ("scales", scales, Some(2 * n))] {
        if len.and_then(|it| it.checked_add(at)).is_none_or(|end| end > stride) {
            return Err((5, format!("the {what} of a matrix leave its record of {stride} bytes")));
        }
    }
    ends_inside(module, source, e.checked_mul(stride).and_then(|it| it.checked_add(first)))
}

/// Rule 6 for codebooks.
fn books_rule(module: &Module, id: WeightId, weight: &WeightDecl) -> Result<(), String> {
    let (Some(code), Some(books)) = (weight.ty.dtype.vq(), weight.books) else {
        return match (weight.ty.dtype.vq(), weight.books) {
            (None, None) => Ok(()),
            (Some(_), _) => Err("a vector-quantised weight needs 'books'".to_owned()),
            (None, Some(_)) => Err(format!("{} has no 'books'", weight.ty.dtype.name())),
        };
    };
    let decl = module.weights.get(books).filter(|_| books < id);
    let decl = decl.ok_or_else(|| format!("the books {books} are not declared before"))?;
    let expected = books_type(code);
    if decl.ty == expected {
        return Ok(());
    }
    let (found, expected) = (decl.ty.display(&module.syms), expected.display(&module.syms));
    Err(format!("the books {:?} are {found}, expected {expected}", decl.name))
}

/// Rule 4: the bytes of a weight of `ty`'s shape lie inside the source.
fn inside(
    module: &Module,
    source: SourceId,
    offset: u64,
    stored: DType,
    ty: &TensorType,
) -> Result<(), (u16, String)> {
    if stored.block().is_none() {
        return Err((5, format!("rows of {} lie in pieces", stored.name())));
    }
    let stored_ty = TensorType { dtype: stored, shape: ty.shape.clone() };
    ends_inside(module, source, module.upper_bytes(&stored_ty).and_then(|it| it.checked_add(offset)))
}

/// Rule 4: `end`, `None` if beyond 64 bits, is not past that of the source.
fn ends_inside(module: &Module, source: SourceId, end: Option<u64>) -> Result<(), (u16, String)> {
    let decl = module.sources.get(source).ok_or_else(|| (4, format!("there is no source {source}")))?;
    match end {
        Some(end) if end <= decl.bytes => Ok(()),
        Some(end) => Err((4, format!("byte {end} is past the end of {source}, which has {}", decl.bytes))),
        None => Err((4, "its bytes do not fit 64 bits".to_owned())),
    }
}

/// Rule 5.
fn stored_rule(stored: DType, declared: DType) -> Result<(), (u16, String)> {
    let widened = declared == DType::F32 && matches!(stored, DType::F16 | DType::BF16);
    if stored == declared || widened {
        return Ok(());
    }
    Err((5, format!("{} is stored where {} is declared", stored.name(), declared.name())))
}

/// Rule 6.
fn concat_rule(module: &Module, id: WeightId, parts: &[WeightId], ty: &TensorType) -> Result<(), String> {
    let mut rows = 0u64;
    for &part in parts {
        let decl = module.weights.get(part).filter(|_| part < id);
        let decl = decl.ok_or_else(|| format!("{part} is not declared before"))?;
        let (part_dims, dims) = (decl.ty.shape.dims(), ty.shape.dims());
        if decl.ty.dtype != ty.dtype || part_dims.get(1..) != dims.get(1..) {
            let found = decl.ty.display(&module.syms);
            return Err(format!("part {:?} is {found}", decl.name));
        }
        let Some(Dim::Const(n)) = part_dims.first() else { return Err("a part has no rows".to_owned()) };
        rows += u64::from(*n);
    }
    match ty.shape.dims().first() {
        Some(Dim::Const(n)) if u64::from(*n) == rows => Ok(()),
        _ => Err(format!("the parts have {rows} rows")),
    }
}

/// Rules 4 to 6 for a matrix with low-rank terms.
fn merged_rule(
    module: &Module,
    id: WeightId,
    (base, terms): (WeightId, &[LowRank<SourceId>]),
    ty: &TensorType,
) -> Result<(), (u16, String)> {
    let decl = module.weights.get(base).filter(|_| base < id);
    let decl = decl.ok_or_else(|| (6, format!("{base} is not declared before")))?;
    let is_stored = matches!(decl.init, WeightInit::Stored { .. } | WeightInit::Transposed { .. });
    let [n, k] = *ty.shape.dims() else { return Err((6, "terms are added to a matrix".to_owned())) };
    if !is_stored || !decl.ty.dtype.is_float() || decl.ty.shape != ty.shape || ty.dtype != DType::F32 {
        let found = decl.ty.display(&module.syms);
        return Err((6, format!("terms are added to {:?}, which is {found}, or not stored", decl.name)));
    }
    if terms.is_empty() {
        return Err((6, "no term is added".to_owned()));
    }
    for term in terms {
        if !term.is_sound() {
            let (stored, rank, scale) = (term.stored.name(), term.rank, term.scale);
            return Err((5, format!("a term of {stored} of rank {rank}, times {scale}")));
        }
        let matrix = |dims: [Dim; 2]| TensorType::new(DType::F32, &dims);
        let rank = Dim::Const(term.rank);
        inside(module, term.source, term.a, term.stored, &matrix([rank, k]))?;
        inside(module, term.source, term.b, term.stored, &matrix([n, rank]))?;
    }
    Ok(())
}

/// Rule 7. The structure of all graphs is sound.
pub(super) fn dead(errors: &mut Errors<'_>) {
    let module = errors.module;
    let mut live = SecondaryMap::new(false);
    for graph in module.graphs.values() {
        let operands = graph.ops.values().flat_map(crate::OpData::uses);
        let yields = graph.regions.values().flat_map(|it| it.yields.iter().copied());
        let outputs = graph.outputs.iter().map(|it| it.value);
        for value in operands.chain(yields).chain(outputs) {
            if let Def::Weight(id) = graph.values[value].def {
                live[id] = true;
            }
        }
    }
    // Parts and codebooks come before their whole, so one sweep backwards reaches all of them.
    for (id, weight) in module.weights.iter().rev() {
        if !live[id] {
            errors.weight(id, 7, "no graph reads this weight".to_owned());
        } else {
            weight.init.parts().iter().chain(&weight.books).for_each(|it| live[*it] = true);
        }
    }
}
