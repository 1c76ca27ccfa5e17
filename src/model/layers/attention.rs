//! Self-attention with its residual and norm.

use candle_core::Result;

#[cfg(feature = "cuda")]
use super::OnCard;
use super::{Block, Linear, Residual, States, Workspace};
#[cfg(feature = "cuda")]
use crate::ops::card::{self, Epilogue};
use crate::ops::label::operation;
use crate::ops::{
    Picked, Rotation, Sight, attention, attention_plain, framework, linear, linear_plain, rotate, rotate_plain,
};

/// The first half of an encoder's layer: `output(attention(x))`, added to what x comes from.
#[derive(Debug)]
pub(crate) struct SelfAttention {
    /// Query, key and value matrices end to end: one product instead of three.
    pub(crate) qkv: Linear,
    pub(crate) output: Linear,
    pub(crate) residual: Residual,
    pub(crate) heads: usize,
    /// How queries and keys are told their positions; `None`: the embeddings are.
    pub(crate) rotation: Option<Rotation>,
    pub(crate) sight: Sight,
}

impl SelfAttention {
    /// `positions` are those of all tokens, in the rotation's tables. The states that come back are those of the picked ones
    /// alone; that not all are picked is for [`Workspace::Fused`].
    pub(crate) fn forward(
        &self,
        states: States,
        picked: &Picked,
        positions: &[u32],
        work: &Workspace,
    ) -> Result<States> {
        let SelfAttention { qkv, output, heads, sight, .. } = self;
        let (heads, sight, bias, States { normed, mut sum }) = (*heads, *sight, qkv.bias.as_ref(), states);
        let (rows, tokens) = (picked.rows(), picked.rows().tokens());
        let mixed = match work {
            Workspace::Plain => {
                let mixed = linear_plain(&normed, &qkv.weight)?;
                match &self.rotation {
                    Some(rotation) => {
                        let turned = rotate_plain(&mixed, bias, rotation, positions, heads)?;
                        attention_plain(&turned, None, rows, heads, sight)?
                    }
                    None => attention_plain(&mixed, bias, rows, heads, sight)?,
                }
            }
            Workspace::Framework(padding) => {
                let shape = [tokens, qkv.weight.rows()];
                let mixed = operation("queries, keys, values", &shape, || framework::linear(&normed, &qkv.weight))?;
                drop(normed);
                framework::attention(mixed, bias, self.rotation.as_ref(), padding, heads, sight)?
            }
            #[cfg(feature = "cuda")]
            Workspace::Card(memory) => {
                let OnCard { operations, layout } = &memory.rest;
                let wide = memory.buffers.wide(layout.tokens(), qkv.weight.rows())?;
                let epilogue = if bias.is_some() { Epilogue::Bias } else { Epilogue::None };
                memory.linear_of_coded(&normed, &qkv.weight, bias, epilogue, &wide)?;
                if let Some(rotation) = &self.rotation {
                    card::rotate(operations, &wide, rotation, layout, heads)?;
                }
                let mixed = memory.buffers.narrow(layout.tokens())?;
                card::attention(operations, &wide, layout, heads, sight, &mixed)?;
                mixed
            }
            Workspace::Fused(memory) => {
                let wide = memory.buffers.wide(tokens, qkv.weight.rows())?;
                linear(&normed, &qkv.weight, &wide, &memory.scratch)?;
                // A rotation wants queries and keys with their biases, so that there are none left to add.
                let bias = match &self.rotation {
                    Some(rotation) => {
                        rotate(&wide, bias, rotation, positions, heads)?;
                        None
                    }
                    None => bias,
                };
                // Where norms stand behind the sums it is the same memory, in which states go to other places now.
                drop(normed);
                sum = picked.take(&sum)?;
                let mixed = memory.buffers.narrow(sum.dim(0)?)?;
                attention(&wide, bias, picked, heads, sight, &mixed, &memory.scratch)?;
                mixed
            }
        };
        self.residual.add(sum, mixed, output, Block::Attention, work)
    }
}
