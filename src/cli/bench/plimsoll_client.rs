//! Calls in plimsoll.v1.

use anyhow::Context;
use tonic::Status;

use super::answer::Answer;
use super::client::{Call, MESSAGE_BYTES_MAX, ModelFacts, Reply, Rows, SeenStep, Urgency, request};
use super::connect::Connection;
use crate::config::Task;
use crate::service::proto::plimsoll as wire;

pub(super) async fn models(channel: Connection) -> anyhow::Result<Vec<ModelFacts>> {
    let mut client = wire::models_client::ModelsClient::new(channel);
    let listed = client.list(wire::ListModelsRequest {}).await.context("Models.List")?.into_inner();
    let facts = |model: wire::Model| {
        let place = |what: &str| format!("model '{}' has a {what} that this client does not know", model.name);
        Ok(ModelFacts {
            task: model.task.parse().map_err(anyhow::Error::msg).with_context(|| place("task"))?,
            dtype: model.dtype.parse().map_err(anyhow::Error::msg).with_context(|| place("dtype"))?,
            length_max: model.length_max,
            ready: model.state() == wire::ModelState::Ready,
            settled: model.profile() == wire::ProfileState::Complete || model.state() == wire::ModelState::NotLoaded,
            name: model.name,
        })
    };
    // Nothing is known of what a broken model would do, and less of one whose files are not there.
    let is_usable = |model: &wire::Model| model.state() != wire::ModelState::Broken && !model.task.is_empty();
    let usable = listed.models.into_iter().filter(is_usable);
    usable.map(facts).collect()
}

pub(super) async fn ask(channel: Connection, model: &ModelFacts, call: &Call) -> Result<Reply, Status> {
    let priority = match call.urgency {
        Urgency::Low => wire::Priority::Low,
        Urgency::Normal => wire::Priority::Normal,
        Urgency::High => wire::Priority::High,
    };
    // Drawn and given texts may be longer than a model takes; a benchmark measures computing, not refusing them.
    let (priority, truncate) = (priority.into(), wire::Truncate::End.into());
    let (texts, tokens) = rows(&call.rows);
    let name = model.name.clone();
    match model.task {
        Task::Embed => {
            let mut client = wire::embed_client::EmbedClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
            let message = wire::EmbedRequest { model: name, texts, tokens, truncate, priority, ..Default::default() };
            let response = client.embed(request(message, call)).await?.into_inner();
            let rows = response.embeddings.into_iter().map(|embedding| embedding.values).collect();
            reply(Answer { rows }, response.metadata)
        }
        Task::Classify => {
            let mut client =
                wire::classify_client::ClassifyClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
            let message =
                wire::ClassifyRequest { model: name, texts, tokens, truncate, priority, ..Default::default() };
            let response = client.classify(request(message, call)).await?.into_inner();
            let by_index = |mut result: wire::Classification| {
                result.labels.sort_by_key(|label| label.index);
                result.labels.into_iter().map(|label| label.score).collect()
            };
            reply(Answer { rows: response.results.into_iter().map(by_index).collect() }, response.metadata)
        }
        Task::TokenClassify => {
            let mut client = wire::token_classify_client::TokenClassifyClient::new(channel)
                .max_decoding_message_size(MESSAGE_BYTES_MAX);
            let aggregation = wire::Aggregation::None.into();
            let message = wire::TokenClassifyRequest {
                model: name,
                texts,
                tokens,
                truncate,
                aggregation,
                priority,
                ..Default::default()
            };
            let response = client.token_classify(request(message, call)).await?.into_inner();
            let scores = |row: wire::Spans| row.spans.into_iter().map(|span| span.score).collect();
            reply(Answer { rows: response.results.into_iter().map(scores).collect() }, response.metadata)
        }
        Task::Rerank => {
            let mut client =
                wire::rerank_client::RerankClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
            let query = call.query.clone();
            let message = wire::RerankRequest { model: name, query, texts, truncate, priority, ..Default::default() };
            let response = client.rerank(request(message, call)).await?.into_inner();
            let mut ranks = response.ranks;
            ranks.sort_by_key(|rank| rank.index);
            reply(Answer { rows: ranks.into_iter().map(|rank| vec![rank.score]).collect() }, response.metadata)
        }
    }
}

fn rows(rows: &Rows) -> (Vec<String>, Vec<wire::TokenIds>) {
    match rows {
        Rows::Texts(texts) => (texts.clone(), Vec::new()),
        Rows::Tokens(rows) => (Vec::new(), rows.iter().map(|ids| wire::TokenIds { ids: ids.clone() }).collect()),
    }
}

fn reply(answer: Answer, metadata: Option<wire::Metadata>) -> Result<Reply, Status> {
    let metadata = metadata.ok_or_else(|| Status::internal("the response has no metadata"))?;
    Ok(Reply { answer, tokens: metadata.tokens.into(), steps: metadata.steps.iter().map(step).collect() })
}

fn step(facts: &wire::StepFacts) -> SeenStep {
    let reason = match facts.reason() {
        wire::BatchReason::Memory => "memory",
        wire::BatchReason::Latency => "latency",
        wire::BatchReason::Knee => "knee",
        wire::BatchReason::Queue => "queue",
        wire::BatchReason::Limit => "limit",
        wire::BatchReason::Unspecified => "unknown",
    };
    SeenStep {
        id: facts.step_id,
        rows: facts.batch_rows,
        computed_tokens: facts.computed_tokens,
        reason,
        predicted: facts.predicted_peak_bytes,
        peak: facts.true_peak_bytes,
        headroom: facts.headroom_bytes,
        compute_us: facts.compute_us,
    }
}
