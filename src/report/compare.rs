//! Two programs measured in turn: ratios of their speeds, with intervals.
//!
//! Each round runs A, B, B, A, every one in a fresh process, so that whatever drifts at a steady pace favours neither. Before the rounds
//! each runs once to warm files and frequencies; those are kept and not counted. The first A and the first B of a round are a pair, and
//! the last two are; the controls pair the two A's of a round, and its two B's: their ratio would be 1 on a steady machine.
//!
//! A ratio is the geometric mean of the pairs' ratios, above 1 where A is faster. Its 95 % interval is the percentile bootstrap (Efron
//! 1979) over pairs: [`RESAMPLES`] samples of as many pairs, drawn with replacement by a seeded generator, and the 2.5th and 97.5th
//! percentiles of their ratios. It says how steady the pairs are, not how representative the machine is.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::stats::mean_and_deviation;
use super::table::{Align, Table};
use super::units::float;
use crate::random::Xoshiro256PlusPlus;

/// Samples of the bootstrap.
pub const RESAMPLES: usize = 10_000;

/// The test of wall times, where the programs have no other in common.
pub const RUNS: &str = "runs/s";

/// Pairs below which nothing is said.
const LEAST_PAIRS: usize = 4;

/// The seed of its generator: the same observations give the same interval.
const SEED: u64 = 1979;

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This one.
    A,
    /// The other.
    B,
}

impl Side {
    const fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }
}

/// What runs, in order: the round (`None` to warm up) and the side.
pub fn schedule(rounds: u32) -> impl Iterator<Item = (Option<u32>, Side)> {
    let warm = [(None, Side::A), (None, Side::B)];
    let round = |it: u32| [Side::A, Side::B, Side::B, Side::A].map(|side| (Some(it), side));
    warm.into_iter().chain((0..rounds).flat_map(round))
}

/// Prompt, generated tokens and depth of a test.
pub type TestKey = (u64, u64, u64);

/// What one process did.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// The round; `None` to warm up.
    pub round: Option<u32>,
    /// Which program.
    pub side: Side,
    /// Wall time of the process.
    pub seconds: f64,
    /// Its records, in llama-bench's terms; none if it printed no such thing.
    pub records: Vec<Value>,
}

impl Observation {
    /// Tokens a second of each test.
    fn rates(&self) -> BTreeMap<TestKey, f64> {
        let number = |it: &Value, name: &str| it.get(name).and_then(Value::as_u64).unwrap_or(0);
        let key = |it: &Value| (number(it, "n_prompt"), number(it, "n_gen"), number(it, "n_depth"));
        let rate = |it: &Value| it.get("avg_ts").and_then(Value::as_f64).filter(|it| *it > 0.0);
        self.records.iter().filter_map(|it| Some((key(it), rate(it)?))).collect()
    }

    /// As an object of a file of observations.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "round": self.round,
            "warm_up": self.round.is_none(),
            "side": self.side.name(),
            "seconds": self.seconds,
            "records": self.records,
        })
    }
}

/// The records in what a program printed: an array, or objects line by line; none if it is something else.
#[must_use]
pub fn records(stdout: &str) -> Vec<Value> {
    let is_record = |it: &Value| it.get("avg_ts").is_some();
    if let Ok(Value::Array(all)) = serde_json::from_str(stdout) {
        return all.into_iter().filter(is_record).collect();
    }
    stdout.lines().filter_map(|it| serde_json::from_str(it).ok()).filter(is_record).collect()
}

/// A ratio with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The geometric mean.
    pub value: f64,
    /// The 2.5th percentile of the bootstrap.
    pub low: f64,
    /// The 97.5th.
    pub high: f64,
    /// Pairs.
    pub pairs: usize,
}

impl Ratio {
    /// The ratio of `pairs`; `None` if there are none.
    #[must_use]
    pub fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        let logs: Vec<f64> = pairs.iter().map(|(a, b)| (a / b).ln()).collect();
        let n = logs.len();
        if n == 0 {
            return None;
        }
        let mut random = Xoshiro256PlusPlus::from_seed(SEED);
        let mut draw = || usize::try_from(random.next_u64() % n as u64).expect("an index");
        let mut means: Vec<f64> =
            (0..RESAMPLES).map(|_| (0..n).map(|_| logs[draw()]).sum::<f64>() / float(n as u64)).collect();
        means.sort_by(f64::total_cmp);
        let at = |per_mille: usize| means[(RESAMPLES * per_mille / 1000).min(RESAMPLES - 1)].exp();
        let value = mean_and_deviation(&logs).0.exp();
        Some(Self { value, low: at(25), high: at(975), pairs: n })
    }

    /// What the interval allows to say.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        match (1.0 < self.low, self.high < 1.0) {
            (true, _) => "faster",
            (_, true) => "slower",
            _ => "undecided",
        }
    }

    fn text(&self) -> String {
        format!("{:.3} ({:.3} – {:.3})", self.value, self.low, self.high)
    }

    fn json(&self) -> Value {
        json!({ "ratio": self.value, "low": self.low, "high": self.high, "pairs": self.pairs })
    }
}

