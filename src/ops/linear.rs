//! A linear layer without its bias: the operation that follows adds it.

use candle_core::{Result, Tensor};

use super::matrix::{Data, Held};
use super::{Activation, Matrix, decoded, gemm, host, panels};

/// Elements of scratch that [`linear`] needs for `weight`.
pub(crate) fn linear_scratch(weight: &Matrix) -> usize {
    match weight.is_f32() {
        true => 0,
        false => decoded::scratch(weight.columns()),
    }
}

/// `out = x * weight transposed`. The arithmetic is f32 for every form of the weights: f16, bf16 and q8_0 are
/// decoded as they are used, so that their only error is that of the weights themselves. f32 in panels needs no such
/// work: MiniLM in f16 or q8_0 takes 1.1 to 1.2 times its processor time at 128 tokens, and 1.3 times at 16.
pub(crate) fn linear(x: &Tensor, weight: &Matrix, out: &Tensor, scratch: &Tensor) -> Result<()> {
    let (m, k) = x.dims2()?;
    let n = weight.rows();
    assert_eq!((k, out.dims()), (weight.columns(), &[m, n][..]), "a linear layer's operands fit each other");
    host::read(x, |x: &[f32]| {
        weight.view(|weight| match weight.data {
            Data::Panels(data) => host::write(out, |out| panels::times_panels(x, data, out, [m, n, k], |_, _| ())),
            Data::F32(data) => host::write(out, |out| gemm::times_transposed(x, data, out, [m, n, k])),
            _ => host::write(out, |out| {
                host::write(scratch, |scratch| decoded::times_decoded(x, weight, out, scratch, [m, n, k]))
            })?,
        })
    })??
}

/// `out = activation(x * weight transposed + bias)`: the first half of a feed-forward block. Weights in panels have
/// the activation done while a piece of the product is in the first-level cache.
pub(crate) fn linear_activated(
    x: &Tensor,
    weight: &Matrix,
    bias: Option<&Tensor>,
    activation: Activation,
    out: &Tensor,
    scratch: &Tensor,
) -> Result<()> {
    if !weight.is_in_panels() {
        linear(x, weight, out, scratch)?;
        return activation.apply(out, bias);
    }
    let (m, k) = x.dims2()?;
    let n = weight.rows();
    assert_eq!((k, out.dims()), (weight.columns(), &[m, n][..]), "a linear layer's operands fit each other");
    host::read(x, |x: &[f32]| {
        host::read_or_zeros(bias, n, |bias| {
            weight.view(|weight| {
                let Data::Panels(data) = weight.data else { unreachable!("asked above") };
                host::write(out, |out| {
                    panels::times_panels(x, data, out, [m, n, k], |first, piece| {
                        activation.apply_row(piece, &bias[first..first + piece.len()]);
                    });
                })
            })
        })
    })???
}

/// The same in candle's operations. A matrix of codes is multiplied with codes: see [`EightBit::linear`].
pub(crate) fn linear_plain(x: &Tensor, weight: &Matrix) -> Result<Tensor> {
    match weight.held() {
        Held::Codes { form, codes, scales } => form.linear(x, codes, scales),
        _ => x.matmul(&weight.to_f32()?.t()?),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::config::Dtype;
    use crate::ops::tests::{assert_close, matrix, random};

    #[test]
    fn fused_equals_plain_in_every_dtype() -> Result<()> {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Q8] {
            for (m, n, k) in [(1, 1, 32), (1, 70, 64), (5, 128, 96), (37, 193, 64), (128, 100, 64), (130, 384, 192)] {
                let weight = matrix(dtype, n, k);
                let x = random(&[m, k], 1.0);
                let out = Tensor::zeros((m, n), DType::F32, &Device::Cpu)?;
                let scratch = Tensor::zeros(linear_scratch(&weight).max(1), DType::F32, &Device::Cpu)?;
                linear(&x, &weight, &out, &scratch)?;
                let plain = linear_plain(&x, &weight)?;
                assert_close(&out, &plain, 1e-4);
                let bias = random(&[n], 1.0);
                let activated = Activation::Gelu.apply_plain(&plain, Some(&bias))?;
                for weight in [weight.clone(), matrix(dtype, n, k).into_panels()?] {
                    assert_close(&linear_plain(&x, &weight)?, &plain, 0.0);
                    linear(&x, &weight, &out, &scratch)?;
                    assert_close(&out, &plain, 1e-4);
                    linear_activated(&x, &weight, Some(&bias), Activation::Gelu, &out, &scratch)?;
                    assert_close(&out, &activated, 1e-4);
                }
            }
        }
        Ok(())
    }
}
