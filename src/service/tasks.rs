//! What can be asked of a model, whichever protocol asks: embed, classify, rerank. A protocol makes rows of its message
//! and a message of the answer; what lies between is here once.

use std::mem;
use std::time::Instant;

use super::context::{Context, Target};
use super::errors::Problem;
use super::port::Inference;
use super::request::{self, Encoding, Inquiry, Rows, Served};
use super::results::{self, Finish};
use crate::model::{ModelCard, TokenRow};
use crate::tokenize::{TextRow, Truncate};
use crate::units::Bytes;

/// Scores of rows as they are, or as probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scores {
    /// Logits.
    Raw,
    /// Of labels that exclude each other, together 1; of one lone score between 0 and 1.
    Probabilities,
}

impl Scores {
    /// Of a request that has a flag for it.
    pub(crate) fn raw(raw: bool) -> Scores {
        if raw { Scores::Raw } else { Scores::Probabilities }
    }
}

impl<E: Inference> Context<E> {
    /// Checks texts for a model, each with `prompt` before it; `field` is what the protocol calls them.
    pub(crate) fn texts(
        &self,
        field: &'static str,
        texts: Vec<String>,
        prompt: &str,
        truncate: Truncate,
    ) -> Result<Rows, Problem> {
        self.check_rows(field, texts.len())?;
        for (row, text) in texts.iter().enumerate() {
            self.check_text(|| format!("{field}[{row}]"), text)?;
        }
        let rows = texts.into_iter().map(|text| TextRow { text: format!("{prompt}{text}"), pair: None });
        Ok(Rows::Texts(rows.collect(), Encoding { truncate, field }))
    }

    /// Checks rows of token ids that a client has made itself.
    pub(crate) fn token_rows(
        &self,
        card: &ModelCard,
        field: &'static str,
        rows: impl ExactSizeIterator<Item = Vec<u32>>,
    ) -> Result<Rows, Problem> {
        self.check_rows(field, rows.len())?;
        let made = rows
            .enumerate()
            .map(|(row, ids)| request::check_tokens(card, field, row, TokenRow { ids, types: Vec::new() }));
        Ok(Rows::Tokens(made.collect::<Result<_, Problem>>()?))
    }

    /// Checks a query and texts, and pairs it with each.
    pub(crate) fn pairs(
        &self,
        query: &str,
        field: &'static str,
        texts: Vec<String>,
        truncate: Truncate,
    ) -> Result<Rows, Problem> {
        self.check_text(|| "query".to_owned(), query)?;
        self.check_rows(field, texts.len())?;
        for (row, text) in texts.iter().enumerate() {
            self.check_text(|| format!("{field}[{row}]"), text)?;
        }
        let rows = texts.into_iter().map(|text| TextRow { text: query.to_owned(), pair: Some(text) });
        Ok(Rows::Texts(rows.collect(), Encoding { truncate, field }))
    }

    /// An embedding for each row, finished as asked.
    pub(crate) async fn embed(&self, target: &Target, inquiry: Inquiry, finish: Finish) -> Result<Served, Problem> {
        self.check_answer(Bytes::new(inquiry.rows.len() as u64) * (finish.dimensions as u64) * 4)?;
        let mut served = self.run(target, inquiry).await?;
        let finishing = Instant::now();
        served.answer.rows.iter_mut().for_each(|values| finish.apply(values));
        self.note_host_time(target, &served, finishing);
        Ok(served)
    }

    /// The scores of all labels for each row, in the labels' order.
    pub(crate) async fn classify(&self, target: &Target, inquiry: Inquiry, scores: Scores) -> Result<Served, Problem> {
        let mut served = self.run(target, inquiry).await?;
        let finishing = Instant::now();
        if scores == Scores::Probabilities {
            served.answer.rows.iter_mut().for_each(|row| results::softmax(row));
        }
        self.note_host_time(target, &served, finishing);
        Ok(served)
    }

    /// The indices and scores of pairs, the best first.
    pub(crate) async fn rerank(
        &self,
        target: &Target,
        inquiry: Inquiry,
        scores: Scores,
    ) -> Result<(Vec<(usize, f32)>, Served), Problem> {
        let mut served = self.run(target, inquiry).await?;
        let finishing = Instant::now();
        // A reranker has one logit for each row.
        let logits = mem::take(&mut served.answer.rows).into_iter().filter_map(|row| row.first().copied());
        let found: Vec<f32> = match scores {
            Scores::Raw => logits.collect(),
            Scores::Probabilities => logits.map(results::sigmoid).collect(),
        };
        let ranks = results::top(&found, found.len());
        self.note_host_time(target, &served, finishing);
        Ok((ranks, served))
    }

    fn note_host_time(&self, target: &Target, served: &Served, finishing: Instant) {
        self.host_times(target.registered.id).add(served.tokenize, finishing.elapsed());
    }
}
