//! What the passes did and almost did: numbers, and the table of `waste dump --passes`.
//!
//! A fusion that silently stops matching is what users of compilers lose most to; so refusals are counted with their reasons.

use std::fmt::Write as _;
use std::time::Duration;

use waste_ir::{Dim, Graph, Module, Op, OpId};

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
    /// What lookup tables cost a token, if the model has any.
    pub tables: Option<TableBuilds>,
}

/// How often `lut_build` runs for one token of the first graph, all layers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableBuilds {
    /// As `legalize-vq` wrote it: once for each matrix of each expert.
    pub before: u64,
    /// As it is planned.
    pub after: u64,
    /// Layers with routed experts.
    pub layers: u64,
}

impl TableBuilds {
    /// Counts `before` and `after`; `None` if `before` builds no tables.
    pub(crate) fn between(before: &Module, after: &Module) -> Option<Self> {
        let (graph, layers) = (before.graphs.values().next()?, |graph: &Graph| {
            graph.ops.values().filter(|it| matches!(it.op, Op::RouteTopK { .. })).count() as u64
        });
        let counted = Self { before: builds_a_token(graph), after: 0, layers: layers(graph) }.until(after);
        (counted.before > 0).then_some(counted)
    }

    /// The same with `after` counted in `module`.
    pub(crate) fn until(self, module: &Module) -> Self {
        Self { after: module.graphs.values().next().map_or(0, builds_a_token), ..self }
    }

    fn line(self) -> String {
        let Self { before, after, layers } = self;
        let line = format!("lut_build a token: {before} -> {after}");
        match layers {
            2.. if before.is_multiple_of(layers) && after.is_multiple_of(layers) => {
                format!("{line} ({} -> {} in each of {layers} layers)", before / layers, after / layers)
            }
            _ => line,
        }
    }
}

/// Rows of tables for each token: one op of `m` rows a token counts m, inside a loop over experts as often as a token is routed.
fn builds_a_token(graph: &Graph) -> u64 {
    fn count(graph: &Graph, order: &[OpId], times: u64) -> u64 {
        let each = |id: &OpId| {
            let data = &graph.ops[*id];
            match (&data.op, data.region) {
                (Op::LutBuild { .. }, _) => match graph.ty(data.results[0]).shape.dims()[0] {
                    Dim::Scaled { mul, .. } => times * u64::from(mul),
                    Dim::Const(_) => times,
                },
                (Op::ForEachExpert { .. }, Some(region)) => {
                    let routed = graph.ty(data.operand(1)).shape.cols().map_or(1, u64::from);
                    count(graph, &graph.regions[region].order, times * routed)
                }
                _ => 0,
            }
        };
        order.iter().map(each).sum()
    }
    count(graph, &graph.order, 1)
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
        let mut out = format!("{:<17} {:>8} {:>13}", "pass", "rewrites", "ops");
        if timing {
            write!(out, " {:>9}", "ms").expect("writing to a string");
        }
        for pass in &self.passes {
            out.push('\n');
            pass.line(&mut out, timing);
        }
        out.push('\n');
        if let Some(tables) = self.tables {
            out.push_str(&tables.line());
            out.push('\n');
        }
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
        write!(out, "{:<17} {:>8} {ops:>13}", self.name, self.rewrites).expect("writing to a string");
        if timing {
            write!(out, " {:>9.3}", self.duration.as_secs_f64() * 1e3).expect("writing to a string");
        }
        for miss in &self.near_misses {
            write!(out, "\n  missed {} x: {}; first at: {}", miss.count, miss.reason, miss.first)
                .expect("writing to a string");
        }
    }
}
