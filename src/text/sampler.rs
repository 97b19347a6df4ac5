//! Choosing the next token from logits.
//!
//! Order: top-k, top-p, min-p, temperature. The probabilities that top-p and min-p look at are those at
//! temperature 1; the draw is by the tempered ones of the tokens that are left.
//!
//! Invariants
//! - temperature 0 is one linear scan; ties go to the lower id; excluded ids stay excluded;
//! - the same seed and logits give the same ids on any machine: sums in f64 in a fixed order, `exp` from
//!   libm, and [`Xoshiro256PlusPlus`] seeded by SplitMix64, which will not change between versions;
//! - no allocation after construction.
//!
//! Deliberately absent: repetition penalties.

use super::error::{Result, TextError};
use crate::random::Xoshiro256PlusPlus;

/// How to choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerOptions {
    /// 0 chooses the largest logit.
    pub temperature: f64,
    /// Keep the k largest; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest of largest probability that reach this together; 1 keeps all.
    pub top_p: f64,
    /// Keep those of at least this times the largest probability; 0 keeps all.
    pub min_p: f64,
    /// Seed of the generator.
    pub seed: u64,
}

/// Chooses ids; holds the generator and scratch for one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplerOptions,
    rng: Xoshiro256PlusPlus,
    /// Candidates, filled anew for each choice.
    ids: Vec<u32>,
}

impl SamplerOptions {
    /// Always the largest logit.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

    /// Checks that every option makes sense.
    ///
    /// # Errors
    /// [`TextError::Option`] with the first that is out of range.
    pub fn check(&self) -> Result<()> {
        let Self { temperature, top_p, min_p, .. } = *self;
        let check = |name, found: f64, is_ok: bool, expected| {
            if is_ok { Ok(()) } else { Err(TextError::Option { name, found, expected }) }
        };
        check("temp", temperature, temperature.is_finite() && temperature >= 0.0, "a finite number from 0")?;
        check("top-p", top_p, top_p > 0.0 && top_p <= 1.0, "a number above 0 and at most 1")?;
        check("min-p", min_p, (0.0..=1.0).contains(&min_p), "a number from 0 to 1")
    }
}

impl Sampler {
    /// A sampler for logits of `n_vocab` entries.
    ///
    /// # Errors
    /// If an option is out of range.
    pub fn new(options: SamplerOptions, n_vocab: usize) -> Result<Self> {
        options.check()?;
        let rng = Xoshiro256PlusPlus::from_seed(options.seed);
        Ok(Self { options, rng, ids: Vec::with_capacity(n_vocab) })
    }

    /// Chooses from `logits: f32[n_vocab]`, never one of `excluded`; `None` if nothing finite is left.
    pub fn choose(&mut self, logits: &[f32], excluded: &[u32]) -> Option<u32> {
        if self.options.temperature == 0.0 {
            return greedy(logits, excluded);
        }
        self.ids.clear();
        for (id, logit) in (0..).zip(logits) {
            if logit.is_finite() && !excluded.contains(&id) {
                self.ids.push(id);
            }
        }
        let max = self.ids.iter().map(|id| logits[*id as usize]).reduce(f32::max)?;
        let kept = self.filter(logits, max);
        self.draw(logits, max, kept)
    }

    /// Moves the candidates that top-k, top-p and min-p keep to the front, and counts them.
    fn filter(&mut self, logits: &[f32], max: f32) -> usize {
        let SamplerOptions { top_k, top_p, min_p, .. } = self.options;
        let mut kept = self.ids.len();
        if top_k > 0 && top_k < kept {
            sort_front(&mut self.ids, 0, top_k, logits);
            kept = top_k;
        }
        let weight = |id: u32| libm::exp(f64::from(logits[id as usize]) - f64::from(max));
        if top_p < 1.0 {
            let total: f64 = self.ids[..kept].iter().map(|id| weight(*id)).sum();
            kept = count_top_p(&mut self.ids[..kept], logits, top_p * total, weight);
        }
        if min_p > 0.0 {
            let mut front = 0;
            for idx in 0..kept {
                if weight(self.ids[idx]) >= min_p {
                    self.ids.swap(front, idx);
                    front += 1;
                }
            }
            kept = front;
        }
        kept
    }