/// One test of both programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// `pp512`, `tg128 @ d4096`, or `runs/s` where only wall times can be compared.
    pub test: String,
    /// Mean tokens (or runs) a second.
    pub a: f64,
    /// The other's.
    pub b: f64,
    /// A ÷ B.
    pub ratio: Ratio,
    /// The first ÷ the last A of each round.
    pub control_a: Ratio,
    /// The first ÷ the last B of each round.
    pub control_b: Ratio,
}

impl Row {
    /// What may be said: nothing of fewer than four pairs, nor where one of the programs differs from itself as much as from the other.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        let apart = |it: &Ratio| it.value.ln().abs();
        let noise = apart(&self.control_a).max(apart(&self.control_b));
        let can_tell = self.ratio.pairs >= LEAST_PAIRS && noise < apart(&self.ratio);
        if can_tell { self.ratio.verdict() } else { "undecided" }
    }
}

/// The tests that were reported, but not by every process, and so are not compared.
#[must_use]
pub fn left_out(observations: &[Observation]) -> Vec<String> {
    let rates: Vec<_> = observations.iter().filter(|it| it.round.is_some()).map(Observation::rates).collect();
    let all: BTreeSet<TestKey> = rates.iter().flat_map(|it| it.keys().copied()).collect();
    let is_missing = |key: &TestKey| rates.iter().any(|it| !it.contains_key(key));
    all.into_iter().filter(is_missing).map(name).collect()
}

/// Every test that both programs reported, or the runs a second where they have none in common.
#[must_use]
pub fn rows(observations: &[Observation]) -> Vec<Row> {
    let counted: Vec<(&Observation, BTreeMap<TestKey, f64>)> =
        observations.iter().filter(|it| it.round.is_some()).map(|it| (it, it.rates())).collect();
    let Some((_, first)) = counted.first() else { return Vec::new() };
    let common = first.keys().filter(|key| counted.iter().all(|(_, rates)| rates.contains_key(*key)));
    let tests: Vec<Row> = common.filter_map(|key| row(name(*key), &counted, |_, rates| rates[key])).collect();
    if tests.is_empty() {
        return row(RUNS.to_owned(), &counted, |it, _| 1.0 / it.seconds.max(1e-9)).into_iter().collect();
    }
    tests
}

fn name((prompt, generated, depth): TestKey) -> String {
    let test = match (prompt, generated) {
        (0, n) => format!("tg{n}"),
        (n, 0) => format!("pp{n}"),
        (p, n) => format!("pp{p}+tg{n}"),
    };
    if depth > 0 { format!("{test} @ d{depth}") } else { test }
}

fn row(
    test: String,
    counted: &[(&Observation, BTreeMap<TestKey, f64>)],
    rate: impl Fn(&Observation, &BTreeMap<TestKey, f64>) -> f64,
) -> Option<Row> {
    let of = |side: Side| {
        let its = counted.iter().filter(move |it| it.0.side == side);
        its.map(|(it, rates)| rate(it, rates)).collect::<Vec<f64>>()
    };
    let (a, b) = (of(Side::A), of(Side::B));
    let pairs: Vec<(f64, f64)> = a.iter().copied().zip(b.iter().copied()).collect();
    let control =
        |it: &[f64]| Ratio::of(&it.as_chunks::<2>().0.iter().map(|it| (it[0], it[1])).collect::<Vec<_>>());
    Some(Row {
        test,
        a: mean_and_deviation(&a).0,
        b: mean_and_deviation(&b).0,
        ratio: Ratio::of(&pairs)?,
        control_a: control(&a)?,
        control_b: control(&b)?,
    })
}

/// The rows as a table.
#[must_use]
pub fn table(rows: &[Row]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("test", Left),
        ("A t/s", Right),
        ("B t/s", Right),
        ("A ÷ B (95 %)", Right),
        ("pairs", Right),
        ("A is", Left),
        ("control A ÷ A", Right),
        ("control B ÷ B", Right),
    ]);
    for it in rows {
        table.row([
            it.test.clone(),
            format!("{:.2}", it.a),
            format!("{:.2}", it.b),
            it.ratio.text(),
            it.ratio.pairs.to_string(),
            it.verdict().to_owned(),
            it.control_a.text(),
            it.control_b.text(),
        ]);
    }
    table
}

/// A row for programs.
#[must_use]
pub fn row_json(it: &Row) -> Value {
    json!({
        "test": it.test,
        "a_ts": it.a,
        "b_ts": it.b,
        "ratio": it.ratio.json(),
        "verdict": it.verdict(),
        "control_a": it.control_a.json(),
        "control_b": it.control_b.json(),
    })
}

