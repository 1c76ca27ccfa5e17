//! Products of 8-bit codes on the card, by all that computes them there, beside their specification on the CPU.

use candle_core::{DType, Device, Result, Tensor};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::cases::{TOLERANCES, Worst, evenly};
use super::stage::Stage;
use crate::config::Dtype;
use crate::ops::card::{self, Codes, EightBitProducts, Epilogue, FP8_FROM, Operations};
use crate::ops::{Activation, EightBit, Matrix, MatrixBuilder, linear_plain};
use crate::units::{Bytes, ModelId};

/// Numbers of tokens around those of tiles, and one whose sums do not fit into the scratch at once.
const TOKENS: [usize; 7] = [1, 7, 33, 128, 130, 1000, 4099];

/// Outputs and inputs: the least, those of models, odd ones, and some for each kernel over rows.
const SHAPES: [(usize, usize); 8] =
    [(16, 16), (1152, 384), (3072, 1024), (288, 864), (4096, 1024), (1024, 4096), (48, 5120), (112, 16_384)];

/// Rows without any value, and rows whose values are this much larger than others.
const ZEROS: usize = 2;
const LARGE: (usize, f32) = (5, 100.0);

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    const MODEL: ModelId = ModelId::new(9);
    let forms: &[(EightBit, Dtype)] = match stage.card().capability() >= FP8_FROM {
        true => &[(EightBit::Int8, Dtype::Int8), (EightBit::Fp8, Dtype::Fp8)],
        false => &[(EightBit::Int8, Dtype::Int8)],
    };
    let (mut worst, mut cases, mut random) = (Worst::default(), 0, StdRng::seed_from_u64(9));
    let (device, account) = stage.load(MODEL, |device| Ok(device.clone()))?;
    let products: Vec<_> = SHAPES.into_iter().flat_map(|shape| TOKENS.map(|tokens| (shape, tokens))).collect();
    for ((outputs, inputs), tokens) in evenly(products, stage.cases_max) {
        let (weights, bias) = (values(outputs * inputs, 0.3, &mut random), values(outputs, 1.0, &mut random));
        let x = activations(tokens, inputs, &mut random);
        for &(form, held) in forms {
            for (dtype, _, tolerance) in TOLERANCES {
                let case = Case { form, held, dtype, tolerance, tokens, outputs, inputs };
                let (found, _) = stage
                    .step(MODEL, Bytes::gib(4), || case.differences(&x, &weights, &bias, &device))
                    .map_err(|shortfall| anyhow::anyhow!("out of memory: {shortfall:?}"))?;
                let found = found.map_err(|fault| anyhow::anyhow!("{case:?}: {fault}"))?;
                found.into_iter().for_each(|(name, part)| worst.note(&name, part));
                cases += 1;
            }
        }
    }
    drop(account);
    worst.told(cases)
}

fn values(count: usize, scale: f32, random: &mut StdRng) -> Vec<f32> {
    (0..count).map(|_| random.random_range(-scale..scale)).collect()
}

/// Values (tokens, inputs) of which some rows are zeros and some are large.
fn activations(tokens: usize, inputs: usize, random: &mut StdRng) -> Vec<f32> {
    let mut x = values(tokens * inputs, 2.0, random);
    for (row, values) in x.chunks_exact_mut(inputs).enumerate() {
        let factor = match row % 7 {
            ZEROS => 0.0,
            row if row == LARGE.0 => LARGE.1,
            _ => 1.0,
        };
        values.iter_mut().for_each(|value| *value *= factor);
    }
    x
}

#[derive(Debug)]
struct Case {
    form: EightBit,
    held: Dtype,
    dtype: DType,
    tolerance: f32,
    tokens: usize,
    outputs: usize,
    inputs: usize,
}

