//! A linear layer's parameters.

use candle_core::{Result, Tensor};

use crate::ops::{Matrix, linear_plain};

/// `x * weight transposed + bias`. The layers of an encoder use the two apart, since whatever follows a product adds
/// the bias in passing.
#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) weight: Matrix,
    pub(crate) bias: Tensor,
}

impl Linear {
    /// The layer as it is, for heads over a vector of each row, where nothing is worth fusing.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        linear_plain(x, &self.weight)?.broadcast_add(&self.bias)
    }
}
