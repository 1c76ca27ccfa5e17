//! `/v1/embeddings` and `/v1/models`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use super::answer::{OpenAiProblem, json};
use super::inputs::WrittenInputs;
use super::times::with_times;
use super::{Caller, Message};
use crate::config::Task;
use crate::service::context::Context;
use crate::service::port::Inference;
use crate::service::tei::answered::Answered;
use crate::service::tei::ask;
use crate::service::tei::cut::Cut;

type Shared<E> = State<Arc<Context<E>>>;

/// How the numbers of an embedding are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Format {
    #[default]
    Float,
    /// 32-bit floats, little-endian.
    Base64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EmbeddingsMessage {
    input: WrittenInputs,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    dimensions: Option<u32>,
    #[serde(default)]
    encoding_format: Option<Format>,
    /// Says who the caller's user is, which changes nothing here.
    #[serde(default)]
    #[allow(dead_code, reason = "it may be there")]
    user: Option<String>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Numbers,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

#[derive(Serialize)]
struct Embeddings {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

#[derive(Serialize)]
struct Models {
    object: &'static str,
    data: Vec<Model>,
}

/// The model is the message's, but where a path or a header names one: many clients have to send some name, and the answer
/// says whose it is.
pub(super) async fn embeddings<E: Inference>(
    State(context): Shared<E>,
    Caller(asked): Caller,
    Message(message): Message<EmbeddingsMessage>,
) -> Result<Response, OpenAiProblem> {
    let (mut asked, message) = (asked?, message?);
    if asked.model.is_empty() {
        asked.model = context.known_or_only(Task::Embed, message.model.unwrap_or_default());
    }
    let written = ask::Written { inputs: message.input.0, field: "input", cut: Cut::default(), prompt_name: None };
    let ask = ask::Embed { written, normalize: None, dimensions: message.dimensions };
    let Answered { result, model, spent } = context.tei_embed(&asked, ask).await?;
    let write = |values: Vec<f32>| match message.encoding_format.unwrap_or_default() {
        Format::Float => Numbers::Float(values),
        Format::Base64 => {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Numbers::Base64(BASE64_STANDARD.encode(bytes))
        }
    };
    let rows = result.into_iter().enumerate();
    let data = rows.map(|(index, values)| Embedding { object: "embedding", index, embedding: write(values) });
    let usage = Usage { prompt_tokens: spent.tokens, total_tokens: spent.tokens };
    Ok(with_times(spent, json(StatusCode::OK, &Embeddings { object: "list", data: data.collect(), model, usage })))
}

/// All models, or the one that is named.
pub(super) async fn models<E: Inference>(
    State(context): Shared<E>,
    Caller(asked): Caller,
) -> Result<Response, OpenAiProblem> {
    let names = match asked?.model {
        all if all.is_empty() => context.engine.statuses().into_iter().map(|status| status.name).collect(),
        one => vec![context.find(&one)?.name.clone()],
    };
    Ok(json(StatusCode::OK, &Models { object: "list", data: names.into_iter().map(describe).collect() }))
}

pub(super) async fn model<E: Inference>(
    State(context): Shared<E>,
    Path(name): Path<String>,
) -> Result<Response, OpenAiProblem> {
    Ok(json(StatusCode::OK, &describe(context.find(&name)?.name.clone())))
}

/// Nobody knows when a model was made: the field has to be there.
fn describe(id: String) -> Model {
    Model { id, object: "model", created: 0, owned_by: "plimsoll" }
}
