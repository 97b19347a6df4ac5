//! Rotary frequencies, derived again from the op's attributes.

use std::f64::consts::PI;

use waste_ir::RopeScaling;

/// Radians a position for each of `dims / 2` pairs: base^(−2i/dims) (Su et al. 2021, §3.2.2), then `scaling`.
pub(super) fn freqs(dims: u32, base: f64, scaling: RopeScaling) -> Vec<f64> {
    let plain = |i: u32| libm::pow(base, -2.0 * f64::from(i) / f64::from(dims));
    (0..dims / 2).map(|i| scaled(plain(i), scaling)).collect()
}

fn scaled(freq: f64, scaling: RopeScaling) -> f64 {
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
    }
}
