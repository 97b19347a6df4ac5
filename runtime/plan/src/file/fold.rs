//! Repeated layers once: finds periods in a list of steps and writes what differs beside a template.
//!
//! Works on the compact JSON of each step. Two steps have the same *shape* if their texts differ only in numbers.
//! A group of `times` repetitions is its template, in which each number that differs between repetitions is the
//! string `"$i"`, and `bind[i]`, the list of the `times` numbers that stand there. Strings of a step are words of
//! closed vocabularies and never start with `$`.
//!
//! Invariant: `expand(fold(steps))` gives the same texts, so folding cannot change a plan.

use std::collections::HashMap;

/// Longest period that is looked for, in steps: well above the steps of any one layer.
const MAX_PERIOD: usize = 1024;
/// Steps that a repetition must save to be worth its bindings.
const MIN_SAVED: usize = 4;

/// Steps that stand in the plan `times` times in a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group<'a> {
    pub(super) times: usize,
    /// For each placeholder, its number in each repetition.
    pub(super) bind: Vec<Vec<&'a str>>,
    /// The template.
    pub(super) steps: Vec<String>,
}

/// Groups that expand to `steps`, each the compact JSON of a step.
pub(super) fn fold(steps: &[String]) -> Vec<Group<'_>> {
    let cuts: Vec<Cut<'_>> = steps.iter().map(|it| Cut::new(it)).collect();
    let mut known: HashMap<Vec<&str>, usize> = HashMap::new();
    let shapes: Vec<usize> = cuts
        .iter()
        .map(|it| {
            let next = known.len();
            *known.entry(it.texts.clone()).or_insert(next)
        })
        .collect();
    let mut out = Vec::new();
    let mut open = vec![(0, steps.len())];
    while let Some((start, end)) = open.pop() {
        match best_repeat(&shapes[start..end]) {
            Some(it) => {
                let (from, to) = (start + it.start, start + it.start + it.period * it.times);
                if it.start == 0 {
                    out.push(group(&cuts[from..to], it.times));
                    open.push((to, end));
                } else {
                    // The left part first, then this repetition again, alone with what follows it.
                    open.push((from, end));
                    open.push((start, from));
                }
            }
            None if start < end => out.push(group(&cuts[start..end], 1)),
            None => {}
        }
    }
    out
}

/// The text of one step in pieces: `texts[0] numbers[0] texts[1] …`.
struct Cut<'a> {
    texts: Vec<&'a str>,
    numbers: Vec<&'a str>,
}

impl<'a> Cut<'a> {
    fn new(step: &'a str) -> Self {
        let mut it = Self { texts: Vec::new(), numbers: Vec::new() };
        let bytes = step.as_bytes();
        let (mut at, mut text_from) = (0, 0);
        while at < bytes.len() {
            match bytes[at] {
                b'"' => at = string_end(bytes, at),
                b'-' | b'0'..=b'9' => {
                    let tail = bytes[at..]
                        .iter()
                        .position(|b| !matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
                    let end = tail.map_or(bytes.len(), |len| at + len);
                    it.texts.push(&step[text_from..at]);
                    it.numbers.push(&step[at..end]);
                    (at, text_from) = (end, end);
                }
                _ => at += 1,
            }
        }
        it.texts.push(&step[text_from..]);
        it
    }
}

/// The first byte after the string that opens at `at`.
fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

struct Repeat {
    start: usize,
    period: usize,
    times: usize,
}

/// The repetition that saves most steps; of equals, the shortest period, then the earliest.
fn best_repeat(shapes: &[usize]) -> Option<Repeat> {
    let mut best: Option<Repeat> = None;
    let mut most_saved = MIN_SAVED - 1;
    for period in 1..=(shapes.len() / 2).min(MAX_PERIOD) {
        let last = shapes.len() - period;
        let mut equal = 0;
        let mut of_period: Option<(usize, usize)> = None;
        for start in (0..last).rev() {
            equal = if shapes[start] == shapes[start + period] { equal + 1 } else { 0 };
            let saved = equal / period * period;
            if saved > 0 && of_period.is_none_or(|(most, _)| saved >= most) {
                of_period = Some((saved, start));
            }
        }
        if let Some((saved, start)) = of_period.filter(|it| it.0 > most_saved) {
            most_saved = saved;
            best = Some(Repeat { start, period, times: 1 + saved / period });
        }
    }
    best
}

/// `cuts` as one group of `times` repetitions.
fn group<'a>(cuts: &[Cut<'a>], times: usize) -> Group<'a> {
    let period = cuts.len() / times;
    let mut bind: Vec<Vec<&str>> = Vec::new();
    let mut known: HashMap<Vec<&str>, usize> = HashMap::new();
    let mut steps = Vec::with_capacity(period);
    for idx in 0..period {
        let first = &cuts[idx];
        let mut step = String::from(first.texts[0]);
        for (slot, (number, text)) in first.numbers.iter().zip(&first.texts[1..]).enumerate() {
            let all: Vec<&str> = cuts[idx..].iter().step_by(period).map(|it| it.numbers[slot]).collect();
            if all.iter().all(|it| it == number) {
                step.push_str(number);
            } else {
                let place = *known.entry(all).or_insert_with_key(|all| {
                    bind.push(all.clone());
                    bind.len() - 1
                });
                step.push_str(&format!("\"${place}\""));
            }
            step.push_str(text);
        }
        steps.push(step);
    }
    Group { times, bind, steps }
}

/// Calls `each` with the text of every step of a group, in order, after filling in the bindings.
///
/// # Errors
/// A sentence if bindings and placeholders do not fit each other, or the error of `each`.
pub(super) fn expand<E: From<String>>(
    times: usize,
    bind: &[Vec<String>],
    steps: &[&str],
    mut each: impl FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    if let Some(idx) = bind.iter().position(|it| it.len() != times) {
        return Err(format!("binding {idx} has {} numbers, expected {times}", bind[idx].len()).into());
    }
    let templates: Vec<Template<'_>> =
        steps.iter().map(|it| Template::new(it, bind.len())).collect::<Result<_, String>>()?;
    let mut text = String::new();
    #[expect(clippy::needless_range_loop, reason = "it indexes what each binding holds, not the bindings")]
    for repetition in 0..times {
        for template in &templates {
            text.clear();
            text.push_str(template.texts[0]);
            for (place, rest) in template.places.iter().zip(&template.texts[1..]) {
                text.push_str(&bind[*place][repetition]);
                text.push_str(rest);
            }
            each(&text)?;
        }
    }
    Ok(())
}

/// A step's text around its placeholders.
struct Template<'a> {
    texts: Vec<&'a str>,
    places: Vec<usize>,
}

impl<'a> Template<'a> {
    fn new(step: &'a str, n_bindings: usize) -> Result<Self, String> {
        let mut it = Self { texts: Vec::new(), places: Vec::new() };
        let mut rest = step;
        while let Some((before, after)) = rest.split_once("\"$") {
            let (digits, after) = after.split_once('"').ok_or("a placeholder has no end")?;
            let place = digits.parse().ok().filter(|it| *it < n_bindings);
            it.places.push(place.ok_or_else(|| format!("placeholder '${digits}' of {n_bindings}"))?);
            it.texts.push(before);
            rest = after;
        }
        it.texts.push(rest);
        Ok(it)
    }
}
