//! Products of matrices in 8 bits, each row with a scale of its own: weights by output, activations by token.
//!
//! `y[t][o] = sum(x_codes[t] * weight_codes[o]) * x_scale[t] * weight_scale[o]`: the sum is over codes alone, so that the
//! tensor cores of a card take both sides as they are. What runs on a card is in `card`; this is its specification, and
//! what quantizes weights when they are loaded.
//!
//! **int8 is turned first.** A row's largest value sets the step of all of its codes, and encoders have channels that are
//! some twenty times as large as the rest. So 8 neighbouring values at a time become their sums and differences, by the
//! Hadamard matrix of order 8, which spreads what one of them has over all; weights are turned the same way, so that
//! products stay the same: `(H x) * (H w) = 8 x * w`, as in "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs"
//! (Ashkboos and others, 2024), but in blocks that a thread holds in registers. fp8 keeps the digits of each value
//! whatever the others are, and is not turned.

use candle_core::{DType, Device, Result, Tensor};

use super::e4m3;

/// A form of a number in 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EightBit {
    /// Whole numbers from -127 to 127.
    Int8,
    /// fp8: see [`e4m3`].
    Fp8,
}

/// Values that are turned together.
const TURNED: usize = 8;

/// A row that nowhere reaches this is taken for zeros, so that nothing is divided by what is next to 0.
const ZERO_BELOW: f32 = 1e-30;

impl EightBit {
    /// The code of the largest magnitude.
    const fn largest(self) -> f32 {
        match self {
            EightBit::Int8 => 127.0,
            EightBit::Fp8 => e4m3::LARGEST,
        }
    }

    /// The nearest code, of two equally near ones the even.
    fn encode(self, value: f32) -> u8 {
        match self {
            EightBit::Int8 => value.round_ties_even() as i8 as u8,
            EightBit::Fp8 => e4m3::encode(value),
        }
    }

    /// The value of a code.
    pub(crate) fn decode(self, code: u8) -> f32 {
        match self {
            EightBit::Int8 => f32::from(code as i8),
            EightBit::Fp8 => e4m3::decode(code),
        }
    }

    /// Turns each whole 8 values of a row where the form wants it: [`TURNED`] times its own inverse. The order of the
    /// additions is that of the card's kernels.
    fn turn(self, row: &mut [f32]) {
        if self == EightBit::Fp8 {
            return;
        }
        for values in row.as_chunks_mut::<TURNED>().0 {
            for distance in [4, 2, 1] {
                for at in (0..TURNED).filter(|at| at & distance == 0) {
                    let (a, b) = (values[at], values[at + distance]);
                    (values[at], values[at + distance]) = (a + b, a - b);
                }
            }
        }
    }

    /// Appends the codes of a token's activations and returns their scale.
    pub(crate) fn quantize_activations(self, row: &[f32], codes: &mut Vec<u8>) -> f32 {
        let mut row = row.to_vec();
        self.turn(&mut row);
        self.quantize(&row, codes)
    }

    /// Appends the codes of an output's weights and returns their scale; `row` is scratch from then on.
    pub(crate) fn quantize_weights(self, row: &mut [f32], codes: &mut Vec<u8>) -> f32 {
        self.turn(row);
        if self == EightBit::Int8 {
            // A power of two: nothing is rounded.
            row.as_chunks_mut::<TURNED>().0.as_flattened_mut().iter_mut().for_each(|value| *value /= TURNED as f32);
        }
        self.quantize(row, codes)
    }

    /// Appends the codes of a row and returns their scale: `value = code * scale`, the largest magnitude having the
    /// largest code. A row of zeros has the scale 0.
    fn quantize(self, row: &[f32], codes: &mut Vec<u8>) -> f32 {
        let largest = row.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let zeros = largest < ZERO_BELOW;
        let inverse = if zeros { 0.0 } else { self.largest() / largest };
        codes.extend(row.iter().map(|value| self.encode(value * inverse)));
        if zeros { 0.0 } else { largest / self.largest() }
    }

