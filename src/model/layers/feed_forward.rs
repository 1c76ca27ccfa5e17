//! The feed-forward block with its residual and norm.

use candle_core::{Result, Tensor};

use super::{Block, Linear, Residual, States, Workspace};
#[cfg(feature = "cuda")]
use crate::ops::card::{self, Epilogue};
use crate::ops::label::operation;
use crate::ops::{Activation, framework, linear, linear_activated, linear_plain};

/// The second half of an encoder's layer: `down(activation(up(x)))`, or `down(activation(up(x)) * gate(x))`, added to what
/// x comes from.
#[derive(Debug)]
pub(crate) struct FeedForward {
    pub(crate) up: Linear,
    /// Of the same shape as `up`.
    pub(crate) gate: Option<Linear>,
    pub(crate) down: Linear,
    pub(crate) activation: Activation,
    pub(crate) residual: Residual,
}

impl FeedForward {
    pub(crate) fn forward(&self, states: States, work: &Workspace) -> Result<States> {
        let States { normed, sum } = states;
        let tokens = normed.dim(0)?;
        let inner = match work {
            Workspace::Plain => self.inner_plain(&normed)?,
            Workspace::Framework(_) => self.inner_by_framework(normed)?,
            #[cfg(feature = "cuda")]
            Workspace::Card(memory) => {
                let (up, bias) = (&self.up, self.up.bias.as_ref());
                match &self.gate {
                    None => {
                        let inner = memory.buffers.wide(tokens, up.weight.rows())?;
                        memory.linear_of_coded(&normed, &up.weight, bias, self.activation.into(), &inner)?;
                        inner
                    }
                    Some(gate) => {
                        let planes = memory.buffers.planes(tokens, up.weight.rows())?;
                        let (inner, gates) = (planes.get(0)?, planes.get(1)?);
                        memory.linear_of_coded(&normed, &up.weight, None, Epilogue::None, &inner)?;
                        memory.linear_of_coded(&normed, &gate.weight, None, Epilogue::None, &gates)?;
                        card::gate(&memory.rest.operations, self.activation, &planes, bias, gate.bias.as_ref())?;
                        inner
                    }
                }
            }
            Workspace::Fused(memory) => {
                let (up, bias) = (&self.up, self.up.bias.as_ref());
                match &self.gate {
                    None => {
                        let inner = memory.buffers.wide(tokens, up.weight.rows())?;
                        linear_activated(&normed, &up.weight, bias, self.activation, &inner, &memory.scratch)?;
                        inner
                    }
                    Some(gate) => {
                        let planes = memory.buffers.planes(tokens, up.weight.rows())?;
                        linear(&normed, &up.weight, &planes.get(0)?, &memory.scratch)?;
                        linear(&normed, &gate.weight, &planes.get(1)?, &memory.scratch)?;
                        self.activation.gate(&planes, bias, gate.bias.as_ref())?;
                        planes.get(0)?
                    }
                }
            }
        };
        self.residual.add(sum, inner, &self.down, Block::FeedForward, work)
    }

    /// What `down` is applied to.
    fn inner_plain(&self, normed: &Tensor) -> Result<Tensor> {
        let FeedForward { up, gate, activation, .. } = self;
        let inner = activation.apply_plain(&linear_plain(normed, &up.weight)?, up.bias.as_ref())?;
        let Some(gate) = gate else { return Ok(inner) };
        let gates = linear_plain(normed, &gate.weight)?;
        match &gate.bias {
            Some(bias) => inner * gates.broadcast_add(bias)?,
            None => inner * gates,
        }
    }

    fn inner_by_framework(&self, normed: Tensor) -> Result<Tensor> {
        let FeedForward { up, gate, activation, .. } = self;
        let shape = [normed.dim(0)?, up.weight.rows()];
        let inner = operation("feed-forward up", &shape, || {
            framework::linear_activated(&normed, &up.weight, up.bias.as_ref(), *activation)
        })?;
        let Some(gate) = gate else { return Ok(inner) };
        let gates = operation("feed-forward gate", &shape, || {
            framework::linear_biased(&normed, &gate.weight, gate.bias.as_ref())
        })?;
        drop(normed);
        operation("feed-forward gated", &shape, || inner * gates)
    }
}
