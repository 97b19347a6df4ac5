//! See the family's contract in `mod.rs`.

/// A·x² … by Horner's rule in fma: Σ c\[i\]·x^i.
#[inline(always)]
fn horner<const N: usize>(c: [f32; N], x: f32) -> f32 {
    let mut sum = c[N - 1];
    for i in (0..N - 1).rev() {
        sum = sum.mul_add(x, c[i]);
    }
    sum
}

/// e^x.
///
/// x = n·ln 2 + r with abs(r) ≤ ln 2 / 2; e^r = 1 + (r + r²·q(r)); 2^n in two factors, so that results down to the
/// subnormals and up to overflow need no special case.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    /// Adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in 10 bits, so that n times it is exact, and the rest.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// (e^r − 1 − r) / r² on ±ln 2 / 2; error 6.5e-8.
    const Q: [f32; 5] = [0.5, 1.666_657_8e-1, 4.166_655_6e-2, 8.363_173e-3, 1.392_617_6e-3];
    // Beyond these the result is 0 or infinite anyway; a NaN passes both.
    let x = if x < -105.0 { -105.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let e = horner(Q, r).mul_add(r * r, r) + 1.0;
    let n = rounded.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = n >> 1;
    e * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// 2^n for −126 ≤ n ≤ 127; anything for other n.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(n.wrapping_add(127).cast_unsigned().wrapping_shl(23))
}

/// 1 / (1 + e^−x).
#[inline(always)]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    scaled_sigmoid(1.0, x)
}

/// a / (1 + e^−x), as a·e^x / (1 + e^x) for negative x: no overflow, no cancellation.
#[inline(always)]
fn scaled_sigmoid(a: f32, x: f32) -> f32 {
    let e = exp(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    (a * numerator) / (1.0 + e)
}

/// x / (1 + e^−x).
#[inline(always)]
#[must_use]
pub fn silu(x: f32) -> f32 {
    scaled_sigmoid(x, x)
}

/// x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) / 2, computed as x / (1 + e^−2a) with the same argument a.
#[inline(always)]
#[must_use]
pub fn gelu_tanh(x: f32) -> f32 {
    /// 2·√(2/π).
    const TWICE: f32 = 1.595_769;
    let a = (0.044_715 * (x * x)).mul_add(x, x);
    scaled_sigmoid(x, TWICE * a)
}

/// x·(1 + erf(x / √2)) / 2.
#[inline(always)]
#[must_use]
pub fn gelu_erf(x: f32) -> f32 {
    let half = 0.5 * x;
    half.mul_add(erf(x * std::f32::consts::FRAC_1_SQRT_2), half)
}

/// The hyperbolic tangent: an odd polynomial near 0, else 1 − 2 / (e^2x + 1) with x's sign.
#[inline(always)]
#[must_use]
pub fn tanh(x: f32) -> f32 {
    /// (tanh(x) / x − 1) / x² in x², for abs(x) ≤ 0.65; error 2.5e-9.
    const NEAR: [f32; 6] =
        [-3.333_333_4e-1, 1.333_329_1e-1, -5.395_635e-2, 2.174_618_7e-2, -8.272_457e-3, 2.214_902_8e-3];
    let z = x * x;
    let near = (horner(NEAR, z) * z).mul_add(x, x);
    let far = 1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0);
    if x.abs() < 0.65 { near } else { far.copysign(x) }
}

/// ln(1 + e^x) = max(x, 0) + ln(1 + e^−abs(x)); the logarithm of 1 + u is 2·artanh(u / (2 + u)).
#[inline(always)]
#[must_use]
pub fn softplus(x: f32) -> f32 {
    /// (artanh(s) / s − 1) / s² in s², for 0 ≤ s ≤ 1/3; error 3.6e-9.
    const ARTANH: [f32; 5] = [3.333_333_4e-1, 1.999_985_3e-1, 1.429_617_9e-1, 1.085_328_8e-1, 1.161_216_5e-1];
    let u = exp(-x.abs());
    let s = u / (2.0 + u);
    let z = s * s;
    let log = (horner(ARTANH, z) * z).mul_add(s, s);
    let positive = if x > 0.0 { x } else { 0.0 };
    2.0f32.mul_add(log, positive)
}

