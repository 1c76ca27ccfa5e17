//! exp, tanh and erf in f32, written so that loops over them become vector instructions.

/// e^x within 2 units in the last place for x in [-87, 88]; outside, the value at the nearer end. No infinity, no
/// denormal: -87 already gives 1.6e-38, which vanishes beside the 1 that every softmax holds.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves the nearest whole number in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first with so few bits that its product with a whole number up to 127 is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let whole = shifted - ROUND;
    let rest = whole.mul_add(-LN2_LOW, whole.mul_add(-LN2_HIGH, x));
    // The Taylor series: |rest| <= ln 2 / 2, so that the first term left out is below 6e-9.
    let mut sum = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = rest.mul_add(sum, coefficient);
    }
    // 2^whole: the whole number in the exponent's place. Only its low 9 bits survive the shift, which are enough.
    sum * f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()))
}

/// tanh x, within 3e-7.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let t = exp(2.0 * x.clamp(-10.0, 10.0));
    (t - 1.0) / (t + 1.0)
}

/// The error function, within 4e-7 of its value.
///
/// x P(x^2) / Q(x^2), fitted to the least relative error on [0, 3.925] (1.9e-8 before rounding); beyond, the
/// value there stands for 1.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    const P: [f32; 6] = [
        2.045_992_7e-6,
        2.848_232_4e-4,
        3.772_038_5e-3,
        5.276_767_5e-2,
        1.905_830_8e-1,
        std::f32::consts::FRAC_2_SQRT_PI,
    ];
    const Q: [f32; 6] = [3.804_635_7e-5, 1.163_717_6e-3, 1.498_217_4e-2, 1.141_781_2e-1, 5.022_326e-1, 1.0];
    let x = x.clamp(-3.925, 3.925);
    let square = x * x;
    let (mut p, mut q) = (P[0], Q[0]);
    for i in 1..6 {
        p = p.mul_add(square, P[i]);
        q = q.mul_add(square, Q[i]);
    }
    x * p / q
}

#[cfg(test)]
mod tests {
    use super::*;

    /// erf by its series, in f64: exact to 1e-14 for |x| < 5.
    fn erf_exact(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    fn worst(range: std::ops::Range<i32>, step: f32, error: impl Fn(f32) -> f64) -> f64 {
        range.map(|i| error(i as f32 * step)).fold(0.0, f64::max)
    }

    #[test]
    fn exp_is_exact_to_two_units() {
        let relative = |x: f32| (f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs();
        let found = worst(-86_999..87_999, 1e-3, relative);
        assert!(found < 2.4e-7, "{found}");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-1e30) < 2e-38 && exp(-1e30) > 0.0);
        assert!(exp(1e30).is_finite());
    }

    #[test]
    fn erf_and_tanh_are_within_their_bounds() {
        let erf_error = |x: f32| (f64::from(erf(x)) - erf_exact(f64::from(x))).abs();
        assert!(worst(-4_500..4_500, 1e-3, erf_error) < 4e-7);
        let small = |x: f32| (f64::from(erf(x)) / erf_exact(f64::from(x)) - 1.0).abs();
        assert!(worst(1..1000, 1e-6, small) < 4e-7, "relative near zero");
        let tanh_error = |x: f32| (f64::from(tanh(x)) - f64::from(x).tanh()).abs();
        assert!(worst(-12_000..12_000, 1e-3, tanh_error) < 3e-7);
        assert_eq!(erf(0.0), 0.0);
        assert!((erf(f32::INFINITY) - 1.0).abs() < 4e-7);
        assert!(erf(f32::NAN).is_nan());
    }
}
