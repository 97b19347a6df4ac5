//! What the passes did and almost did: numbers, and the table of `waste dump --passes`.
//!
//! A fusion that silently stops matching is what users of compilers lose most to; so refusals are counted with their reasons.

use std::fmt::Write as _;
use std::time::Duration;

use crate::pass::Changed;

/// A refusal: why a pass left an op as it was though the pattern began to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearMiss {
    /// The condition that failed.
    pub reason: &'static str,
    /// How often.
    pub count: u32,
    /// The first op concerned, printed.
    pub first: String,
}

/// One run of one pass.
#[derive(Clone, Debug)]
pub struct PassReport {
    /// The pass.
    pub name: &'static str,
    /// Whether it changed the module.
    pub changed: Changed,
    /// How many rewrites it made.
    pub rewrites: u32,
    /// Ops in all graphs before.
    pub ops_before: usize,
    /// Ops in all graphs after.
    pub ops_after: usize,
    /// Refusals by reason, in order of first occurrence.
    pub near_misses: Vec<NearMiss>,
    /// Wall time of the pass alone, without verification.
    pub duration: Duration,
}

/// One run of the pipeline.
#[derive(Clone, Debug, Default)]
pub struct PipelineReport {
    /// The passes that ran, in order.
    pub passes: Vec<PassReport>,
}

impl PipelineReport {
    /// Rewrites of all passes together.
    #[must_use]
    pub fn rewrites(&self) -> u32 {
        self.passes.iter().map(|it| it.rewrites).sum()
    }

    /// The table of `waste dump --passes`: one line a pass, refusals below it; `timing` adds a column in milliseconds.
    #[must_use]
    pub fn table(&self, timing: bool) -> String {
        let mut out = format!("{:<16} {:>8} {:>13}", "pass", "rewrites", "ops");
        if timing {
            write!(out, " {:>9}", "ms").expect("writing to a string");
        }
        for pass in &self.passes {
            out.push('\n');
            pass.line(&mut out, timing);
        }
        out.push('\n');
        out
    }
}

impl PassReport {
    fn line(&self, out: &mut String, timing: bool) {
        let ops = if self.ops_before == self.ops_after {
            self.ops_after.to_string()
        } else {
            format!("{} -> {}", self.ops_before, self.ops_after)
        };
        write!(out, "{:<16} {:>8} {ops:>13}", self.name, self.rewrites).expect("writing to a string");
        if timing {
            write!(out, " {:>9.3}", self.duration.as_secs_f64() * 1e3).expect("writing to a string");
        }
        for miss in &self.near_misses {
            write!(out, "\n  missed {} x: {}; first at: {}", miss.count, miss.reason, miss.first)
                .expect("writing to a string");
        }
    }
}