    /// `x * weight transposed` of activations (tokens, inputs) that are quantized row by row. `weights` are codes
    /// (outputs, inputs) on the host and their scales (outputs).
    pub(crate) fn linear(self, x: &Tensor, codes: &Tensor, scales: &Tensor) -> Result<Tensor> {
        let (tokens, inputs) = x.dims2()?;
        let (mut x_codes, mut x_scales) = (Vec::with_capacity(tokens * inputs), Vec::with_capacity(tokens));
        for row in x.to_vec2::<f32>()? {
            x_scales.push(self.quantize_activations(&row, &mut x_codes));
        }
        let x = self.decoded(&x_codes, (tokens, inputs))?;
        let weight = self.decoded(&codes.flatten_all()?.to_vec1()?, codes.dims2()?)?;
        // Of int8 the sums are exact up to 2^24, which 1,040 products of the largest codes reach.
        let sums = x.matmul(&weight.t()?)?;
        sums.broadcast_mul(&Tensor::from_vec(x_scales, (tokens, 1), &Device::Cpu)?)?.broadcast_mul(scales)
    }

    /// The weights that codes (rows, columns) on the host and their scales (rows) stand for.
    pub(crate) fn dequantize(self, codes: &Tensor, scales: &Tensor) -> Result<Tensor> {
        let values = self.decoded(&codes.flatten_all()?.to_vec1()?, codes.dims2()?)?;
        let turned = values.broadcast_mul(&scales.reshape((scales.elem_count(), 1))?.to_dtype(DType::F32)?)?;
        let mut rows = turned.to_vec2::<f32>()?;
        rows.iter_mut().for_each(|row| self.turn(row));
        Tensor::from_vec(rows.concat(), codes.dims2()?, &Device::Cpu)
    }

