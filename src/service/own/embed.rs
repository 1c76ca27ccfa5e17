//! `plimsoll.v1.Embed`.

use prost::Message;
use tonic::{Request, Response, Status};

use super::{Own, convert};
use crate::config::Task;
use crate::service::call::{Arrival, note_request_id};
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::proto::plimsoll::embed_server::Embed;
use crate::service::proto::plimsoll::{EmbedRequest, EmbedResponse, Embedding};
use crate::service::request::{self, Inquiry};
use crate::service::results::Finish;
use crate::units::Bytes;

#[tonic::async_trait]
impl<E: Inference> Embed for Own<E> {
    async fn embed(&self, request: Request<EmbedRequest>) -> Result<Response<EmbedResponse>, Status> {
        let arrival = Arrival::of(&request);
        Ok(Response::new(self.embed_rows(arrival, request.into_inner()).await?))
    }
}

impl<E: Inference> Own<E> {
    async fn embed_rows(&self, arrival: Arrival, request: EmbedRequest) -> Result<EmbedResponse, Problem> {
        note_request_id(&request.request_id);
        let target = self.context.target_for(Task::Embed, &request.model)?;
        let card = &target.definition.card;
        let truncate = convert::truncate(card, request.truncate)?;
        let priority = convert::priority(request.priority)?;
        let prompt = request::prompt(card, "prompt_name", &request.prompt_name)?;
        let normalize = request.normalize.unwrap_or(card.normalize);
        let finish = Finish::new("dimensions", request.dimensions.into(), card.dimensions, normalize)?;
        let rows = convert::rows(&self.context, card, request.texts, request.tokens, truncate, &prompt)?;
        let inquiry = Inquiry { rows, priority, arrival, deadline: arrival.deadline };
        let mut served = self.context.embed(&target, inquiry, finish).await?;

        let vectors = std::mem::take(&mut served.answer.rows);
        let embeddings = vectors.into_iter().zip(&served.tokens);
        let embeddings = embeddings.map(|(values, tokens)| Embedding { values, tokens: *tokens }).collect();
        let metadata = convert::metadata(card, request.request_id, arrival, &served);
        let response = EmbedResponse { embeddings, metadata: Some(metadata) };
        self.context.check_answer(Bytes::new(response.encoded_len() as u64))?;
        Ok(response)
    }
}
