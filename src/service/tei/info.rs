//! `tei.v1.Info`.

use tonic::{Request, Response, Status};

use super::Tei;
use super::grpc::asked;
use crate::config::Task;
use crate::service::port::Inference;
use crate::service::proto::tei as wire;
use crate::service::proto::tei::info_server::Info;

#[tonic::async_trait]
impl<E: Inference> Info for Tei<E> {
    async fn info(&self, request: Request<wire::InfoRequest>) -> Result<Response<wire::InfoResponse>, Status> {
        let facts = self.context.tei_facts(&asked(&request)?)?;
        let card = &facts.definition.card;
        let model_type = match card.task {
            Task::Embed => wire::ModelType::Embedding,
            Task::Classify | Task::TokenClassify => wire::ModelType::Classifier,
            Task::Rerank => wire::ModelType::Reranker,
        };
        Ok(Response::new(wire::InfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sha: None,
            docker_label: None,
            model_id: facts.model_id(),
            model_sha: facts.model_sha(),
            model_dtype: facts.dtype().to_owned(),
            model_type: model_type.into(),
            max_concurrent_requests: facts.queue_rows_max,
            max_input_length: card.length_max,
            max_batch_tokens: facts.batch_tokens_max,
            max_batch_requests: Some(facts.batch_rows_max),
            max_client_batch_size: facts.request_rows_max,
            tokenization_workers: facts.tokenization_workers,
        }))
    }
}
