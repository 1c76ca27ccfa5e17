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
    pub(crate) fn add(&self, x: &Tensor, delta: &Tensor, delta_bias: Option<&Tensor>) -> Result<()> {
        self.with_parameters(|normalize| add(x, delta, delta_bias, |row| normalize.row(row)))
    }

    /// `sum = sum + delta + delta_bias` in place, and `out = norm(sum)`, for models that go on with the sum. `out` may be
    /// `delta`: the second pass over the rows costs little beside the products around it.
    pub(crate) fn add_apart(
        &self,
        sum: &Tensor,
        delta: &Tensor,
        delta_bias: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        let (_, width) = sum.dims2()?;
        assert_eq!(sum.dims(), out.dims(), "a norm keeps the shape");
        add(sum, delta, delta_bias, |_| ())?;
        self.with_parameters(|normalize| {
            host::read(sum, |sum: &[f32]| {
                host::write(out, |out| {
                    parallel::for_each_row(out, width, |index, row| {
                        row.copy_from_slice(&sum[index * width..(index + 1) * width]);
                        normalize.row(row);
                    });
                })
            })?
        })
    }

    /// The sum and its norm in candle's operations.
    pub(crate) fn add_plain(
        &self,
        x: &Tensor,
        delta: &Tensor,
        delta_bias: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let sum = (x + delta)?;
        let sum = match delta_bias {
            Some(bias) => sum.broadcast_add(bias)?,
            None => sum,
        };
        let normalized = self.plain(&sum)?;
        Ok((sum, normalized))
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

/// `x = x + delta + bias`, each row of which is then given to `finish`.
fn add(x: &Tensor, delta: &Tensor, bias: Option<&Tensor>, finish: impl Fn(&mut [f32]) + Sync) -> Result<()> {
    let (_, width) = x.dims2()?;
    assert_eq!(x.dims(), delta.dims(), "a residual has the shape of what it is added to");
    host::read(delta, |delta: &[f32]| {
        host::read_or_zeros(bias, width, |bias| {
            host::write(x, |x| {
                parallel::for_each_row(x, width, |index, row| {
                    let delta = &delta[index * width..(index + 1) * width];
                    for ((x, delta), bias) in row.iter_mut().zip(delta).zip(bias) {
                        *x += delta + bias;
                    }
                    finish(row);
                });
            })
        })
    })??
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
            norm.add(&fused, &delta, Some(&bias))?;
            let (expected_sum, expected) = norm.add_plain(&x, &delta, Some(&bias))?;
            assert_close(&fused, &expected, 1e-4);

            let (sum, in_place) = (x.copy()?, delta.copy()?);
            norm.add_apart(&sum, &in_place, Some(&bias), &in_place)?;
            assert_close(&sum, &expected_sum, 1e-4);
            assert_close(&in_place, &fused, 0.0);
            let (sum, out) = (x.copy()?, x.zeros_like()?);
            norm.add_apart(&sum, &delta, None, &out)?;
            assert_close(&out, &norm.add_plain(&x, &delta, None)?.1, 1e-4);
        }
        Ok(())
    }
}
