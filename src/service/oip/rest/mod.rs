//! The protocol over HTTP: JSON, and tensors as bytes behind it for those who want them so.

mod absent;
mod bare;
mod data;
mod message;
mod answer;
mod about;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{FromRequestParts, RawPathParams, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::{infer, metadata, repository, settings};
use crate::service::call::Arrival;
use crate::service::context::{Context, Target};
use crate::service::errors::Problem;
use crate::service::http::{OipProblem, OptionalMessage, Sent, respond_json};
use crate::service::port::{Inference, Operations};
use absent::{Given, or_default};
use message::Asked;

type Shared<E> = State<Arc<Context<E>>>;
type Answer = Result<Response, OipProblem>;

/// The routes below `/v2`.
pub(crate) fn routes<E: Inference + Operations>() -> Router<Arc<Context<E>>> {
    let of_model = |action: &str, route: fn() -> MethodRouter<Arc<Context<E>>>| {
        Router::new()
            .route(&format!("/models/{{model}}{action}"), route())
            .route(&format!("/models/{{model}}/versions/{{version}}{action}"), route())
    };
    let models = Router::new()
        .merge(of_model("", || get(model::<E>)))
        .merge(of_model("/ready", || get(model_ready::<E>)))
        .merge(of_model("/infer", || post(model_infer::<E>)))
        .merge(of_model("/config", || get(model_config::<E>)))
        .merge(of_model("/stats", || get(statistics::<E>)))
        .route("/models/stats", get(statistics::<E>))
        .route("/models/{model}/trace/setting", get(trace_settings).post(set_trace));
    let server = Router::new()
        .route("/", get(server))
        .route("/health/live", get(live::<E>))
        .route("/health/ready", get(ready::<E>))
        .route("/repository/index", post(index::<E>))
        .route("/repository/models/{model}/load", post(load::<E>))
        .route("/repository/models/{model}/unload", post(unload::<E>))
        .route("/trace/setting", get(trace_settings).post(set_trace))
        .route("/logging", get(log_settings).post(set_log))
        .merge(shared_memory("systemsharedmemory"))
        .merge(shared_memory("cudasharedmemory"));
    // A base address with a slash at its end is the same one.
    Router::new().nest("/v2", models.merge(server)).route("/v2/", get(self::server))
}

/// Load generators ask about it and forget regions before they start: there are none.
fn shared_memory<S: Clone + Send + Sync + 'static>(kind: &str) -> Router<S> {
    let none = || get(|| async { respond_json(StatusCode::OK, &Value::Array(Vec::new())) });
    let forgotten = || post(|| async { StatusCode::OK });
    let refused = || {
        post(|| async { OipProblem(Problem::NotOffered("shared memory is not offered: send tensors in the request")) })
    };
    Router::new()
        .route(&format!("/{kind}/status"), none())
        .route(&format!("/{kind}/region/{{region}}/status"), none())
        .route(&format!("/{kind}/unregister"), forgotten())
        .route(&format!("/{kind}/region/{{region}}/unregister"), forgotten())
        .route(&format!("/{kind}/region/{{region}}/register"), refused())
}

/// The model that a path names, and its version, or no version.
struct Named {
    model: String,
    version: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = OipProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Named, OipProblem> {
        let path = RawPathParams::from_request_parts(parts, state).await;
        let path = path.map_err(|_| Problem::invalid("path", "a name in it is not text"))?;
        let named = |wanted: &str| {
            path.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned()).unwrap_or_default()
        };
        Ok(Named { model: named("model"), version: named("version") })
    }
}

impl Named {
    fn target<E: Inference>(&self, context: &Context<E>) -> Result<Target, Problem> {
        let target = context.target(&self.model)?;
        context.check_version(&target.definition.card, &self.version)?;
        Ok(target)
    }
}

async fn server() -> Response {
    respond_json(StatusCode::OK, &about::server(metadata::server()))
}

async fn live<E: Inference>(State(context): Shared<E>) -> Response {
    let live = context.engine.alive();
    yes_or_no(live, &json!({ "live": live }))
}

async fn ready<E: Inference>(State(context): Shared<E>) -> Response {
    let ready = context.engine.health().borrow().ready && !context.is_draining();
    yes_or_no(ready, &json!({ "live": context.engine.alive(), "ready": ready }))
}

async fn model_ready<E: Inference>(State(context): Shared<E>, named: Named) -> Response {
    let serves = context.engine.health().borrow().serves(&named.model);
    // A model that is not there is not ready: clients ask before they know.
    let ready = named.target(&context).is_ok() && serves && !context.is_draining();
    yes_or_no(ready, &json!({ "name": named.model, "ready": ready }))
}

