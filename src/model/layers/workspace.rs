//! What every layer of one step shares.

#[cfg(feature = "cuda")]
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};

use super::Kernels;
#[cfg(feature = "cuda")]
use super::{Block, Linear};
#[cfg(feature = "cuda")]
use crate::ops::card::{self, Codes, Epilogue, Layout, Operations, Summed};
use crate::ops::framework::Padding;
use crate::ops::label::operation;
#[cfg(feature = "cuda")]
use crate::ops::{EightBit, Matrix, Norm};
use crate::ops::{Indices, Rows, Sight, attention_scratch};

/// What a workspace depends on beside the rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Widths {
    /// Values of a hidden state.
    pub(crate) hidden: usize,
    /// Values between the two halves of a feed-forward block; with their gates, where it is gated.
    pub(crate) inner: usize,
    /// Attention heads.
    pub(crate) heads: usize,
    /// What layers see that do not see everything.
    pub(crate) window: Option<Sight>,
    /// Scratch of the widest linear layer, in elements.
    pub(crate) linear_scratch: usize,
    /// The form of codes that layers multiply, and the inputs of the widest, where they do.
    #[cfg(feature = "cuda")]
    pub(crate) codes: Option<(EightBit, usize)>,
}

/// What a step sets up at its start, by the operations that it runs on.
pub(crate) enum Workspace {
    /// All memory that the fused operations write to.
    Fused(Memory),
    /// Plain operations allocate for themselves and look at the rows one by one.
    Plain,
    /// So do those of the framework, which know padding by its mask.
    Framework(Padding),
    /// All memory that the card's operations write to, and what they are launched through.
    #[cfg(feature = "cuda")]
    Card(CardMemory),
}

impl Workspace {
    /// `activations` is their dtype with these kernels.
    pub(crate) fn new(
        kernels: Kernels,
        activations: DType,
        widths: Widths,
        rows: &Rows,
        indices: &Indices,
        device: &Device,
    ) -> Result<Workspace> {
        Ok(match kernels {
            Kernels::Fused => Workspace::Fused(Memory::new(widths, rows, device)?),
            Kernels::Plain => Workspace::Plain,
            Kernels::Framework => {
                Workspace::Framework(Padding::new(rows, widths.heads, widths.window, activations, device)?)
            }
            #[cfg(feature = "cuda")]
            Kernels::Card => Workspace::Card(CardMemory::new(widths, activations, rows, indices, device)?),
            #[cfg(not(feature = "cuda"))]
            Kernels::Card => candle_core::bail!("a program without the feature cuda has no operations for {indices:?}"),
        })
    }
}

/// What is left of a workspace when the layers are done with its memory.
pub(crate) enum Rest {
    /// Nothing that a head needs.
    None,
    /// Where the rows lie.
    #[cfg(feature = "cuda")]
    Card(OnCard),
}

impl Workspace {
    /// Gives the layers' memory back: the results take its place, so that many short rows cost no more than few long
    /// ones.
    pub(crate) fn finish(self) -> Rest {
        match self {
            Workspace::Fused(_) | Workspace::Plain | Workspace::Framework(_) => Rest::None,
            #[cfg(feature = "cuda")]
            Workspace::Card(memory) => Rest::Card(memory.rest),
        }
    }
}

/// What the layers of a step write to in turn, whatever the operations.
pub(crate) struct Buffers {
    widths: Widths,
    /// (tokens * hidden): what attention mixed, then what the feed-forward block adds, where that is not added in passing;
    /// between blocks the states' norms, where those stand before the blocks.
    narrow: Tensor,
    /// (tokens * max(3 * hidden, inner)): queries, keys and values; then the attention's output, where that is not added
    /// in passing; then the inner values.
    wide: Tensor,
}

impl Buffers {
    /// `memory` makes memory of shape (tokens, width) under a label.
    fn new(widths: Widths, memory: impl Fn(&'static str, usize) -> Result<Tensor>) -> Result<Buffers> {
        Ok(Buffers {
            widths,
            narrow: memory("mixed, what is added, normed", widths.hidden)?,
            wide: memory("queries, keys, values; inner", widths.inner.max(3 * widths.hidden))?,
        })
    }

    /// Memory of shape (tokens, hidden) whose contents are those of an earlier use, for all of the step's tokens or fewer.
    pub(crate) fn narrow(&self, tokens: usize) -> Result<Tensor> {
        let width = self.widths.hidden;
        self.narrow.narrow(0, 0, tokens * width)?.reshape((tokens, width))
    }

    /// Memory of shape (tokens, width); the same for every width, so that only one is in use at a time.
    pub(crate) fn wide(&self, tokens: usize, width: usize) -> Result<Tensor> {
        self.wide.narrow(0, 0, tokens * width)?.reshape((tokens, width))
    }

    /// The same memory for two tensors of shape (tokens, width), one behind the other.
    pub(crate) fn planes(&self, tokens: usize, width: usize) -> Result<Tensor> {
        self.wide.narrow(0, 0, 2 * tokens * width)?.reshape((2, tokens, width))
    }
}

/// Everything a step on fused operations needs, set aside at its start and used by every layer in turn: peak memory is
/// `tokens * (2 * hidden + max(3 * hidden, inner))` f32 values and a constant, and the pages are touched once.
pub(crate) struct Memory {
    pub(crate) buffers: Buffers,
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
            buffers: Buffers::new(widths, |what, width| zeros(what, &[tokens, width]))?,
            scratch: zeros("scratch of operations", &[scratch])?,
        })
    }
}

