//! HTTP/1.1 over accepted connections.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::task::JoinSet;

use super::incoming::Incoming;

/// How long a client may take for the headers of a call, and so how long a connection may lie idle between two: a client
/// that sends a byte now and then must not hold a connection for ever. Longer than proxies keep theirs, so that it is not
/// us who close one in the moment in which it is used again.
const HEADER_TIME: Duration = Duration::from_secs(90);

/// The largest headers that are read.
const HEADERS_MAX: usize = 64 << 10;

/// Serves what comes in, and ends when the last of it is answered. Dropped, it drops its connections.
pub(crate) async fn serve_http(mut incoming: Incoming, routes: Router) {
    let (graceful, mut connections) = (GracefulShutdown::new(), JoinSet::new());
    while let Some(connection) = incoming.next().await {
        let service = TowerToHyperService::new(routes.clone());
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIME)
            .max_buf_size(HEADERS_MAX)
            .serve_connection(TokioIo::new(connection), service);
        let serving = graceful.watch(serving);
        connections.spawn(async move {
            if let Err(error) = serving.await {
                tracing::debug!(%error, "an HTTP connection ended early");
            }
        });
        // Those that have ended.
        while connections.try_join_next().is_some() {}
    }
    graceful.shutdown().await;
}