/// The rows for programs.
#[must_use]
pub fn rows_json(rows: &[Row]) -> Value {
    rows.iter().map(row_json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(round: Option<u32>, side: Side, rate: f64) -> Observation {
        let records = vec![json!({ "n_prompt": 512, "n_gen": 0, "avg_ts": rate })];
        Observation { round, side, seconds: 1.0, records }
    }

    #[test]
    fn rounds_are_abba_after_a_warm_up_each() {
        let sides: String = schedule(2).map(|it| it.1.name()).collect();
        assert_eq!(sides, "ababbaabba");
        assert_eq!(schedule(2).filter(|it| it.0.is_none()).count(), 2);
    }

    #[test]
    fn a_steady_ratio_has_a_narrow_interval_and_warm_ups_do_not_count() {
        let of = |(round, side): (Option<u32>, Side)| {
            let rate = if side == Side::A { 30.0 } else { 20.0 };
            observed(round, side, if round.is_none() { 1.0 } else { rate })
        };
        let all: Vec<Observation> = schedule(3).map(of).collect();
        let rows = rows(&all);
        let it = &rows[0];
        assert_eq!((rows.len(), it.test.as_str(), it.ratio.pairs, it.control_a.pairs), (1, "pp512", 6, 3));
        for found in [it.ratio.value, it.ratio.low, it.ratio.high] {
            assert!((found - 1.5).abs() < 1e-12);
        }
        assert_eq!((it.verdict(), it.control_a.verdict()), ("faster", "undecided"));
        assert_eq!((it.a, it.b), (30.0, 20.0));
    }

    /// The mean of n logs with deviation σ is normal: the interval is ±1.96 σ / √n around it, a little less for few pairs.
    #[test]
    fn the_interval_is_as_wide_as_the_theory_says() {
        let mut random = Xoshiro256PlusPlus::from_seed(7);
        let mut noise = || (0..12).map(|_| random.next_f64()).sum::<f64>() - 6.0;
        let pairs: Vec<(f64, f64)> = (0..400).map(|_| ((0.1 * noise()).exp(), 1.0)).collect();
        let logs: Vec<f64> = pairs.iter().map(|it| it.0.ln()).collect();
        let (mean, deviation) = mean_and_deviation(&logs);
        let it = Ratio::of(&pairs).expect("pairs");
        let half = 1.96 * deviation / 20.0;
        assert!((it.low.ln() - (mean - half)).abs() < 0.1 * half, "{it:?}");
        assert!((it.high.ln() - (mean + half)).abs() < 0.1 * half, "{it:?}");
        assert_eq!(Ratio::of(&pairs), Some(it), "the same every time");
    }

    #[test]
    fn a_slower_program_is_called_slower_and_wall_times_are_a_last_resort() {
        let of = |(round, side): (Option<u32>, Side)| Observation {
            seconds: if side == Side::A { 2.0 } else { 1.0 },
            records: Vec::new(),
            ..observed(round, side, 1.0)
        };
        let rows = rows(&schedule(2).map(of).collect::<Vec<_>>());
        assert_eq!((rows[0].test.as_str(), rows[0].verdict()), ("runs/s", "slower"));
        assert!((rows[0].ratio.value - 0.5).abs() < 1e-12);
    }

    #[test]
    fn two_pairs_or_an_unsteady_machine_decide_nothing() {
        let rates = |of: &dyn Fn(usize, Side) -> f64, rounds: u32| -> Vec<Observation> {
            schedule(rounds)
                .enumerate()
                .map(|(i, (round, side))| observed(round, side, of(i, side)))
                .collect()
        };
        let steady = |_: usize, side: Side| if side == Side::A { 30.0 } else { 20.0 };
        assert_eq!(rows(&rates(&steady, 1))[0].verdict(), "undecided");
        assert_eq!(rows(&rates(&steady, 2))[0].verdict(), "faster");
        // The last A of each round is half as fast as the first, as a machine that slows down would have it.
        let slowing = |i: usize, side: Side| steady(i, side) / if i % 4 == 1 && i > 1 { 2.0 } else { 1.0 };
        let all = rates(&slowing, 3);
        assert!(rows(&all)[0].control_a.value > 1.9);
        assert_eq!(rows(&all)[0].verdict(), "undecided");
    }

    #[test]
    fn a_test_that_not_all_report_is_named() {
        let mut all: Vec<Observation> = schedule(1).map(|(round, side)| observed(round, side, 1.0)).collect();
        assert!(left_out(&all).is_empty());
        all[3].records.push(json!({ "n_prompt": 0, "n_gen": 8, "avg_ts": 1.0 }));
        all[5].records.clear();
        assert_eq!(left_out(&all), ["tg8", "pp512"]);
    }

    #[test]
    fn records_come_as_an_array_or_by_line() {
        let two = "[{\"avg_ts\": 1.5, \"n_gen\": 8}, {\"other\": 1}]";
        assert_eq!(records(two).len(), 1);
        assert_eq!(records("note\n{\"avg_ts\": 1}\n{\"avg_ts\": 2}\n").len(), 2);
        assert!(records("no JSON").is_empty() && records("").is_empty());
        assert_eq!(name((0, 8, 16)), "tg8 @ d16");
    }
}