    fn draw(&mut self, logits: &[f32], max: f32, kept: usize) -> Option<u32> {
        let temperature = self.options.temperature;
        let weight = |id: u32| libm::exp((f64::from(logits[id as usize]) - f64::from(max)) / temperature);
        let total: f64 = self.ids[..kept].iter().map(|id| weight(*id)).sum();
        let mut left = self.rng.next_f64() * total;
        for id in &self.ids[..kept] {
            left -= weight(*id);
            if left < 0.0 {
                return Some(*id);
            }
        }
        // Rounding can leave a last crumb: it belongs to the last candidate of any weight.
        self.ids[..kept].iter().rev().copied().find(|id| weight(*id) > 0.0)
    }
}

/// The id of the largest finite logit that is not excluded; ties go to the lower id.
#[must_use]
pub fn greedy(logits: &[f32], excluded: &[u32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (id, &logit) in (0..).zip(logits) {
        let is_better = best.is_none_or(|(_, most)| logit > most);
        if is_better && logit.is_finite() && !excluded.contains(&id) {
            best = Some((id, logit));
        }
    }
    best.map(|(id, _)| id)
}

/// Sorts the best `n` of `ids[from..]` to its front: by falling logit, then rising id.
fn sort_front(ids: &mut [u32], from: usize, n: usize, logits: &[f32]) {
    let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let rest = &mut ids[from..];
    if n < rest.len() {
        rest.select_nth_unstable_by(n, order);
    }
    let n = n.min(rest.len());
    rest[..n].sort_unstable_by(order);
}

/// The fewest best candidates whose weights reach `wanted`, sorted to the front. Sorts in growing parts,
/// as the nucleus is mostly small.
fn count_top_p(ids: &mut [u32], logits: &[f32], wanted: f64, weight: impl Fn(u32) -> f64) -> usize {
    let mut reached = 0.0;
    let mut sorted = 0;
    let mut part = 64;
    while sorted < ids.len() {
        sort_front(ids, sorted, part, logits);
        let end = (sorted + part).min(ids.len());
        for (idx, id) in ids.iter().enumerate().take(end).skip(sorted) {
            reached += weight(*id);
            if reached >= wanted {
                return idx + 1;
            }
        }
        sorted = end;
        part *= 8;
    }
    ids.len()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const ALL: SamplerOptions =
        SamplerOptions { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 7 };

    #[test]
    fn greedy_takes_the_lower_id_and_keeps_exclusions() {
        let logits = [1.0, 3.0, f32::NAN, 3.0, -2.0, f32::INFINITY];
        assert_eq!(greedy(&logits, &[]), Some(1));
        assert_eq!(greedy(&logits, &[1]), Some(3));
        assert_eq!(greedy(&logits, &[1, 3, 0, 4]), None);
        let mut sampler = Sampler::new(SamplerOptions { temperature: 0.0, ..ALL }, 6).unwrap();
        assert_eq!(sampler.choose(&logits, &[]), Some(1));
    }

    /// Which ids of `logits` can come out, and how often of 20,000 draws.
    fn histogram(options: SamplerOptions, logits: &[f32], excluded: &[u32]) -> Vec<u32> {
        let mut sampler = Sampler::new(options, logits.len()).unwrap();
        let mut counts = vec![0; logits.len()];
        for _ in 0..20_000 {
            counts[sampler.choose(logits, excluded).unwrap() as usize] += 1;
        }
        counts
    }

    fn is_drawn(counts: &[u32]) -> Vec<bool> {
        counts.iter().map(|it| *it > 0).collect()
    }

    /// Logits of the probabilities 0.5, 0.25, 0.15, 0.1, in the order c a d b.
    fn four() -> [f32; 4] {
        [0.15f32, 0.5, 0.1, 0.25].map(f32::ln)
    }

    #[test]
    fn each_filter_keeps_what_it_promises() {
        let kept = |options| is_drawn(&histogram(options, &four(), &[]));
        assert_eq!(kept(ALL), [true; 4]);
        assert_eq!(kept(SamplerOptions { top_k: 2, ..ALL }), [false, true, false, true]);
        assert_eq!(kept(SamplerOptions { top_p: 0.7, ..ALL }), [false, true, false, true]);
        assert_eq!(kept(SamplerOptions { top_p: 0.76, ..ALL }), [true, true, false, true]);
        assert_eq!(kept(SamplerOptions { min_p: 0.28, ..ALL }), [true, true, false, true]);
        assert_eq!(kept(SamplerOptions { min_p: 0.32, ..ALL }), [false, true, false, true]);
    }

    #[test]
    fn top_p_counts_within_top_k_and_temperature_comes_last() {
        // Of the best three (0.5, 0.25, 0.15: 0.9 together) 0.8 · 0.9 = 0.72 is reached by two.
        let options = SamplerOptions { top_k: 3, top_p: 0.8, ..ALL };
        assert_eq!(is_drawn(&histogram(options, &four(), &[])), [false, true, false, true]);
        // A high temperature before top-p would let more than two in.
        let hot = SamplerOptions { temperature: 100.0, ..options };
        let counts = histogram(hot, &four(), &[]);
        assert_eq!(is_drawn(&counts), [false, true, false, true]);
        assert!(counts[1].abs_diff(counts[3]) < 600, "{counts:?}");
    }

    #[test]
    fn frequencies_follow_the_tempered_probabilities() {
        let counts = histogram(SamplerOptions { temperature: 0.5, ..ALL }, &four(), &[]);
        let squares = [0.15f64, 0.5, 0.1, 0.25].map(|p| p * p);
        let total: f64 = squares.iter().sum();
        for (count, square) in counts.iter().zip(squares) {
            let (got, want) = (f64::from(*count) / 20_000.0, square / total);
            assert!((got - want).abs() < 0.015, "{got} {want}");
        }
    }

    #[test]
    fn excluded_ids_stay_excluded_and_seeds_repeat() {
        let counts = histogram(ALL, &four(), &[1, 0]);
        assert_eq!(is_drawn(&counts), [false, false, true, true]);
        assert_eq!(counts, histogram(ALL, &four(), &[1, 0]));
        assert_ne!(histogram(SamplerOptions { seed: 8, ..ALL }, &four(), &[]), histogram(ALL, &four(), &[]));
    }

    #[test]
    fn a_wide_nucleus_is_counted_over_several_parts() {
        let logits: Vec<f32> = (0..1000u16).map(|it| f32::from(it % 10) * 1e-3).collect();
        let options = SamplerOptions { top_p: 0.5, ..ALL };
        let mut sampler = Sampler::new(options, logits.len()).unwrap();
        let mut ids: Vec<u32> = (0..4000).map(|_| sampler.choose(&logits, &[]).unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert!((485..=500).contains(&ids.len()), "{}", ids.len());
        assert!(ids.iter().all(|id| id % 10 >= 5), "the five largest of ten");
    }

    #[test]
    fn options_out_of_range_are_refused_by_name() {
        for (options, name) in [
            (SamplerOptions { temperature: -1.0, ..ALL }, "temp is -1"),
            (SamplerOptions { temperature: f64::NAN, ..ALL }, "temp is NaN"),
            (SamplerOptions { top_p: 0.0, ..ALL }, "top-p is 0"),
            (SamplerOptions { min_p: 1.5, ..ALL }, "min-p is 1.5"),
        ] {
            let err = Sampler::new(options, 4).unwrap_err().to_string();
            assert!(err.contains(name), "{err}");
        }
    }
}