/// The error function: an odd polynomial up to 1, then 1 − e^−L(x) with L = −ln erfc, and x's sign.
#[inline(always)]
#[must_use]
pub fn erf(x: f32) -> f32 {
    /// erf(x) / x in x², for abs(x) ≤ 1; error 3.4e-11.
    const NEAR: [f32; 8] = [
        std::f32::consts::FRAC_2_SQRT_PI,
        -3.761_263_8e-1,
        1.128_378_2e-1,
        -2.686_543e-2,
        5.221_031_6e-3,
        -8.484_08e-4,
        1.126_595_9e-4,
        -9.667_045e-6,
    ];
    /// −ln erfc(x) for 1 ≤ x ≤ 4; error 1.7e-8. Beyond 4, 1 − erfc rounds to 1.
    const FAR: [f32; 9] = [
        -3.201_380_6e-4,
        1.130_233_4,
        6.318_260_4e-1,
        1.100_800_9e-1,
        -2.642_113_5e-2,
        4.759_596e-3,
        -5.968_056_6e-4,
        4.605_804e-5,
        -1.637_151_4e-6,
    ];
    let near = horner(NEAR, x * x) * x;
    let abs = if x.abs() > 4.0 { 4.0 } else { x.abs() };
    let far = 1.0 - exp(-horner(FAR, abs));
    if x.abs() < 1.0 { near } else { far.copysign(x) }
}

/// max(x, 0); a NaN stays.
#[inline(always)]
#[must_use]
pub fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Units in the last place between `got` and `want`.
    fn ulps(got: f32, want: f64) -> f64 {
        #[expect(clippy::cast_possible_truncation, reason = "only the exponent is of interest")]
        let unit = (want as f32).abs().max(f32::MIN_POSITIVE).to_bits();
        let unit = f64::from(f32::from_bits(unit + 1)) - f64::from(f32::from_bits(unit));
        (f64::from(got) - want).abs() / unit
    }

    fn worst(f: fn(f32) -> f32, want: fn(f64) -> f64, from: f32, to: f32) -> (f64, f32) {
        let step = (to - from) / 400_000.0;
        (0..=400_000u32)
            .map(|i| {
                #[expect(clippy::cast_precision_loss, reason = "i < 2^24")]
                let x = step.mul_add(i as f32, from);
                (ulps(f(x), want(f64::from(x))), x)
            })
            .fold((0.0, 0.0), |worst, it| if it.0 > worst.0 { it } else { worst })
    }

    #[test]
    fn errors_stay_within_three_units() {
        let logistic = |x: f64| 1.0 / (1.0 + libm::exp(-x));
        type Case = (&'static str, fn(f32) -> f32, fn(f64) -> f64, f32, f32);
        let cases: [Case; 10] = [
            ("exp", exp, libm::exp, -87.3, 88.7),
            ("exp near 0", exp, libm::exp, -0.5, 0.5),
            ("sigmoid", sigmoid, logistic, -80.0, 40.0),
            ("silu", silu, |x| x / (1.0 + libm::exp(-x)), -80.0, 40.0),
            ("tanh", tanh, libm::tanh, -10.0, 10.0),
            ("tanh near 0", tanh, libm::tanh, -0.7, 0.7),
            ("softplus", softplus, |x| libm::log1p(libm::exp(x)), -80.0, 100.0),
            ("softplus near 0", softplus, |x| libm::log1p(libm::exp(x)), -3.0, 3.0),
            ("erf", erf, libm::erf, -5.0, 5.0),
            ("erf near 0", erf, libm::erf, -0.1, 0.1),
        ];
        for (name, f, want, from, to) in cases {
            let (ulps, at) = worst(f, want, from, to);
            assert!(ulps <= 3.0, "{name}: {ulps} units at {at}");
        }
    }

    #[test]
    fn gelus_are_close_in_absolute_terms() {
        let exact_tanh = |x: f64| {
            let a = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + libm::tanh(a))
        };
        let exact_erf = |x: f64| 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt()));
        for i in -3000..=3000i16 {
            let x = f32::from(i) / 250.0;
            let (at, bound) = (f64::from(x), f64::from(x).abs() * 2f64.powi(-22) + 1e-30);
            assert!((f64::from(gelu_tanh(x)) - exact_tanh(at)).abs() <= bound, "gelu_tanh({x})");
            assert!((f64::from(gelu_erf(x)) - exact_erf(at)).abs() <= bound, "gelu_erf({x})");
        }
    }

    #[test]
    fn special_points_are_exact() {
        assert_eq!([exp(0.0), exp(-0.0)], [1.0; 2]);
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp(-200.0).to_bits(), 0);
        assert_eq!([exp(f32::INFINITY), exp(89.5), exp(1e30)], [f32::INFINITY; 3]);
        assert!(exp(-100.0) > 0.0, "gradual underflow");
        assert_eq!([sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY), sigmoid(0.0)], [1.0, 0.0, 0.5]);
        assert_eq!([tanh(f32::INFINITY), tanh(f32::NEG_INFINITY), tanh(0.0)], [1.0, -1.0, 0.0]);
        assert_eq!([erf(f32::INFINITY), erf(f32::NEG_INFINITY), erf(0.0)], [1.0, -1.0, 0.0]);
        assert_eq!([softplus(f32::INFINITY), softplus(f32::NEG_INFINITY)], [f32::INFINITY, 0.0]);
        for f in [exp, sigmoid, silu, gelu_tanh, gelu_erf, tanh, softplus, erf, relu] {
            assert!(f(f32::NAN).is_nan());
        }
    }
}
