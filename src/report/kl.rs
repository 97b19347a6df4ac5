//! How far the predictions of one model are from those of another: Kullback–Leibler divergence and agreement.
//!
//! KL(base ‖ found) = Σ p · (ln p − ln q) in nats, with p = softmax(base) and q = softmax(found), in f64. Agreement: whether the likeliest
//! token is the same, and which part of the ten likeliest is common. Equal logits rank by lower id, as everywhere here.

use super::likelihood::Estimate;
use super::stats::Running;
use super::units::float;

/// How many of the likeliest tokens are compared.
const TOP: usize = 10;

/// What is known after some rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Divergence {
    kl: Running,
    top1: Running,
    top10: Running,
    most: f64,
    most_at: u64,
}

/// Logits that give no probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {row}: {whose} logits hold NaN, +infinity, or nothing else than -infinity")]
pub struct NoProbabilities {
    /// The row, from 0.
    pub row: u64,
    /// `the base's` or `the model's`.
    pub whose: &'static str,
}

impl Divergence {
    /// Takes in the logits of one position: those of the base, and those of the model that is judged.
    ///
    /// # Errors
    /// If either gives no probabilities.
    ///
    /// # Panics
    /// If they are of different lengths.
    pub fn add(&mut self, base: &[f32], found: &[f32]) -> Result<(), NoProbabilities> {
        assert_eq!(base.len(), found.len(), "logits of one vocabulary");
        let row = self.kl.len();
        let p = log_sum(base).ok_or(NoProbabilities { row, whose: "the base's" })?;
        let q = log_sum(found).ok_or(NoProbabilities { row, whose: "the model's" })?;
        let term = |(base, found): (&f32, &f32)| {
            let (p, q) = (f64::from(*base) - p, f64::from(*found) - q);
            // A token that the base excludes costs nothing.
            if *base == f32::NEG_INFINITY { 0.0 } else { p.exp() * (p - q) }
        };
        // Rounding may leave a divergence of nothing a little below 0.
        let kl = base.iter().zip(found).map(term).sum::<f64>().max(0.0);
        if self.most < kl {
            (self.most, self.most_at) = (kl, row);
        }
        let (base, found) = (top(base), top(found));
        let common = base.iter().filter(|it| found.contains(it)).count();
        self.kl.add(kl);
        self.top1.add(if base.first() == found.first() { 1.0 } else { 0.0 });
        self.top10.add(float(common as u64) / float(base.len().max(1) as u64));
        Ok(())
    }

    /// Rows so far.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.kl.len()
    }

    /// Nats a position.
    #[must_use]
    pub fn mean(&self) -> Estimate {
        estimate(&self.kl)
    }

    /// The largest, and the row it is in.
    #[must_use]
    pub const fn most(&self) -> (f64, u64) {
        (self.most, self.most_at)
    }

    /// The part of positions at which the likeliest token is the same.
    #[must_use]
    pub fn top1(&self) -> Estimate {
        estimate(&self.top1)
    }

    /// The part of the ten likeliest tokens that is common.
    #[must_use]
    pub fn top10(&self) -> Estimate {
        estimate(&self.top10)
    }
}

fn estimate(it: &Running) -> Estimate {
    Estimate { value: it.mean(), error: it.standard_error() }
}

/// ln Σ exp; `None` where there is no such number.
fn log_sum(logits: &[f32]) -> Option<f64> {
    let most = logits
        .iter()
        .try_fold(f32::NEG_INFINITY, |most, it| if it.is_nan() { None } else { Some(most.max(*it)) })?;
    let most = Some(f64::from(most)).filter(|it| it.is_finite())?;
    Some(most + logits.iter().map(|it| (f64::from(*it) - most).exp()).sum::<f64>().ln())
}

/// The likeliest tokens, the likeliest first.
fn top(logits: &[f32]) -> Vec<usize> {
    let mut best: Vec<usize> = Vec::with_capacity(TOP + 1);
    for (id, logit) in logits.iter().enumerate() {
        let is_last = best.last().is_some_and(|it| *logit <= logits[*it]);
        if best.len() == TOP && is_last {
            continue;
        }
        let at = best.partition_point(|it| *logit <= logits[*it]);
        best.insert(at, id);
        best.truncate(TOP);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_are_not_apart() {
        let mut it = Divergence::default();
        // A constant added to all logits changes no probability.
        it.add(&[1.0, 2.0, -3.0], &[11.0, 12.0, 7.0]).expect("probabilities");
        assert!(it.mean().value < 1e-15 && it.top1().value == 1.0 && it.top10().value == 1.0);
    }

    #[test]
    fn a_known_divergence() {
        let mut it = Divergence::default();
        let (p, q) = ([0.75f64, 0.25], [0.25f64, 0.75]);
        #[expect(clippy::cast_possible_truncation, reason = "a test")]
        let logits = |it: [f64; 2]| it.map(|it| it.ln() as f32);
        it.add(&logits(p), &logits(q)).expect("probabilities");
        it.add(&logits(p), &logits(p)).expect("probabilities");
        // ¾ ln 3 + ¼ ln ⅓ = ½ ln 3, and 0.
        let expected = 0.5 * 3.0f64.ln();
        assert!((it.mean().value - expected / 2.0).abs() < 1e-7);
        assert!((it.mean().error - expected / 2.0).abs() < 1e-7);
        assert!((it.most().0 - expected).abs() < 1e-7 && it.most().1 == 0);
        assert_eq!((it.top1().value, it.top10().value, it.rows()), (0.5, 1.0, 2));
    }

    #[test]
    fn the_ten_likeliest_rank_by_value_then_id() {
        let logits: [f32; 14] = [0.0, 5.0, 5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.0, -1.0];
        assert_eq!(top(&logits), [12, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(top(&[2.0, 3.0]), [1, 0]);
    }

    #[test]
    fn what_gives_no_probabilities_is_refused() {
        let mut it = Divergence::default();
        for bad in [[f32::NAN, 0.0], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            assert!(it.add(&bad, &[0.0, 0.0]).is_err() && it.add(&[0.0, 0.0], &bad).is_err());
        }
        assert_eq!(it.rows(), 0);
        it.add(&[0.0, f32::NEG_INFINITY], &[0.0, 0.0]).expect("an excluded token");
        assert!((it.mean().value - std::f64::consts::LN_2).abs() < 1e-15);
    }
}
