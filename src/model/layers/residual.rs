//! How a block ends: its last product, which joins what the block was computed from, and the norm.

use candle_core::{Result, Tensor};

use super::workspace::Buffers;
use super::{Linear, Workspace};
use crate::ops::label::operation;
use crate::ops::{Norm, framework, linear, linear_plain};

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

/// Whose end it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    Attention,
    FeedForward,
}

impl Block {
    /// What traces call its last product, and its norm.
    const fn labels(self) -> (&'static str, &'static str) {
        match self {
            Block::Attention => ("attention output", "attention norm"),
            Block::FeedForward => ("feed-forward down", "feed-forward norm"),
        }
    }

    /// Memory for what its last product gives, (tokens, width): that of queries, keys and values, or of the norms that the
    /// inner values came from; both are done with.
    pub(super) fn spare(self, buffers: &Buffers, tokens: usize, width: usize) -> Result<Tensor> {
        match self {
            Block::Attention => buffers.wide(tokens, width),
            Block::FeedForward => buffers.narrow(tokens),
        }
    }
}

/// The end of a block: the residual, and the norm that follows it.
#[derive(Debug)]
pub(crate) struct Residual {
    pub(crate) norm: Norm,
    pub(crate) order: Order,
}

impl Residual {
    /// Adds `last` of `x` to the sum.
    pub(crate) fn add(&self, sum: Tensor, x: Tensor, last: &Linear, block: Block, work: &Workspace) -> Result<States> {
        let (norm, bias) = (&self.norm, last.bias.as_ref());
        match work {
            Workspace::Plain => self.choose(norm.add_plain(&sum, &linear_plain(&x, &last.weight)?, bias)?),
            Workspace::Framework(_) => {
                let (shape, (product, label)) = ([sum.dim(0)?, sum.dim(1)?], block.labels());
                let delta = operation(product, &shape, || framework::linear(&x, &last.weight))?;
                drop(x);
                self.choose(operation(label, &shape, || framework::add_norm(norm, sum, delta, bias))?)
            }
            #[cfg(feature = "cuda")]
            Workspace::Card(memory) => {
                let normed = match self.order {
                    Order::After => None,
                    Order::Before => Some(memory.buffers.narrow(sum.dim(0)?)?),
                };
                memory.add_linear_norm(norm, &sum, &x, last, block, normed.as_ref())?;
                Ok(match normed {
                    None => States::first(sum),
                    Some(normed) => States { normed, sum },
                })
            }
            Workspace::Fused(memory) => {
                let tokens = sum.dim(0)?;
                let delta = block.spare(&memory.buffers, tokens, last.weight.rows())?;
                linear(&x, &last.weight, &delta, &memory.scratch)?;
                match self.order {
                    Order::After => {
                        norm.add(&sum, &delta, bias)?;
                        Ok(States::first(sum))
                    }
                    Order::Before => {
                        let normed = memory.buffers.narrow(tokens)?;
                        norm.add_apart(&sum, &delta, bias, &normed)?;
                        Ok(States { normed, sum })
                    }
                }
            }
        }
    }

    fn choose(&self, (sum, normed): (Tensor, Tensor)) -> Result<States> {
        Ok(match self.order {
            Order::After => States::first(normed),
            Order::Before => States { normed, sum },
        })
    }
}
