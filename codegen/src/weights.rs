//! Weights of the plan: which stored tensors make each, in which layout, at which offset; and constants computed here.

use waste_ir::{Dim, Module, RopeScaling, WeightDecl, WeightId, WeightInit};
use waste_plan::Packing;
use waste_plan::ids::EntityRef;
use waste_plan::schema::{Bank, Part, Records, Weight};

use crate::planner::PlanError;

/// The weights and banks of a plan.
#[derive(Default)]
pub(crate) struct PlanWeights {
    /// In order of first use.
    pub(crate) weights: Vec<Weight>,
    /// In order of first use.
    pub(crate) banks: Vec<Bank>,
    /// The index of each IR weight among the weights.
    pub(crate) index: Vec<Option<u32>>,
    /// The index of each IR weight's bank.
    pub(crate) bank_of: Vec<Option<u32>>,
}

/// The plan weights that the module's graphs read.
pub(crate) fn plan_weights(module: &Module) -> Result<PlanWeights, PlanError> {
    let mut index = vec![None; module.weights.len()];
    let mut bank_of = vec![None; module.weights.len()];
    let mut weights: Vec<Weight> = Vec::new();
    let mut banks: Vec<Bank> = Vec::new();
    let mut offset = 0u64;
    for graph in module.graphs.values() {
        for id in graph.values.keys().filter_map(|it| graph.weight(it)) {
            if index[id.index()].is_some() {
                continue;
            }
            index[id.index()] = Some(u32::try_from(weights.len()).expect("weight ids are u32"));
            let mut weight = plan_weight(module, id, offset)?;
            if let WeightInit::Records { source, first, stride, indices, scales } = module.weights[id].init {
                let bank = bank_index(&mut banks, (source.index(), first, stride), weight.bank);
                weight.records = Some(Records { bank, indices, scales });
                bank_of[id.index()] = Some(bank);
            }
            let end = offset.checked_add(weight.bytes).and_then(|it| it.checked_next_multiple_of(64));
            offset = end.ok_or_else(|| PlanError::WeightSize { name: weight.name.clone() })?;
            weights.push(weight);
        }
    }
    Ok(PlanWeights { weights, banks, index, bank_of })
}

/// The bank of records at this place, made if it is new. Until the compiler has read a record's header, a bank's layer is its index
/// and its first codebook 0.
fn bank_index(banks: &mut Vec<Bank>, (source, offset, bytes): (usize, u64, u64), experts: u32) -> u32 {
    let source = u32::try_from(source).expect("source ids are u32");
    let place = |it: &Bank| (it.source, it.offset, it.bytes);
    let found = banks.iter().position(|it| place(it) == (source, offset, bytes));
    let at = found.unwrap_or_else(|| {
        let layer = u32::try_from(banks.len()).expect("few layers");
        banks.push(Bank { layer, source, offset, bytes, experts, codebooks: 0 });
        banks.len() - 1
    });
    u32::try_from(at).expect("few layers")
}

fn plan_weight(module: &Module, id: WeightId, offset: u64) -> Result<Weight, PlanError> {
    let decl = &module.weights[id];
    let too_large = || PlanError::WeightSize { name: decl.name.clone() };
    let (bank, rows, cols) = extent(decl).ok_or_else(too_large)?;
    let packing = decl.packing.ok_or_else(|| PlanError::NoPacking { name: decl.name.clone() })?;
    let bytes = match packing {
        Packing::Record => Some(0),
        Packing::Plain | Packing::Columns => {
            decl.ty.dtype.row_bytes(cols).and_then(|it| it.checked_mul(rows))
        }
        _ => packing.bytes(rows, cols),
    };
    let bytes = bytes.and_then(|it| it.checked_mul(u64::from(bank)));
    let mut parts = Vec::new();
    collect_parts(module, decl, &mut parts).ok_or_else(too_large)?;
    Ok(Weight {
        name: decl.name.clone(),
        dtype: decl.ty.dtype,
        bank,
        rows,
        cols,
        packing,
        bytes: bytes.ok_or_else(too_large)?,
        offset,
        crc32c: 0,
        parts,
        records: None,
    })
}

/// Matrices, rows and columns; a vector is one row, except where it is the concatenation of vectors: then too.
fn extent(decl: &WeightDecl) -> Option<(u32, u64, u64)> {
    match *decl.ty.shape.dims() {
        [Dim::Const(n)] => Some((1, 1, u64::from(n))),
        [Dim::Const(rows), Dim::Const(cols)] => Some((1, u64::from(rows), u64::from(cols))),
        [Dim::Const(bank), Dim::Const(rows), Dim::Const(cols)] => {
            Some((bank, u64::from(rows), u64::from(cols)))
        }
        _ => None,
    }
}

