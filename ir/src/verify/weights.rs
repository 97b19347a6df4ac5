//! Rules 3 to 7: weights.

use waste_plan::DType;
use waste_plan::ids::SecondaryMap;

use super::Errors;
use crate::graph::{Def, Module, WeightDecl, WeightId, WeightInit};
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
    if !ty.dtype.is_float() && !ty.dtype.is_integer_weight() {
        return Err(format!("{} holds no weights", ty.dtype.name()));
    }
    match module.upper_bytes(ty) {
        Some(_) => Ok(()),
        None => {
            let block = ty.dtype.block().map_or(1, |it| it.elems);
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
    }
}

/// Rule 4: the bytes of a weight of `ty`'s shape lie inside the source.
fn inside(
    module: &Module,
    source: crate::SourceId,
    offset: u64,
    stored: DType,
    ty: &TensorType,
) -> Result<(), (u16, String)> {
    let decl = module.sources.get(source).ok_or_else(|| (4, format!("there is no source {source}")))?;
    let stored_ty = TensorType { dtype: stored, shape: ty.shape.clone() };
    let end = module.upper_bytes(&stored_ty).and_then(|it| it.checked_add(offset));
    match end {
        Some(end) if end <= decl.bytes => Ok(()),
        Some(end) => Err((4, format!("byte {end} is past the end of {source}, which has {}", decl.bytes))),
        None => Err((4, format!("{} bytes at {offset} do not fit 64 bits", stored.name()))),
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
    // Parts come before their whole, so one sweep backwards reaches all of them.
    for (id, weight) in module.weights.iter().rev() {
        if !live[id] {
            errors.weight(id, 7, "no graph reads this weight".to_owned());
        } else if let WeightInit::Concat(parts) = &weight.init {
            parts.iter().for_each(|it| live[*it] = true);
        }
    }
}
