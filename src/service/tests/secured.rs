//! A server with tokens or certificates, and ways to call it.

use std::net::SocketAddr;
use std::path::PathBuf;

use axum::routing::get;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::fake::FakeEngine;
use crate::service::{Limits, Listeners, Security, SecurityFiles, serve};
use crate::telemetry::traces::Traces;

/// A server that believes to listen on `0.0.0.0`.
pub(super) struct Secured {
    pub(super) grpc: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) http: SocketAddr,
    _until: oneshot::Sender<()>,
}

impl Secured {
    pub(super) async fn start(files: SecurityFiles<'_>) -> Secured {
        let bind = || async { TcpListener::bind("127.0.0.1:0").await.unwrap() };
        let (grpc, http, admin) = (bind().await, bind().await, bind().await);
        let [at_grpc, at_http, at_admin] = [&grpc, &http, &admin].map(|listener| listener.local_addr().unwrap());
        // As the routes of metrics are.
        let others = axum::Router::new().route("/metrics", get(|| async { "a 1\n" }));
        let listeners = Listeners { grpc, http: Some((http, others)), admin: Some(admin) };
        let security = Security::open([0, 0, 0, 0].into(), files).unwrap();
        let (until, told) = oneshot::channel();
        tokio::spawn(serve(listeners, FakeEngine::new(), Limits::default(), security, Traces::off(), None, async {
            // Its sender goes with the test.
            let _ = told.await;
        }));
        Secured { grpc: at_grpc, admin: at_admin, http: at_http, _until: until }
    }
}

/// A call without a message, at a place without TLS.
pub(super) async fn call(address: SocketAddr, path: &str, authorization: Option<&str>) -> Result<(), Status> {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    call_over(channel, path, authorization).await
}

pub(super) async fn call_over(channel: Channel, path: &str, authorization: Option<&str>) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let mut request = Request::new(());
    if let Some(authorization) = authorization {
        request.metadata_mut().insert("authorization", authorization.parse().unwrap());
    }
    let path: PathAndQuery = path.parse().unwrap();
    client.unary(request, path, ProstCodec::<(), ()>::default()).await.map(|_| ())
}

/// Files of a test.
pub(super) struct Files(TempDir);

impl Files {
    pub(super) fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    /// Writes one as it is replaced by those who care: as a whole.
    pub(super) fn write(&self, name: &str, text: &str) -> PathBuf {
        let (path, new) = (self.path(name), self.path("new"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &path).unwrap();
        path
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}
