//! A linear layer's parameters.

use candle_core::{Result, Tensor};

use super::Kernels;
use crate::ops::{Matrix, framework, linear_plain};

/// `x * weight transposed + bias`. The layers of an encoder use the two apart, since whatever follows a product adds
/// the bias in passing.
#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) weight: Matrix,
    /// `None`: the layer has none.
    pub(crate) bias: Option<Tensor>,
}

impl Linear {
    /// The layer as it is, for heads over a vector of each row, where nothing is worth fusing. The matrix is not laid
    /// out for any operation.
    pub(crate) fn forward(&self, x: &Tensor, kernels: Kernels) -> Result<Tensor> {
        let product = match kernels {
            Kernels::Fused | Kernels::Plain => linear_plain(x, &self.weight)?,
            Kernels::Framework | Kernels::Card => framework::linear(x, &self.weight)?,
        };
        match &self.bias {
            Some(bias) => product.broadcast_add(bias),
            None => Ok(product),
        }
    }
}
