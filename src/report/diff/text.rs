//! A difference as text.

use std::fmt::Write as _;

use super::{Diff, Fusion, Pair, Stored};
use crate::formats::grouped;
use crate::report::table::{Align, Table};

/// The totals as a table, then what else differs.
pub(super) fn print(diff: &Diff) -> String {
    if diff.is_empty() {
        return "no difference\n".into();
    }
    let mut out = pairs("total", &diff.totals);
    let mut part = |title: &str, text: String| {
        if !text.is_empty() {
            write!(out, "\n{title}\n\n{text}").expect("writing to a string");
        }
    };
    part("fusions", diff.fusions.iter().map(fusion).collect());
    if !diff.classes.is_empty() {
        part("steps by class of op", pairs("class", &diff.classes));
    }
    part("weights", diff.weights.iter().map(stored).collect());
    out
}

fn pairs(heading: &'static str, pairs: &[Pair]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[(heading, Left), ("A", Right), ("B", Right), ("change", Right)]);
    pairs.iter().for_each(|it| table.row([it.name.clone(), grouped(it.a), grouped(it.b), change(it)]));
    table.markdown()
}

/// `+12.50 %`, nothing where nothing changed.
fn change(it: &Pair) -> String {
    match (it.a, it.b) {
        (a, b) if a == b => String::new(),
        (0, _) => "new".into(),
        (_, 0) => "gone".into(),
        _ => format!("{:+.2} %", 100.0 * it.growth()),
    }
}

fn fusion(it: &Fusion) -> String {
    let word = match (it.is_missed, it.a < it.b) {
        (false, true) => "gained",
        (false, false) => "lost",
        (true, true) => "missed",
        (true, false) => "no longer missed",
    };
    format!("{word} {}: {} -> {}\n", it.name, grouped(it.a), grouped(it.b))
}

fn stored(it: &Stored) -> String {
    let more =
        if it.count > 1 { format!(" and {} more", grouped(it.count as u64 - 1)) } else { String::new() };
    let of = |it: &Option<String>| it.clone().unwrap_or_else(|| "-".to_owned());
    format!("{} -> {}: {}{more}\n", of(&it.a), of(&it.b), it.first)
}
