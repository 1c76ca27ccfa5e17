//! How a block's result joins what it was computed from.

use candle_core::{Result, Tensor};

use super::Workspace;
#[cfg(feature = "cuda")]
use crate::ops::card::Summed;
use crate::ops::label::operation;
use crate::ops::{Norm, framework};

/// What goes from block to block.
#[derive(Debug)]
pub(crate) struct States {
    /// What a block is computed from, (positions, width).
    pub(crate) normed: Tensor,
    /// What its result is added to. The same tensor, unless norms stand before the blocks.
    pub(crate) sum: Tensor,
}

impl States {
    /// Those before the first block.
    pub(crate) fn first(hidden: Tensor) -> States {
        States { normed: hidden.clone(), sum: hidden }
    }
}

/// Where a norm stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Behind the sum, which is then forgotten: `x = norm(x + block(x))`.
    After,
    /// Before the next block, which goes on with the sum: `x = x + block(norm(x))`. The norm behind the last block is the
    /// model's own.
    Before,
}

/// The end of a block: the residual, and the norm that follows it.
#[derive(Debug)]
pub(crate) struct Residual {
    pub(crate) norm: Norm,
    pub(crate) order: Order,
}

impl Residual {
    /// Adds `delta`, without its bias, to the sum. `label` names this in traces.
    pub(crate) fn add(
        &self,
        sum: Tensor,
        delta: Tensor,
        bias: Option<&Tensor>,
        label: &'static str,
        work: &Workspace,
    ) -> Result<States> {
        let norm = &self.norm;
        match work {
            Workspace::Plain => self.choose(norm.add_plain(&sum, &delta, bias)?),
            Workspace::Framework(_) => {
                let shape = [sum.dim(0)?, sum.dim(1)?];
                self.choose(operation(label, &shape, || framework::add_norm(norm, sum, delta, bias))?)
            }
            #[cfg(feature = "cuda")]
            Workspace::Card(memory) => {
                let summed = Summed { x: &sum, delta: &delta, bias, out: None };
                match self.order {
                    Order::After => {
                        memory.add_norm(norm, summed)?;
                        Ok(States::first(sum))
                    }
                    Order::Before => {
                        let normed = memory.buffers.narrow()?;
                        memory.add_norm(norm, Summed { out: Some(&normed), ..summed })?;
                        Ok(States { normed, sum })
                    }
                }
            }
            Workspace::Fused(memory) => match self.order {
                Order::After => {
                    norm.add(&sum, &delta, bias)?;
                    Ok(States::first(sum))
                }
                Order::Before => {
                    let normed = memory.buffers.narrow()?;
                    norm.add_apart(&sum, &delta, bias, &normed)?;
                    Ok(States { normed, sum })
                }
            },
        }
    }

    fn choose(&self, (sum, normed): (Tensor, Tensor)) -> Result<States> {
        Ok(match self.order {
            Order::After => States::first(normed),
            Order::Before => States { normed, sum },
        })
    }
}
