//! The same engine over HTTP: what clients of text-embeddings-inference (`tei`) and of OpenAI's interface (`openai`) send;
//! the routes of the Open Inference Protocol are `oip`'s own.
//!
//! A model is named by the path (`/models/NAME/embed`), by the header `model`, or by the message where that has a field
//! for it. What a message has beside the fields that are known is refused by name: a field that is ignored would be an
//! answer to another question.

mod answer;
mod compressed;
pub(crate) mod cors;
mod inputs;
mod openai;
mod tei;
mod tei_messages;
mod times;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, FailedToBufferBody, RawPathParamsRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, MatchedPath, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, Uri};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tracing::Instrument;

use super::aside::aside;
use super::call::{self, Arrival};
use super::context::Context;
use super::errors::Problem;
use super::oip;
use super::port::{Inference, Operations};
use super::server::InFlight;
use super::tei::ask::Asked;
use crate::telemetry::traces::Call;

use compressed::Compression;

pub(crate) use answer::{OipProblem, json as respond_json, refuse, respond_bytes, write_json};

/// The routes of the HTTP port.
pub(crate) fn router<E: Inference + Operations>(context: Arc<Context<E>>) -> Router {
    let limit = context.limits.message_size();
    let of_a_model = || {
        Router::new()
            .route("/", post(tei::any::<E>))
            .route("/invocations", post(tei::any::<E>))
            .route("/embed", post(tei::embed::<E>))
            .route("/embed_all", post(tei::embed_all::<E>))
            .route("/embed_sparse", post(tei::embed_sparse))
            .route("/similarity", post(tei::similarity::<E>))
            .route("/predict", post(tei::predict::<E>))
            .route("/rerank", post(tei::rerank::<E>))
            .route("/tokenize", post(tei::tokenize::<E>))
            .route("/decode", post(tei::decode::<E>))
            .route("/info", get(tei::info::<E>))
            .route("/v1/embeddings", post(openai::embeddings::<E>))
            .route("/embeddings", post(openai::embeddings::<E>))
            .route("/v1/models", get(openai::models::<E>))
    };
    Router::new()
        .merge(of_a_model())
        .nest("/models/{model}", of_a_model())
        .merge(oip::routes::<E>())
        .route("/health", get(tei::health::<E>))
        .route("/ping", get(tei::health::<E>))
        .route("/", get(tei::health::<E>))
        .route("/v1/models/{model}", get(openai::model::<E>))
        .fallback(no_route)
        // Of the routes above.
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(limit))
        .layer(middleware::from_fn_with_state(context.clone(), count::<E>))
        .with_state(context)
}

async fn no_route(uri: Uri) -> Response {
    refuse(uri.path(), Problem::NoRoute { path: uri.path().to_owned() })
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    refuse(uri.path(), Problem::WrongMethod { path: uri.path().to_owned(), method: method.to_string() })
}

/// Counts a call as in flight until its answer is there, so that a drain waits for it; and traces it.
async fn count<E: Inference>(State(context): State<Arc<Context<E>>>, request: Request<Body>, next: Next) -> Response {
    let _counted = InFlight::enter(&context.in_flight);
    let path = request.uri().path();
    let span = call::span(path, request.headers());
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let call = Call::Http { method: request.method().as_str(), route };
    let traced = (!is_probe(path)).then(|| context.traces.call_span(call, request.headers())).flatten();
    let answer = next.run(request).instrument(span);
    let Some(traced) = traced else { return answer.await };
    let response = traced.carry(answer).await;
    traced.note_http_status(response.status().as_u16());
    response
}

/// What asks every few seconds is no call that anybody looks for.
fn is_probe(path: &str) -> bool {
    matches!(path, "/health" | "/ping") || path.starts_with("/v2/health/")
}

