//! `plimsoll.v1.TokenClassify`.

use prost::Message;
use tonic::{Request, Response, Status};

use super::{Own, convert};
use crate::config::Task;
use crate::service::call::{Arrival, note_request_id};
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::proto::plimsoll as wire;
use crate::service::proto::plimsoll::token_classify_server::TokenClassify;
use crate::service::proto::plimsoll::{TokenClassifyRequest, TokenClassifyResponse};
use crate::service::request::Inquiry;
use crate::service::spans::{Aggregation, Characters, Span};
use crate::service::tasks::{Labelled, Labelling, Scores};
use crate::units::Bytes;

#[tonic::async_trait]
impl<E: Inference> TokenClassify for Own<E> {
    async fn token_classify(
        &self,
        request: Request<TokenClassifyRequest>,
    ) -> Result<Response<TokenClassifyResponse>, Status> {
        let arrival = Arrival::of(&request);
        Ok(Response::new(self.classify_tokens(arrival, request.into_inner()).await?))
    }
}

impl<E: Inference> Own<E> {
    async fn classify_tokens(
        &self,
        arrival: Arrival,
        request: TokenClassifyRequest,
    ) -> Result<TokenClassifyResponse, Problem> {
        note_request_id(&request.request_id);
        let target = self.context.target_for(Task::TokenClassify, &request.model)?;
        let card = &target.definition.card;
        let truncate = convert::truncate(card, request.truncate)?;
        let priority = convert::priority(request.priority)?;
        let aggregation = aggregation(request.aggregation)?;
        if request.all_scores && aggregation != Aggregation::None {
            return Err(Problem::invalid(
                "all_scores",
                "only a token has a score for each label: ask for no aggregation",
            ));
        }
        let texts = request.texts.clone();
        let rows = match request.tokens.is_empty() && !texts.is_empty() {
            true => self.context.placed_texts("texts", request.texts, truncate)?,
            false => convert::rows(&self.context, card, request.texts, request.tokens, truncate, "")?,
        };

        let inquiry = Inquiry { rows, priority, arrival, deadline: arrival.deadline };
        let scores = Scores::raw(request.raw_scores);
        let labelling = Labelling { scores, aggregation, ignored: request.ignore_labels };
        let Labelled { spans, scores, served } = self.context.classify_tokens(&target, inquiry, labelling).await?;

        let labels = card.labels.len();
        let result = |(row, spans): (usize, Vec<Span>)| {
            let characters = Characters::of(texts.get(row).map_or("", String::as_str));
            let spans = spans.into_iter().map(|span| {
                let all = request.all_scores.then(|| scores[row][span.first * labels..][..labels].to_vec());
                let text = characters.part(&span).to_owned();
                message(span, text, all.unwrap_or_default())
            });
            wire::Spans { spans: spans.collect() }
        };
        let results = spans.into_iter().enumerate().map(result).collect();
        let metadata = convert::metadata(card, request.request_id, arrival, &served);
        let response = TokenClassifyResponse { results, metadata: Some(metadata) };
        self.context.check_answer(Bytes::new(response.encoded_len() as u64))?;
        Ok(response)
    }
}

fn message(span: Span, text: String, scores: Vec<f32>) -> wire::Span {
    wire::Span {
        label: span.label,
        score: span.score,
        start: span.start,
        end: span.end,
        text,
        first_token: span.first as u32,
        tokens: span.tokens as u32,
        index: span.index as u32,
        scores,
    }
}

/// Reads an `aggregation` field.
fn aggregation(number: i32) -> Result<Aggregation, Problem> {
    match wire::Aggregation::try_from(number) {
        Ok(wire::Aggregation::Unspecified) => Ok(Aggregation::default()),
        Ok(wire::Aggregation::None) => Ok(Aggregation::None),
        Ok(wire::Aggregation::Simple) => Ok(Aggregation::Simple),
        Ok(wire::Aggregation::First) => Ok(Aggregation::First),
        Ok(wire::Aggregation::Average) => Ok(Aggregation::Average),
        Ok(wire::Aggregation::Max) => Ok(Aggregation::Max),
        Err(_) => Err(Problem::invalid("aggregation", format!("{number} is not one of its values, which are 0 to 5"))),
    }
}
