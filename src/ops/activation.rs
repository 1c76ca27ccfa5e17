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
    pub(crate) fn apply(self, x: &Tensor, bias: Option<&Tensor>) -> Result<()> {
        let (_, width) = x.dims2()?;
        host::read_or_zeros(bias, width, |bias| {
            host::write(x, |x| parallel::for_each_row(x, width, |_, row| self.apply_row(row, bias)))
        })?
    }

    /// `planes[0] = activation(planes[0] + bias) * (planes[1] + gate_bias)`, in place; `planes` is (2, rows, width).
    pub(crate) fn gate(self, planes: &Tensor, bias: Option<&Tensor>, gate_bias: Option<&Tensor>) -> Result<()> {
        let (two, rows, width) = planes.dims3()?;
        assert_eq!(two, 2, "what is activated, and its gates");
        host::read_or_zeros(bias, width, |bias| {
            host::read_or_zeros(gate_bias, width, |gate_bias| {
                host::write(planes, |planes| {
                    let (x, gates) = planes.split_at_mut(rows * width);
                    parallel::for_each_row(x, width, |index, row| {
                        self.apply_row(row, bias);
                        let gates = &gates[index * width..(index + 1) * width];
                        for ((x, gate), bias) in row.iter_mut().zip(gates).zip(gate_bias) {
                            *x *= gate + bias;
                        }
                    });
                })
            })
        })??
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
    pub(crate) fn apply_plain(self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        match bias {
            Some(bias) => self.of(&x.broadcast_add(bias)?),
            None => self.of(x),
        }
    }

    /// `activation(x)` by the framework.
    pub(crate) fn of(self, x: &Tensor) -> Result<Tensor> {
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
                activation.apply(&fused, Some(&bias))?;
                assert_close(&fused, &activation.apply_plain(&x, Some(&bias))?, 2e-6);
                activation.apply(&fused, None)?;
                let twice = activation.apply_plain(&activation.apply_plain(&x, Some(&bias))?, None)?;
                assert_close(&fused, &twice, 4e-6);
            }
        }
        Ok(())
    }

    #[test]
    fn gated_is_the_product_of_both_planes() -> Result<()> {
        for (rows, width) in [(1, 1), (3, 17), (129, 384)] {
            let (planes, biases) = (random(&[2, rows, width], 4.0), random(&[2, width], 1.0));
            for activation in [Activation::Gelu, Activation::GeluTanh, Activation::Relu] {
                for (bias, gate_bias) in [(None, None), (Some(biases.get(0)?), Some(biases.get(1)?))] {
                    let gate = match &gate_bias {
                        Some(bias) => planes.get(1)?.broadcast_add(bias)?,
                        None => planes.get(1)?,
                    };
                    let expected = (activation.apply_plain(&planes.get(0)?, bias.as_ref())? * gate)?;
                    let fused = planes.copy()?;
                    activation.gate(&fused, bias.as_ref(), gate_bias.as_ref())?;
                    assert_close(&fused.get(0)?, &expected, 1e-5);
                    assert_close(&fused.get(1)?, &planes.get(1)?, 0.0);
                }
            }
        }
        Ok(())
    }
}
