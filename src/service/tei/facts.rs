//! What is served, for a client that wants to know its limits.

use std::sync::Arc;

use super::ask::Asked;
use crate::config::{Dtype, Pooling};
use crate::engine::Definition;
use crate::service::context::{Context, Target};
use crate::service::errors::Problem;
use crate::service::port::Inference;

/// A model and its limits.
pub(crate) struct Facts {
    /// The model.
    pub(crate) definition: Arc<Definition>,
    pub(crate) queue_rows_max: u32,
    /// Rows and tokens of the largest step of now.
    pub(crate) batch_rows_max: u32,
    pub(crate) batch_tokens_max: u32,
    pub(crate) request_rows_max: u32,
    pub(crate) tokenization_workers: u32,
}

impl Facts {
    /// The model's id on the Hub, or its name where it is from elsewhere.
    pub(crate) fn model_id(&self) -> String {
        self.definition.config.source.hub().map_or(&*self.definition.card.name, |(id, _)| id).to_owned()
    }

    /// The revision on the Hub: branch, tag or commit, as it is configured.
    pub(crate) fn model_sha(&self) -> Option<String> {
        self.definition.config.source.hub().map(|(_, revision)| revision.to_owned())
    }

    /// The dtype by the name that clients know; one that they cannot know has ours.
    pub(crate) fn dtype(&self) -> &'static str {
        match self.definition.card.dtype {
            Dtype::F32 => "float32",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            other => other.as_str(),
        }
    }

    /// The same of the pooling; empty where there is none.
    pub(crate) fn pooling(&self) -> &'static str {
        match self.definition.card.pooling {
            Some(Pooling::Last) => "last_token",
            Some(other) => other.as_str(),
            None => "",
        }
    }
}

impl<E: Inference> Context<E> {
    /// What is said of a model.
    pub(crate) fn tei_facts(&self, asked: &Asked) -> Result<Facts, Problem> {
        let Target { registered, definition } = self.any_target(&asked.model)?;
        let batch_rows_max = self.status(registered.id).map_or(0, |status| status.batch_rows_max);
        Ok(Facts {
            batch_tokens_max: batch_rows_max.saturating_mul(definition.card.length_max),
            definition,
            queue_rows_max: self.limits.tokenizer_rows,
            batch_rows_max,
            request_rows_max: self.limits.request_rows,
            tokenization_workers: self.tokenizer.workers() as u32,
        })
    }
}
