//! One vector for each row out of its positions' hidden states.

use candle_core::{Result, Tensor};

use super::{Rows, host};
use crate::config::Pooling;

/// The pooled rows, on the host: this is where a step's result leaves the device.
pub(crate) fn pool(hidden: &Tensor, rows: &Rows, pooling: Pooling) -> Result<Vec<Vec<f32>>> {
    let (_, width) = hidden.dims2()?;
    host::read(hidden, |hidden: &[f32]| {
        let position = |at: usize| &hidden[at * width..(at + 1) * width];
        let vector = |(start, length): (usize, usize)| match pooling {
            Pooling::Cls => position(start).to_vec(),
            Pooling::Last => position(start + length - 1).to_vec(),
            Pooling::Mean => {
                let mut sum = vec![0f32; width];
                for at in start..start + length {
                    sum.iter_mut().zip(position(at)).for_each(|(sum, x)| *sum += x);
                }
                sum.iter_mut().for_each(|sum| *sum /= length as f32);
                sum
            }
        };
        rows.iter().map(vector).collect()
    })
}

/// The same in candle's operations.
pub(crate) fn pool_plain(hidden: &Tensor, rows: &Rows, pooling: Pooling) -> Result<Vec<Vec<f32>>> {
    rows.iter()
        .map(|(start, length)| match pooling {
            Pooling::Cls => hidden.get(start)?.to_vec1(),
            Pooling::Last => hidden.get(start + length - 1)?.to_vec1(),
            Pooling::Mean => hidden.narrow(0, start, length)?.mean(0)?.to_vec1(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::{assert_close, random};

    #[test]
    fn fused_equals_plain() -> Result<()> {
        for rows in [Rows::ragged(vec![1, 5, 33]), Rows::padded(vec![1, 5, 33])] {
            let hidden = random(&[rows.tokens(), 24], 1.0);
            for pooling in Pooling::ALL {
                let (fused, plain) = (pool(&hidden, &rows, *pooling)?, pool_plain(&hidden, &rows, *pooling)?);
                for (fused, plain) in fused.iter().zip(&plain) {
                    let device = hidden.device();
                    assert_close(&Tensor::new(&**fused, device)?, &Tensor::new(&**plain, device)?, 1e-6);
                }
            }
        }
        Ok(())
    }
}