fn yes_or_no(holds: bool, told: &Value) -> Response {
    respond_json(if holds { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, told)
}

async fn model<E: Inference>(State(context): Shared<E>, named: Named) -> Answer {
    let target = named.target(&context)?;
    let card = &target.definition.card;
    Ok(respond_json(StatusCode::OK, &about::model(metadata::model(card), metadata::properties(card))))
}

async fn model_config<E: Inference>(State(context): Shared<E>, named: Named) -> Answer {
    let target = named.target(&context)?;
    let config = metadata::config(&target.definition.card, &target.definition.config, &context.limits);
    Ok(respond_json(StatusCode::OK, &about::config(config)))
}

async fn statistics<E: Inference>(State(context): Shared<E>, named: Named) -> Answer {
    let found = super::statistics::of_models(&context, &named.model, &named.version)?;
    let told: Vec<_> = found.into_iter().map(about::statistics).collect();
    Ok(respond_json(StatusCode::OK, &json!({ "model_stats": told })))
}

async fn model_infer<E: Inference>(
    State(context): Shared<E>,
    named: Named,
    headers: HeaderMap,
    Sent(sent): Sent,
) -> Answer {
    let arrival = Arrival { at: Instant::now(), deadline: None };
    let asked = match bare::is_meant(&headers) {
        true => bare::read(&named.target(&context)?.definition.card, named.version, sent?)?,
        false => message::read(named.model, named.version, &headers, sent?).await?,
    };
    let Asked { request, inputs, binary } = asked;
    let response = infer::run(&context, arrival, request, inputs).await?;
    Ok(answer::write(&context, response, binary).await?)
}

/// What a client wants to see of the repository.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexMessage {
    #[serde(default, deserialize_with = "or_default")]
    ready: bool,
}

async fn index<E: Inference>(
    State(context): Shared<E>,
    OptionalMessage(message): OptionalMessage<IndexMessage>,
) -> Answer {
    let lines = repository::index(&context, message?.ready).into_iter();
    let models: Vec<_> = lines.map(about::index).collect();
    Ok(respond_json(StatusCode::OK, &models))
}

/// What may come with a load or an unload.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RepositoryMessage {
    #[serde(default, deserialize_with = "or_default")]
    parameters: Given<IgnoredAny>,
}

async fn load<E: Inference + Operations>(
    State(context): Shared<E>,
    named: Named,
    OptionalMessage(message): OptionalMessage<RepositoryMessage>,
) -> Answer {
    let overrides = !message?.parameters.0.is_empty();
    repository::load(&context, "", &named.model, overrides).await?;
    Ok(StatusCode::OK.into_response())
}

async fn unload<E: Inference + Operations>(
    State(context): Shared<E>,
    named: Named,
    OptionalMessage(message): OptionalMessage<RepositoryMessage>,
) -> Answer {
    // Its parameter `unload_dependents` has nothing to act on: no model here depends on another.
    message?;
    repository::unload(&context, "", &named.model).await?;
    Ok(StatusCode::OK.into_response())
}

async fn trace_settings() -> Answer {
    Ok(respond_json(StatusCode::OK, &about::trace(settings::trace(Default::default())?)))
}

async fn log_settings() -> Answer {
    Ok(respond_json(StatusCode::OK, &about::log(settings::log(Default::default())?)))
}

async fn set_trace<E: Inference>(
    State(_): Shared<E>,
    OptionalMessage(message): OptionalMessage<serde_json::Map<String, Value>>,
) -> Answer {
    match in_force(&message?, &about::trace(settings::trace(Default::default())?)) {
        true => trace_settings().await,
        false => Err(OipProblem(settings::NO_TRACES)),
    }
}

async fn set_log<E: Inference>(
    State(_): Shared<E>,
    OptionalMessage(message): OptionalMessage<serde_json::Map<String, Value>>,
) -> Answer {
    match in_force(&message?, &about::log(settings::log(Default::default())?)) {
        true => log_settings().await,
        false => Err(OipProblem(settings::NO_LOG_SETTINGS)),
    }
}

/// Whether these settings are what they are now. One without a value asks for the default, which is in force; a list of one
/// may be written without its brackets.
fn in_force(asked: &serde_json::Map<String, Value>, now: &Value) -> bool {
    asked.iter().all(|(name, value)| {
        let same = |now: &Value| now == value || now.as_array().is_some_and(|list| list.as_slice() == [value.clone()]);
        value.is_null() || now.get(name).is_some_and(same)
    })
}
