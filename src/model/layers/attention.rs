//! Self-attention with its residual and norm.

use candle_core::{Result, Tensor};

use super::{Linear, Workspace};
#[cfg(feature = "cuda")]
use crate::ops::card::{self, Epilogue};
use crate::ops::label::operation;
use crate::ops::{Norm, Rows, attention, attention_plain, framework, linear, linear_plain};

/// The first half of an encoder's layer: `norm(x + output(attention(x)))`.
#[derive(Debug)]
pub(crate) struct SelfAttention {
    /// Query, key and value matrices end to end: one product instead of three.
    pub(crate) qkv: Linear,
    pub(crate) output: Linear,
    pub(crate) norm: Norm,
    pub(crate) heads: usize,
}

impl SelfAttention {
    pub(crate) fn forward(&self, hidden: Tensor, rows: &Rows, work: &Workspace) -> Result<Tensor> {
        let (qkv, output) = (&self.qkv, &self.output);
        match work {
            Workspace::Plain => {
                let mixed = linear_plain(&hidden, &qkv.weight)?;
                let mixed = attention_plain(&mixed, &qkv.bias, rows, self.heads)?;
                self.norm.add_plain(&hidden, &linear_plain(&mixed, &output.weight)?, &output.bias)
            }
            Workspace::Framework(padding) => {
                let tokens = rows.tokens();
                let shape = [tokens, qkv.weight.rows()];
                let mixed = operation("queries, keys, values", &shape, || framework::linear(&hidden, &qkv.weight))?;
                let mixed = framework::attention(mixed, &qkv.bias, padding, self.heads)?;
                let shape = [tokens, output.weight.rows()];
                let delta = operation("attention output", &shape, || framework::linear(&mixed, &output.weight))?;
                drop(mixed);
                operation("attention norm", &shape, || framework::add_norm(&self.norm, &hidden, delta, &output.bias))
            }
            #[cfg(feature = "cuda")]
            Workspace::Card(memory) => {
                let (card, wide, mixed) =
                    (&*memory.rest.operations, memory.buffers.wide(qkv.weight.rows())?, memory.buffers.narrow()?);
                memory.linear_of_hidden(&qkv.weight, Some(&qkv.bias), Epilogue::Bias, &wide)?;
                card::attention(card, &wide, &memory.rest.layout, self.heads, &mixed)?;
                // Queries, keys and values are done with: their memory takes the output.
                let delta = memory.buffers.wide(output.weight.rows())?;
                memory.linear(&mixed, &output.weight, None, Epilogue::None, &delta)?;
                memory.add_norm(&self.norm, &delta, &output.bias)?;
                Ok(hidden)
            }
            Workspace::Fused(memory) => {
                let (wide, mixed) = (memory.buffers.wide(qkv.weight.rows())?, memory.buffers.narrow()?);
                linear(&hidden, &qkv.weight, &wide, &memory.scratch)?;
                attention(&wide, &qkv.bias, rows, self.heads, &mixed, &memory.scratch)?;
                // Queries, keys and values are done with: their memory takes the output.
                let delta = memory.buffers.wide(output.weight.rows())?;
                linear(&mixed, &output.weight, &delta, &memory.scratch)?;
                self.norm.add(&hidden, &delta, &output.bias)?;
                Ok(hidden)
            }
        }
    }
}
