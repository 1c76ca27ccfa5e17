//! Self-attention with its residual and norm.

use candle_core::{Result, Tensor};

use super::{Kernels, Linear, Workspace};
use crate::ops::{Norm, Rows, attention, attention_plain, linear, linear_plain};

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
        match work.kernels {
            Kernels::Plain => {
                let mixed = linear_plain(&hidden, &qkv.weight)?;
                let mixed = attention_plain(&mixed, &qkv.bias, rows, self.heads)?;
                self.norm.add_plain(&hidden, &linear_plain(&mixed, &output.weight)?, &output.bias)
            }
            Kernels::Fused => {
                let (wide, mixed) = (work.wide(qkv.weight.rows())?, work.narrow()?);
                linear(&hidden, &qkv.weight, &wide, &work.scratch)?;
                attention(&wide, &qkv.bias, rows, self.heads, &mixed, &work.scratch)?;
                // Queries, keys and values are done with: their memory takes the output.
                let delta = work.wide(output.weight.rows())?;
                linear(&mixed, &output.weight, &delta, &work.scratch)?;
                self.norm.add(&hidden, &delta, &output.bias)?;
                Ok(hidden)
            }
        }
    }
}
