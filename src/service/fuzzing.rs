//! The services without connections, for `fuzz/` and for the test that repeats what it found.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use tokio::sync::watch;
use tonic::Status;

use super::call::Arrival;
use super::context::Context;
use super::limits::Limits;
use super::port::{Inference, Operations};
use super::proto::inference::{ModelInferRequest, ModelInferResponse};
use super::{http, oip};
use crate::telemetry::traces::Traces;

/// The services over an engine, with the default limits.
pub struct Services<E>(Arc<Context<E>>);

impl<E: Inference + Operations> Services<E> {
    /// Over this engine.
    ///
    /// # Errors
    /// The operating system gives no threads.
    pub fn new(engine: E) -> io::Result<Services<E>> {
        let (_, draining) = watch::channel(false);
        Ok(Services(Arc::new(Context::new(engine, Limits::default(), Traces::off(), draining, None)?)))
    }

    /// What the HTTP port answers.
    pub fn routes(&self) -> Router {
        http::router(self.0.clone())
    }

    /// Answers `ModelInfer`.
    ///
    /// # Errors
    /// What the client would be told.
    pub async fn infer(&self, request: ModelInferRequest) -> Result<ModelInferResponse, Status> {
        let arrival = Arrival { at: Instant::now(), deadline: None };
        Ok(oip::infer(&self.0, arrival, request).await?)
    }
}
