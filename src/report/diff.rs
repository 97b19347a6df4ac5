//! What became of a plan: two of them side by side, in the terms that a change of the compiler is judged by.
//!
//! Bytes and operations are those of the same call in both plans: one token in half the smaller context, and a prompt as long as
//! both take.
//!
//! Invariant: a plan has no difference to itself.

mod text;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use waste_plan::schema::{Plan, Program};

use super::classes::class_name;
use super::cost::{CallShape, call_cost};
use super::passes::{PassLine, comments, read};

/// A plan, and its section `ir`.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its graphs and pass report.
    pub ir: &'a str,
}

/// Everything that differs, and the totals whether they differ or not.
#[derive(Clone, Debug)]
pub struct Diff {
    /// Sizes and counts of which less is better.
    pub totals: Vec<Pair>,
    /// Rewrites of passes where they differ, and refusals by reason where they differ: of those less is better.
    pub fusions: Vec<Fusion>,
    /// Steps of a class of op in a program, where they differ.
    pub classes: Vec<Pair>,
    /// Weights of one name that are stored otherwise, and weights that only one plan has.
    pub weights: Vec<Stored>,
}

/// One number of both plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// What it counts.
    pub name: String,
    /// In the first plan.
    pub a: u64,
    /// In the second.
    pub b: u64,
}

/// What a pass did in both plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fusion {
    /// The pass, and its reason if refusals are counted.
    pub name: String,
    /// Whether refusals are counted, not rewrites.
    pub is_missed: bool,
    /// In the first plan.
    pub a: u64,
    /// In the second.
    pub b: u64,
}

/// How weights are stored in both plans: `q8_0 as w8x16`, or nothing where the plan has no such weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The first of their names.
    pub first: String,
    /// How many changed alike.
    pub count: usize,
    /// In the first plan.
    pub a: Option<String>,
    /// In the second.
    pub b: Option<String>,
}

impl Pair {
    /// By which part of itself the first number grew: 0.5 for half as much more; infinite from nothing.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people and thresholds")]
    pub fn growth(&self) -> f64 {
        match (self.a, self.b) {
            (a, b) if a == b => 0.0,
            (0, _) => f64::INFINITY,
            (a, b) => b as f64 / a as f64 - 1.0,
        }
    }
}

impl Diff {
    /// Totals that grew by more than `limit` of themselves.
    #[must_use]
    pub fn worse(&self, limit: f64) -> Vec<&Pair> {
        self.totals.iter().filter(|it| it.a < it.b && limit < it.growth()).collect()
    }

    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let same = self.totals.iter().all(|it| it.a == it.b);
        same && self.fusions.is_empty() && self.classes.is_empty() && self.weights.is_empty()
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        text::print(self)
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let pair = |it: &Pair| json!({ "name": it.name, "a": it.a, "b": it.b });
        json!({
            "totals": self.totals.iter().map(pair).collect::<Vec<_>>(),
            "fusions": self.fusions.iter().map(|it| json!({
                "name": it.name, "missed": it.is_missed, "a": it.a, "b": it.b,
            })).collect::<Vec<_>>(),
            "classes": self.classes.iter().map(pair).collect::<Vec<_>>(),
            "weights": self.weights.iter().map(|it| json!({
                "first": it.first, "count": it.count, "a": it.a, "b": it.b,
            })).collect::<Vec<_>>(),
        })
    }
}

/// Compares two plans.
#[must_use]
pub fn diff(a: Side<'_>, b: Side<'_>) -> Diff {
    Diff {
        totals: totals(a.plan, b.plan),
        fusions: fusions(&read(comments(a.ir)), &read(comments(b.ir))),
        classes: classes(a.plan, b.plan),
        weights: weights(a.plan, b.plan),
    }
}

/// Pairs of the values that either map has.
fn pairs(a: &BTreeMap<String, u64>, b: &BTreeMap<String, u64>) -> Vec<Pair> {
    let mut names: Vec<&String> = a.keys().chain(b.keys().filter(|it| !a.contains_key(*it))).collect();
    names.sort();
    let of = |map: &BTreeMap<String, u64>, name: &String| map.get(name).copied().unwrap_or(0);
    names.into_iter().map(|it| Pair { name: it.clone(), a: of(a, it), b: of(b, it) }).collect()
}

