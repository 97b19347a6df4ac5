//! Banks of expert records, and the loops that bring them in.
//!
//! Invariants: after validation
//! - every record lies in its file, and every matrix of a record inside the record;
//! - a step reads records only in a loop over its own bank, and a loop is a window, steps that work on rows of pairs, a release.

use super::family::strided;
use super::{At, Checked, Report, ensure};
use crate::DType;
use crate::schema::{Place, Plan, Program, Records, Rows, Step, StepKind, Weight};

/// Checks every bank, and that the cache can hold a record.
pub(super) fn banks(plan: &Plan, report: &mut Report) {
    for (i, bank) in plan.banks.iter().enumerate() {
        let checked = || {
            let source = plan.sources.get(bank.source as usize);
            let source = source.ok_or_else(|| format!("source {} of {}", bank.source, plan.sources.len()))?;
            let is_sized = bank.experts > 0 && (1..=u64::from(u32::MAX)).contains(&bank.bytes);
            ensure(is_sized, || format!("{} records of {} bytes", bank.experts, bank.bytes))?;
            let end = bank.bytes.checked_mul(bank.experts.into()).and_then(|it| it.checked_add(bank.offset));
            ensure(end.is_some_and(|it| it <= source.bytes), || {
                let (n, bytes, offset) = (bank.experts, bank.bytes, bank.offset);
                format!(
                    "{n} records of {bytes} bytes at byte {offset} leave a source of {} bytes",
                    source.bytes
                )
            })
        };
        report.check(At::Bank(i), checked());
    }
    let most = plan.banks.iter().map(|it| it.bytes).max().unwrap_or(0);
    let memory = &plan.memory;
    let holds = memory.expert_slots.checked_mul(most).is_some_and(|it| it <= memory.experts);
    let fits = (plan.banks.is_empty() || memory.expert_slots > 0) && holds;
    report.check(
        At::Plan,
        ensure(fits, || {
            let (bytes, slots) = (memory.experts, memory.expert_slots);
            format!("an expert cache of {bytes} bytes for {slots} records of {most}")
        }),
    );
}

/// A weight whose matrices lie in records.
pub(super) fn weight(plan: &Plan, it: &Weight, records: Records) -> Checked {
    let dtype = it.dtype.name();
    let code = it.dtype.vq().ok_or_else(|| format!("{dtype} does not lie in records"))?;
    let bank = plan.banks.get(records.bank as usize);
    let bank = bank.ok_or_else(|| format!("bank {} of {}", records.bank, plan.banks.len()))?;
    ensure(it.bank == bank.experts, || format!("{} matrices, the bank has {}", it.bank, bank.experts))?;
    let is_elsewhere = it.bytes == 0 && it.parts.is_empty() && it.crc32c == 0;
    ensure(is_elsewhere, || "bytes of its own beside its records".into())?;
    for (name, n) in [("rows", it.rows), ("cols", it.cols)] {
        ensure((1..=u64::from(u32::MAX)).contains(&n), || format!("{name} = {n}, expected 1 … 2^32 − 1"))?;
    }
    let indices = code.index_bytes(it.rows, it.cols);
    let scales = it.rows.checked_mul(2);
    for (name, at, bytes) in [("indices", records.indices, indices), ("scales", records.scales, scales)] {
        let end = bytes.and_then(|it| it.checked_add(at));
        ensure(end.is_some_and(|it| it <= bank.bytes), || {
            format!("{name} of {bytes:?} bytes at {at:#x} leave a record of {} bytes", bank.bytes)
        })?;
    }
    ensure(records.scales.is_multiple_of(2), || format!("scales at odd byte {:#x}", records.scales))
}

/// A step that prefetches, begins or ends a window.
pub(super) fn moves(plan: &Plan, step: &Step) -> Checked {
    let (StepKind::ExpertPrefetch { bank, .. }
    | StepKind::ExpertWindow { bank, .. }
    | StepKind::ExpertRelease { bank, .. }) = step.kind
    else {
        return Ok(());
    };
    let found = plan.banks.get(bank as usize);
    let found = found.ok_or_else(|| format!("bank {bank} of {}", plan.banks.len()))?;
    let it = &step.reads[0];
    if matches!(step.kind, StepKind::ExpertPrefetch { .. }) {
        return strided(it, DType::I32, Rows::Tokens(1), it.cols);
    }
    let groups = found.experts.saturating_add(1).saturating_mul(2);
    strided(it, DType::I32, Rows::Fixed(1), groups)
}

/// Loops have a beginning and an end, do not nest, and hold nothing but work on pairs.
pub(super) fn loops(plan: &Plan, program_index: usize, program: &Program, report: &mut Report) {
    let mut open: Option<(u32, usize)> = None;
    for (i, step) in program.steps.iter().enumerate() {
        let checked = one(plan, program, i, open);
        report.check(At::Step { program: program_index, step: i }, checked);
        match step.kind {
            StepKind::ExpertWindow { bank, body } => open = Some((bank, i + body as usize)),
            StepKind::ExpertRelease { .. } => open = None,
            _ => {}
        }
    }
    let closed = ensure(open.is_none(), || "a loop over experts without an end".into());
    report.check(At::Program(program_index), closed);
}

/// Step `i`, in the loop `open` if there is one: its bank and the step of its release.
fn one(plan: &Plan, program: &Program, i: usize, open: Option<(u32, usize)>) -> Checked {
    let step = &program.steps[i];
    let in_loop = open.is_some() && !step.kind.moves_experts();
    ensure(step.window == in_loop, || {
        if in_loop { "not marked as a step of the loop".into() } else { "marked as a step of no loop".into() }
    })?;
    match (&step.kind, open) {
        (StepKind::ExpertWindow { .. }, Some(_)) => Err("a loop in a loop".into()),
        (StepKind::ExpertWindow { bank, body }, None) => {
            let end = program.steps.get(i + *body as usize).map(|it| &it.kind);
            let expected = StepKind::ExpertRelease { bank: *bank, body: *body };
            ensure(*body > 0 && end == Some(&expected), || format!("step {body} after it is not its release"))
        }
        (StepKind::ExpertRelease { bank, .. }, it) => {
            ensure(it == Some((*bank, i)), || "the release of no window".into())
        }
        (StepKind::ExpertLut { .. } | StepKind::ExpertVq { .. }, it) => {
            let weight = match step.reads.get(1).map(|it| it.place) {
                Some(Place::Weight(id)) => plan.weights.get(id as usize),
                _ => None,
            };
            let bank = weight.and_then(|it| it.records).map(|it| it.bank);
            ensure(bank.is_some() && bank == it.map(|it| it.0), || {
                "reads records outside a loop over them".into()
            })
        }
        (kind, Some(_)) => {
            let by_rows = matches!(
                kind,
                StepKind::LutBuild { .. }
                    | StepKind::QuantAct { .. }
                    | StepKind::Unary { .. }
                    | StepKind::Glu { .. }
                    | StepKind::Add
                    | StepKind::Mul
                    | StepKind::ExpertGather
                    | StepKind::RmsNorm { .. }
            );
            let is_pairs = step.writes.first().is_some_and(|it| matches!(it.rows, Rows::Tokens(_)));
            ensure(by_rows && is_pairs, || format!("'{}' in a loop over experts", kind.name()))
        }
        (_, None) => Ok(()),
    }
}
