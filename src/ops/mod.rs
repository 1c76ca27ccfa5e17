//! Operations fused by hand. Each file holds one: the function over slices that runs on the CPU, and beside it the
//! plain version in candle's own operations, which is its specification and what it is tested against.
//!
//! Activations are f32 tensors of shape (tokens, width): the rows of a batch lie end to end, each with its padding if
//! the batch is padded ([`Rows`] says where). Fused operations write into memory that the caller set aside for the
//! step; nothing here allocates anything that grows with the batch. [`framework`] is for devices without fused
//! operations: there the framework allocates, and activations have the model's dtype.

pub mod label;
mod host;
mod math;
mod parallel;
mod rows;
pub(crate) mod q8;
mod e4m3;
mod eight_bit;
mod matrix;
mod gemm;
mod tile;
mod decoded;
mod panels;
mod linear;
mod activation;
mod norm;
mod embed;
mod sight;
mod pick;
mod rotary;
mod attention;
mod pool;
pub(crate) mod framework;
pub(crate) mod card;

pub(crate) use activation::Activation;
pub(crate) use attention::{attention, attention_plain, attention_scratch};
#[cfg(feature = "cuda")]
pub(crate) use eight_bit::EightBit;
pub(crate) use embed::{Indices, Tables, embed, embed_plain};
pub(crate) use linear::{linear, linear_activated, linear_plain, linear_scratch};
pub(crate) use matrix::{Matrix, MatrixBuilder};
pub(crate) use norm::Norm;
pub(crate) use pick::{Pick, Picked};
pub(crate) use pool::{pool, pool_plain};
pub(crate) use rotary::{Rotation, rotate, rotate_plain};
pub(crate) use rows::Rows;
pub(crate) use sight::Sight;

/// Has the calling compute thread allocate what it keeps between operations; see `gemm`.
pub(crate) fn warm_up_thread() {
    gemm::warm_up_thread();
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::{Matrix, MatrixBuilder};
    use crate::config::Dtype;

    /// Values from -`scale` to `scale`, the same for the same shape.
    pub(super) fn random(shape: &[usize], scale: f32) -> Tensor {
        let count: usize = shape.iter().product();
        let mut random = SmallRng::seed_from_u64(count as u64);
        let values: Vec<f32> = (0..count).map(|_| random.random_range(-scale..scale)).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    /// A random matrix in the form `dtype`.
    pub(super) fn matrix(dtype: Dtype, rows: usize, columns: usize) -> Matrix {
        let mut builder = MatrixBuilder::new(dtype, rows, columns);
        let values: Vec<f32> = random(&[rows * columns], 1.0).to_vec1().unwrap();
        assert!(builder.push(&values).is_ok());
        builder.finish(&Device::Cpu).unwrap()
    }

    /// The same matrix for the framework's operations.
    pub(super) fn framework_matrix(dtype: Dtype, rows: usize, columns: usize) -> Matrix {
        let mut builder = MatrixBuilder::new(dtype, rows, columns);
        let values: Vec<f32> = random(&[rows * columns], 1.0).to_vec1().unwrap();
        assert!(builder.push(&values).is_ok());
        builder.finish_for_framework(&Device::Cpu).unwrap()
    }

    /// All elements equal within `tolerance`, and none is NaN.
    #[track_caller]
    pub(super) fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f32) {
        assert_eq!(found.dims(), expected.dims());
        let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (at, (found, expected)) in values(found).into_iter().zip(values(expected)).enumerate() {
            // Not `>`: a NaN has to fail.
            assert!((found - expected).abs() <= tolerance, "element {at}: {found} where {expected} is expected");
        }
    }
}
