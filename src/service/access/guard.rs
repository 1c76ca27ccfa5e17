//! Where calls are let in or not: in front of the services of either port.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use axum::body::BodyDataStream;
use axum::extract::{Request as HttpRequest, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response as HttpResponse;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tower::{Layer, Service};

use super::methods::is_admin;
use super::{Access, Door};
use crate::service::errors::Problem;

/// How much of a refused message is read over HTTP, and for how long.
const LEFTOVER_MAX: usize = 1 << 20;
const LEFTOVER_TIME: Duration = Duration::from_secs(2);

impl Access {
    fn admit(&self, path: &str, headers: &HeaderMap, door: Door) -> Result<(), Problem> {
        let mut given = headers.get_all(AUTHORIZATION).iter().map(|value| value.as_bytes());
        // Of two of them somebody in front of us may have looked at the other.
        let authorization = match (given.next(), given.next()) {
            (Some(_), Some(_)) => Some(&b""[..]),
            (only, _) => only,
        };
        self.decide(is_admin(path), authorization, door, SystemTime::now()).map_err(Problem::from)
    }
}

/// Answers for the services of gRPC what they are not to hear.
#[derive(Clone)]
pub(crate) struct AccessLayer {
    pub(crate) access: Arc<Access>,
    pub(crate) door: Door,
}

impl<S> Layer<S> for AccessLayer {
    type Service = AccessService<S>;

    fn layer(&self, inner: S) -> AccessService<S> {
        AccessService { inner, layer: self.clone() }
    }
}

/// A service under [`AccessLayer`].
#[derive(Clone)]
pub(crate) struct AccessService<S> {
    inner: S,
    layer: AccessLayer,
}

impl<S> Service<Request<Body>> for AccessService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let AccessLayer { access, door } = &self.layer;
        match access.admit(request.uri().path(), request.headers(), *door) {
            Ok(()) => Box::pin(self.inner.call(request)),
            Err(problem) => Box::pin(ready(Ok(Status::from(problem).into_http()))),
        }
    }
}

/// The same for the HTTP port.
pub(crate) async fn guard(State(access): State<Arc<Access>>, request: HttpRequest, next: Next) -> HttpResponse {
    let path = request.uri().path();
    match access.admit(path, request.headers(), Door::Main) {
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