/// Whose answer a call wants, by its path or its header.
struct Caller(Result<Asked, Problem>);

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Caller, Self::Rejection> {
        let arrival = Arrival { at: Instant::now(), deadline: None };
        // A route without a name in it has no parameters.
        let named = match RawPathParams::from_request_parts(parts, state).await {
            Ok(path) => path.iter().find(|(name, _)| *name == "model").map(|(_, model)| model.to_owned()),
            Err(RawPathParamsRejection::InvalidUtf8InPathParam(_)) => {
                return Ok(Caller(Err(Problem::invalid("path", "the model's name is not text"))));
            }
            Err(_) => None,
        };
        let model = match (named, parts.headers.get("model")) {
            (Some(model), _) => Ok(model),
            (None, None) => Ok(String::new()),
            (None, Some(value)) => {
                value.to_str().map(str::to_owned).map_err(|_| Problem::invalid("header 'model'", "it is not text"))
            }
        };
        Ok(Caller(model.map(|model| Asked { model, arrival })))
    }
}

/// How long a client may take to send a message.
const MESSAGE_TIME: Duration = Duration::from_secs(60);

/// Messages from here on are read by a thread of their own: there are few threads for all connections.
const LONG_MESSAGE: usize = 64 << 10;

/// The bytes of a message, all of them, unpacked.
pub(crate) struct Sent(pub(crate) Result<Bytes, Problem>);

impl<E: Inference> FromRequest<Arc<Context<E>>> for Sent {
    type Rejection = std::convert::Infallible;

    async fn from_request(request: Request, state: &Arc<Context<E>>) -> Result<Sent, Self::Rejection> {
        let limit = state.limits.message;
        let compression = Compression::of(request.headers());
        Ok(Sent(match timeout(MESSAGE_TIME, Bytes::from_request(request, state)).await {
            Err(_) => Err(Problem::MessageLate),
            Ok(Ok(bytes)) => match compression {
                Ok(compression) => compression.undo(bytes, limit).await,
                Err(problem) => Err(problem),
            },
            Ok(Err(BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_)))) => {
                Err(Problem::MessageTooLarge { limit })
            }
            Ok(Err(_)) => Err(Problem::MessageBroken),
        }))
    }
}

/// Reads JSON.
pub(crate) async fn read_json<T: DeserializeOwned + Send + 'static>(bytes: Bytes) -> Result<T, Problem> {
    let is_long = bytes.len() >= LONG_MESSAGE;
    aside(is_long, move || serde_json::from_slice(&bytes).map_err(|error| unread::<T>(&bytes, &error))).await?
}

/// What is wrong with a message, and where: read a second time, since only what is broken needs to know where it is.
fn unread<T: DeserializeOwned>(bytes: &[u8], error: &serde_json::Error) -> Problem {
    let again = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_slice(bytes));
    let place = again.err().map(|error| error.path().to_string()).filter(|path| path != ".");
    Problem::invalid(place.unwrap_or_else(|| "body".to_owned()), error.to_string())
}

/// A message in JSON.
struct Message<T>(Result<T, Problem>);

impl<T: DeserializeOwned + Send + 'static, E: Inference> FromRequest<Arc<Context<E>>> for Message<T> {
    type Rejection = std::convert::Infallible;

    async fn from_request(request: Request, state: &Arc<Context<E>>) -> Result<Message<T>, Self::Rejection> {
        let Sent(sent) = Sent::from_request(request, state).await?;
        Ok(Message(match sent {
            Ok(bytes) => read_json(bytes).await,
            Err(problem) => Err(problem),
        }))
    }
}

/// A message in JSON that may be left out, where nothing is said then.
pub(crate) struct OptionalMessage<T>(pub(crate) Result<T, Problem>);

impl<T: DeserializeOwned + Default + Send + 'static, E: Inference> FromRequest<Arc<Context<E>>> for OptionalMessage<T> {
    type Rejection = std::convert::Infallible;

    async fn from_request(request: Request, state: &Arc<Context<E>>) -> Result<OptionalMessage<T>, Self::Rejection> {
        let Sent(sent) = Sent::from_request(request, state).await?;
        Ok(OptionalMessage(match sent {
            Ok(bytes) if bytes.trim_ascii().is_empty() => Ok(T::default()),
            Ok(bytes) => read_json(bytes).await,
            Err(problem) => Err(problem),
        }))
    }
}
