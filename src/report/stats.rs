//! Mean, deviation, standard error.

use super::units::float;

/// The average and the sample deviation (n − 1) of `samples`; a deviation needs two of them, else it is 0.
#[must_use]
pub fn mean_and_deviation(samples: &[f64]) -> (f64, f64) {
    if samples.is_empty() {
        return (0.0, 0.0);
    }
    let n = float(samples.len() as u64);
    let mean = samples.iter().sum::<f64>() / n;
    let squares: f64 = samples.iter().map(|it| (it - mean).powi(2)).sum();
    let deviation = if samples.len() < 2 { 0.0 } else { (squares / (n - 1.0)).sqrt() };
    (mean, deviation)
}

/// Mean and variance of numbers that come one by one (Welford 1962): no sum of squares to cancel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Running {
    n: u64,
    mean: f64,
    squares: f64,
}

impl Running {
    /// Takes in `value`.
    pub fn add(&mut self, value: f64) {
        self.n += 1;
        let before = value - self.mean;
        self.mean += before / float(self.n);
        self.squares += before * (value - self.mean);
    }

    /// How many numbers came.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.n
    }

    /// Whether none came.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Their mean; 0 if there are none.
    #[must_use]
    pub const fn mean(&self) -> f64 {
        self.mean
    }

    /// The standard error of the mean, as if the numbers were independent; 0 for fewer than two.
    #[must_use]
    pub fn standard_error(&self) -> f64 {
        if self.n < 2 { 0.0 } else { (self.squares / float(self.n - 1) / float(self.n)).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_sample() {
        let samples = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        let (mean, deviation) = mean_and_deviation(&samples);
        assert_eq!(mean, 5.0);
        assert!((deviation - (32.0f64 / 7.0).sqrt()).abs() < 1e-15);
        let mut running = Running::default();
        samples.iter().for_each(|it| running.add(*it));
        assert_eq!((running.len(), running.mean()), (8, 5.0));
        assert!((running.standard_error() - (32.0f64 / 7.0 / 8.0).sqrt()).abs() < 1e-15);
    }

    #[test]
    fn few_samples_have_no_deviation() {
        assert_eq!(mean_and_deviation(&[]), (0.0, 0.0));
        assert_eq!(mean_and_deviation(&[3.0]), (3.0, 0.0));
        let mut running = Running::default();
        assert!(running.is_empty());
        running.add(3.0);
        assert_eq!((running.mean(), running.standard_error()), (3.0, 0.0));
    }

    #[test]
    fn a_large_offset_cancels_nothing() {
        let mut running = Running::default();
        (0..1000).for_each(|i| running.add(1e9 + f64::from(i % 2)));
        let expected = (0.25 * 1000.0 / 999.0 / 1000.0f64).sqrt();
        assert!((running.standard_error() - expected).abs() < 1e-12);
    }
}
