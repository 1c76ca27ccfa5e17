//! Which positions of a padded batch are none, and which are out of sight, in the forms that scores take in.

use candle_core::{DType, Device, Result, Tensor};

use crate::ops::{Rows, Sight};

/// Columns that queries and keys get for the mask: as many as keep a row's alignment at 16 bytes in two-byte elements.
pub(super) const COLUMNS: usize = 8;
/// What a padded key's scores are lowered by: far more than real scores differ by, far less than f16 can hold (65,504),
/// and its eighth is exact in every dtype.
const LOWERED: f32 = 32_768.0;

/// The layout of a padded batch, and its mask.
///
/// A mask of the scores' shape would be the largest tensor of the step, and adding it the slowest operation. Instead
/// each query gets [`COLUMNS`] more values, all 1, and each key as many, which are 0 for a real position and an equal
/// part of -[`LOWERED`] for padding: the product of the two adds the mask.
#[derive(Debug)]
pub(crate) struct Padding {
    pub(super) rows: usize,
    pub(super) length: usize,
    /// (rows, heads, length, COLUMNS), what every query gets.
    pub(super) queries: Tensor,
    /// The same shape, what the keys get.
    pub(super) keys: Tensor,
    /// (length, length): what is added to the scores of layers with this sight; `None` where rows are too short for that.
    window: Option<(Sight, Tensor)>,
}

impl Padding {
    /// The padding of `rows`, which are padded to the longest; layers see everything, or as far as `window` says.
    pub(crate) fn new(
        rows: &Rows,
        heads: usize,
        window: Option<Sight>,
        dtype: DType,
        device: &Device,
    ) -> Result<Padding> {
        let (count, length) = (rows.iter().len(), rows.tokens() / rows.iter().len().max(1));
        let mut mask = vec![-LOWERED / COLUMNS as f32; count * length];
        for (start, real) in rows.iter() {
            assert!(start.is_multiple_of(length), "rows are padded to the longest");
            mask[start..start + real].fill(0.0);
        }
        let mask = Tensor::from_vec(mask, (count, 1, length, 1), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?;
        let shape = (count, heads, length, COLUMNS);
        let keys = mask.broadcast_as(shape)?.contiguous()?;
        let window = window.filter(|sight| sight.is_limited_in(length)).map(|sight| -> Result<_> {
            let mask = Tensor::from_vec(sight.mask(length, -LOWERED), (length, length), &Device::Cpu)?;
            Ok((sight, mask.to_dtype(dtype)?.to_device(device)?))
        });
        Ok(Padding {
            rows: count,
            length,
            queries: Tensor::ones(shape, dtype, device)?,
            keys,
            window: window.transpose()?,
        })
    }

    /// What has to be added to scores that see so far.
    pub(super) fn mask(&self, sight: Sight) -> Option<&Tensor> {
        if !sight.is_limited_in(self.length) {
            return None;
        }
        let known = self.window.as_ref().filter(|(known, _)| *known == sight);
        Some(&known.expect("a step is told of its model's window").1)
    }
}
