//! `plimsoll.v1.Rerank`.

use prost::Message;
use tonic::{Request, Response, Status};

use super::{Own, convert};
use crate::config::Task;
use crate::service::call::{Arrival, note_request_id};
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::proto::plimsoll::rerank_server::Rerank;
use crate::service::proto::plimsoll::{Rank, RerankRequest, RerankResponse};
use crate::service::request::Inquiry;
use crate::service::tasks::Scores;
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
        let truncate = convert::truncate(card, request.truncate)?;
        let priority = convert::priority(request.priority)?;
        let rows = self.context.pairs(request.query, "texts", request.texts, truncate)?;
        let inquiry = Inquiry { rows, priority, arrival, deadline: arrival.deadline };
        let scores = Scores::raw(request.raw_scores);
        let (mut ranks, served) = self.context.rerank(&target, inquiry, scores).await?;
        if request.top_n > 0 {
            ranks.truncate(request.top_n as usize);
        }
        let ranks = ranks.into_iter().map(|(index, score)| Rank { index: index as u32, score }).collect();
        let metadata = convert::metadata(card, request.request_id, arrival, &served);
        let response = RerankResponse { ranks, metadata: Some(metadata) };
        self.context.check_answer(Bytes::new(response.encoded_len() as u64))?;
        Ok(response)
    }
}
