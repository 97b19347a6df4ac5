//! Rotary frequencies, derived again from the op's attributes.

use std::f64::consts::PI;

use waste_ir::RopeScaling;

/// Radians a position for each of `dims / 2` pairs: base^(−2i/dims) (Su et al. 2021, §3.2.2), then `scaling`.
///
/// Rounded as transformers 4.57 does it, `1 / base ** (2i / dims)`, in f64: equal to the bit, or not equal.
pub(super) fn freqs(dims: u32, base: f64, scaling: RopeScaling) -> Vec<f64> {
    let plain = |i: u32| 1.0 / libm::pow(base, 2.0 * f64::from(i) / f64::from(dims));
    (0..dims / 2).map(|i| scaled(i, plain(i), (dims, base), scaling)).collect()
}

fn scaled(i: u32, freq: f64, (dims, base): (u32, f64), scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::None => freq,
        RopeScaling::Linear { factor } => freq / factor,
        RopeScaling::Llama3 { factor, low, high, orig } => {
            // transformers 4.57, modeling_rope_utils._compute_llama3_parameters, term by term.
            let orig = f64::from(orig);
            let wavelen = 2.0 * PI / freq;
            if wavelen > orig / low {
                freq / factor
            } else if wavelen < orig / high {
                freq
            } else {
                let smooth = (orig / wavelen - low) / (high - low);
                (1.0 - smooth) * freq / factor + smooth * freq
            }
        }
        RopeScaling::Yarn { factor, fast, slow, orig } => {
            // transformers 4.57, modeling_rope_utils._compute_yarn_parameters, term by term.
            let dims = f64::from(dims);
            let correction =
                |turns: f64| dims * libm::log(f64::from(orig) / (turns * 2.0 * PI)) / (2.0 * libm::log(base));
            let low = correction(fast).floor().max(0.0);
            let mut high = correction(slow).ceil().min(dims - 1.0);
            if low == high {
                high += 0.001;
            }
            let ramp = ((f64::from(i) - low) / (high - low)).clamp(0.0, 1.0);
            freq / factor * ramp + freq * (1.0 - ramp)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_fall_from_one_by_equal_factors() {
        let found = freqs(8, 10_000.0, RopeScaling::None);
        assert_eq!(found, [1.0, 0.1, 0.01, 0.001]);
        assert_eq!(freqs(4, 10_000.0, RopeScaling::Linear { factor: 4.0 }), [0.25, 0.0025]);
    }

    /// Llama 3.1 8B (base 500000, 128 dims, factor 8, low 1, high 4, 8192 positions): high frequencies are kept, low ones
    /// divided by 8, and pair 32, of wave length 4443, is between: 8192 / 4443 = 1.844 turns are 28 % of the way from 1 to 4.
    #[test]
    fn llama3_keeps_high_and_divides_low_frequencies() {
        let plain = freqs(128, 500_000.0, RopeScaling::None);
        let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, orig: 8192 };
        let found = freqs(128, 500_000.0, scaling);
        assert_eq!((found[0], found[28]), (plain[0], plain[28]));
        assert_eq!((found[36], found[63]), (plain[36] / 8.0, plain[63] / 8.0));
        let kept = (8192.0 * plain[32] / (2.0 * PI) - 1.0) / 3.0;
        assert!((kept - 0.28).abs() < 0.005, "{kept}");
        assert!((found[32] / plain[32] - (kept + (1.0 - kept) / 8.0)).abs() < 1e-12);
    }
}
