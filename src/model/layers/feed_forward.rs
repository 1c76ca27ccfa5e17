//! The feed-forward block with its residual and norm.

use candle_core::{Result, Tensor};

use super::{Linear, Workspace};
#[cfg(feature = "cuda")]
use crate::ops::card::Epilogue;
use crate::ops::label::operation;
use crate::ops::{Activation, Norm, framework, linear, linear_activated, linear_plain};

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
        match work {
            Workspace::Plain => {
                let inner = self.activation.apply_plain(&linear_plain(&hidden, &up.weight)?, &up.bias)?;
                self.norm.add_plain(&hidden, &linear_plain(&inner, &down.weight)?, &down.bias)
            }
            Workspace::Framework(_) => {
                let tokens = hidden.dim(0)?;
                let inner = operation("feed-forward up", &[tokens, up.weight.rows()], || {
                    framework::linear_activated(&hidden, &up.weight, &up.bias, self.activation)
                })?;
                let shape = [tokens, down.weight.rows()];
                let delta = operation("feed-forward down", &shape, || framework::linear(&inner, &down.weight))?;
                drop(inner);
                operation("feed-forward norm", &shape, || framework::add_norm(&self.norm, &hidden, delta, &down.bias))
            }
            #[cfg(feature = "cuda")]
            Workspace::Card(memory) => {
                let (inner, delta) = (memory.buffers.wide(up.weight.rows())?, memory.buffers.narrow()?);
                memory.linear_of_hidden(&up.weight, Some(&up.bias), self.activation.into(), &inner)?;
                memory.linear(&inner, &down.weight, None, Epilogue::None, &delta)?;
                memory.add_norm(&self.norm, &delta, &down.bias)?;
                Ok(hidden)
            }
            Workspace::Fused(memory) => {
                let (inner, delta) = (memory.buffers.wide(up.weight.rows())?, memory.buffers.narrow()?);
                linear_activated(&hidden, &up.weight, &up.bias, self.activation, &inner, &memory.scratch)?;
                linear(&inner, &down.weight, &delta, &memory.scratch)?;
                self.norm.add(&hidden, &delta, &down.bias)?;
                Ok(hidden)
            }
        }
    }
}
