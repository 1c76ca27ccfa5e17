//! A server on a free port, a client of it, and requests to send.

use std::net::SocketAddr;
use std::time::Duration;

use prost::bytes::{BufMut, BytesMut};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::fake::FakeEngine;
use crate::service::proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use crate::service::proto::inference::infer_parameter::ParameterChoice;
use crate::service::proto::inference::model_infer_request::InferInputTensor;
use crate::service::proto::inference::{InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse};
use crate::service::{Drained, Limits, Listeners, Security, SecurityFiles, ServeError, serve};
use crate::telemetry::traces::Traces;

pub(super) struct TestServer {
    pub(super) engine: FakeEngine,
    pub(super) channel: Channel,
    pub(super) endpoint: Endpoint,
    /// Where HTTP is.
    pub(super) http: SocketAddr,
    shutdown: Option<oneshot::Sender<()>>,
    serving: JoinHandle<Result<Drained, ServeError>>,
}

impl TestServer {
    pub(super) async fn start() -> TestServer {
        TestServer::traced(Traces::off()).await
    }

    pub(super) async fn traced(traces: Traces) -> TestServer {
        TestServer::over(FakeEngine::new(), Limits { drain_notice: Duration::ZERO, ..Limits::default() }, traces).await
    }

    pub(super) async fn with(limits: Limits) -> TestServer {
        TestServer::over(FakeEngine::new(), limits, Traces::off()).await
    }

    /// With `tag`, a classifier of tokens, among its models.
    pub(super) async fn with_tagger(limits: Limits) -> TestServer {
        TestServer::over(FakeEngine::with_tagger(), limits, Traces::off()).await
    }

    async fn over(engine: FakeEngine, limits: Limits, traces: Traces) -> TestServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let fronts = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = fronts.local_addr().unwrap();
        let listeners = Listeners { grpc: listener, http: Some((fronts, axum::Router::new())), admin: None };
        let security = Security::open([127, 0, 0, 1].into(), SecurityFiles::default()).unwrap();
        let (shutdown, told) = oneshot::channel();
        let serving = tokio::spawn(serve(listeners, engine.clone(), limits, security, traces, None, async {
            let _ = told.await;
        }));
        let channel = endpoint.connect().await.unwrap();
        TestServer { engine, channel, endpoint, http, shutdown: Some(shutdown), serving }
    }

    pub(super) fn oip(&self) -> GrpcInferenceServiceClient<Channel> {
        GrpcInferenceServiceClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    pub(super) async fn infer(&self, request: ModelInferRequest) -> Result<ModelInferResponse, Status> {
        Ok(self.oip().model_infer(request).await?.into_inner())
    }

    /// Tells the server to go down.
    pub(super) fn shut_down(&mut self) {
        self.shutdown.take().unwrap().send(()).unwrap();
    }

    /// Waits until the server has gone down.
    pub(super) async fn drained(self) -> Drained {
        drop(self.channel);
        self.serving.await.unwrap().unwrap()
    }
}

/// A call that is served right after something went wrong shows that the server and the connection are well.
pub(super) async fn assert_serves(server: &TestServer) {
    server.infer(texts("embed", &["web server"])).await.unwrap();
}

/// The status has this code, and its text has all of these parts.
pub(super) fn assert_told(status: &Status, code: Code, parts: &[&str]) {
    assert_eq!(status.code(), code, "{status:?}");
    for part in parts {
        assert!(status.message().contains(part), "'{part}' is not in: {}", status.message());
    }
    let info = status.get_details_error_info().unwrap_or_else(|| panic!("no ErrorInfo: {status:?}"));
    assert_eq!(info.domain, "plimsoll");
}

pub(super) fn raw_bytes(elements: &[impl AsRef<[u8]>]) -> prost::bytes::Bytes {
    let mut blob = BytesMut::new();
    for element in elements {
        blob.put_u32_le(element.as_ref().len() as u32);
        blob.put_slice(element.as_ref());
    }
    blob.freeze()
}

pub(super) fn raw_i64(values: &[i64]) -> prost::bytes::Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(super) fn tensor(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        ..InferInputTensor::default()
    }
}

/// A request with TEXT in raw contents.
pub(super) fn texts(model: &str, texts: &[&str]) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.to_owned(),
        id: "call-1".to_owned(),
        inputs: vec![tensor("TEXT", "BYTES", &[texts.len() as i64])],
        raw_input_contents: vec![raw_bytes(texts)],
        ..ModelInferRequest::default()
    }
}

/// A request with TEXT in typed contents.
pub(super) fn typed_texts(model: &str, texts: &[&str]) -> ModelInferRequest {
    let bytes_contents = texts.iter().map(|text| text.as_bytes().to_vec().into()).collect();
    let contents = InferTensorContents { bytes_contents, ..InferTensorContents::default() };
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![InferInputTensor { contents: Some(contents), ..tensor("TEXT", "BYTES", &[texts.len() as i64]) }],
        ..ModelInferRequest::default()
    }
}

/// A request with token ids in raw contents: `ids` row by row.
pub(super) fn token_ids(model: &str, rows: usize, ids: &[i64]) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![tensor("input_ids", "INT64", &[rows as i64, (ids.len() / rows) as i64])],
        raw_input_contents: vec![raw_i64(ids)],
        ..ModelInferRequest::default()
    }
}

pub(super) fn with_parameter(mut request: ModelInferRequest, name: &str, choice: ParameterChoice) -> ModelInferRequest {
    request.parameters.insert(name.to_owned(), InferParameter { parameter_choice: Some(choice) });
    request
}

/// The numbers of output `index`.
pub(super) fn floats(response: &ModelInferResponse, index: usize) -> Vec<f32> {
    let blob = &response.raw_output_contents[index];
    blob.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
