//! The feed-forward block with its residual and norm.

use candle_core::{Result, Tensor};

use super::{Kernels, Linear, Workspace};
use crate::ops::{Activation, Norm, linear, linear_activated, linear_plain};

/// The second half of an encoder's layer: `norm(x + down(activation(up(x))))`.
#[derive(Debug)]
pub(crate) struct FeedForward {
    pub(crate) up: Linear,
    pub(crate) down: Linear,
    pub(crate) activation: Activation,
    pub(crate) norm: Norm,
}

impl FeedForward {
    pub(crate) fn forward(&self, hidden: Tensor, work: &Workspace) -> Result<Tensor> {
        let (up, down) = (&self.up, &self.down);
        match work.kernels {
            Kernels::Plain => {
                let inner = self.activation.apply_plain(&linear_plain(&hidden, &up.weight)?, &up.bias)?;
                self.norm.add_plain(&hidden, &linear_plain(&inner, &down.weight)?, &down.bias)
            }
            Kernels::Fused => {
                let (inner, delta) = (work.wide(up.weight.rows())?, work.narrow()?);
                linear_activated(&hidden, &up.weight, &up.bias, self.activation, &inner, &work.scratch)?;
                linear(&inner, &down.weight, &delta, &work.scratch)?;
                self.norm.add(&hidden, &delta, &down.bias)?;
                Ok(hidden)
            }
        }
    }
}
