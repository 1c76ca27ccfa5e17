//! The first layer: token ids to hidden states.

use candle_core::{DType, Device, Result, Tensor};

#[cfg(feature = "cuda")]
use super::OnCard;
use super::Workspace;
#[cfg(feature = "cuda")]
use crate::ops::card;
use crate::ops::label::operation;
use crate::ops::{Indices, Norm, Tables, embed, embed_plain, framework};

/// Word, position and type embeddings, and the norm over their sum.
#[derive(Debug)]
pub(crate) struct Embeddings {
    pub(crate) tables: Tables,
    pub(crate) norm: Norm,
}

impl Embeddings {
    /// Hidden states of shape (positions, width); the later layers change them in place.
    pub(crate) fn forward(&self, indices: &Indices, work: &Workspace, device: &Device) -> Result<Tensor> {
        match work {
            Workspace::Plain => embed_plain(&self.tables, indices, &self.norm),
            Workspace::Framework(_) => framework::embed(&self.tables, indices, &self.norm, device),
            #[cfg(feature = "cuda")]
            Workspace::Card(memory) => {
                let hidden = memory.hidden.clone();
                let OnCard { operations, layout } = &memory.rest;
                card::embed(operations, &self.tables, &self.norm, layout, &hidden, memory.codes.as_ref())?;
                Ok(hidden)
            }
            Workspace::Fused(_) => {
                let shape = [indices.words.len(), self.tables.words.columns()];
                let hidden = operation("hidden states", &shape, || Tensor::zeros(&shape, DType::F32, device))?;
                embed(&self.tables, indices, &self.norm, &hidden)?;
                Ok(hidden)
            }
        }
    }
}
