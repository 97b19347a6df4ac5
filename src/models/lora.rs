//! LoRA adapters merged into the weights of an imported model.
//!
//! Each adapted matrix W becomes the derived weight W + Σ scale · B·A ([`WeightInit::Merged`]), which all graphs read instead: what
//! passes, planner and kernels see is an ordinary matrix, and decoding costs what it costs without adapters. Terms of several adapters
//! are added in the order of the adapters. The arithmetic is f64, rounded once; the merged matrix is f32 whatever the base is stored in,
//! so nothing of the adapter is lost to a coarser type.
//!
//! Invariant: all of every adapter is merged, or the model is refused: an unknown module, a wrong shape or a matrix that is not a stored
//! float one is an error by name.
//!
//! Deliberately absent: adapters on quantised matrices, which would have to be quantised anew; on experts and on matrices that lie in
//! parts; and switching adapters at run time.

use std::collections::{BTreeMap, HashMap};

use waste_ir::{Def, Dim, Module, SourceDecl, SourceId, TensorType, WeightDecl, WeightId, WeightInit};
use waste_plan::{DType, LowRank};

use crate::formats::{AdaptedLayer, Adapter, Format, hex, shown};

use super::{ModelError, Result, refused};

/// Merges `adapters`, in order, into `module`, which was imported from a model of `format`. The files of the adapters become the last
/// sources.
///
/// # Errors
/// [`ModelError::Adapter`] with the module at fault; [`ModelError::Option`] for a format whose tensors have other names.
pub fn merge(module: &mut Module, format: Format, adapters: &[Adapter]) -> Result<()> {
    if let Some(adapter) = adapters.first().filter(|_| format != Format::Safetensors) {
        let reason = "adapters name the matrices of a safetensors checkpoint: compile that, or merge them into it before it is converted";
        return Err(refused("lora", adapter.source().name(), reason));
    }
    let mut terms: BTreeMap<WeightId, Vec<LowRank<SourceId>>> = BTreeMap::new();
    {
        let mut sources = module.sources.clone();
        let by_name: HashMap<&str, WeightId> =
            module.weights.iter().map(|(id, it)| (it.name.as_str(), id)).collect();
        for adapter in adapters {
            let source = sources.push(adapter_decl(adapter));
            for layer in adapter.layers() {
                let id = find(module, &by_name, adapter, layer)?;
                let (stored, scale) = (layer.a.dtype, layer.scale);
                let rank = u32::try_from(layer.a.shape[0]).expect("compared with a 32-bit rank");
                let term = LowRank { source, stored, a: layer.a.offset, b: layer.b.offset, rank, scale };
                terms.entry(id).or_default().push(term);
            }
        }
        module.sources = sources;
    }
    let merged: HashMap<WeightId, WeightId> =
        terms.into_iter().map(|(base, terms)| (base, add_merged(module, base, terms))).collect();
    let Module { graphs, weights, .. } = module;
    for value in graphs.values_mut().flat_map(|it| it.values.values_mut()) {
        if let Def::Weight(id) = value.def
            && let Some(id) = merged.get(&id)
        {
            value.def = Def::Weight(*id);
            value.ty = weights[*id].ty.clone();
        }
    }
    Ok(())
}

/// The file of `adapter` as a source of a module; its hash is that of all it says ([`Adapter::hash`]).
#[must_use]
pub fn adapter_decl(adapter: &Adapter) -> SourceDecl {
    SourceDecl {
        path: adapter.source().path().to_string_lossy().into_owned(),
        bytes: adapter.source().stamp().len,
        header_sha256: hex(&adapter.hash()),
    }
}

/// The matrix that `layer` adapts.
fn find(
    module: &Module,
    by_name: &HashMap<&str, WeightId>,
    adapter: &Adapter,
    layer: &AdaptedLayer,
) -> Result<WeightId> {
    let refuse = |reason: String| ModelError::Adapter {
        file: adapter.source().name(),
        module: shown(&layer.module),
        reason,
    };
    // A checkpoint may leave out the name of the decoder inside the model with a head.
    let path = layer.module.as_str();
    let names = [Some(path), path.strip_prefix("transformer."), path.strip_prefix("model.")];
    let id = names.iter().flatten().find_map(|it| by_name.get(format!("{it}.weight").as_str()).copied());
    let id = id.ok_or_else(|| {
        refuse("is unknown: the model has no matrix of this name that can be adapted (experts and tied heads cannot)".into())
    })?;
    let decl = &module.weights[id];
    let is_stored = matches!(decl.init, WeightInit::Stored { .. } | WeightInit::Transposed { .. });
    if !is_stored || !decl.ty.dtype.is_float() {
        let dtype = decl.ty.dtype.name();
        let advice =
            "quantised matrices are not quantised anew: merge the adapter into an unquantised checkpoint";
        return Err(refuse(format!("is stored as {dtype}; {advice}")));
    }
    let found = [layer.b.shape[0], layer.a.shape[1]];
    match *decl.ty.shape.dims() {
        [Dim::Const(n), Dim::Const(k)] if [u64::from(n), u64::from(k)] == found => Ok(id),
        _ => {
            let shape = decl.ty.shape.dims().iter().map(|it| it.known().unwrap_or(0)).collect::<Vec<_>>();
            Err(refuse(format!("adds a matrix of {found:?}, the model's is {shape:?}")))
        }
    }
}

fn add_merged(module: &mut Module, base: WeightId, terms: Vec<LowRank<SourceId>>) -> WeightId {
    let decl = &module.weights[base];
    let merged = WeightDecl {
        name: format!("{}+lora", decl.name),
        ty: TensorType::new(DType::F32, decl.ty.shape.dims()),
        init: WeightInit::Merged { base, terms },
        books: None,
        packing: None,
    };
    module.weights.push(merged)
}
