//! `plimsoll.v1.Rerank`.

use std::time::Instant;

use prost::Message;
use tonic::{Request, Response, Status};

use super::{Own, convert};
use crate::config::Task;
use crate::service::call::{Arrival, note_request_id};
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::proto::plimsoll::rerank_server::Rerank;
use crate::service::proto::plimsoll::{Rank, RerankRequest, RerankResponse};
use crate::service::request::{Encoding, Inquiry, Rows};
use crate::service::results;
use crate::tokenize::TextRow;
use crate::units::Bytes;

#[tonic::async_trait]
impl<E: Inference> Rerank for Own<E> {
    async fn rerank(&self, request: Request<RerankRequest>) -> Result<Response<RerankResponse>, Status> {
        let arrival = Arrival::of(&request);
        Ok(Response::new(self.rank(arrival, request.into_inner()).await?))
    }
}

impl<E: Inference> Own<E> {
    async fn rank(&self, arrival: Arrival, request: RerankRequest) -> Result<RerankResponse, Problem> {
        note_request_id(&request.request_id);
        let target = self.context.target_for(Task::Rerank, &request.model)?;
        let card = &target.definition.card;
        let truncate = convert::truncate(request.truncate)?;
        let priority = convert::priority(request.priority)?;
        self.context.check_text(|| "query".to_owned(), &request.query)?;
        self.context.check_rows("texts", request.texts.len())?;
        for (row, text) in request.texts.iter().enumerate() {
            self.context.check_text(|| format!("texts[{row}]"), text)?;
        }
        let pairs = request.texts.into_iter().map(|text| TextRow { text: request.query.clone(), pair: Some(text) });
        let rows = Rows::Texts(pairs.collect(), Encoding { truncate, field: "texts" });

        let inquiry = Inquiry { rows, priority, arrival, deadline: arrival.deadline };
        let served = self.context.run(&target, inquiry).await?;

        let finishing = Instant::now();
        // A reranker has one logit for each row.
        let logits = served.answer.rows.iter().filter_map(|row| row.first().copied());
        let scores: Vec<f32> = match request.raw_scores {
            true => logits.collect(),
            false => logits.map(results::sigmoid).collect(),
        };
        let count = if request.top_n == 0 { scores.len() } else { request.top_n as usize };
        let best = results::top(&scores, count).into_iter();
        let ranks = best.map(|(index, score)| Rank { index: index as u32, score }).collect();
        let metadata = convert::metadata(card, request.request_id, arrival, &served);
        let response = RerankResponse { ranks, metadata: Some(metadata) };
        self.context.check_answer(Bytes::new(response.encoded_len() as u64))?;
        if let Some(times) = self.context.host_times(target.registered.id) {
            times.add(served.tokenize, finishing.elapsed());
        }
        Ok(response)
    }
}
