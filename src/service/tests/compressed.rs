//! Messages of HTTP that are sent compressed, on every interface.

use std::io::Read;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use flate2::Compression;
use flate2::read::{GzEncoder, ZlibEncoder};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::harness::raw_bytes;
use super::http::Front;
use crate::service::Limits;
use crate::units::Bytes;

fn packed(encoding: &str, plain: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    match encoding {
        "gzip" => GzEncoder::new(plain, Compression::default()).read_to_end(&mut packed),
        _ => ZlibEncoder::new(plain, Compression::default()).read_to_end(&mut packed),
    }
    .unwrap();
    packed
}

async fn send(front: &Front, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> (StatusCode, Value) {
    let mut request = Request::builder().method("POST").uri(path).header("model", "embed");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = front.app.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.status, serde_json::from_slice(&to_bytes(body, usize::MAX).await.unwrap()).unwrap_or(Value::Null))
}

#[tokio::test]
async fn messages_are_unpacked_on_every_interface() {
    let front = Front::new();
    let text = json!({ "name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["web server"] });
    for (path, message) in [
        ("/v2/models/embed/infer", json!({ "inputs": [text] })),
        ("/v2/repository/index", json!({ "ready": true })),
        ("/embed", json!({ "inputs": "web server" })),
        ("/", json!({ "inputs": "web server" })),
        ("/v1/embeddings", json!({ "input": "web server", "model": "embed" })),
    ] {
        let plain = message.to_string().into_bytes();
        let answer = send(&front, path, &[], plain.clone()).await;
        assert_eq!(answer.0, StatusCode::OK, "{path}: {answer:?}");
        for encoding in ["gzip", "deflate"] {
            let headers = [("content-encoding", encoding)];
            assert_eq!(send(&front, path, &headers, packed(encoding, &plain)).await, answer, "{path} {encoding}");
        }
        for (encoding, body) in [("gzip", plain.clone()), ("br", plain.clone()), ("gzip, gzip", packed("gzip", &plain))]
        {
            let (status, answer) = send(&front, path, &[("content-encoding", encoding)], body).await;
            assert!(status.is_client_error() && answer["error"].to_string().contains("content-encoding"), "{answer}");
        }
    }
    // The length of the JSON is that before it was compressed.
    let input = json!({ "name": "TEXT", "datatype": "BYTES", "shape": [1], "parameters": { "binary_data_size": 14 } });
    let message = json!({ "inputs": [input] }).to_string();
    let length = message.len().to_string();
    let body = [message.as_bytes(), &raw_bytes(&["web server"])].concat();
    let headers = [("content-encoding", "deflate"), ("inference-header-content-length", length.as_str())];
    let (status, answer) = send(&front, "/v2/models/embed/infer", &headers, packed("deflate", &body)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
}

#[tokio::test]
async fn a_small_message_that_unpacks_beyond_the_limit_is_refused() {
    let front = Front::with(Limits { message: Bytes::kib(64), ..Limits::default() });
    let bomb = vec![b' '; 1 << 20];
    for encoding in ["gzip", "deflate"] {
        let body = packed(encoding, &bomb);
        assert!(body.len() < 2 << 10);
        for path in ["/v2/models/embed/infer", "/embed", "/v1/embeddings"] {
            let (status, answer) = send(&front, path, &[("content-encoding", encoding)], body.clone()).await;
            assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{path} {encoding}: {answer}");
            assert!(answer["error"].to_string().contains("64.0 KiB"), "{answer}");
        }
    }
}
