//! The Open Inference Protocol over HTTP, route by route.

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::fake::{DIMENSIONS, LABELS, WIDE, vector};
use super::harness::{raw_bytes, raw_i64};
use super::http::Front;
use crate::service::{Limits, results};
use crate::units;

const LENGTH: &str = "inference-header-content-length";

/// Bytes in, bytes out.
async fn send(front: &Front, path: &str, length: Option<&str>, body: Vec<u8>) -> (StatusCode, HeaderMap, Bytes) {
    let mut request = Request::builder().method(Method::POST).uri(path);
    if let Some(length) = length {
        request = request.header(LENGTH, length);
    }
    let response = front.app.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.status, parts.headers, to_bytes(body, usize::MAX).await.unwrap())
}

/// JSON and what follows it.
async fn send_with(front: &Front, path: &str, message: &Value, blobs: &[&[u8]]) -> (StatusCode, HeaderMap, Bytes) {
    let mut body = message.to_string().into_bytes();
    let length = body.len().to_string();
    blobs.iter().for_each(|blob| body.extend_from_slice(blob));
    send(front, path, Some(&length), body).await
}

/// What the engine's answer to its last request is, row by row.
fn expected(front: &Front) -> Vec<f32> {
    let rows = front.engine.accepted().pop().unwrap().rows;
    let rows = rows.iter().flat_map(|row| {
        let mut values = vector(row, DIMENSIONS);
        results::normalize(&mut values);
        values
    });
    rows.collect()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[tokio::test]
async fn json_in_and_out() {
    let front = Front::new();
    let text = json!({ "name": "TEXT", "datatype": "BYTES", "shape": [2], "data": ["web server", "mail client"] });
    let nested =
        json!({ "name": "TEXT", "datatype": "BYTES", "shape": [2, 1], "data": [["web server"], ["mail client"]] });
    let ids = json!({ "name": "input_ids", "datatype": "INT64", "shape": [2, 3], "data": [[2, 5, 3], [2, 6, 3]] });
    for (path, input) in [
        ("/v2/models/embed/infer", &text),
        ("/v2/models/embed/versions/1/infer", &nested),
        ("/v2/models/embed/infer", &ids),
    ] {
        let (status, answer) = front.post(path, "", &json!({ "id": "a", "inputs": [input] })).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(
            (&answer["model_name"], &answer["model_version"], &answer["id"]),
            (&json!("embed"), &json!("1"), &json!("a"))
        );
        let output = &answer["outputs"][0];
        assert_eq!((&output["name"], &output["datatype"]), (&json!("embedding"), &json!("FP32")));
        assert_eq!(output["shape"], json!([2, DIMENSIONS]));
        assert_eq!(numbers(&output["data"]), expected(&front), "{input}");
    }
    // Parameters and outputs are those of gRPC.
    let asked = json!({ "inputs": [text], "parameters": { "dimensions": 4, "priority": 1 }, "model_name": "embed" });
    let (_, answer) = front.post("/v2/models/embed/infer", "", &asked).await;
    assert_eq!(answer["outputs"][0]["shape"], json!([2, 4]), "{answer}");
    let asked = json!({ "inputs": [text], "outputs": [{ "name": "scores", "parameters": { "classification": 2 } }] });
    let (_, answer) = front.post("/v2/models/section/infer", "", &asked).await;
    let output = &answer["outputs"][0];
    assert_eq!((&output["datatype"], &output["shape"]), (&json!("BYTES"), &json!([2, 2])), "{answer}");
    let best = output["data"][0].as_str().unwrap();
    assert!(LABELS.iter().any(|label| best.ends_with(label)), "{best}");
}

#[tokio::test]
async fn bytes_in_and_out() {
    let front = Front::new();
    let blob = raw_bytes(&["web server", "mail client"]);
    let input = |size: usize| json!({ "name": "TEXT", "datatype": "BYTES", "shape": [2], "parameters": { "binary_data_size": size } });
    let path = "/v2/models/embed/infer";
    let everything = json!({ "inputs": [input(blob.len())], "parameters": { "binary_data_output": true } });
    let one = json!({ "inputs": [input(blob.len())], "outputs": [{ "name": "embedding", "parameters": { "binary_data": true } }] });
    for message in [everything, one] {
        let (status, headers, body) = send_with(&front, path, &message, &[&blob]).await;
        assert_eq!(status, StatusCode::OK, "{body:?}");
        let length: usize = headers[LENGTH].to_str().unwrap().parse().unwrap();
        let answer: Value = serde_json::from_slice(&body[..length]).unwrap();
        assert_eq!(answer["outputs"][0]["parameters"], json!({ "binary_data_size": body.len() - length }));
        assert_eq!(answer["outputs"][0]["data"], Value::Null);
        assert_eq!(floats(&body[length..]), expected(&front));
    }
    // One output as bytes, the other as numbers; what is wanted of one counts more than what is wanted of all.
    let outputs = json!([{ "name": "logits", "parameters": { "binary_data": false } }, { "name": "scores" }]);
    let message =
        json!({ "inputs": [input(blob.len())], "outputs": outputs, "parameters": { "binary_data_output": true } });
    let (_, headers, body) = send_with(&front, "/v2/models/section/infer", &message, &[&blob]).await;
    let length: usize = headers[LENGTH].to_str().unwrap().parse().unwrap();
    let answer: Value = serde_json::from_slice(&body[..length]).unwrap();
    assert_eq!(numbers(&answer["outputs"][0]["data"]).len(), 2 * LABELS.len());
    assert_eq!(floats(&body[length..]).len(), 2 * LABELS.len());
    // Ids as bytes, their mask as JSON.
    let ids = raw_i64(&[2, 5, 3, 0]);
    let message = json!({ "inputs": [
        { "name": "input_ids", "datatype": "INT64", "shape": [1, 4], "parameters": { "binary_data_size": 32 } },
        { "name": "attention_mask", "datatype": "INT64", "shape": [1, 4], "data": [1, 1, 1, 0] },
    ] });
    let (status, headers, body) = send_with(&front, path, &message, &[&ids]).await;
    assert_eq!((status, headers.get(LENGTH)), (StatusCode::OK, None), "{body:?}");
    let answer: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(numbers(&answer["outputs"][0]["data"]), expected(&front));
    assert_eq!(front.engine.accepted().pop().unwrap().rows[0].ids, [2, 5, 3]);
}

/// A message as clients write it that write all fields, and as MLServer's do.
#[tokio::test]
async fn null_is_as_if_it_were_left_out() {
    let front = Front::new();
    let path = "/v2/models/embed/infer";
    let input = json!({ "name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["web server"] });
    let (_, plain) = front.post(path, "", &json!({ "inputs": [input] })).await;
    let parameters = json!({ "content_type": "str", "headers": { "a": ["b"] } });
    let nulls =
        json!({ "content_type": null, "headers": null, "binary_data_size": null, "priority": null, "other": null });
    let output = |parameters: &Value| json!({ "name": "embedding", "parameters": parameters });
    let with = |parameters: &Value| {
        let mut input = input.clone();
        input["parameters"] = parameters.clone();
        input
    };
    for message in [
        json!({ "id": null, "model_name": null, "model_version": null, "parameters": null, "inputs": [with(&Value::Null)], "outputs": null }),
        json!({ "parameters": nulls, "inputs": [with(&nulls)], "outputs": [output(&nulls)] }),
        json!({ "parameters": parameters, "inputs": [with(&parameters)], "outputs": [output(&parameters)] }),
    ] {
        assert_eq!(front.post(path, "", &message).await, (StatusCode::OK, plain.clone()), "{message}");
    }
    let blob = raw_bytes(&["web server"]);
    let bytes = json!({ "name": "TEXT", "datatype": "BYTES", "shape": [1], "data": null, "parameters": { "binary_data_size": 14 } });
    assert_eq!(send_with(&front, path, &json!({ "inputs": [bytes] }), &[&blob]).await.0, StatusCode::OK);
    let all = front.post("/v2/repository/index", "", &json!({})).await;
    assert_eq!(front.post("/v2/repository/index", "", &json!({ "ready": null })).await, all);
    for parameters in [json!(null), json!({ "config": null })] {
        let message = json!({ "parameters": parameters });
        assert_eq!(front.post("/v2/repository/models/embed/load", "", &message).await.0, StatusCode::OK, "{message}");
    }
}

#[tokio::test]
async fn what_is_wrong_is_told() {
    let front = Front::new();
    let good = json!({ "name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["web server"] });
    let with = |key: &str, value: Value| {
        let mut input = good.clone();
        input[key] = value;
        json!({ "inputs": [input] })
    };
    let path = "/v2/models/embed/infer";
    for (path, message, status, expected) in [
        (path, json!({ "inputs": [good], "model_nam": "x" }), 400, "unknown field `model_nam`"),
        (path, json!({ "inputs": [good], "model_name": "section" }), 400, "it is 'section' and the path says 'embed'"),
        (path, json!({}), 400, "missing field `inputs`"),
        (path, with("shape", json!(["one"])), 400, "inputs[0].shape[0]: invalid type: string"),
        (path, with("dataa", json!([])), 400, "inputs[0].dataa: unknown field `dataa`"),
        (path, json!({ "inputs": [] }), 400, "neither TEXT nor input_ids"),
        (path, with("data", json!([1])), 400, "its data are numbers"),
        (path, with("data", json!(["a", 1])), 400, "of one kind"),
        (path, with("shape", json!([2])), 400, "1 elements and the shape takes 2"),
        (path, with("shape", json!([-1])), 400, "negative dimension"),
        (path, with("datatype", json!("TEXT")), 400, "datatype"),
        (path, with("data", Value::Null), 400, "it has no data"),
        (path, with("parameters", json!({ "binary_data_size": 4 })), 400, "send one of them"),
        (path, with("parameters", json!({ "shared_memory_region": "a" })), 501, "shared memory is not offered"),
        (path, with("parameters", json!({ "content_type": "base64" })), 400, "which is not decoded here"),
        (path, with("parameters", json!({ "dimensions": 4 })), 400, "inputs['TEXT'].parameters['dimensions']"),
        (path, json!({ "inputs": [good], "parameters": { "content_type": "pd" } }), 400, "there are: str, np, hf"),
        (path, json!({ "inputs": [good], "parameters": { "truncate": {} } }), 400, "has to be a string"),
        (path, json!({ "inputs": [good], "parameters": [] }), 400, "parameters: invalid type"),
        (path, json!({ "inputs": [good], "parameters": { "sequence_id": 1 } }), 400, "sequences are not supported"),
        (path, json!({ "inputs": [good], "parameters": { "binary_data_output": 1 } }), 400, "true or false"),
        (path, json!({ "inputs": [good], "outputs": [{ "name": "logits" }] }), 400, "there are: embedding"),
        ("/v2/models/none/infer", json!({ "inputs": [good] }), 404, "no model 'none'"),
        ("/v2/models/embed/versions/9/infer", json!({ "inputs": [good] }), 404, "no version '9'"),
    ] {
        let (found, answer) = front.post(path, "", &message).await;
        assert_eq!(found.as_u16(), status, "{message}: {answer}");
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(expected), "{message}: {error}");
    }
}

#[tokio::test]
async fn bytes_that_do_not_fit_are_told() {
    let front = Front::new();
    let input = |size: Value| json!({ "inputs": [{ "name": "TEXT", "datatype": "BYTES", "shape": [1], "parameters": { "binary_data_size": size } }] });
    let blob = raw_bytes(&["web server"]);
    let path = "/v2/models/embed/infer";
    for (size, blob, expected) in [
        (json!(15), &blob[..], "binary_data_size is 15 and 14 bytes are left"),
        (json!(13), &blob[..], "1 bytes behind the JSON belong to no input"),
        (json!(0), &[][..], "the blob ends in the element's length"),
        (json!(14), &[0xff; 14][..], "its length says"),
        (json!(u64::MAX), &blob[..], "bytes are left"),
        (json!(-1), &blob[..], "has to be a number of bytes"),
        (json!("14"), &blob[..], "has to be a number of bytes"),
    ] {
        let (status, _, body) = send_with(&front, path, &input(size.clone()), &[blob]).await;
        let error = serde_json::from_slice::<Value>(&body).unwrap()["error"].as_str().unwrap().to_owned();
        assert!(status == StatusCode::BAD_REQUEST && error.contains(expected), "{size}: {status} {error}");
    }
    for length in ["", "x", "-1", "1000", "18446744073709551616"] {
        let (status, _, body) = send(&front, path, Some(length), b"{}".to_vec()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{length}: {body:?}");
    }
    for body in [&b""[..], b"{", b"[]", b"null", b"\xff\xfe", b"{\"inputs\": 1}"] {
        let (status, _, answer) = send(&front, path, None, body.to_vec()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body:?}: {answer:?}");
    }
}

/// A body that is the only row: the raw request of the extension for tensors as bytes.
#[tokio::test]
async fn a_text_may_come_without_json() {
    let front = Front::new();
    let (status, headers, body) = send(&front, "/v2/models/embed/infer", Some("0"), b"web server".to_vec()).await;
    assert_eq!(status, StatusCode::OK, "{body:?}");
    let length: usize = headers[LENGTH].to_str().unwrap().parse().unwrap();
    let answer: Value = serde_json::from_slice(&body[..length]).unwrap();
    assert_eq!(answer["outputs"][0]["shape"], json!([1, DIMENSIONS]));
    let alone = expected(&front);
    assert_eq!(floats(&body[length..]), alone);
    let text = json!({ "name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["web server"] });
    front.post("/v2/models/embed/infer", "", &json!({ "inputs": [text] })).await;
    assert_eq!(expected(&front), alone);
    for (path, body, status, expected) in [
        ("/v2/models/rank/infer", &b"web server"[..], StatusCode::BAD_REQUEST, "a JSON header is needed"),
        ("/v2/models/embed/infer", b"", StatusCode::BAD_REQUEST, "empty"),
        ("/v2/models/embed/infer", b"\xff", StatusCode::BAD_REQUEST, "not UTF-8"),
        ("/v2/models/none/infer", b"web", StatusCode::NOT_FOUND, "no model 'none'"),
        ("/v2/models/embed/versions/2/infer", b"web", StatusCode::NOT_FOUND, "no version '2'"),
    ] {
        let (found, _, answer) = send(&front, path, Some("0"), body.to_vec()).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(found == status && answer.contains(expected), "{path} {body:?}: {found} {answer}");
    }
}

/// Numbers take more bytes in JSON than they have.
#[tokio::test]
async fn an_answer_is_as_long_as_it_is_in_json() {
    let front = Front::with(Limits { message: units::Bytes::kib(64), ..Limits::default() });
    let ids = vec![vec![5, 77]; 12];
    let asked = |binary: bool| {
        let ids = json!({ "name": "input_ids", "datatype": "INT64", "shape": [12, 2], "data": ids });
        json!({ "inputs": [ids], "parameters": { "binary_data_output": binary } })
    };
    let (status, answer) = front.post("/v2/models/wide/infer", "", &asked(false)).await;
    let told = answer["error"].as_str().unwrap();
    assert!(status == StatusCode::PAYLOAD_TOO_LARGE && told.contains("may have 64.0 KiB"), "{status} {told}");
    let (status, answer) = front.post("/v2/models/wide/infer", "", &asked(true)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    // One that is written by a thread of its own.
    let front = Front::new();
    let ids = json!({ "name": "input_ids", "datatype": "INT64", "shape": [100, 1], "data": vec![5; 100] });
    let (status, answer) = front.post("/v2/models/wide/infer", "", &json!({ "inputs": [ids] })).await;
    assert_eq!((status, numbers(&answer["outputs"][0]["data"]).len()), (StatusCode::OK, 100 * WIDE as usize));
}

#[tokio::test]
async fn the_server_and_its_models_are_described() {
    let front = Front::new();
    for (path, status, told) in [
        ("/v2/health/live", StatusCode::OK, json!({ "live": true })),
        ("/v2/health/ready", StatusCode::OK, json!({ "live": true, "ready": true })),
        ("/v2/models/embed/ready", StatusCode::OK, json!({ "name": "embed", "ready": true })),
        ("/v2/models/embed/versions/1/ready", StatusCode::OK, json!({ "name": "embed", "ready": true })),
        ("/v2/models/none/ready", StatusCode::SERVICE_UNAVAILABLE, json!({ "name": "none", "ready": false })),
        (
            "/v2/models/embed/versions/2/ready",
            StatusCode::SERVICE_UNAVAILABLE,
            json!({ "name": "embed", "ready": false }),
        ),
    ] {
        assert_eq!(front.get(path).await, (status, told), "{path}");
    }
    front.draining.send_replace(true);
    let not_ready = json!({ "live": true, "ready": false });
    assert_eq!(front.get("/v2/health/ready").await, (StatusCode::SERVICE_UNAVAILABLE, not_ready));
    front.draining.send_replace(false);
    let (_, server) = front.get("/v2").await;
    assert_eq!(server["name"], "plimsoll");
    assert_eq!(front.get("/v2/").await, (StatusCode::OK, server.clone()));
    assert!(server["extensions"].as_array().unwrap().contains(&json!("binary_tensor_data")));
    let (_, model) = front.get("/v2/models/embed").await;
    assert_eq!(model["inputs"], json!([{ "name": "TEXT", "datatype": "BYTES", "shape": [-1, 1] }]));
    assert_eq!(model["outputs"], json!([{ "name": "embedding", "datatype": "FP32", "shape": [-1, DIMENSIONS] }]));
    assert_eq!(model["properties"]["task"], "embed");
    let (_, config) = front.get("/v2/models/embed/config").await;
    assert_eq!(config["input"][0]["data_type"], "TYPE_STRING");
    assert_eq!(config["version_policy"], json!({ "specific": { "versions": [1] } }));
    assert!(config["max_batch_size"].as_i64().unwrap() > 0);
    let (_, one) = front.get("/v2/models/embed/stats").await;
    let (_, all) = front.get("/v2/models/stats").await;
    let count = |stats: &Value| stats["model_stats"].as_array().unwrap().len();
    assert!(count(&one) == 1 && count(&all) > 3, "{one} {all}");
    assert_eq!(one["model_stats"][0]["inference_stats"]["success"], json!({ "count": 0, "ns": 0 }));
    let (_, settings) = front.get("/v2/trace/setting").await;
    assert_eq!(settings["trace_level"], json!(["OFF"]));
    assert!(front.get("/v2/logging").await.1["log_error"].is_boolean());
    for off in [json!("OFF"), json!(["OFF"]), Value::Null] {
        let (status, told) = front.post("/v2/trace/setting", "", &json!({ "trace_level": off })).await;
        assert_eq!((status, told), (StatusCode::OK, settings.clone()), "{off}");
    }
    for other in
        [json!({ "trace_level": "TIMESTAMPS" }), json!({ "trace_level": ["OFF", "OFF"] }), json!({ "trace_rate": 1 })]
    {
        assert_eq!(front.post("/v2/trace/setting", "", &other).await.0, StatusCode::NOT_IMPLEMENTED, "{other}");
    }
    let (_, log) = front.get("/v2/logging").await;
    assert_eq!(front.post("/v2/logging", "", &log).await, (StatusCode::OK, log.clone()));
    let other = json!({ "log_info": !log["log_info"].as_bool().unwrap() });
    assert_eq!(front.post("/v2/logging", "", &other).await.0, StatusCode::NOT_IMPLEMENTED);
    for kind in ["systemsharedmemory", "cudasharedmemory"] {
        assert_eq!(front.get(&format!("/v2/{kind}/status")).await, (StatusCode::OK, json!([])));
        assert_eq!(front.post(&format!("/v2/{kind}/unregister"), "", &json!({})).await.0, StatusCode::OK);
        let refused = front.post(&format!("/v2/{kind}/region/a/register"), "", &json!({})).await;
        assert_eq!(refused.0, StatusCode::NOT_IMPLEMENTED);
    }
    for path in ["/v2/models/none", "/v2/models/none/config", "/v2/models/none/stats"] {
        assert_eq!(front.get(path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn the_repository_is_listed_loaded_and_unloaded() {
    let front = Front::new();
    let ready = |lines: &Value| lines.as_array().unwrap().iter().filter(|line| line["state"] == "READY").count();
    // Clients send nothing, or nothing in particular.
    let (status, _, _) = send(&front, "/v2/repository/models/embed/unload", None, Vec::new()).await;
    assert_eq!(status, StatusCode::OK);
    let (_, all) = front.post("/v2/repository/index", "", &json!({})).await;
    let (_, only) = front.post("/v2/repository/index", "", &json!({ "ready": true })).await;
    assert!(ready(&only) == only.as_array().unwrap().len() && ready(&all) < all.as_array().unwrap().len(), "{all}");
    let how = json!({ "parameters": { "unload_dependents": false } });
    assert_eq!(front.post("/v2/repository/models/embed/unload", "", &how).await.0, StatusCode::OK);
    assert_eq!(front.post("/v2/repository/models/embed/load", "", &json!({})).await.0, StatusCode::OK);
    assert_eq!(front.get("/v2/models/embed/ready").await.0, StatusCode::OK);
    let files = json!({ "parameters": { "config": "{}" } });
    assert_eq!(front.post("/v2/repository/models/embed/load", "", &files).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(front.post("/v2/repository/models/none/load", "", &json!({})).await.0, StatusCode::NOT_FOUND);
}
