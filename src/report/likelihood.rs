//! How probable a model finds a text: perplexity, and bits per byte of the text.
//!
//! Protocol: the text is cut into windows of W ids that do not overlap; each starts from an empty state, without BOS. Every
//! id of a window predicts the next one; the target of a window's last id is the first of the next window. A last, short
//! window is left out, unless it is the only one. Bytes of the scored ids = bytes of the text × scored ids ÷ all ids.

use super::stats::Running;
use super::units::float;

/// A cut of a text into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Ids of the text.
    pub ids: u64,
    /// Ids of each window.
    pub window: u32,
    /// Windows.
    pub count: u64,
}

impl Windows {
    /// Cuts `ids` ids into windows of at most `window`; `None` if there is nothing to predict.
    #[must_use]
    pub fn new(ids: u64, window: u32) -> Option<Self> {
        let targets = ids.checked_sub(1).filter(|it| *it != 0)?;
        let window = u32::try_from(targets).map_or(window, |it| it.min(window)).max(1);
        Some(Self { ids, window, count: targets / u64::from(window) })
    }

    /// Ids that are predicted.
    #[must_use]
    pub const fn scored(&self) -> u64 {
        self.count * self.window as u64
    }
}

/// What is known after some targets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Likelihood {
    nats: Running,
}

/// A value and its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// Its standard error, targets taken as independent.
    pub error: f64,
}

impl Likelihood {
    /// Takes in the logits that predict `target`: its negative log-probability, computed in f64.
    ///
    /// # Panics
    /// If `target` is no index of `logits`.
    pub fn add(&mut self, logits: &[f32], target: u32) {
        self.nats.add(negative_log_probability(logits, target));
    }

    /// Targets so far.
    #[must_use]
    pub const fn targets(&self) -> u64 {
        self.nats.len()
    }

    /// Nats a target.
    #[must_use]
    pub fn nats(&self) -> Estimate {
        Estimate { value: self.nats.mean(), error: self.nats.standard_error() }
    }

    /// exp of the nats a target; the error by the derivative there, as llama-perplexity has it.
    #[must_use]
    pub fn perplexity(&self) -> Estimate {
        let nats = self.nats();
        let value = nats.value.exp();
        Estimate { value, error: value * nats.error }
    }

    /// Bits a byte of a text of `bytes` bytes and `ids` ids.
    #[must_use]
    pub fn bits_per_byte(&self, bytes: u64, ids: u64) -> Estimate {
        let scale = float(ids) / float(bytes) / std::f64::consts::LN_2;
        let nats = self.nats();
        Estimate { value: nats.value * scale, error: nats.error * scale }
    }
}

/// `−ln softmax(logits)[target]`, in f64.
fn negative_log_probability(logits: &[f32], target: u32) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|it| f64::from(it - most).exp()).sum();
    sum.ln() - f64::from(logits[target as usize] - most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_leave_a_short_rest_out() {
        let cut = |ids, window| Windows::new(ids, window).map(|it| (it.window, it.count, it.scored()));
        // The held-out text of a reference model: 111,292 ids in 217 windows of 512.
        assert_eq!(cut(111_292, 512), Some((512, 217, 111_104)));
        assert_eq!(cut(1025, 512), Some((512, 2, 1024)));
        assert_eq!(cut(1024, 512), Some((512, 1, 512)));
        assert_eq!(cut(5, 512), Some((4, 1, 4)));
        assert_eq!(cut(2, 512), Some((1, 1, 1)));
        assert_eq!(cut(1, 512), None);
        assert_eq!(cut(0, 512), None);
    }

    #[test]
    fn uniform_logits_have_the_vocabulary_as_perplexity() {
        let mut it = Likelihood::default();
        (0..10).for_each(|target| it.add(&[3.5; 64], target));
        let perplexity = it.perplexity();
        assert!((perplexity.value - 64.0).abs() < 1e-12 && perplexity.error < 1e-12);
        // ln 64 = 6 ln 2: six bits an id, two ids a byte.
        assert!((it.bits_per_byte(5, 10).value - 12.0).abs() < 1e-12);
        assert_eq!(it.targets(), 10);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let p = negative_log_probability(&[1e30, 1e30, -1e30], 0);
        assert!((p - std::f64::consts::LN_2).abs() < 1e-15);
        let expected = (1.0f64 + (-1.0f64).exp()).ln() + 1.0;
        assert!((negative_log_probability(&[2.0, 1.0], 1) - expected).abs() < 1e-15);
    }

    #[test]
    fn the_error_is_that_of_the_mean() {
        let mut it = Likelihood::default();
        let logits = [0.0, 3.0f32.ln()];
        for _ in 0..50 {
            it.add(&logits, 0);
            it.add(&logits, 1);
        }
        // −ln ¼ and −ln ¾, half each.
        let (a, b) = (4.0f64.ln(), (4.0f64 / 3.0).ln());
        let deviation = (a - b) / 2.0 * (100.0f64 / 99.0).sqrt();
        assert!((it.nats().value - (a + b) / 2.0).abs() < 1e-7);
        assert!((it.nats().error - deviation / 10.0).abs() < 1e-7);
    }
}
