//! What can be asked of a model, whichever protocol asks: embed, classify, classify tokens, rerank. A protocol makes rows
//! of its message and a message of the answer; what lies between is here once.

use std::mem;
use std::time::Instant;

use super::aside::{VALUES_IN_PASSING, aside};
use super::context::{Context, Target};
use super::errors::Problem;
use super::port::Inference;
use super::request::{self, Encoding, Inquiry, Rows, Served};
use super::results::{self, Finish};
use super::spans::{self, Aggregation, Span};
use crate::model::{ModelCard, TokenRow, Wanted};
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

/// What is wanted of the scores of tokens.
#[derive(Clone, Debug)]
pub(crate) struct Labelling {
    pub(crate) scores: Scores,
    pub(crate) aggregation: Aggregation,
    /// Labels whose spans are left out.
    pub(crate) ignored: Vec<String>,
}

/// The spans of rows, and of what they were made.
pub(crate) struct Labelled {
    pub(crate) spans: Vec<Vec<Span>>,
    /// Of each row the scores of all labels, token by token, special ones included.
    pub(crate) scores: Vec<Vec<f32>>,
    pub(crate) served: Served,
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
        Ok(Rows::Texts(rows.collect(), Encoding::new(truncate, field)))
    }

    /// Checks texts for a classifier of tokens: it has to be known where the tokens are.
    pub(crate) fn placed_texts(
        &self,
        field: &'static str,
        texts: Vec<String>,
        truncate: Truncate,
    ) -> Result<Rows, Problem> {
        Ok(match self.texts(field, texts, "", truncate)? {
            Rows::Texts(texts, encoding) => Rows::Texts(texts, Encoding { placed: true, ..encoding }),
            others => others,
        })
    }

    /// Checks rows of token ids that a client has made itself.
    pub(crate) fn token_rows(
        &self,
        card: &ModelCard,
        field: &'static str,
        rows: impl ExactSizeIterator<Item = Vec<u32>>,
    ) -> Result<Rows, Problem> {
        self.check_rows(field, rows.len())?;
        let made =
            rows.enumerate().map(|(row, ids)| request::check_tokens(card, field, row, TokenRow::new(ids, Vec::new())));
        Ok(Rows::Tokens(made.collect::<Result<_, Problem>>()?))
    }

    /// Checks a query and texts that it is to be paired with.
    pub(crate) fn pairs(
        &self,
        query: String,
        field: &'static str,
        texts: Vec<String>,
        truncate: Truncate,
    ) -> Result<Rows, Problem> {
        self.check_rows(field, texts.len())?;
        for (row, text) in texts.iter().enumerate() {
            self.check_pair(|| format!("{field}[{row}]"), &query, text)?;
        }
        Ok(Rows::Pairs { query, texts, encoding: Encoding::new(truncate, field) })
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

    /// The hidden states of each row's tokens, special ones included, as the model has them.
    pub(crate) async fn embed_states(
        &self,
        target: &Target,
        inquiry: Inquiry,
    ) -> Result<(Vec<Vec<Vec<f32>>>, Served), Problem> {
        let mut served = self.run_for(Wanted::States, target, inquiry).await?;
        let finishing = Instant::now();
        let (rows, width) = (mem::take(&mut served.answer.rows), target.definition.card.dimensions as usize);
        let values: usize = rows.iter().map(Vec::len).sum();
        let split = move || rows.iter().map(|row| row.chunks_exact(width).map(<[f32]>::to_vec).collect()).collect();
        let states = aside(values > VALUES_IN_PASSING, split).await?;
        self.note_host_time(target, &served, finishing);
        Ok((states, served))
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

    /// The labelled spans of each row.
    pub(crate) async fn classify_tokens(
        &self,
        target: &Target,
        inquiry: Inquiry,
        labelling: Labelling,
    ) -> Result<Labelled, Problem> {
        let Labelling { scores, aggregation, ignored } = labelling;
        if aggregation != Aggregation::None && scores == Scores::Raw {
            return Err(Problem::invalid("raw_scores", "tokens are put together by their probabilities: ask for none"));
        }
        if aggregation != Aggregation::None && matches!(inquiry.rows, Rows::Tokens(_)) {
            return Err(Problem::invalid("aggregation", "token ids have no words: ask for none, or send texts"));
        }
        let mut served = self.run(target, inquiry).await?;
        let finishing = Instant::now();
        let (mut rows, places) = (mem::take(&mut served.answer.rows), mem::take(&mut served.places));
        let definition = target.definition.clone();
        let tokens = served.tokens.clone();
        let finish = move || {
            let labels = &definition.card.labels;
            if scores == Scores::Probabilities {
                let of_tokens = rows.iter_mut().flat_map(|row| row.chunks_exact_mut(labels.len()));
                of_tokens.for_each(results::softmax);
            }
            let spans = rows.iter().zip(tokens).enumerate().map(|(row, (scores, tokens))| match places.get(row) {
                Some(places) => spans::spans(labels, scores, places, aggregation, &ignored),
                None => spans::spans(labels, scores, &spans::nowhere(tokens), aggregation, &ignored),
            });
            (spans.collect(), rows)
        };
        let values =
            served.tokens.iter().map(|tokens| *tokens as usize).sum::<usize>() * target.definition.card.labels.len();
        let (spans, scores) = aside(values > VALUES_IN_PASSING, finish).await?;
        self.note_host_time(target, &served, finishing);
        Ok(Labelled { spans, scores, served })
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
