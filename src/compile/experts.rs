//! What a plan with streamed experts needs beside its graphs: the names in records' headers, and a cache that fits a budget.

use waste_plan::record::{HEADER, layer_and_codebooks};
use waste_plan::schema::Plan;
use waste_runtime::needed_bytes_with;

use super::CompileError;
use crate::formats::Source;
use crate::formats::container::Container;

/// Layer and first codebook of each bank: as the tables of `container` have them, or as the first record names them; the runtime
/// compares every record with that.
///
/// # Errors
/// If a file ends before the header.
pub(super) fn name_banks(
    plan: &mut Plan,
    sources: &[Source],
    container: Option<&Container>,
) -> Result<(), CompileError> {
    for bank in &mut plan.banks {
        if let Some(known) = container.and_then(|it| it.bank_in(bank.source as usize)) {
            (bank.layer, bank.codebooks) = (known.layer(), known.codebook_base());
            continue;
        }
        let source = &sources[bank.source as usize];
        let header = usize::try_from(bank.offset).ok().and_then(|at| source.bytes().get(at..at + HEADER));
        let (layer, codebooks) =
            header.and_then(layer_and_codebooks).ok_or_else(|| CompileError::Source {
                path: source.name(),
                message: format!("ends before the record at {:#x}", bank.offset),
            })?;
        (bank.layer, bank.codebooks) = (layer, codebooks);
    }
    Ok(())
}

/// What an expert cache can be, in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSizes {
    /// The smallest by default: the experts of a token in one layer, twice, so that the next are read while these are used.
    pub floor: u64,
    /// The experts of a token in all layers.
    pub working_set: u64,
    /// All experts.
    pub all: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
}

impl CacheSizes {
    /// Those of a plan; `None` if it has no experts in files.
    #[must_use]
    pub fn of(plan: &Plan) -> Option<Self> {
        if plan.banks.is_empty() {
            return None;
        }
        let top_k = waste_codegen::top_k(&plan.programs);
        let all = plan.banks.iter().map(|it| u64::from(it.experts)).sum();
        Some(Self {
            floor: (2 * top_k).min(all),
            working_set: top_k.saturating_mul(plan.banks.len() as u64).min(all),
            all,
            slot_bytes: waste_codegen::slot_bytes(&plan.banks),
        })
    }

    /// The largest of floor + 3, 2, 1 and 0 working sets that `bytes` hold; `None` if they do not hold the floor.
    #[must_use]
    pub fn largest_in(&self, bytes: u64) -> Option<u64> {
        let fits = bytes / self.slot_bytes.max(1);
        let steps = (0..=3).rev().map(|k| (self.floor + k * self.working_set).min(self.all));
        steps.into_iter().find(|it| *it <= fits)
    }
}

/// Makes the cache as large as `limit` bytes allow with one thread.
///
/// # Errors
/// If the plan does not fit with the smallest cache, or with the one that was asked for.
pub(super) fn fit(plan: &mut Plan, limit: u64, asked: Option<u64>) -> Result<(), CompileError> {
    let slots = plan.memory.expert_slots;
    let sizes = CacheSizes::of(plan);
    let least = asked.or(sizes.map(|it| it.floor)).unwrap_or(0).min(slots);
    let needs = needed_bytes_with(plan, 1, Some(least));
    if limit < needs {
        return Err(CompileError::Memory { needs, limit });
    }
    if let Some(sizes) = sizes {
        let more = (limit - needs) / sizes.slot_bytes.max(1);
        plan.memory.expert_slots = least.saturating_add(more).min(slots);
        plan.memory.experts = plan.memory.expert_slots.saturating_mul(sizes.slot_bytes);
    }
    Ok(())
}
