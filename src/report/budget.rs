//! What a cache of experts is worth: sizes, predicted hit rates, and the pace that a disk allows.
//!
//! A hit rate is predicted from a trace of routings by the cache's own state machine, or, without one, for experts that are chosen
//! evenly and independently: real routing is kinder, so that this is the worst to expect.

use serde::Deserialize;
use waste_plan::schema::Plan;
use waste_runtime::experts::{Eviction, Step, simulate};

use super::table::{Align, Table};
use super::units::{bytes, float};
use crate::compile::experts::CacheSizes;

/// Which experts real tokens were routed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace(Vec<Step>);

#[derive(Deserialize)]
struct Line {
    layers: Vec<Vec<u32>>,
}

impl Trace {
    /// One JSON object a line and token: `{"layers": [[3, 17, …], …]}`, the experts of each layer with experts.
    ///
    /// # Errors
    /// The line that is none, with its number.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut steps = Vec::new();
        let lines = (1..).zip(text.lines()).filter(|it| !it.1.trim().is_empty());
        for (number, line) in lines {
            let line: Line = serde_json::from_str(line).map_err(|err| format!("line {number}: {err}"))?;
            steps.extend((0..).zip(line.layers).map(|(layer, experts)| Step { layer, experts }));
        }
        Ok(Self(steps))
    }

    /// The predicted hit rate of a cache of `slots` records, 0 … 1.
    #[must_use]
    pub fn hit_rate(&self, slots: u64) -> f64 {
        simulate(&self.0, usize::try_from(slots).unwrap_or(usize::MAX), Eviction::Lfru).hit_rate()
    }
}

/// What one size of the cache buys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Records.
    pub slots: u64,
    /// Bytes of the cache.
    pub bytes: u64,
    /// Bytes of a session with one thread and this cache.
    pub total: u64,
    /// Predicted hit rate.
    pub hit_rate: f64,
    /// Bytes that a token reads from the disk.
    pub read_bytes: f64,
}

impl Size {
    /// Tokens a second that a disk of `nvme` GB/s allows; infinite where nothing is read.
    #[must_use]
    pub fn tokens_per_second(&self, nvme: f64) -> f64 {
        nvme * 1e9 / self.read_bytes
    }
}

/// The sizes from the floor to all experts, that of the plan among them; empty for a plan without experts in files.
#[must_use]
pub fn sizes(plan: &Plan, trace: Option<&Trace>) -> Vec<Size> {
    let Some(it) = CacheSizes::of(plan) else { return Vec::new() };
    let planned = plan.memory.expert_slots;
    let steps =
        (0..=3).map(|k| it.floor + k * it.working_set).chain([it.all / 4, it.all / 2, it.all, planned]);
    let mut slots: Vec<u64> = steps.map(|n| n.clamp(it.floor, it.all)).collect();
    slots.sort_unstable();
    slots.dedup();
    slots.into_iter().map(|n| size(plan, &it, n, trace)).collect()
}

fn size(plan: &Plan, it: &CacheSizes, slots: u64, trace: Option<&Trace>) -> Size {
    let hit_rate = match trace {
        Some(trace) => trace.hit_rate(slots),
        None => float(slots) / float(it.all.max(1)),
    };
    let token = float(it.working_set.saturating_mul(it.slot_bytes));
    Size {
        slots,
        bytes: slots.saturating_mul(it.slot_bytes),
        total: waste_runtime::needed_bytes_with(plan, 1, Some(slots)),
        hit_rate,
        read_bytes: (1.0 - hit_rate) * token,
    }
}

/// The sizes as a table, with the pace that a disk of `nvme` GB/s allows.
#[must_use]
pub fn table(sizes: &[Size], nvme: Option<f64>) -> Table {
    use Align::Right;
    let mut table = Table::new(&[
        ("experts", Right),
        ("cache", Right),
        ("session", Right),
        ("hits %", Right),
        ("MB a token", Right),
        ("tokens/s at most", Right),
    ]);
    for it in sizes {
        let pace = nvme.map(|nvme| it.tokens_per_second(nvme)).filter(|pace| pace.is_finite());
        table.row([
            it.slots.to_string(),
            bytes(it.bytes),
            bytes(it.total),
            format!("{:.1}", it.hit_rate * 100.0),
            format!("{:.1}", it.read_bytes / 1e6),
            pace.map_or_else(|| "–".to_owned(), |it| format!("{it:.2}")),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_trace_that_repeats_itself_is_all_hits_after_the_first_token() {
        let token = r#"{"tok": 0, "layers": [[0, 1], [2, 3]]}"#;
        let trace = Trace::parse(&[token; 10].join("\n")).unwrap();
        assert!((trace.hit_rate(4) - 0.9).abs() < 1e-12);
        assert!(trace.hit_rate(1) < 0.5);
        let error = Trace::parse("{}\n").unwrap_err();
        assert!(error.starts_with("line 1: "), "{error}");
    }
}
