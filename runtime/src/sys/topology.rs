//! Which processors there are, which share a core, and which are fast.

use std::collections::BTreeSet;

use super::{Cpu, ReadText, parse_cpu_list};

const CPUS: &str = "/sys/devices/system/cpu";

/// Cores below this share of the fastest one's speed are slow. Favoured cores of one kind differ by a few percent, the
/// kinds themselves by 25 % (Intel P and E by clock) and more (Arm by capacity).
const FAST_PERCENT: u64 = 80;

/// Every online processor; those outside `allowed` are marked so.
pub(super) fn cpus(read: ReadText<'_>, allowed: Option<&BTreeSet<usize>>) -> Vec<Cpu> {
    let online = read(&format!("{CPUS}/online")).and_then(|it| parse_cpu_list(&it));
    let Some(ids) = online.or_else(|| allowed.cloned()) else { return unknown_cpus() };
    let fast = fast_cpus(read, &ids);
    let cpu = |id: usize| Cpu {
        id,
        core: core_of(read, id),
        is_fast: fast.contains(&id),
        is_allowed: allowed.is_none_or(|it| it.contains(&id)),
    };
    ids.iter().map(|id| cpu(*id)).collect()
}

/// Where no file says anything: as many alike processors as the standard library counts.
fn unknown_cpus() -> Vec<Cpu> {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    (0..count).map(|id| Cpu { id, core: id, is_fast: true, is_allowed: true }).collect()
}

/// The lowest processor of the core that holds `id`.
fn core_of(read: ReadText<'_>, id: usize) -> usize {
    let siblings = ["core_cpus_list", "thread_siblings_list"]
        .into_iter()
        .find_map(|name| read(&format!("{CPUS}/cpu{id}/topology/{name}")));
    let lowest = siblings.and_then(|it| parse_cpu_list(&it)).and_then(|it| it.first().copied());
    lowest.unwrap_or(id).min(id)
}

/// The processors of the fast group: what the kernel calls the big cores, else those near the highest capacity, else those
/// near the highest clock, else all.
fn fast_cpus(read: ReadText<'_>, ids: &BTreeSet<usize>) -> BTreeSet<usize> {
    let is_hybrid = read("/sys/devices/cpu_atom/cpus").is_some();
    let big = read("/sys/devices/cpu_core/cpus").and_then(|it| parse_cpu_list(&it));
    if let Some(big) = big.filter(|it| is_hybrid && !it.is_disjoint(ids)) {
        return big;
    }
    let speeds = |file: &str| -> Option<Vec<u64>> {
        ids.iter().map(|id| read(&format!("{CPUS}/cpu{id}/{file}"))?.trim().parse().ok()).collect()
    };
    let Some(speeds) = speeds("cpu_capacity").or_else(|| speeds("cpufreq/cpuinfo_max_freq")) else {
        return ids.clone();
    };
    let most = speeds.iter().copied().max().unwrap_or(0);
    let is_fast = |speed: u64| speed.saturating_mul(100) >= most.saturating_mul(FAST_PERCENT);
    ids.iter().zip(speeds).filter(|(_, speed)| is_fast(*speed)).map(|(id, _)| *id).collect()
}
