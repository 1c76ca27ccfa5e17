//! HTTP/1.1 over accepted connections.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;

use super::incoming::Incoming;

/// How long a client may take for the headers of a call, and so how long a connection may lie idle between two: a client
/// that sends a byte now and then must not hold a connection for ever.
const HEADER_TIME: Duration = Duration::from_secs(60);

/// The largest headers that are read.
const HEADERS_MAX: usize = 64 << 10;

/// Serves until `stopped`'s sender is gone; then nothing more is accepted, and this ends when the last call is answered.
pub(crate) async fn serve_http(mut incoming: Incoming, routes: Router, mut stopped: watch::Receiver<()>) {
    let connections = GracefulShutdown::new();
    loop {
        let connection = tokio::select! {
            connection = incoming.next() => connection,
            _ = stopped.changed() => None,
        };
        let Some(connection) = connection else { break };
        let service = TowerToHyperService::new(routes.clone());
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIME)
            .max_buf_size(HEADERS_MAX)
            .serve_connection(TokioIo::new(connection), service);
        let serving = connections.watch(serving);
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::debug!(%error, "an HTTP connection ended early");
            }
        });
    }
    drop(incoming);
    connections.shutdown().await;
}