/// What operations on a card are launched through, and where the step's rows lie on it.
#[cfg(feature = "cuda")]
pub(crate) struct OnCard {
    pub(crate) operations: Arc<Operations>,
    pub(crate) layout: Layout,
}

/// Everything a step on a card's operations needs, set aside at its start and used by every layer in turn: peak memory is
/// `tokens * (2 * hidden + max(3 * hidden, inner))` values of the activations' dtype, the indices, and a constant. Layers
/// of 8 bits add `tokens * (max(hidden, inner) + 4)` bytes: the inner values' codes are needed while all else is.
#[cfg(feature = "cuda")]
pub(crate) struct CardMemory {
    pub(crate) buffers: Buffers,
    pub(crate) rest: OnCard,
    /// (tokens, hidden): the hidden states, from the embeddings to the last layer.
    pub(crate) hidden: Tensor,
    /// The input of one product at a time, where layers multiply codes.
    pub(crate) codes: Option<Codes>,
}

#[cfg(feature = "cuda")]
impl CardMemory {
    fn new(widths: Widths, activations: DType, rows: &Rows, indices: &Indices, device: &Device) -> Result<CardMemory> {
        let layout = Layout::new(rows, indices, device)?;
        let tokens = layout.tokens();
        let memory = |what, width: usize| {
            operation(what, &[tokens, width], || card::memory(tokens * width, activations, device))
        };
        let hidden = memory("hidden states", widths.hidden)?.reshape((tokens, widths.hidden))?;
        Ok(CardMemory {
            rest: OnCard { operations: Operations::of(&hidden)?, layout },
            buffers: Buffers::new(widths, memory)?,
            hidden,
            codes: match widths.codes {
                None => None,
                Some((form, width)) => {
                    Some(operation("codes", &[tokens, width], || Codes::new(form, tokens, width, device))?)
                }
            },
        })
    }

    /// All memory that the layers write to.
    pub(crate) fn all(&self) -> Vec<&Tensor> {
        let codes = self.codes.iter().flat_map(Codes::all);
        [&self.hidden, &self.buffers.narrow, &self.buffers.wide].into_iter().chain(codes).collect()
    }

    /// A block's end: `last` of `x` is added to `sum`, whose norm goes to `normed`, or else takes its place. Where layers
    /// multiply codes, those of the norm are written too.
    pub(crate) fn add_linear_norm(
        &self,
        norm: &Norm,
        sum: &Tensor,
        x: &Tensor,
        last: &Linear,
        block: Block,
        normed: Option<&Tensor>,
    ) -> Result<()> {
        let OnCard { operations, layout } = &self.rest;
        let Linear { weight, bias } = last;
        let delta;
        let summed = match &self.codes {
            None => {
                // The sum is taken up in passing, so that the norm has less to read and to write.
                card::add_linear(operations, x, weight, bias.as_ref(), sum)?;
                Summed { x: sum, delta: None, out: normed }
            }
            Some(codes) => {
                card::quantize(operations, x, codes)?;
                delta = block.spare(&self.buffers, sum.dim(0)?, weight.rows())?;
                self.linear_of_coded(x, weight, None, Epilogue::None, &delta)?;
                Summed { x: sum, delta: Some((&delta, bias.as_ref())), out: normed }
            }
        };
        card::add_norm(operations, norm, summed, layout, self.codes.as_ref())
    }

    /// A layer's product and what follows it, in the form in which its matrix is held: of `x`, or of the codes that were
    /// written last, which are those of `x`, where layers multiply codes.
    pub(crate) fn linear_of_coded(
        &self,
        x: &Tensor,
        weight: &Matrix,
        bias: Option<&Tensor>,
        epilogue: Epilogue,
        y: &Tensor,
    ) -> Result<()> {
        let operations = &*self.rest.operations;
        match &self.codes {
            None => card::linear(operations, x, weight, bias, epilogue, y),
            Some(codes) => {
                card::linear_eight_bit(operations, operations.eight_bit[0], codes, weight, bias, epilogue, y)
            }
        }
    }
}
