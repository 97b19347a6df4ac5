//! Each step of a program that was measured: what it works on, what it costs by prediction, and what it took.

use waste_plan::schema::{Operand, Place, Plan, Rows, Step};

use super::classes::{Measured, class_name};
use super::cost::{Cost, step_cost};
use super::roofline::Roofs;
use super::table::{Align, Table};
use super::units::float;

/// A step, all calls together.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// Its index in the program.
    pub step: usize,
    /// The class that it is of.
    pub class: String,
    /// Rows and columns of what it reads and what it writes: `T×576 → T×1536`, with T for the tokens of a call and R for its wanted rows.
    pub shape: String,
    /// The first weight that it reads, or else the first state that it touches.
    pub tensor: Option<String>,
    /// Predicted.
    pub cost: Cost,
    /// Measured nanoseconds.
    pub nanos: u64,
}

/// Every step of what was measured, in order.
#[must_use]
pub fn ops(plan: &Plan, measured: Measured<'_>) -> Vec<Op> {
    let op = |(at, (step, nanos)): (usize, (&Step, &u64))| {
        let mut cost = Cost::default();
        measured.calls.iter().for_each(|call| cost += step_cost(plan, step, *call));
        let (class, shape, tensor) = (class_name(plan, step), shape(step), tensor(plan, step));
        Op { step: at, class, shape, tensor, cost, nanos: *nanos }
    };
    measured.program.steps.iter().zip(measured.nanos).enumerate().map(op).collect()
}

/// A line for each op, averages over `calls` calls, and their sum; dashes where the roofs are not known.
#[must_use]
pub fn table(ops: &[Op], roofs: Option<Roofs>, calls: usize) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("step", Right),
        ("op", Left),
        ("shape", Left),
        ("tensor", Left),
        ("bound by", Left),
        ("least µs/call", Right),
        ("µs/call", Right),
        ("% of possible", Right),
    ]);
    let n = float(calls.max(1) as u64) * 1e3;
    let mut row = |names: [String; 4], bound: &str, least: Option<f64>, nanos: u64| {
        let or_dash = |it: Option<String>| it.unwrap_or_else(|| "-".to_owned());
        let [step, op, shape, tensor] = names;
        table.row([
            step,
            op,
            shape,
            tensor,
            bound.to_owned(),
            or_dash(least.map(|it| format!("{:.1}", it / n))),
            format!("{:.1}", float(nanos) / n),
            or_dash(least.map(|it| format!("{:.0}", 100.0 * it / float(nanos.max(1))))),
        ]);
    };
    for it in ops {
        let roof = roofs.map(|roofs| roofs.nanos(&it.cost));
        let tensor = it.tensor.as_deref().map(short).unwrap_or_default();
        let names = [it.step.to_string(), it.class.clone(), it.shape.clone(), tensor];
        row(names, roof.map_or("-", |it| it.1.name()), roof.map(|it| it.0), it.nanos);
    }
    let names = ["", "all", "", ""].map(str::to_owned);
    let least = roofs.map(|roofs| ops.iter().map(|it| roofs.nanos(&it.cost).0).sum());
    row(names, "", least, ops.iter().map(|it| it.nanos).sum());
    table
}

/// `a+b+c` as `a +2`: matrices that became one have long names together.
fn short(tensor: &str) -> String {
    let mut parts = tensor.split('+');
    let first = parts.next().unwrap_or_default();
    match parts.count() {
        0 => first.to_owned(),
        more => format!("{first} +{more}"),
    }
}

fn shape(step: &Step) -> String {
    let has_rows = |it: &&Operand| matches!(it.place, Place::Scratch(_) | Place::Io(_));
    let shown = |it: &Operand| match it.rows {
        Rows::Fixed(n) => format!("{n}×{}", it.cols),
        Rows::Tokens(1) => format!("T×{}", it.cols),
        Rows::Tokens(n) => format!("{n}T×{}", it.cols),
        Rows::Want(1) => format!("R×{}", it.cols),
        Rows::Want(n) => format!("{n}R×{}", it.cols),
    };
    let read = step.reads.iter().find(has_rows).map(shown);
    let written = step.writes.iter().find(has_rows).map(shown);
    match (read, written) {
        (Some(read), Some(written)) if read != written => format!("{read} → {written}"),
        (read, written) => written.or(read).unwrap_or_default(),
    }
}

fn tensor(plan: &Plan, step: &Step) -> Option<String> {
    let weight = |it: &Operand| match it.place {
        Place::Weight(id) => plan.weights.get(id as usize).map(|it| it.name.clone()),
        Place::State(_) | Place::Scratch(_) | Place::Io(_) => None,
    };
    let state = |it: &Operand| match it.place {
        Place::State(id) => plan.states.get(id as usize).map(|it| it.name.clone()),
        Place::Weight(_) | Place::Scratch(_) | Place::Io(_) => None,
    };
    let all = || step.reads.iter().chain(&step.writes);
    all().find_map(weight).or_else(|| all().find_map(state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_op_has_a_line_and_the_sum_the_last() {
        let op = |step, tensor: &str, weights, flops, nanos| Op {
            step,
            class: "linear w8x16".into(),
            shape: "T×8 → T×16".into(),
            tensor: Some(tensor.into()),
            cost: Cost { weights, flops, ..Cost::default() },
            nanos,
        };
        let ops = [op(0, "q+k+v", 10_000, 1000, 2000), op(7, "o", 100, 400_000, 4000)];
        let rows = |roofs| {
            let text = table(&ops, roofs, 2).markdown();
            let cells = |it: &str| it.split('|').map(|it| it.trim().to_owned()).skip(1).collect();
            text.lines().skip(2).map(cells).collect::<Vec<Vec<String>>>()
        };
        let found = rows(Some(Roofs { bytes: 10e9, flops: 100e9 }));
        assert_eq!(found[0][..8], ["0", "linear w8x16", "T×8 → T×16", "q +2", "memory", "0.5", "1.0", "50"]);
        assert_eq!(found[1][3..8], ["o", "arithmetic", "2.0", "2.0", "100"]);
        assert_eq!(found[2][..8], ["", "all", "", "", "", "2.5", "3.0", "83"]);
        assert_eq!(rows(None)[2][5..8], ["-", "3.0", "-"]);
    }
}
