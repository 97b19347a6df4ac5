//! Where the time goes: prediction beside measured time, by class of op.
//!
//! A class is a kernel family, with the layout of its weights or the element type of its caches: `linear w4mx16`.

use waste_plan::schema::{Place, Plan, Program, Step};

use super::cost::{CallShape, Cost};
use super::ops::Op;
use super::table::{Align, Table};
use super::units::float;

/// The calls of one program that were measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// The program that ran.
    pub program: &'a Program,
    /// Every call.
    pub calls: &'a [CallShape],
    /// Nanoseconds of each step, all calls together.
    pub nanos: &'a [u64],
}

/// Steps of one class, all calls together.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Kernel family and layout.
    pub name: String,
    /// Predicted of each of its steps.
    pub each: Vec<Cost>,
    /// Predicted of all of them.
    pub cost: Cost,
    /// Measured.
    pub nanos: u64,
}

/// The name of the class that `step` is of.
#[must_use]
pub fn class_name(plan: &Plan, step: &Step) -> String {
    let layout = |place: Place| match place {
        Place::Weight(id) => plan.weights.get(id as usize).map(|it| it.packing.name()),
        Place::State(id) => plan.states.get(id as usize).map(|it| it.dtype.name()),
        Place::Scratch(_) | Place::Io(_) => None,
    };
    let found = step.reads.iter().chain(&step.writes).find_map(|it| layout(it.place));
    found.map_or_else(|| step.kind.name().to_owned(), |it| format!("{} {it}", step.kind.name()))
}

/// The classes of `ops`, the one with the most time first.
#[must_use]
pub fn classes(ops: &[Op]) -> Vec<Class> {
    let mut res: Vec<Class> = Vec::new();
    for op in ops {
        let at = res.iter().position(|it| it.name == op.class).unwrap_or_else(|| {
            res.push(Class { name: op.class.clone(), each: Vec::new(), cost: Cost::default(), nanos: 0 });
            res.len() - 1
        });
        let class = &mut res[at];
        class.each.push(op.cost);
        class.cost += op.cost;
        class.nanos += op.nanos;
    }
    res.sort_by(|a, b| b.nanos.cmp(&a.nanos).then_with(|| a.name.cmp(&b.name)));
    res
}

/// The classes as a table, averages over `calls` calls; `roof` is the probe's bytes a second.
#[must_use]
pub fn table(classes: &[Class], calls: usize, roof: f64) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("op", Left),
        ("steps", Right),
        ("KB/call", Right),
        ("MFLOP/call", Right),
        ("µs/call", Right),
        ("GB/s", Right),
        ("GFLOP/s", Right),
        ("% roof", Right),
        ("% time", Right),
    ]);
    let n = float(calls.max(1) as u64);
    let total: u64 = classes.iter().map(|it| it.nanos).sum();
    let mut sum = Class { name: "all".into(), each: Vec::new(), cost: Cost::default(), nanos: total };
    for class in classes {
        sum.each.extend(&class.each);
        sum.cost += class.cost;
    }
    for class in classes.iter().chain([&sum]) {
        let nanos = float(class.nanos.max(1));
        let rate = float(class.cost.bytes()) / nanos;
        table.row([
            class.name.clone(),
            class.each.len().to_string(),
            format!("{:.1}", float(class.cost.bytes()) / 1e3 / n),
            format!("{:.2}", float(class.cost.flops) / 1e6 / n),
            format!("{:.1}", float(class.nanos) / 1e3 / n),
            format!("{rate:.2}"),
            format!("{:.2}", float(class.cost.flops) / nanos),
            format!("{:.0}", 100.0 * rate * 1e9 / roof),
            format!("{:.1}", 100.0 * float(class.nanos) / float(total.max(1))),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_ends_with_the_sum() {
        let class = |name: &str, nanos, weights| {
            let cost = Cost { weights, flops: 2 * weights, ..Cost::default() };
            Class { name: name.into(), each: vec![Cost::default(); 3], cost, nanos }
        };
        let text =
            table(&[class("linear w8x16", 3000, 30_000), class("add", 1000, 2000)], 2, 20e9).markdown();
        let rows: Vec<Vec<&str>> = text.lines().map(|it| it.split('|').map(str::trim).collect()).collect();
        assert_eq!(
            rows[2][1..10],
            ["linear w8x16", "3", "15.0", "0.03", "1.5", "10.00", "20.00", "50", "75.0"]
        );
        assert_eq!(rows[4][1..10], ["all", "6", "16.0", "0.03", "2.0", "8.00", "16.00", "40", "100.0"]);
    }
}
