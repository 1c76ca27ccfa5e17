//! Where calls are let in or not, by their path and their headers; for HTTP in front of its routes, for gRPC in `call`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::BodyDataStream;
use axum::extract::{Request as HttpRequest, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response as HttpResponse;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use super::methods::is_admin;
use super::{Access, Door};
use crate::config::Origins;
use crate::service::errors::Problem;

/// How much of a refused message is read over HTTP, and for how long.
const LEFTOVER_MAX: usize = 1 << 20;
const LEFTOVER_TIME: Duration = Duration::from_secs(2);

impl Access {
    /// Whether the call with this path and these headers is let in.
    pub(crate) fn admit(&self, path: &str, headers: &HeaderMap, door: Door) -> Result<(), Problem> {
        let mut given = headers.get_all(AUTHORIZATION).iter().map(|value| value.as_bytes());
        // Of two of them somebody in front of us may have looked at the other.
        let authorization = match (given.next(), given.next()) {
            (Some(_), Some(_)) => Some(&b""[..]),
            (only, _) => only,
        };
        self.decide(is_admin(path), authorization, door, SystemTime::now()).map_err(Problem::from)
    }
}

/// What is let in over HTTP.
#[derive(Clone, Debug)]
pub(crate) struct Guarded {
    pub(crate) access: Arc<Access>,
    /// Pages that may call.
    pub(crate) origins: Arc<Origins>,
}

impl Guarded {
    fn admit(&self, request: &HttpRequest) -> Result<(), Problem> {
        let (uri, headers) = (request.uri(), request.headers());
        self.access.admit_page(uri, headers, &self.origins)?;
        self.access.admit(uri.path(), headers, Door::Main)
    }
}

/// Answers for the routes of the HTTP port what they are not to hear.
pub(crate) async fn guard(State(guarded): State<Guarded>, request: HttpRequest, next: Next) -> HttpResponse {
    let path = request.uri().path();
    match guarded.admit(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            let answer = crate::service::http::refuse(path, problem);
            // A connection that is closed with something unread in it is reset, which may overtake the answer.
            let _ = timeout(LEFTOVER_TIME, read_away(request.into_body().into_data_stream())).await;
            answer
        }
    }
}

/// Reads what is left of a message, piece by piece.
async fn read_away(mut body: BodyDataStream) {
    let mut left = LEFTOVER_MAX;
    while let Some(Ok(piece)) = body.next().await {
        left = left.saturating_sub(piece.len());
        if left == 0 {
            break;
        }
    }
}
