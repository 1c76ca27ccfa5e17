//! A problem as an answer over HTTP: its code as a status, its text and its hint in the form that a client expects.

use std::io;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tonic::Code;

use crate::service::errors::{Problem, Told, WRONG_METHOD};

/// The status of a code. `invalid` is that of a malformed request, `fault` that of a failure of the model: clients of
/// different interfaces expect different ones.
fn status(told: &Told, invalid: StatusCode, fault: StatusCode) -> StatusCode {
    match told.code {
        _ if told.reason == WRONG_METHOD => StatusCode::METHOD_NOT_ALLOWED,
        Code::InvalidArgument => invalid,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::OutOfRange => StatusCode::PAYLOAD_TOO_LARGE,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unavailable | Code::FailedPrecondition => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        _ => fault,
    }
}

/// The answer with this message; with a hint when to come again, if there is one.
fn respond(status: StatusCode, told: &Told, message: &impl Serialize) -> Response {
    let mut response = json(status, message);
    if let Some(after) = told.retry {
        // Whole seconds are all that the header can say.
        let seconds = HeaderValue::from(after.as_secs_f64().ceil().max(1.0) as u64);
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// A message in JSON.
pub(crate) fn json(status: StatusCode, message: &impl Serialize) -> Response {
    let mut bytes = Vec::new();
    match write_json(&mut bytes, message) {
        Ok(()) => respond_bytes(status, "application/json", bytes),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Writes a message in JSON; if that fails, the log has the cause.
pub(crate) fn write_json(to: impl io::Write, message: &impl Serialize) -> Result<(), Problem> {
    serde_json::to_writer(to, message).map_err(|error| {
        tracing::error!(%error, "an answer cannot be written as JSON");
        Problem::Panicked
    })
}

/// An answer with these bytes.
pub(crate) fn respond_bytes(status: StatusCode, content_type: &'static str, bytes: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, content_type)], bytes).into_response()
}

/// In the form that clients of this path expect.
pub(crate) fn refuse(path: &str, problem: Problem) -> Response {
    let of_model = path.strip_prefix("/models/").and_then(|rest| rest.find('/').map(|at| &rest[at..]));
    match of_model.unwrap_or(path) {
        path if path.starts_with("/v1/") || path == "/embeddings" => OpenAiProblem(problem).into_response(),
        path if path == "/v2" || path.starts_with("/v2/") => OipProblem(problem).into_response(),
        _ => TeiProblem(problem).into_response(),
    }
}

/// In the form of the Open Inference Protocol.
pub(crate) struct OipProblem(pub(crate) Problem);

impl From<Problem> for OipProblem {
    fn from(problem: Problem) -> OipProblem {
        OipProblem(problem)
    }
}

#[derive(Serialize)]
struct OipMessage<'a> {
    error: &'a str,
}

impl IntoResponse for OipProblem {
    fn into_response(self) -> Response {
        let told = Told::from(self.0);
        let status = status(&told, StatusCode::BAD_REQUEST, StatusCode::INTERNAL_SERVER_ERROR);
        respond(status, &told, &OipMessage { error: &told.text })
    }
}

/// In the form of text-embeddings-inference.
pub(super) struct TeiProblem(pub(super) Problem);

impl From<Problem> for TeiProblem {
    fn from(problem: Problem) -> TeiProblem {
        TeiProblem(problem)
    }
}

#[derive(Serialize)]
struct TeiMessage<'a> {
    error: &'a str,
    error_type: &'a str,
}

impl IntoResponse for TeiProblem {
    fn into_response(self) -> Response {
        let told = Told::from(self.0);
        let status = match told.reason {
            "EMPTY" => StatusCode::BAD_REQUEST,
            "WRONG_TASK" => StatusCode::FAILED_DEPENDENCY,
            _ => status(&told, StatusCode::UNPROCESSABLE_ENTITY, StatusCode::FAILED_DEPENDENCY),
        };
        // Their names on the wire; that of a refusal, to which that server has no message, is ours.
        let error_type = match status {
            StatusCode::BAD_REQUEST => "Empty",
            StatusCode::TOO_MANY_REQUESTS | StatusCode::GATEWAY_TIMEOUT => "Overloaded",
            StatusCode::SERVICE_UNAVAILABLE => "Unhealthy",
            StatusCode::FAILED_DEPENDENCY | StatusCode::NOT_IMPLEMENTED => "Backend",
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "Authentication",
            _ => "Validation",
        };
        respond(status, &told, &TeiMessage { error: &told.text, error_type })
    }
}

/// In the form of OpenAI.
pub(super) struct OpenAiProblem(Problem);

impl From<Problem> for OpenAiProblem {
    fn from(problem: Problem) -> OpenAiProblem {
        OpenAiProblem(problem)
    }
}

#[derive(Serialize)]
struct OpenAiMessage<'a> {
    error: OpenAiError<'a>,
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: String,
}

impl IntoResponse for OpenAiProblem {
    fn into_response(self) -> Response {
        let told = Told::from(self.0);
        let status = status(&told, StatusCode::BAD_REQUEST, StatusCode::INTERNAL_SERVER_ERROR);
        let kind = match status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        // Clients match on this one.
        let code =
            if told.reason == "UNKNOWN_MODEL" { "model_not_found".to_owned() } else { told.reason.to_lowercase() };
        let error = OpenAiError { message: &told.text, r#type: kind, param: told.field.as_deref(), code };
        respond(status, &told, &OpenAiMessage { error })
    }
}
