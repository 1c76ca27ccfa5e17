//! Which positions of a padded batch are none, in the form that the scores' product takes in.

use candle_core::{DType, Device, Result, Tensor};

use crate::ops::Rows;

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
}

impl Padding {
    /// The padding of `rows`, which are padded to the longest.
    pub(crate) fn new(rows: &Rows, heads: usize, dtype: DType, device: &Device) -> Result<Padding> {
        let (count, length) = (rows.iter().len(), rows.tokens() / rows.iter().len().max(1));
        let mut mask = vec![-LOWERED / COLUMNS as f32; count * length];
        for (start, real) in rows.iter() {
            assert!(start.is_multiple_of(length), "rows are padded to the longest");
            mask[start..start + real].fill(0.0);
        }
        let mask = Tensor::from_vec(mask, (count, 1, length, 1), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?;
        let shape = (count, heads, length, COLUMNS);
        let keys = mask.broadcast_as(shape)?.contiguous()?;
        Ok(Padding { rows: count, length, queries: Tensor::ones(shape, dtype, device)?, keys })
    }
}
