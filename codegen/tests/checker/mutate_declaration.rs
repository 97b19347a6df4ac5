//! Changes in declarations and sizes.

use waste_plan::schema::Plan;

use super::mutate::Rng;

pub(super) fn declaration(plan: &mut Plan, kind: &str, rng: &mut Rng) -> Option<String> {
    let by = rng.pick(&[64, 128, 1024]);
    let back = rng.below(2) == 0;
    let nudge = |offset: &mut u64, back: bool| {
        let was = *offset;
        *offset = if back { offset.saturating_sub(by) } else { *offset + by };
        Some(format!("{was} → {offset}"))
    };
    match kind {
        "move port" => {
            let at = rng.below(plan.ports.len());
            nudge(&mut plan.ports[at].offset, back)
        }
        "move weight" => {
            let at = rng.below(plan.weights.len());
            nudge(&mut plan.weights[at].offset, back)
        }
        "move state" => {
            let at = rng.below(plan.states.len());
            nudge(&mut plan.states[at].offset, back)
        }
        "shrink scratch" => nudge(&mut plan.memory.scratch, true),
        "shrink io" => nudge(&mut plan.memory.io, true),
        "part" => {
            let at = rng.below(plan.weights.len());
            let parts = &mut plan.weights[at].parts;
            let part = if parts.is_empty() { return None } else { rng.below(parts.len()) };
            if back && parts.len() > 1 {
                parts.swap(0, part.max(1));
                return Some(format!("weight {at}: order"));
            }
            parts[part].offset = parts[part].offset.saturating_sub(4);
            Some(format!("weight {at}: offset"))
        }
        "bank" => {
            // As many rows in all, in other matrices.
            let banks: Vec<usize> = (0..plan.weights.len()).filter(|it| plan.weights[*it].bank > 1).collect();
            let at = if banks.is_empty() { return None } else { rng.pick(&banks) };
            let it = &mut plan.weights[at];
            if back && it.bank.is_multiple_of(2) {
                (it.bank, it.rows) = (it.bank / 2, it.rows * 2);
            } else {
                (it.bank, it.rows) = (it.bank * 2, (it.rows / 2).max(1));
            }
            Some(format!("weight {at}: {} × {}", it.bank, it.rows))
        }
        "records" => records(plan, back, rng),
        _ => {
            let at = rng.below(plan.weights.len());
            let it = &mut plan.weights[at];
            it.packing = rng.pick(&waste_plan::Packing::ALL);
            Some(format!("weight {at}: {:?}", it.packing))
        }
    }
}

/// Another place in a record, or records elsewhere.
fn records(plan: &mut Plan, back: bool, rng: &mut Rng) -> Option<String> {
    let ats: Vec<usize> = (0..plan.weights.len()).filter(|it| plan.weights[*it].records.is_some()).collect();
    let at = if ats.is_empty() { return None } else { rng.pick(&ats) };
    let it = plan.weights[at].records.as_mut()?;
    let bank = &mut plan.banks[it.bank as usize];
    let by = rng.pick(&[2, 64]);
    match (rng.below(4), back) {
        (0, true) => it.indices = it.indices.saturating_sub(by),
        (0, false) => it.indices += by,
        (1, true) => it.scales = it.scales.saturating_sub(by),
        (1, false) => it.scales += by,
        (2, _) => bank.offset = bank.offset.saturating_sub(by),
        (_, _) => bank.bytes = bank.bytes.saturating_sub(by),
    }
    Some(format!("weight {at}: {it:?} of {bank:?}"))
}
