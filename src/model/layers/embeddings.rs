//! The first layer: token ids to hidden states.

use candle_core::{DType, Device, Result, Tensor};

use super::Kernels;
use crate::ops::{Indices, Norm, Tables, embed, embed_plain};

/// Word, position and type embeddings, and the norm over their sum.
#[derive(Debug)]
pub(crate) struct Embeddings {
    pub(crate) tables: Tables,
    pub(crate) norm: Norm,
}

impl Embeddings {
    /// Hidden states of shape (positions, width); the later layers change them in place.
    pub(crate) fn forward(&self, indices: &Indices, kernels: Kernels, device: &Device) -> Result<Tensor> {
        match kernels {
            Kernels::Plain => embed_plain(&self.tables, indices, &self.norm),
            Kernels::Fused => {
                let hidden = Tensor::zeros((indices.words.len(), self.tables.words.columns()), DType::F32, device)?;
                embed(&self.tables, indices, &self.norm, &hidden)?;
                Ok(hidden)
            }
        }
    }
}
