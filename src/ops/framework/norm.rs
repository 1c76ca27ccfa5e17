//! LayerNorm with the residual and the bias that come before it.

use candle_core::{Result, Tensor};
use candle_nn::ops::layer_norm;

use crate::ops::Norm;

/// `x + delta + delta_bias`, and its norm.
pub(crate) fn add_norm(norm: &Norm, x: Tensor, delta: Tensor, delta_bias: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
    let sum = {
        let sum = (&x + &delta)?;
        drop((x, delta));
        match delta_bias {
            Some(bias) => sum.broadcast_add(bias)?,
            None => sum,
        }
    };
    let normalized = normalize(norm, &sum)?;
    Ok((sum, normalized))
}

/// `norm(x)`. The framework takes the variance from a sum of squares in f32: less exact than ours where the mean is
/// large beside the deviation, which in an encoder it is not.
pub(crate) fn normalize(norm: &Norm, x: &Tensor) -> Result<Tensor> {
    layer_norm(x, &norm.weight, &norm.bias, norm.epsilon)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::{assert_close, random};
    use candle_core::DType;

    #[test]
    fn equals_plain() -> Result<()> {
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 0.02), (DType::BF16, 0.1)] {
            for (rows, width) in [(1, 2), (3, 17), (129, 384)] {
                let norm = Norm { weight: random(&[width], 2.0), bias: random(&[width], 1.0), epsilon: 1e-12 };
                let (x, delta) = (random(&[rows, width], 1.0), random(&[rows, width], 3.0));
                let bias = random(&[width], 1.0);
                let plain = norm.add_plain(&x, &delta, Some(&bias))?;
                let narrow = |tensor: &Tensor| tensor.to_dtype(dtype);
                let norm = Norm { weight: narrow(&norm.weight)?, bias: narrow(&norm.bias)?, ..norm };
                let (sum, found) = add_norm(&norm, narrow(&x)?, narrow(&delta)?, Some(&narrow(&bias)?))?;
                assert_close(&sum.to_dtype(DType::F32)?, &plain.0, tolerance);
                // Two values whose deviation is next to nothing are normalized to signs: no precision survives that.
                if width > 2 || dtype == DType::F32 {
                    assert_close(&found.to_dtype(DType::F32)?, &plain.1, tolerance);
                }
                let (sum, _) = add_norm(&norm, narrow(&x)?, narrow(&delta)?, None)?;
                assert_close(&sum.to_dtype(DType::F32)?, &(&x + &delta)?, tolerance);
            }
        }
        Ok(())
    }
}
