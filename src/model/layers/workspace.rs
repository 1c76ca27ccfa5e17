//! What every layer of one step shares.

use candle_core::{DType, Device, Result, Tensor};

use super::Kernels;
use crate::ops::framework::Padding;
use crate::ops::label::operation;
use crate::ops::{Rows, attention_scratch};

/// What a workspace depends on beside the rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Widths {
    /// Values of a hidden state.
    pub(crate) hidden: usize,
    /// Values between the two halves of a feed-forward block.
    pub(crate) inner: usize,
    /// Attention heads.
    pub(crate) heads: usize,
    /// Scratch of the widest linear layer, in elements.
    pub(crate) linear_scratch: usize,
}

/// What a step sets up at its start, by the operations that it runs on.
pub(crate) enum Workspace {
    /// All memory that the fused operations write to.
    Fused(Memory),
    /// Plain operations allocate for themselves and look at the rows one by one.
    Plain,
    /// So do those of the framework, which know padding by its mask.
    Framework(Padding),
}

impl Workspace {
    /// `activations` is their dtype with these kernels.
    pub(crate) fn new(
        kernels: Kernels,
        activations: DType,
        widths: Widths,
        rows: &Rows,
        device: &Device,
    ) -> Result<Workspace> {
        Ok(match kernels {
            Kernels::Fused => Workspace::Fused(Memory::new(widths, rows, device)?),
            Kernels::Plain => Workspace::Plain,
            Kernels::Framework => Workspace::Framework(Padding::new(rows, widths.heads, activations, device)?),
        })
    }
}

/// Everything a step on fused operations needs, set aside at its start and used by every layer in turn: peak memory is
/// `tokens * (2 * hidden + max(3 * hidden, inner))` f32 values and a constant, and the pages are touched once.
pub(crate) struct Memory {
    widths: Widths,
    tokens: usize,
    /// (tokens * hidden): what attention mixed, then what the feed-forward block adds.
    narrow: Tensor,
    /// (tokens * max(3 * hidden, inner)): queries, keys and values; then the attention's output; then the inner values.
    wide: Tensor,
    /// For one operation at a time.
    pub(crate) scratch: Tensor,
}

impl Memory {
    fn new(widths: Widths, rows: &Rows, device: &Device) -> Result<Memory> {
        let zeros = |what, shape: &[usize]| {
            operation(what, shape, || Tensor::zeros(shape.iter().product::<usize>(), DType::F32, device))
        };
        let tokens = rows.tokens();
        let scratch = attention_scratch(widths.hidden / widths.heads).max(widths.linear_scratch);
        Ok(Memory {
            widths,
            tokens,
            narrow: zeros("mixed, and what is added", &[tokens, widths.hidden])?,
            wide: zeros("queries, keys, values; inner", &[tokens, widths.inner.max(3 * widths.hidden)])?,
            scratch: zeros("scratch of operations", &[scratch])?,
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
