//! The bias and the activation function between the two linear layers of a feed-forward block.

use candle_core::{Result, Tensor};

use super::math::{erf, tanh};
use super::{host, parallel};

/// What `hidden_act` may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    /// x * (1 + erf(x / sqrt 2)) / 2: "gelu".
    Gelu,
    /// The same through tanh: "gelu_new" and "gelu_pytorch_tanh".
    GeluTanh,
    /// max(x, 0): "relu".
    Relu,
}

impl Activation {
    /// The names in a model's configuration.
    pub(crate) const NAMES: &'static str = "gelu, gelu_new, gelu_pytorch_tanh, relu";

    /// By its name in a model's configuration.
    pub(crate) fn named(name: &str) -> Option<Activation> {
        match name {
            "gelu" => Some(Activation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" => Some(Activation::GeluTanh),
            "relu" => Some(Activation::Relu),
            _ => None,
        }
    }

    /// `x = activation(x + bias)`, row by row, in place.
    pub(crate) fn apply(self, x: &Tensor, bias: &Tensor) -> Result<()> {
        let (_, width) = x.dims2()?;
        host::read(bias, |bias: &[f32]| {
            assert_eq!(bias.len(), width, "one bias for each column");
            host::write(x, |x| parallel::for_each_row(x, width, |_, row| self.apply_row(row, bias)))
        })?
    }

    /// The same for one row or a piece of it, with the biases of its columns.
    pub(super) fn apply_row(self, row: &mut [f32], bias: &[f32]) {
        match self {
            Activation::Gelu => each(row, bias, |x| 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))),
            Activation::GeluTanh => each(row, bias, |x| {
                const SQRT_2_OVER_PI: f32 = 0.797_884_6;
                0.5 * x * (1.0 + tanh(SQRT_2_OVER_PI * x * (0.044_715 * x).mul_add(x, 1.0)))
            }),
            Activation::Relu => each(row, bias, |x| x.max(0.0)),
        }
    }

    /// The same in candle's operations.
    pub(crate) fn apply_plain(self, x: &Tensor, bias: &Tensor) -> Result<Tensor> {
        self.of(&x.broadcast_add(bias)?)
    }

    /// `activation(x)` by the framework.
    pub(super) fn of(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Activation::Gelu => x.gelu_erf(),
            Activation::GeluTanh => x.gelu(),
            Activation::Relu => x.relu(),
        }
    }
}

#[inline(always)]
fn each(row: &mut [f32], bias: &[f32], activation: impl Fn(f32) -> f32) {
    for (x, bias) in row.iter_mut().zip(bias) {
        *x = activation(*x + bias);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::{assert_close, random};

    #[test]
    fn fused_equals_plain() -> Result<()> {
        for (rows, width) in [(1, 1), (3, 17), (129, 384)] {
            let (x, bias) = (random(&[rows, width], 4.0), random(&[width], 1.0));
            for activation in [Activation::Gelu, Activation::GeluTanh, Activation::Relu] {
                let fused = x.copy()?;
                activation.apply(&fused, &bias)?;
                assert_close(&fused, &activation.apply_plain(&x, &bias)?, 2e-6);
            }
        }
        Ok(())
    }
}