impl Case {
    fn differences(&self, x: &[f32], weights: &[f32], bias: &[f32], device: &Device) -> Result<Vec<(String, f32)>> {
        let Case { form, dtype, tokens, outputs, inputs, .. } = *self;
        // What the dtype can hold.
        let rounded = |values: &[f32], shape: &[usize]| {
            Tensor::from_vec(values.to_vec(), shape, &Device::Cpu)?.to_dtype(dtype)?.to_dtype(DType::F32)
        };
        let (x, bias) = (rounded(x, &[tokens, inputs])?, rounded(bias, &[outputs])?);
        let here = |tensor: &Tensor| tensor.to_dtype(dtype)?.to_device(device);
        let (x_here, bias_here) = (here(&x)?, here(&bias)?);
        let (weight, weight_here) = (self.matrix(weights, &Device::Cpu)?, self.matrix(weights, device)?);
        let operations = Operations::of(&x_here)?;
        let mut found = Vec::new();

        let codes = Codes::new(form, tokens, inputs, device)?;
        card::quantize(&operations, &x_here, &codes)?;
        // Nothing is rounded twice: the codes are the same, bit by bit.
        let same = self.same_codes(&x, &codes)?;
        found.push((format!("{} codes", self.held), if same { 0.0 } else { 2.0 }));

        let product = linear_plain(&x, &weight)?;
        let epilogues = [
            (Epilogue::None, product.clone()),
            (Epilogue::Bias, product.broadcast_add(&bias)?),
            (Epilogue::BiasGelu, Activation::GeluTanh.apply_plain(&product, Some(&bias))?),
            (Epilogue::BiasRelu, Activation::Relu.apply_plain(&product, Some(&bias))?),
        ];
        for products in operations.eight_bit.iter().copied().filter(|products| products.give(dtype)) {
            let name = format!("{} by {}", self.held, products.as_str());
            for (epilogue, expected) in &epilogues {
                let y = Tensor::zeros((tokens, outputs), dtype, device)?;
                let bias = Some(&bias_here);
                card::linear_eight_bit(&operations, products, &codes, &weight_here, bias, *epilogue, &y)?;
                let y = y.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
                found.push((name.clone(), self.difference(&y, expected, self.tolerance_of(products))?));
            }
        }
        Ok(found)
    }

    fn same_codes(&self, x: &Tensor, codes: &Codes) -> Result<bool> {
        let (mut expected, mut expected_scales) = (Vec::new(), Vec::new());
        for row in x.to_vec2::<f32>()? {
            expected_scales.push(self.form.quantize_activations(&row, &mut expected));
        }
        let (codes, scales) = codes.parts(self.tokens, self.inputs)?;
        let codes = codes.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<u8>()?;
        Ok(codes == expected && scales.to_vec1::<f32>()? == expected_scales)
    }

    fn matrix(&self, values: &[f32], device: &Device) -> Result<Matrix> {
        let mut builder = MatrixBuilder::new(self.held, self.outputs, self.inputs);
        if builder.push(values).is_err() {
            candle_core::bail!("the values are made to be held");
        }
        builder.finish(device)
    }

    /// How far results may be off. Our kernel keeps fp8's sums as the tensor cores do, which leave out what is 14 bits below
    /// the largest term of each 32 that they add; cublasLt adds them up in f32 on the way.
    fn tolerance_of(&self, products: EightBitProducts) -> f32 {
        match (self.form, products) {
            (EightBit::Fp8, EightBitProducts::Hopper) => {
                self.tolerance + (self.inputs as f32 / 32.0) * (2.0f32).powi(-14)
            }
            _ => self.tolerance,
        }
    }

    /// The largest difference of a row by its largest value, as a part of what may be: rows differ in size.
    fn difference(&self, found: &Tensor, expected: &Tensor, tolerance: f32) -> Result<f32> {
        let mut worst = 0f32;
        for (found, expected) in found.to_vec2::<f32>()?.iter().zip(&expected.to_vec2::<f32>()?) {
            let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs())).max(1e-3);
            for (found, expected) in found.iter().zip(expected) {
                let part = (found - expected).abs() / (tolerance * largest);
                // Not `max`: what is not a number has to stay.
                if part.is_nan() || part > worst {
                    worst = part;
                }
            }
        }
        Ok(worst)
    }
}
