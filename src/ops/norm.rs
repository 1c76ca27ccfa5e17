//! LayerNorm, with the residual and the bias that come before it.

use candle_core::{Result, Tensor};

use super::{host, parallel};

/// The parameters of one LayerNorm.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    pub(crate) weight: Tensor,
    pub(crate) bias: Tensor,
    pub(crate) epsilon: f32,
}

impl Norm {
    /// `x = norm(x + delta + delta_bias)`, row by row, in place: the end of each half of a layer.
    pub(crate) fn add(&self, x: &Tensor, delta: &Tensor, delta_bias: &Tensor) -> Result<()> {
        let (_, width) = x.dims2()?;
        assert_eq!(x.dims(), delta.dims(), "a residual has the shape of what it is added to");
        host::read(delta, |delta: &[f32]| {
            host::read(delta_bias, |delta_bias: &[f32]| {
                self.with_parameters(|normalize| {
                    host::write(x, |x| {
                        parallel::for_each_row(x, width, |index, row| {
                            let delta = &delta[index * width..(index + 1) * width];
                            for ((x, delta), bias) in row.iter_mut().zip(delta).zip(delta_bias) {
                                *x += delta + bias;
                            }
                            normalize.row(row);
                        });
                    })
                })
            })
        })??
    }

    /// The same in candle's operations.
    pub(crate) fn add_plain(&self, x: &Tensor, delta: &Tensor, delta_bias: &Tensor) -> Result<Tensor> {
        self.plain(&(x + delta)?.broadcast_add(delta_bias)?)
    }

    /// norm(x) in candle's operations.
    pub(crate) fn plain(&self, x: &Tensor) -> Result<Tensor> {
        let centred = x.broadcast_sub(&x.mean_keepdim(1)?)?;
        let variance = centred.sqr()?.mean_keepdim(1)?;
        let scaled = centred.broadcast_div(&(variance + f64::from(self.epsilon))?.sqrt()?)?;
        scaled.broadcast_mul(&self.weight)?.broadcast_add(&self.bias)
    }

    /// Calls `body` with what normalizes rows in the host's memory.
    pub(super) fn with_parameters(&self, body: impl FnOnce(Normalize<'_>) -> Result<()>) -> Result<()> {
        host::read(&self.weight, |weight: &[f32]| {
            host::read(&self.bias, |bias: &[f32]| body(Normalize { weight, bias, epsilon: self.epsilon }))
        })??
    }
}

/// A [`Norm`] with its parameters in sight.
#[derive(Clone, Copy)]
pub(super) struct Normalize<'a> {
    weight: &'a [f32],
    bias: &'a [f32],
    epsilon: f32,
}

impl Normalize<'_> {
    /// Normalizes one row. The mean is taken off before squaring: exact where the mean is large beside the deviation.
    pub(super) fn row(self, row: &mut [f32]) {
        let count = row.len() as f32;
        let mean = sum(row, |x| x) / count;
        let variance = sum(row, |x| (x - mean) * (x - mean)) / count;
        let scale = 1.0 / (variance + self.epsilon).sqrt();
        for ((x, weight), bias) in row.iter_mut().zip(self.weight).zip(self.bias) {
            *x = ((*x - mean) * scale).mul_add(*weight, *bias);
        }
    }
}

/// A sum in 16 parts side by side: vector instructions, and less rounding than one running sum.
#[inline(always)]
fn sum(row: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut parts = [0f32; 16];
    let chunks = row.chunks_exact(16);
    let rest: f32 = chunks.remainder().iter().map(|x| term(*x)).sum();
    for chunk in chunks {
        for (part, x) in parts.iter_mut().zip(chunk) {
            *part += term(*x);
        }
    }
    parts.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::{assert_close, random};

    #[test]
    fn fused_equals_plain() -> Result<()> {
        for (rows, width) in [(1, 2), (3, 17), (129, 384)] {
            let norm = Norm { weight: random(&[width], 2.0), bias: random(&[width], 1.0), epsilon: 1e-12 };
            let (delta, bias) = (random(&[rows, width], 3.0), random(&[width], 1.0));
            // A large common part, which a variance from squares alone would lose.
            let x = (random(&[rows, width], 1.0) + 100.0)?;
            let fused = x.copy()?;
            norm.add(&fused, &delta, &bias)?;
            assert_close(&fused, &norm.add_plain(&x, &delta, &bias)?, 1e-4);
        }
        Ok(())
    }
}
