//! Every tensor of a folder, whatever it is called, for `fuzz/` and for the test that repeats what it found: what a model
//! asks for is all of its own kind and shape.

use candle_core::Device;

use super::{Reader, Weights};
use crate::config::Dtype;
use crate::model::error::ModelError;
use crate::model::files::ModelFiles;
use crate::model::layers::Kernels;
use crate::ops::q8;

/// Reads each tensor as the vector or the matrices that it may be, to be held as `dtype`, after the look at it that a model
/// takes before it loads any. How many could be read.
///
/// # Errors
/// The headers' own.
pub fn read_every_tensor(files: &ModelFiles, dtype: Dtype) -> Result<usize, ModelError> {
    let weights = Weights::open(files)?;
    let reader = Reader { weights: &weights, device: &Device::Cpu, dtype, kernels: Kernels::Fused };
    let read = weights.tensors.iter().filter(|(name, stored)| {
        let looked_at = weights.expect(name, &stored.shape).is_ok();
        // As a configuration's, no size is 0; and rows are whole blocks where blocks are wanted.
        match *stored.shape {
            _ if !looked_at || stored.shape.contains(&0) => false,
            [len] => reader.vector(name, len).is_ok(),
            [rows, columns] if dtype != Dtype::Q8 || columns.is_multiple_of(q8::BLOCK) => {
                let shape = [rows, columns];
                reader.matrix(name, shape).is_ok() && reader.table(name, shape).is_ok()
            }
            _ => false,
        }
    });
    Ok(read.count())
}
