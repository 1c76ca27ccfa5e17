//! A classifier of tokens in the Open Inference Protocol: what its tensors hold, and what is too large to be one.

use axum::http::StatusCode;
use serde_json::json;
use tonic::Code;

use super::fake::{FakeEngine, LABELS, vector};
use super::harness::{TestServer, assert_told, floats, raw_bytes, raw_i64, tensor, texts, token_ids};
use super::http::Front;
use crate::service::Limits;
use crate::service::proto::inference::infer_parameter::ParameterChoice;
use crate::service::proto::inference::model_infer_request::InferRequestedOutputTensor;
use crate::service::proto::inference::{InferParameter, ModelInferRequest};
use crate::telemetry::traces::Traces;
use crate::units::Bytes;

fn wanted(name: &str, best: Option<i64>) -> InferRequestedOutputTensor {
    let choice = |count| InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(count)) };
    let parameters = best.map(|count| ("classification".to_owned(), choice(count)));
    InferRequestedOutputTensor { name: name.to_owned(), parameters: parameters.into_iter().collect() }
}

/// One row of three tokens in so many columns.
fn padded(columns: usize, outputs: Vec<InferRequestedOutputTensor>) -> ModelInferRequest {
    let shape = [1, columns as i64];
    let filled = |values: [i64; 3]| raw_i64(&[&values[..], &vec![0; columns - 3][..]].concat());
    ModelInferRequest {
        model_name: "tag".to_owned(),
        inputs: vec![tensor("input_ids", "INT64", &shape), tensor("attention_mask", "INT64", &shape)],
        raw_input_contents: vec![filled([2, 5, 3]), filled([1, 1, 1])],
        outputs,
        ..ModelInferRequest::default()
    }
}

#[tokio::test]
async fn each_token_has_its_values_and_padding_has_none() {
    let server = TestServer::with_tagger(Limits::default()).await;
    let response = server.infer(padded(4, vec![wanted("logits", None), wanted("tokens", None)])).await.unwrap();
    let row = server.engine.accepted()[0].rows[0].clone();
    let expected = [vector(&row, 3 * LABELS.len() as u32), vec![0.0; LABELS.len()]].concat();
    assert_eq!((response.outputs[0].shape.as_slice(), floats(&response, 0)), (&[1, 4, 3][..], expected));
    assert_eq!((response.outputs[1].datatype.as_str(), &response.raw_output_contents[1]), ("INT64", &raw_i64(&[3])));
    let best = server.infer(padded(4, vec![wanted("logits", Some(1))])).await.unwrap();
    assert_eq!(best.outputs[0].shape, [1, 4, 1]);
    let empty = raw_bytes(&[""]);
    assert!(best.raw_output_contents[0].ends_with(&empty), "{best:?}");
}

#[tokio::test]
async fn integers_are_integers_in_json() {
    let front = Front::over(FakeEngine::with_tagger(), Limits::default(), Traces::off());
    let text = json!({ "name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["web server"] });
    let message = json!({ "inputs": [text], "outputs": [{ "name": "offsets" }, { "name": "tokens" }] });
    let (status, answer) = front.post("/v2/models/tag/infer", "", &message).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let [offsets, tokens] = [&answer["outputs"][0], &answer["outputs"][1]];
    assert_eq!((&offsets["datatype"], &offsets["shape"]), (&json!("INT64"), &json!([1, 4, 2])), "{answer}");
    assert_eq!(offsets["data"], json!([-1, -1, 0, 3, 4, 10, -1, -1]));
    assert_eq!((&tokens["shape"], &tokens["data"]), (&json!([1, 1]), &json!([4])));
}

#[tokio::test]
async fn what_padding_makes_too_large_is_refused_before_anything_is_computed() {
    let server = TestServer::with_tagger(Limits { message: Bytes::mib(1), ..Limits::default() }).await;
    let columns = 60_000;
    // 60,000 columns of 3 labels are 703 KiB as numbers, of 2 texts 469 KiB even if all are empty.
    for outputs in [
        vec![],
        vec![wanted("scores", None), wanted("logits", None)],
        vec![wanted("scores", Some(99)), wanted("logits", Some(2))],
    ] {
        let status = server.infer(padded(columns, outputs)).await.unwrap_err();
        assert_told(&status, Code::OutOfRange, &["1.00 MiB"]);
    }
    assert_eq!(server.engine.ran(), 0);
    server.infer(padded(columns, vec![wanted("logits", Some(1))])).await.unwrap();
    server.infer(padded(columns, vec![wanted("tokens", None)])).await.unwrap();
}

#[tokio::test]
async fn texts_of_classes_count() {
    let server = TestServer::with_tagger(Limits { message: Bytes::kib(16), ..Limits::default() }).await;
    // 500 texts of 3 classes, of at least 18 bytes each, are 27,000 bytes.
    let rows = 500;
    let request =
        ModelInferRequest { outputs: vec![wanted("logits", Some(3))], ..token_ids("section", rows, &vec![5; rows]) };
    assert_told(&server.infer(request).await.unwrap_err(), Code::OutOfRange, &["26.4 KiB", "16.0 KiB"]);
    assert_eq!(server.engine.ran(), 0);
    // How long rows of text are is known once they are tokenized.
    let request = ModelInferRequest {
        outputs: vec![wanted("offsets", None), wanted("tokens", None)],
        ..texts("tag", &vec!["web server"; 300])
    };
    assert_told(&server.infer(request).await.unwrap_err(), Code::OutOfRange, &["16.0 KiB"]);
}
