//! Attention of every position to the real positions of its own row, through the matrix of all scores.

use candle_core::{D, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use candle_nn::rotary_emb::rope;

use super::padding::{COLUMNS, Padding};
use crate::ops::label::operation;
use crate::ops::{Rotation, Sight};

/// Elements of the largest tensor of [`attention`] for each token of a batch whose rows have `length` tokens.
pub(crate) fn score_elements_per_token(heads: u64, size: u64, length: u64) -> u64 {
    // Queries and keys with their columns of the mask; the scores.
    heads.saturating_mul(length.max(size + COLUMNS as u64))
}

/// The mixed values, (tokens, width). `qkv` is (tokens, 3 * width): queries, keys and values side by side, without
/// their biases, which are `bias`; a rotation turns queries and keys by where they are in their row. Results of padded
/// positions mean nothing and are finite.
///
/// The largest tensors are the scores and their softmax, rows * heads * length^2 each, two of them at a time.
pub(crate) fn attention(
    qkv: Tensor,
    bias: Option<&Tensor>,
    rotation: Option<&Rotation>,
    padding: &Padding,
    heads: usize,
    sight: Sight,
) -> Result<Tensor> {
    let (tokens, width) = (qkv.dim(0)?, qkv.dim(1)? / 3);
    let (rows, length, size) = (padding.rows, padding.length, width / heads);
    assert_eq!(tokens, rows * length, "the padding is that of this batch");
    let biased = match bias {
        Some(bias) => operation("queries, keys, values", qkv.dims(), || qkv.broadcast_add(bias))?,
        None => qkv.clone(),
    };
    drop(qkv);
    // One copy for all three; each part is contiguous by itself. No view of what was copied may be left alive.
    let parts = operation("heads", &[3 * rows, heads, length, size], || {
        biased.reshape((rows, length, 3, heads, size))?.permute((2, 0, 3, 1, 4))?.contiguous()
    })?;
    drop(biased);
    let turned = |part: usize| match rotation {
        Some(Rotation { cosines, sines }) => {
            rope(&parts.get(part)?, &cosines.narrow(0, 0, length)?, &sines.narrow(0, 0, length)?)
        }
        None => parts.get(part),
    };
    let scores = {
        let with_mask = [rows, heads, length, size + COLUMNS];
        // Scaled here: the scores are larger, and would be copied for it.
        let queries = operation("queries with mask", &with_mask, || {
            let queries = (turned(0)? * (1.0 / (size as f64).sqrt()))?;
            Tensor::cat(&[&queries, &padding.queries], D::Minus1)
        })?;
        let keys = operation("keys with mask", &with_mask, || Tensor::cat(&[&turned(1)?, &padding.keys], D::Minus1))?;
        operation("scores", &[rows, heads, length, length], || queries.matmul(&keys.t()?))?
    };
    let scores = match padding.mask(sight) {
        Some(mask) => {
            let seen = operation("scores in sight", scores.dims(), || scores.broadcast_add(mask))?;
            drop(scores);
            seen
        }
        None => scores,
    };
    let weights = operation("softmax", scores.dims(), || softmax_last_dim(&scores))?;
    drop(scores);
    let mixed = operation("mixed", &[rows, heads, length, size], || weights.matmul(&parts.get(2)?))?;
    drop((weights, parts));
    operation("mixed", &[tokens, width], || mixed.transpose(1, 2)?.reshape((tokens, width)))
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::ops::tests::{assert_close, random};
    use crate::ops::{Rows, attention_plain, rotate_plain};

    /// Compares real positions: those of padding mean nothing.
    fn check(lengths: &[usize], heads: usize, size: usize, scale: f32, dtype: DType, tolerance: f32) -> Result<()> {
        let (rows, width) = (Rows::padded(lengths.to_vec()), heads * size);
        let (qkv, bias) = (random(&[rows.tokens(), 3 * width], scale), random(&[3 * width], 1.0));
        let narrow_bias = bias.to_dtype(dtype)?;
        let expected = attention_plain(&qkv, Some(&bias), &rows, heads, Sight::EVERYTHING)?;
        let padding = Padding::new(&rows, heads, None, dtype, &Device::Cpu)?;
        let found = attention(qkv.to_dtype(dtype)?, Some(&narrow_bias), None, &padding, heads, Sight::EVERYTHING)?;
        compare(&found, &expected, &rows, tolerance)
    }

    fn compare(found: &Tensor, expected: &Tensor, rows: &Rows, tolerance: f32) -> Result<()> {
        let found = found.to_dtype(DType::F32)?;
        let values: Vec<f32> = found.flatten_all()?.to_vec1()?;
        assert!(values.iter().all(|value| value.is_finite()), "positions of padding are finite too");
        for (start, length) in rows.iter() {
            assert_close(&found.narrow(0, start, length)?, &expected.narrow(0, start, length)?, tolerance);
        }
        Ok(())
    }

    #[test]
    fn equals_plain() -> Result<()> {
        for (dtype, tolerance) in [(DType::F32, 2e-5), (DType::F16, 0.02), (DType::BF16, 0.2)] {
            for size in [1, 5, 32, 64] {
                check(&[1], 1, size, 3.0, dtype, tolerance)?;
                check(&[3, 64, 1, 17], 3, size, 3.0, dtype, tolerance)?;
                check(&[5, 5], 2, size, 3.0, dtype, tolerance)?;
            }
        }
        Ok(())
    }

    /// Rotated, without a bias, and in windows that hide nothing, something and nearly all; padded rows between others.
    #[test]
    fn equals_plain_with_rotation_in_a_window() -> Result<()> {
        let (heads, size) = (2, 8);
        for (dtype, tolerance) in [(DType::F32, 2e-5), (DType::F16, 0.02), (DType::BF16, 0.2)] {
            for (lengths, reach) in [(vec![1], 0), (vec![3, 40, 1, 17], 6), (vec![12, 9, 12], 11), (vec![7, 30], 0)] {
                let (rows, sight) = (Rows::padded(lengths), Sight::around(reach));
                let length = (rows.tokens() / rows.iter().len()) as u32;
                let qkv = random(&[rows.tokens(), 3 * heads * size], 3.0);
                let positions: Vec<u32> = (0..rows.tokens() as u32).map(|at| at % length).collect();
                let rotation = |dtype| Rotation::new(50.0, 64, size, dtype, &Device::Cpu);
                let turned = rotate_plain(&qkv, None, &rotation(DType::F32)?, &positions, heads)?;
                let expected = attention_plain(&turned, None, &rows, heads, sight)?;
                let padding = Padding::new(&rows, heads, Some(sight), dtype, &Device::Cpu)?;
                let narrow = qkv.to_dtype(dtype)?;
                let found = attention(narrow, None, Some(&rotation(dtype)?), &padding, heads, sight)?;
                compare(&found, &expected, &rows, tolerance)?;
            }
        }
        Ok(())
    }

    /// Scores in the thousands, so that no two dtypes agree: a row in a padded batch against the same row alone.
    #[test]
    fn padding_is_masked_however_far_apart_the_scores_are() -> Result<()> {
        let (heads, width) = (2, 16);
        let bias = random(&[3 * width], 1.0);
        for (dtype, tolerance) in [(DType::F32, 1e-3), (DType::F16, 0.1)] {
            let of = |qkv: &Tensor, lengths: &[usize]| -> Result<Tensor> {
                let rows = Rows::padded(lengths.to_vec());
                let padding = Padding::new(&rows, heads, None, dtype, &Device::Cpu)?;
                let (qkv, bias) = (qkv.to_dtype(dtype)?, bias.to_dtype(dtype)?);
                let found = attention(qkv, Some(&bias), None, &padding, heads, Sight::EVERYTHING)?;
                found.narrow(0, 0, lengths[0])?.to_dtype(DType::F32)
            };
            let qkv = random(&[2 * 90, 3 * width], 40.0);
            let alone = of(&qkv.narrow(0, 0, 7)?.contiguous()?, &[7])?;
            assert_close(&of(&qkv, &[7, 90])?, &alone, tolerance);
        }
        Ok(())
    }

    #[test]
    fn what_padding_holds_changes_nothing() -> Result<()> {
        let (rows, heads, width) = (Rows::padded(vec![2, 9]), 2, 16);
        let padding = Padding::new(&rows, heads, None, DType::F16, &Device::Cpu)?;
        let bias = Tensor::zeros(3 * width, DType::F16, &Device::Cpu)?;
        let qkv = random(&[rows.tokens(), 3 * width], 2.0);
        let mut values: Vec<f32> = qkv.flatten_all()?.to_vec1()?;
        values[2 * 3 * width..9 * 3 * width].fill(50.0);
        let other = Tensor::from_vec(values, qkv.shape(), &Device::Cpu)?;
        let real = |qkv: &Tensor| -> Result<Tensor> {
            let qkv = qkv.to_dtype(DType::F16)?;
            let found = attention(qkv, Some(&bias), None, &padding, heads, Sight::EVERYTHING)?;
            found.narrow(0, 0, 2)?.to_dtype(DType::F32)
        };
        assert_close(&real(&other)?, &real(&qkv)?, 0.0);
        Ok(())
    }
}
