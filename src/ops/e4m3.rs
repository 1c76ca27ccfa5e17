//! fp8 in its form e4m3: a sign, 4 bits of exponent with a bias of 7, 3 of mantissa; no infinities, and one magnitude that
//! is not a number. What tensor cores multiply and `kernels/quantize.cu` writes.

/// The largest value.
pub(crate) const LARGEST: f32 = 448.0;

/// Values below this are whole multiples of [`SMALLEST`].
const LEAST_NORMAL: f32 = 1.0 / 64.0;

/// The smallest value above 0.
const SMALLEST: f32 = 1.0 / 512.0;

const SIGN: u8 = 0x80;
const NOT_A_NUMBER: u8 = 0x7f;

/// The nearest value's bits, of two equally near ones those that are even; what is larger than [`LARGEST`] becomes it.
pub(crate) fn encode(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { SIGN } else { 0 };
    let magnitude = value.abs().min(LARGEST);
    if value.is_nan() {
        return sign | NOT_A_NUMBER;
    }
    if magnitude < LEAST_NORMAL {
        // 8 of them are the least normal value, whose bits follow on those of the others.
        return sign | (magnitude / SMALLEST).round_ties_even() as u8;
    }
    // Of 23 bits of mantissa 3 stay; a carry goes into the exponent, whose bias of 127 becomes 7.
    let bits = magnitude.to_bits();
    let rounded = (bits + 0x7_ffff + (bits >> 20 & 1)) >> 20;
    sign | (rounded - ((127 - 7) << 3)) as u8
}

/// The value of bits.
pub(crate) fn decode(bits: u8) -> f32 {
    let (exponent, mantissa) = (bits >> 3 & 0xf, f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (0xf, 7) => f32::NAN,
        (0, _) => mantissa * SMALLEST,
        _ => (1.0 + mantissa / 8.0) * f32::from(exponent).exp2() / 128.0,
    };
    if bits & SIGN == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;

    /// Bits of all numbers that are not negative, in order.
    fn all() -> std::ops::Range<u8> {
        0..NOT_A_NUMBER
    }

    #[test]
    fn values_are_those_of_the_definition() {
        let known = [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x39, 1.125),
            (0x40, 2.0),
            (0x7e, 448.0),
            (0xb8, -1.0),
            (0xfe, -448.0),
        ];
        for (bits, value) in known {
            assert_eq!(decode(bits), value, "{bits:#x}");
        }
        assert!(decode(NOT_A_NUMBER).is_nan() && decode(SIGN | NOT_A_NUMBER).is_nan());
        assert!(all().is_sorted_by(|a, b| decode(*a) < decode(*b)));
    }

    #[test]
    fn every_value_is_its_own_and_what_is_between_goes_to_the_nearest() {
        for sign in [0, SIGN] {
            for bits in all() {
                assert_eq!(encode(decode(sign | bits)), sign | bits);
            }
            for low in all().take(LARGEST_BITS.into()) {
                let (a, b) = (decode(sign | low), decode(sign | (low + 1)));
                // Exact: both have 4 digits.
                let middle = (a + b) / 2.0;
                let (inside, outside) = (nudged(middle, -1), nudged(middle, 1));
                assert_eq!(encode(inside), sign | low, "{inside}");
                assert_eq!(encode(middle), sign | (low + low % 2), "{middle}");
                assert_eq!(encode(outside), sign | (low + 1), "{outside}");
            }
        }
    }

    const LARGEST_BITS: u8 = 0x7e;

    /// The next f32 towards or away from 0.
    fn nudged(value: f32, by: i32) -> f32 {
        f32::from_bits(value.to_bits().wrapping_add_signed(by))
    }

    #[test]
    fn what_is_too_large_becomes_the_largest() {
        for value in [449.0, 464.0, 464.1, 1e30, f32::INFINITY] {
            assert_eq!((encode(value), encode(-value)), (LARGEST_BITS, SIGN | LARGEST_BITS), "{value}");
        }
        assert!(decode(encode(f32::NAN)).is_nan());
        assert_eq!((encode(1e-30), encode(-1e-30)), (0, SIGN));
    }

    /// Against a conversion that others wrote, over values of every magnitude.
    #[test]
    fn agrees_with_the_frameworks_conversion() -> candle_core::Result<()> {
        let values: Vec<f32> =
            (0..40_000).map(|at| ((at as f32) * 0.37).sin() * (at as f32 / 2_200.0 - 12.0).exp2()).collect();
        let count = values.len();
        let theirs =
            Tensor::from_vec(values.clone(), count, &Device::Cpu)?.to_dtype(DType::F8E4M3)?.to_dtype(DType::F32)?;
        for (value, theirs) in values.iter().zip(theirs.to_vec1::<f32>()?) {
            assert_eq!(decode(encode(*value)), theirs, "{value}");
        }
        Ok(())
    }
}
