//! A linear layer, with the activation that may follow it.

use candle_core::{Module, Result, Tensor};

use crate::ops::matrix::Held;
use crate::ops::{Activation, Matrix};

/// `x * weight transposed`, in x's dtype.
pub(crate) fn linear(x: &Tensor, weight: &Matrix) -> Result<Tensor> {
    match weight.held() {
        Held::Quantized(product) => product.forward(x),
        Held::Rows(rows) => x.matmul(&rows.t()?),
        // Of ours: nothing of the framework computes with them.
        Held::Panels(_) | Held::Blocks(_) | Held::Codes { .. } => x.matmul(&weight.to_f32()?.to_dtype(x.dtype())?.t()?),
    }
}

/// `x * weight transposed + bias`. The product is free once its bias is added.
pub(crate) fn linear_biased(x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Result<Tensor> {
    let product = linear(x, weight)?;
    match bias {
        Some(bias) => product.broadcast_add(bias),
        None => Ok(product),
    }
}

/// `activation(x * weight transposed + bias)`. Each step's input is free before the next one: two of the widest tensors
/// are alive at most.
pub(crate) fn linear_activated(
    x: &Tensor,
    weight: &Matrix,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    activation.of(&linear_biased(x, weight, bias)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Dtype;
    use crate::ops::linear_plain;
    use crate::ops::tests::{assert_close, framework_matrix, matrix, random};
    use candle_core::DType;

    #[test]
    fn equals_plain_in_every_dtype() -> Result<()> {
        for (dtype, tolerance) in [(Dtype::F32, 1e-5), (Dtype::F16, 0.01), (Dtype::Bf16, 0.1), (Dtype::Q8, 0.1)] {
            // Both sides of the switch of quantized products, and the first row beyond.
            for (m, n, k) in [(1, 1, 32), (8, 70, 64), (9, 70, 64), (37, 193, 96)] {
                let (x, bias) = (random(&[m, k], 1.0), random(&[n], 1.0));
                let plain = linear_plain(&x, &matrix(dtype, n, k))?;
                let weight = framework_matrix(dtype, n, k);
                let activations = super::super::activations(dtype);
                let x = x.to_dtype(activations)?;
                let found = linear(&x, &weight)?;
                assert_eq!(found.dtype(), activations);
                assert_close(&found.to_dtype(DType::F32)?, &plain, tolerance);
                let narrow_bias = bias.to_dtype(activations)?;
                for (bias, narrow_bias) in [(None, None), (Some(&bias), Some(&narrow_bias))] {
                    let found = linear_activated(&x, &weight, narrow_bias, Activation::Gelu)?;
                    let expected = Activation::Gelu.apply_plain(&plain, bias)?;
                    assert_close(&found.to_dtype(DType::F32)?, &expected, tolerance);
                }
            }
        }
        Ok(())
    }
}
