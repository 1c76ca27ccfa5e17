//! One vector for each row out of its positions' hidden states.

use candle_core::{DType, Result, Tensor};

use crate::config::Pooling;
use crate::ops::Rows;

/// The pooled rows in f32, (rows, width), on the device: the host takes them in one copy.
pub(crate) fn pool(hidden: &Tensor, rows: &Rows, pooling: Pooling) -> Result<Tensor> {
    match pooling {
        Pooling::Cls => select(hidden, rows, |(start, _)| start)?.to_dtype(DType::F32),
        Pooling::Last => select(hidden, rows, |(start, length)| start + length - 1)?.to_dtype(DType::F32),
        Pooling::Mean => mean(hidden, rows),
    }
}

fn select(hidden: &Tensor, rows: &Rows, position: impl Fn((usize, usize)) -> usize) -> Result<Tensor> {
    let positions: Vec<u32> = rows.iter().map(|row| position(row) as u32).collect();
    hidden.index_select(&Tensor::new(positions, hidden.device())?, 0)
}

/// A product with one over the row's length for its positions, and zero for its padding.
fn mean(hidden: &Tensor, rows: &Rows) -> Result<Tensor> {
    let (count, width) = (rows.iter().len(), hidden.dim(1)?);
    let mut shares = vec![0f32; rows.tokens()];
    for (start, length) in rows.iter() {
        shares[start..start + length].fill(1.0 / length as f32);
    }
    let length = rows.tokens() / count.max(1);
    let shares = Tensor::from_vec(shares, (count, 1, length), hidden.device())?;
    // In f32, which the last layer's memory has room for: a sum of many values in f16 loses some.
    let hidden = hidden.to_dtype(DType::F32)?.reshape((count, length, width))?;
    shares.matmul(&hidden)?.squeeze(1)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::ops::pool_plain;
    use crate::ops::tests::{assert_close, random};

    #[test]
    fn equals_plain_for_every_kind() -> Result<()> {
        for lengths in [vec![1], vec![4, 4], vec![1, 5, 33]] {
            let rows = Rows::padded(lengths);
            let hidden = random(&[rows.tokens(), 24], 1.0);
            for pooling in Pooling::ALL {
                for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F16, 1e-3), (DType::BF16, 1e-2)] {
                    let found = pool(&hidden.to_dtype(dtype)?, &rows, *pooling)?;
                    let expected = Tensor::new(pool_plain(&hidden, &rows, *pooling)?, &Device::Cpu)?;
                    assert_close(&found, &expected, tolerance);
                }
            }
        }
        Ok(())
    }
}
