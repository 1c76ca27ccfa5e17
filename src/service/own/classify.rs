//! `plimsoll.v1.Classify`.

use prost::Message;
use tonic::{Request, Response, Status};

use super::{Own, convert};
use crate::config::Task;
use crate::model::ModelCard;
use crate::service::call::{Arrival, note_request_id};
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::proto::plimsoll::classify_server::Classify;
use crate::service::proto::plimsoll::{Classification, ClassifyRequest, ClassifyResponse, Label};
use crate::service::request::Inquiry;
use crate::service::results;
use crate::service::tasks::Scores;
use crate::units::Bytes;

#[tonic::async_trait]
impl<E: Inference> Classify for Own<E> {
    async fn classify(&self, request: Request<ClassifyRequest>) -> Result<Response<ClassifyResponse>, Status> {
        let arrival = Arrival::of(&request);
        Ok(Response::new(self.classify_rows(arrival, request.into_inner()).await?))
    }
}

impl<E: Inference> Own<E> {
    async fn classify_rows(&self, arrival: Arrival, request: ClassifyRequest) -> Result<ClassifyResponse, Problem> {
        note_request_id(&request.request_id);
        let target = self.context.target_for(Task::Classify, &request.model)?;
        let card = &target.definition.card;
        let truncate = convert::truncate(card, request.truncate)?;
        let priority = convert::priority(request.priority)?;
        let rows = convert::rows(&self.context, card, request.texts, request.tokens, truncate, "")?;

        let inquiry = Inquiry { rows, priority, arrival, deadline: arrival.deadline };
        let mut served = self.context.classify(&target, inquiry, Scores::raw(request.raw_scores)).await?;

        let count = if request.top_k == 0 { usize::MAX } else { request.top_k as usize };
        let rows = std::mem::take(&mut served.answer.rows).into_iter();
        let results = rows.map(|scores| classification(card, &scores, count)).collect();
        let metadata = convert::metadata(card, request.request_id, arrival, &served);
        let response = ClassifyResponse { results, metadata: Some(metadata) };
        self.context.check_answer(Bytes::new(response.encoded_len() as u64))?;
        Ok(response)
    }
}

fn classification(card: &ModelCard, scores: &[f32], count: usize) -> Classification {
    let best = results::top(scores, count).into_iter();
    let labels = best.map(|(index, score)| Label {
        name: card.labels.get(index).cloned().unwrap_or_default(),
        score,
        index: index as u32,
    });
    Classification { labels: labels.collect() }
}