/// Appends the stored tensors of `decl`, concatenations flattened. A part of a vector counts its elements as rows.
fn collect_parts(module: &Module, decl: &WeightDecl, parts: &mut Vec<Part>) -> Option<()> {
    let rows = match *decl.ty.shape.dims() {
        [Dim::Const(n)] | [Dim::Const(n), Dim::Const(_)] => u64::from(n),
        [Dim::Const(bank), Dim::Const(n), Dim::Const(_)] => match &decl.init {
            // A part is one matrix of a scattered bank, or all of one that lies in one piece.
            WeightInit::Bank { .. } | WeightInit::Grouped { .. } => u64::from(n),
            _ => u64::from(bank).checked_mul(u64::from(n))?,
        },
        _ => return None,
    };
    let number = |source: waste_ir::SourceId| u32::try_from(source.index()).expect("source ids are u32");
    let mut stored =
        |source: &waste_ir::SourceId, (offset, scales): (u64, Option<u64>), stored, transposed| {
            let source = number(*source);
            parts.push(Part { source, offset, scales, stored, rows, transposed, terms: Vec::new() });
        };
    match &decl.init {
        WeightInit::Stored { source, offset, stored: dtype } => {
            stored(source, (*offset, None), *dtype, false);
        }
        WeightInit::Transposed { source, offset, stored: dtype } => {
            stored(source, (*offset, None), *dtype, true);
        }
        WeightInit::Records { .. } => {}
        WeightInit::Merged { base, terms } => {
            collect_parts(module, &module.weights[*base], parts)?;
            parts.last_mut()?.terms = terms.iter().map(|it| it.clone().at(number(it.source))).collect();
        }
        WeightInit::Bank { stored: dtype, parts: matrices } => {
            for (source, offset) in matrices {
                stored(source, (*offset, None), *dtype, false);
            }
        }
        WeightInit::Grouped { source, stored: dtype, codes, scales } => {
            let count = match *decl.ty.shape.dims() {
                [Dim::Const(bank), _, _] => u64::from(bank),
                _ => 1,
            };
            for e in 0..count {
                stored(source, (codes.at(e)?, Some(scales.at(e)?)), *dtype, false);
            }
        }
        WeightInit::Concat(ids) => {
            // NOTE: a loop with a stack of its own would be the same; concatenations nest at most once in practice,
            // and the verifier refuses cycles.
            for id in ids {
                collect_parts(module, &module.weights[*id], parts)?;
            }
        }
    }
    Some(())
}

/// Radians a position for each rotated pair: base^(−2i/dims), rescaled.
/// Source: Su et al. 2021, §3.2.2; Llama 3's rule as in transformers `_compute_llama3_parameters`.
pub(crate) fn rope_freqs(dims: u32, base: f64, scaling: RopeScaling) -> Vec<f64> {
    let plain = |i: u32| 1.0 / libm::pow(base, f64::from(2 * i) / f64::from(dims));
    (0..dims / 2).map(|i| rescale(i, plain(i), (dims, base), scaling)).collect()
}

fn rescale(i: u32, freq: f64, (dims, base): (u32, f64), scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::None => freq,
        RopeScaling::Linear { factor } => freq / factor,
        RopeScaling::Llama3 { factor, low, high, orig } => {
            let wave_length = 2.0 * std::f64::consts::PI / freq;
            let orig = f64::from(orig);
            if wave_length > orig / low {
                freq / factor
            } else if wave_length < orig / high {
                freq
            } else {
                let smooth = (orig / wave_length - low) / (high - low);
                (1.0 - smooth) * freq / factor + smooth * freq
            }
        }
        RopeScaling::Yarn { factor, fast, slow, orig } => {
            let (low, high) = yarn_ramp((dims, base), (fast, slow), orig);
            let ramp = ((f64::from(i) - low) / (high - low)).clamp(0.0, 1.0);
            freq / factor * ramp + freq * (1.0 - ramp)
        }
    }
}

/// The pairs between which YaRN's ramp rises: those that turn `fast` and `slow` times in `orig` positions (Peng et al. 2023, eq. 23).
fn yarn_ramp((dims, base): (u32, f64), (fast, slow): (f64, f64), orig: u32) -> (f64, f64) {
    let dims = f64::from(dims);
    let whole_turn = 2.0 * std::f64::consts::PI;
    let pair =
        |turns: f64| dims * libm::log(f64::from(orig) / (turns * whole_turn)) / (2.0 * libm::log(base));
    let (low, high) = (pair(fast).floor().max(0.0), pair(slow).ceil().min(dims - 1.0));
    (low, if low == high { high + 0.001 } else { high })
}
