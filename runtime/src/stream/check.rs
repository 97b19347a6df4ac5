//! Whether the files of a plan's experts hold what it was compiled from: as a whole by the headers of a bank, record by record by what
//! each header says and, on request, by its CRC.

use std::sync::atomic::AtomicBool;

use waste_plan::record::{Expected, HEADER, bank_sha256, check, stored_crc};
use waste_plan::schema::{Bank, Plan};
use waste_plan::{VqCode, vq};

use super::{ExpertOptions, ExpertSource};
use crate::error::RuntimeError;
use crate::experts::{ExpertError, ExpertFile, ReadAt, RecordCheck};
use crate::loaded::LoadedPlan;

/// Opens the files of a plan's experts as a session would, and reads every record if `options.verify`: how many records there are, 0
/// where the plan has no experts in files.
///
/// # Errors
/// [`RuntimeError::Experts`]: a file is missing, too short or not what the plan was compiled from, or a record is damaged; or if the
/// system refuses memory.
pub fn check_experts(loaded: &LoadedPlan, options: &ExpertOptions) -> Result<u64, RuntimeError> {
    let one = ExpertOptions { slots: Some(1), readers: 0, ..options.clone() };
    let Some(source) = ExpertSource::open(loaded, &one)? else { return Ok(0) };
    let never = AtomicBool::new(false);
    let banks = &loaded.plan().banks;
    for bank in banks.iter().filter(|_| options.verify) {
        for expert in 0..bank.experts {
            source.cache.acquire(bank.layer, expert, &never)?;
        }
    }
    Ok(banks.iter().map(|it| u64::from(it.experts)).sum())
}

/// Refuses a bank that is not the plan's, by the headers of its records.
pub(super) fn expect_bank(file: &ExpertFile, bank: &Bank, expected: &str) -> Result<(), ExpertError> {
    let other = |message: String| ExpertError::File { path: file.path().to_path_buf(), message };
    let found = bank_sha256(bank.experts, |expert| {
        let at = bank.offset + u64::from(expert) * bank.bytes;
        file.read_array(at).map_err(|fault| other(fault.to_string()))
    })?;
    if found == expected {
        return Ok(());
    }
    Err(other(format!(
        "the plan was compiled from other experts (SHA-256 of headers {found}, it says {expected})"
    )))
}

/// What every record of a plan must be: a header that names layer and expert and the places that the plan knows, and, on
/// request, bytes of the stated CRC.
pub(super) fn record_check(plan: &Plan, verify: bool) -> Box<RecordCheck> {
    let rules: Vec<(Expected, usize)> = (0..).zip(&plan.banks).map(|(i, bank)| rule(plan, i, bank)).collect();
    Box::new(move |layer, expert, bytes| {
        let rule = rules.iter().find(|it| it.0.layer == layer);
        let (expected, end) = rule.ok_or_else(|| format!("layer {layer} has no bank"))?;
        check(bytes, &Expected { expert, ..*expected })?;
        if !verify {
            return Ok(());
        }
        let covered = bytes.get(HEADER..*end).ok_or("scales that leave the record")?;
        let (found, stored) = (crc32fast::hash(covered), stored_crc(bytes));
        if found == stored {
            return Ok(());
        }
        Err(format!("damaged: CRC-32 {found:08x}, the record says {stored:08x}"))
    })
}

/// What records of bank `index` must say, and where their last scale ends.
fn rule(plan: &Plan, index: u32, bank: &Bank) -> (Expected, usize) {
    let weights =
        plan.weights.iter().filter_map(|it| it.records.filter(|at| at.bank == index).map(|at| (it, at)));
    let mut indices: Vec<u64> = weights.clone().map(|it| it.1.indices).collect();
    indices.sort_unstable();
    indices.dedup();
    let at = |i: usize| indices.get(i).copied().unwrap_or(0);
    let is_packed = weights.clone().any(|it| it.0.dtype.vq() == Some(VqCode::Vq4p));
    let end = weights.clone().map(|(it, at)| at.scales + 2 * it.rows).max().unwrap_or(0);
    let expected = Expected {
        layer: bank.layer,
        expert: 0,
        codebooks: bank.codebooks,
        is_packed,
        bytes: bank.bytes,
        indices: [at(0), at(1), at(2)],
        scales: weights.map(|it| it.1.scales).min().unwrap_or(0),
    };
    debug_assert_eq!(vq::ROW_BLOCK, 64, "records are blocked by 64 rows");
    (expected, usize::try_from(end).unwrap_or(usize::MAX))
}
