//! Messages of clients: through the services as they come over gRPC and HTTP, tokenizer included, but for connections.

use std::sync::LazyLock;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderValue, Request, StatusCode};
use plimsoll::service::fuzzing::Services;
use plimsoll::service::proto::inference::ModelInferRequest;
use prost::Message;
use tokio::runtime::Runtime;
use tonic::Code;
use tower::ServiceExt;

use super::engine::Zeros;

struct Server {
    runtime: Runtime,
    services: Services<Zeros>,
    routes: Router,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let services = Services::new(Zeros::new()).expect("threads for the tokenizer");
    let routes = services.routes();
    Server { runtime, services, routes }
});

/// A `ModelInferRequest` in protobuf: typed and raw contents, parameters, outputs.
pub fn oip_tensors(data: &[u8]) {
    let Ok(request) = ModelInferRequest::decode(Bytes::copy_from_slice(data)) else { return };
    if let Err(status) = SERVER.runtime.block_on(SERVER.services.infer(request)) {
        assert_ne!(status.code(), Code::Internal, "{status}");
    }
}

/// In an order in which the first letter of the task (embed, rerank, section) is its place's remainder by three.
const MODELS: [&str; 3] = ["tiny-rerank", "tiny-section", "tiny-embed"];

/// A message to `/v2/models/MODEL/infer`. The first byte says which model; the rest of the first line is the header
/// that says where the JSON ends; without one the header is left out.
pub fn rest_infer(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    let (length, body) = (&rest[..end], rest.get(end + 1..).unwrap_or_default());
    let model = MODELS[usize::from(*first) % MODELS.len()];
    let mut request = Request::post(format!("/v2/models/{model}/infer"));
    if !length.is_empty() {
        let Ok(length) = HeaderValue::from_bytes(length) else { return };
        request = request.header("inference-header-content-length", length);
    }
    answer(request, body);
}

/// Where JSON is posted to, by the letters from `a` on.
const ROUTES: [&str; 14] = [
    "/models/tiny-embed/embed",
    "/models/tiny-section/predict",
    "/models/tiny-rerank/rerank",
    "/models/tiny-embed/tokenize",
    "/models/tiny-embed/decode",
    "/models/tiny-rerank",
    "/v1/embeddings",
    "/v2/repository/index",
    "/v2/repository/models/tiny-embed/load",
    "/v2/repository/models/tiny-embed/unload",
    "/v2/trace/setting",
    "/v2/logging",
    "/models/tiny-embed/similarity",
    "/models/tiny-embed",
];

/// A message in JSON of text-embeddings-inference, of OpenAI's interface or of the Open Inference Protocol's
/// administration. The first byte says where it is posted to.
pub fn http_json(data: &[u8]) {
    let Some((first, body)) = data.split_first() else { return };
    let route = ROUTES[usize::from(first.wrapping_sub(b'a')) % ROUTES.len()];
    answer(Request::post(route), body);
}

fn answer(request: axum::http::request::Builder, body: &[u8]) {
    let request = request.body(Body::from(body.to_vec())).expect("its parts were checked");
    SERVER.runtime.block_on(async {
        let response = SERVER.routes.clone().oneshot(request).await.expect("routes answer always");
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.expect("the body is there");
        let text = String::from_utf8_lossy(&body);
        assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{text}");
        assert!(status != StatusCode::NOT_FOUND || !text.is_empty(), "there is no such route");
    });
}
