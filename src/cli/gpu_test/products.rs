//! Products with matrices of weights on the card beside the plain version in f32 on the CPU.

use candle_core::{Device, Result, Tensor};
use rand::rngs::StdRng;

use super::cases::{self, Case};
use super::stage::Stage;
use crate::ops::card::{self, Epilogue, Operations};
use crate::ops::{Activation, linear_plain};

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    cases::over_all(stage, &[Case::differences_of_products])
}

impl Case {
    fn differences_of_products(&self, device: &Device, random: &mut StdRng) -> Result<Vec<(&'static str, f32)>> {
        let Case { dtype, ref rows, heads, size, .. } = *self;
        let (tokens, width, inner) = (rows.tokens(), heads * size, 3 * heads * size);
        let mut tensor = |shape: &[usize], scale: f32| self.tensor(shape, scale, random);
        let (x, bias, sum) = (tensor(&[tokens, width], 2.0)?, tensor(&[inner], 1.0)?, tensor(&[tokens, inner], 2.0)?);
        let weights = tensor(&[inner, width], 0.3)?;
        let (matrix, matrix_f32) = (self.matrix(&weights, device)?, self.matrix(&weights, &Device::Cpu)?);
        let here = |tensor: &Tensor| tensor.to_dtype(dtype)?.to_device(device);
        let x_here = here(&x)?;
        let operations = Operations::of(&x_here)?;
        let card = &*operations;
        let mut differences = Vec::new();
        let mut compare = |name, found: &Tensor, expected: &Tensor| -> Result<()> {
            differences.push((name, self.difference(found, expected)?));
            Ok(())
        };

        let product = linear_plain(&x, &matrix_f32)?;
        let gelu = Activation::GeluTanh.apply_plain(&product, Some(&bias))?;
        let relu = Activation::Relu.apply_plain(&product, Some(&bias))?;
        let biased = product.broadcast_add(&bias)?;
        let epilogues = [
            (Epilogue::None, &product),
            (Epilogue::Bias, &biased),
            (Epilogue::BiasGelu, &gelu),
            (Epilogue::BiasRelu, &relu),
        ];
        for (epilogue, expected) in epilogues {
            let y = Tensor::zeros((tokens, inner), dtype, device)?;
            card::linear(card, &x_here, &matrix, Some(&here(&bias)?), epilogue, &y)?;
            compare("linear", &y, expected)?;
        }
        // The first of a shape finds its way, later ones go by it.
        for expected in [&biased, &product, &biased] {
            let y = here(&sum)?.copy()?;
            let bias = if std::ptr::eq(expected, &product) { None } else { Some(here(&bias)?) };
            card::add_linear(card, &x_here, &matrix, bias.as_ref(), &y)?;
            compare("linear onto a sum", &y, &(expected + &sum)?)?;
        }
        Ok(differences)
    }
}