fn totals(a: &Plan, b: &Plan) -> Vec<Pair> {
    let pair = |name: &str, a: u64, b: u64| Pair { name: name.into(), a, b };
    let (m, n) = (&a.memory, &b.memory);
    let mut all = vec![
        pair("peak memory", m.peak(), n.peak()),
        pair("weights", m.weights, n.weights),
        pair("states", m.states, n.states),
        pair("scratch", m.scratch, n.scratch),
        pair("io", m.io, n.io),
        pair("a thread", m.thread, n.thread),
        pair("text", m.text, n.text),
        pair("expert cache", m.experts, n.experts),
    ];
    for first in &a.programs {
        let Some(second) = b.programs.iter().find(|it| it.name == first.name) else { continue };
        let tokens = first.tokens.min(second.tokens);
        let past = if first.name == "decode" { a.options.ctx.min(b.options.ctx) / 2 } else { 0 };
        let tokens = if first.name == "decode" { 1 } else { tokens };
        let call = CallShape { tokens, want: first.want.min(second.want).min(1), past };
        let costs = [(a, first), (b, second)].map(|(plan, it)| call_cost(plan, it, call));
        let mut add = |name: &str, a: u64, b: u64| all.push(pair(&format!("{}: {name}", first.name), a, b));
        let a_token = |n: u64| n / u64::from(tokens.max(1));
        add("bytes a token", a_token(costs[0].memory()), a_token(costs[1].memory()));
        add("operations a token", a_token(costs[0].flops), a_token(costs[1].flops));
        add("bytes of activations a token", a_token(costs[0].others), a_token(costs[1].others));
        add("steps", first.steps.len() as u64, second.steps.len() as u64);
        add("barriers", barriers(first), barriers(second));
    }
    all.retain(|it| (it.a, it.b) != (0, 0));
    all
}

fn barriers(program: &Program) -> u64 {
    program.steps.iter().filter(|it| it.barrier).count() as u64
}

/// Rewrites and refusals that differ. A pass that runs twice counts once.
fn fusions(a: &[PassLine], b: &[PassLine]) -> Vec<Fusion> {
    let count = |passes: &[PassLine], is_missed: bool| {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for pass in passes {
            if is_missed {
                pass.missed.iter().for_each(|it| {
                    *sums.entry(format!("{}: {}", pass.name, it.reason)).or_default() += it.count;
                });
            } else {
                *sums.entry(pass.name.clone()).or_default() += pass.rewrites;
            }
        }
        sums
    };
    let differ = |is_missed: bool| {
        let pairs = pairs(&count(a, is_missed), &count(b, is_missed));
        let differing = pairs.into_iter().filter(|it| it.a != it.b);
        differing.map(move |it| Fusion { name: it.name, is_missed, a: it.a, b: it.b })
    };
    differ(false).chain(differ(true)).collect()
}

fn classes(a: &Plan, b: &Plan) -> Vec<Pair> {
    let count = |plan: &Plan| {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for program in &plan.programs {
            for step in &program.steps {
                *sums.entry(format!("{}: {}", program.name, class_name(plan, step))).or_default() += 1;
            }
        }
        sums
    };
    pairs(&count(a), &count(b)).into_iter().filter(|it| it.a != it.b).collect()
}

/// Weights by name; those that changed alike are one entry.
fn weights(a: &Plan, b: &Plan) -> Vec<Stored> {
    let stored = |plan: &Plan| -> BTreeMap<String, String> {
        let how = |it: &waste_plan::schema::Weight| format!("{} as {}", it.dtype.name(), it.packing.name());
        plan.weights.iter().map(|it| (it.name.clone(), how(it))).collect()
    };
    let (a_all, b_all) = (stored(a), stored(b));
    let mut names: Vec<&String> = a.weights.iter().chain(&b.weights).map(|it| &it.name).collect();
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|it| seen.insert(*it));
    let mut all: Vec<Stored> = Vec::new();
    for name in names {
        let (a, b) = (a_all.get(name), b_all.get(name));
        if a == b {
            continue;
        }
        match all.iter_mut().find(|it| (it.a.as_ref(), it.b.as_ref()) == (a, b)) {
            Some(known) => known.count += 1,
            None => all.push(Stored { first: name.clone(), count: 1, a: a.cloned(), b: b.cloned() }),
        }
    }
    all
}
