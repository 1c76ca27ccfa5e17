//! The memory of one step.

use candle_core::{DType, Device, Result, Tensor};

use super::Kernels;
use crate::ops::{Rows, attention_scratch};

/// What a workspace's size depends on beside the number of tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Widths {
    /// Values of a hidden state.
    pub(crate) hidden: usize,
    /// Values between the two halves of a feed-forward block.
    pub(crate) inner: usize,
    /// Values of an attention head.
    pub(crate) head: usize,
    /// Scratch of the widest linear layer, in elements.
    pub(crate) linear_scratch: usize,
}

/// Everything a step needs, set aside at its start and used by every layer in turn: peak memory is
/// `tokens * (2 * hidden + max(3 * hidden, inner))` f32 values and a constant, and the pages are touched once.
/// The plain kernels allocate for themselves; for them it is empty.
pub(crate) struct Workspace {
    pub(crate) kernels: Kernels,
    widths: Widths,
    tokens: usize,
    /// (tokens * hidden): what attention mixed, then what the feed-forward block adds.
    narrow: Tensor,
    /// (tokens * max(3 * hidden, inner)): queries, keys and values; then the attention's output; then the inner values.
    wide: Tensor,
    /// For one operation at a time.
    pub(crate) scratch: Tensor,
}

impl Workspace {
    pub(crate) fn new(kernels: Kernels, widths: Widths, rows: &Rows, device: &Device) -> Result<Workspace> {
        let zeros = |count: usize| match kernels {
            Kernels::Fused => Tensor::zeros(count, DType::F32, device),
            Kernels::Plain => Tensor::zeros(1, DType::F32, device),
        };
        let tokens = rows.tokens();
        Ok(Workspace {
            kernels,
            widths,
            tokens,
            narrow: zeros(tokens * widths.hidden)?,
            wide: zeros(tokens * widths.inner.max(3 * widths.hidden))?,
            scratch: zeros(attention_scratch(widths.head).max(widths.linear_scratch))?,
        })
    }

    /// Memory of shape (tokens, hidden) whose contents are those of an earlier use.
    pub(crate) fn narrow(&self) -> Result<Tensor> {
        self.narrow.reshape((self.tokens, self.widths.hidden))
    }

    /// Memory of shape (tokens, width); the same for every width, so that only one is in use at a time.
    pub(crate) fn wide(&self, width: usize) -> Result<Tensor> {
        self.wide.narrow(0, 0, self.tokens * width)?.reshape((self.tokens, width))
    }
}
