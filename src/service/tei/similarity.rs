//! How alike a sentence is to others.

use super::answered::Answered;
use super::ask::{Asked, Embed, Inputs, Written};
use super::cut::Cut;
use crate::service::context::Context;
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::results;

/// A sentence and those that it is compared with.
#[derive(Clone, Debug)]
pub(crate) struct Similarity {
    pub(crate) source: String,
    pub(crate) sentences: Vec<String>,
    pub(crate) cut: Cut,
    /// As of [`Written`].
    pub(crate) prompt_name: Option<String>,
}

impl<E: Inference> Context<E> {
    /// The cosine of the angle to each sentence's embedding, in their order.
    pub(crate) async fn tei_similarity(&self, asked: &Asked, ask: Similarity) -> Result<Answered<Vec<f32>>, Problem> {
        let Similarity { source, sentences, cut, prompt_name } = ask;
        self.check_rows("inputs.sentences", sentences.len())?;
        self.check_text(|| "inputs.source_sentence".to_owned(), &source)?;
        for (row, text) in sentences.iter().enumerate() {
            self.check_text(|| format!("inputs.sentences[{row}]"), text)?;
        }
        let inputs = Inputs::Texts([source].into_iter().chain(sentences).collect());
        let written = Written { inputs, field: "inputs", cut, prompt_name };
        let ask = Embed { written, normalize: Some(false), dimensions: None };
        let Answered { result, model, spent } = self.tei_embed(asked, ask).await?;
        let mut embeddings = result.into_iter();
        let source = embeddings.next().unwrap_or_default();
        Ok(Answered { result: embeddings.map(|other| results::cosine(&source, &other)).collect(), model, spent })
    }
}