    fn decoded(self, codes: &[u8], shape: (usize, usize)) -> Result<Tensor> {
        Tensor::from_vec(codes.iter().map(|code| self.decode(*code)).collect::<Vec<f32>>(), shape, &Device::Cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::random;

    const BOTH: [EightBit; 2] = [EightBit::Int8, EightBit::Fp8];

    fn quantized(form: EightBit, row: &[f32]) -> (Vec<f32>, f32) {
        let mut codes = Vec::new();
        let scale = form.quantize(row, &mut codes);
        (codes.into_iter().map(|code| form.decode(code)).collect(), scale)
    }

    /// The largest error of a value, by the row's largest: half a step of 1/127, or half of the last of 4 digits.
    #[test]
    fn a_value_is_within_half_a_step() {
        for width in [1, 3, 8, 31, 257] {
            for scale in [1e-20, 1e-3, 1.0, 6e4, 1e30] {
                let row: Vec<f32> = random(&[width], scale).to_vec1().unwrap();
                let largest = row.iter().fold(0f32, |largest, value| largest.max(value.abs()));
                for form in BOTH {
                    let (codes, scale) = quantized(form, &row);
                    for (value, code) in row.iter().zip(codes) {
                        let allowed = match form {
                            EightBit::Int8 => largest / 254.0,
                            EightBit::Fp8 => (value.abs() / 16.0).max(largest / 448.0 / 1024.0),
                        };
                        let error = (value - code * scale).abs();
                        assert!(error <= allowed * 1.0001, "{form:?}: {value} became {}", code * scale);
                    }
                }
            }
        }
    }

    #[test]
    fn the_largest_has_the_largest_code_whatever_its_sign() {
        for (form, largest) in [(EightBit::Int8, 127.0), (EightBit::Fp8, 448.0)] {
            for (row, at) in [(vec![3.0, -5.0, 1.0], 1), (vec![1e38, 1.0], 0), (vec![1e-29], 0)] {
                let (codes, scale) = quantized(form, &row);
                assert_eq!(codes[at].abs(), largest, "{row:?}");
                assert!((codes[at] * scale / row[at] - 1.0).abs() < 1e-6, "{row:?}");
            }
        }
    }

    #[test]
    fn rows_of_zeros_and_of_next_to_nothing_stay_zeros() {
        for form in BOTH {
            for row in [vec![0.0; 5], vec![-0.0, 1e-31, -9e-31], vec![]] {
                let (codes, scale) = quantized(form, &row);
                assert!(scale == 0.0 && codes.iter().all(|code| *code == 0.0), "{row:?}");
            }
        }
    }

    /// With one channel that is twenty times the others, as encoders have them: what is left of the error when values
    /// are turned.
    #[test]
    fn one_large_channel_does_not_cost_the_others_their_digits() -> Result<()> {
        let (tokens, outputs, inputs) = (16, 24, 64);
        let mut x = random(&[tokens, inputs], 1.0).to_vec2::<f32>()?;
        x.iter_mut().for_each(|row| row[11] = 20.0);
        // What the others add up to is what counts: the large channel's weights are small.
        let mut weight = random(&[outputs, inputs], 1.0).to_vec2::<f32>()?;
        weight.iter_mut().for_each(|row| row[11] /= 20.0);
        let error = |turned: bool| {
            let coded = |row: &[f32]| -> Vec<f32> {
                let (mut codes, mut row) = (Vec::new(), row.to_vec());
                if turned {
                    EightBit::Int8.turn(&mut row);
                }
                let scale = EightBit::Int8.quantize(&row, &mut codes);
                codes.into_iter().map(|code| EightBit::Int8.decode(code) * scale).collect()
            };
            let product = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>();
            let factor = if turned { TURNED as f32 } else { 1.0 };
            let pairs = x.iter().flat_map(|x| weight.iter().map(move |w| (x, w)));
            pairs.map(|(x, w)| (product(&coded(x), &coded(w)) / factor - product(x, w)).powi(2)).sum::<f32>().sqrt()
        };
        assert!(error(true) < 0.6 * error(false), "{} and {}", error(true), error(false));
        Ok(())
    }

    #[test]
    fn weights_come_back() -> Result<()> {
        for form in BOTH {
            let row: Vec<f32> = random(&[21], 1.0).to_vec1()?;
            let mut codes = Vec::new();
            let scale = form.quantize_weights(&mut row.clone(), &mut codes);
            let (codes, scales) =
                (Tensor::from_vec(codes, (1, 21), &Device::Cpu)?, Tensor::new(&[scale], &Device::Cpu)?);
            for (found, value) in form.dequantize(&codes, &scales)?.flatten_all()?.to_vec1::<f32>()?.iter().zip(&row) {
                assert!((found - value).abs() < 0.07, "{form:?}: {found}, not {value}");
            }
        }
        Ok(())
    }

    /// Over odd sizes and with a row of zeros on both sides; against sums of the decoded values in f64.
    #[test]
    fn a_product_is_that_of_the_quantized_values() -> Result<()> {
        for form in BOTH {
            for (tokens, outputs, inputs) in [(1, 1, 1), (2, 3, 7), (5, 17, 129), (33, 8, 1040)] {
                let zeroed = |rows: usize, columns: usize, at: usize| -> Result<Tensor> {
                    let kept: Vec<f32> = (0..rows).map(|row| if row == at { 0.0 } else { 3.0 }).collect();
                    random(&[rows, columns], 1.0).broadcast_mul(&Tensor::from_vec(kept, (rows, 1), &Device::Cpu)?)
                };
                let (x, weight) = (zeroed(tokens, inputs, 1)?, zeroed(outputs, inputs, 2)?);
                let (mut codes, mut scales) = (Vec::new(), Vec::new());
                for row in weight.to_vec2::<f32>()? {
                    scales.push(form.quantize_weights(&mut row.clone(), &mut codes));
                }
                let codes = Tensor::from_vec(codes, (outputs, inputs), &Device::Cpu)?;
                let scales = Tensor::from_vec(scales, outputs, &Device::Cpu)?;
                let found = form.linear(&x, &codes, &scales)?.to_vec2::<f32>()?;
                let weight = form.dequantize(&codes, &scales)?.to_vec2::<f32>()?;
                for (x, found) in x.to_vec2::<f32>()?.iter().zip(&found) {
                    let mut x_codes = Vec::new();
                    let scale = form.quantize_activations(x, &mut x_codes);
                    let mut x: Vec<f32> = x_codes.into_iter().map(|code| form.decode(code) * scale).collect();
                    // Back to where the weights are, but for the factor.
                    form.turn(&mut x);
                    if form == EightBit::Int8 {
                        let whole = x.len() / TURNED * TURNED;
                        x[..whole].iter_mut().for_each(|value| *value /= TURNED as f32);
                    }
                    for (weight, found) in weight.iter().zip(found) {
                        let terms = x.iter().zip(weight).map(|(x, w)| f64::from(*x) * f64::from(*w));
                        let exact = terms.sum::<f64>();
                        assert!((f64::from(*found) - exact).abs() <= 1e-5 * inputs as f64, "{found}, not {exact}");
                    }
                }
            }
        }
        Ok(())
    }
}
