//! The HTTP interfaces, route by route.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::ServiceExt;

use super::fake::{Behaviour, DIMENSIONS, FakeEngine, HUB_ID, LABELS, vector};
use crate::admission::Rejection;
use crate::engine::Failure;
use crate::model::Wanted;
use crate::service::Limits;
use crate::service::context::Context;
use crate::service::http::router;
use crate::service::results;
use crate::telemetry::traces::Traces;
use crate::units::{Bytes, Micros};

pub(super) struct Front {
    pub(super) engine: FakeEngine,
    pub(super) draining: watch::Sender<bool>,
    pub(super) app: axum::Router,
}

impl Front {
    pub(super) fn new() -> Front {
        Front::with(Limits::default())
    }

    pub(super) fn with(limits: Limits) -> Front {
        Front::traced(limits, Traces::off())
    }

    pub(super) fn traced(limits: Limits, traces: Traces) -> Front {
        Front::over(FakeEngine::new(), limits, traces)
    }

    /// With these models only.
    pub(super) fn serving(names: &[&str]) -> Front {
        Front::over(FakeEngine::of(|name| names.contains(&name)), Limits::default(), Traces::off())
    }

    pub(super) fn over(engine: FakeEngine, limits: Limits, traces: Traces) -> Front {
        let (draining, is_draining) = watch::channel(false);
        let context = Context::new(engine.clone(), limits, traces, is_draining, None).unwrap();
        Front { engine, draining, app: router(Arc::new(context)) }
    }

    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        model: &str,
        body: String,
    ) -> (StatusCode, HeaderMap, Value) {
        let mut request = Request::builder().method(method).uri(path);
        if !model.is_empty() {
            request = request.header("model", model);
        }
        let response = self.app.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        (parts.status, parts.headers, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    pub(super) async fn post(&self, path: &str, model: &str, message: &Value) -> (StatusCode, Value) {
        let (status, _, answer) = self.call(Method::POST, path, model, message.to_string()).await;
        (status, answer)
    }

    /// The answer to what is in order.
    pub(super) async fn good(&self, path: &str, model: &str, message: Value) -> Value {
        let (status, answer) = self.post(path, model, &message).await;
        assert_eq!(status, StatusCode::OK, "{path} {message}: {answer}");
        answer
    }

    pub(super) async fn get(&self, path: &str) -> (StatusCode, Value) {
        let (status, _, answer) = self.call(Method::GET, path, "", String::new()).await;
        (status, answer)
    }

    /// The first row of the last request that the engine has seen.
    pub(super) fn last_row(&self) -> Vec<f32> {
        let mut values = vector(&self.engine.accepted().last().unwrap().rows[0], DIMENSIONS);
        results::normalize(&mut values);
        values
    }
}

pub(super) fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

#[tokio::test]
async fn embed_takes_one_several_and_token_ids() {
    let front = Front::new();
    let one = front.good("/embed", "embed", json!({"inputs": "web server"})).await;
    assert_eq!(floats(&one[0]), front.last_row());
    let named_by_path = front.good("/models/embed/embed", "", json!({"inputs": ["web server", "music"]})).await;
    assert_eq!((named_by_path.as_array().unwrap().len(), &named_by_path[0]), (2, &one[0]));
    let ids = front.good("/embed", "embed", json!({"inputs": [[2, 5, 3], [2, 9, 9, 3]]})).await;
    assert_eq!(ids.as_array().unwrap().len(), 2);
    assert_eq!(front.engine.accepted()[2].rows[1].ids, [2, 9, 9, 3]);
    let raw = json!({"inputs": [2, 5, 3], "normalize": false, "dimensions": 3});
    let raw = front.good("/embed", "embed", raw).await;
    assert_eq!(floats(&raw[0]), vector(&front.engine.accepted()[3].rows[0], DIMENSIONS)[..3]);
    let cut = |direction| json!({"inputs": format!("{}server", "web ".repeat(99)), "truncate": true, "truncation_direction": direction});
    let ends = [front.good("/embed", "embed", cut("left")).await, front.good("/embed", "embed", cut("Right")).await];
    assert_eq!(front.engine.accepted()[4].rows[0].ids.len(), 32);
    assert_ne!(front.engine.accepted()[4].rows, front.engine.accepted()[5].rows, "{ends:?}");
    // What a request leaves open the model's configuration says.
    let long = format!("{}server", "web ".repeat(99));
    front.good("/embed", "wide", json!({"inputs": long})).await;
    front.good("/embed", "wide", json!({"inputs": long, "truncate": true})).await;
    let refused = front.post("/embed", "wide", &json!({"inputs": long, "truncate": false})).await;
    assert_eq!(refused.0.as_u16(), 422, "{}", refused.1);
    let seen = front.engine.accepted();
    assert_eq!((&seen[6].rows, &seen[7].rows), (&seen[4].rows, &seen[5].rows));
}

#[tokio::test]
async fn what_is_wrong_is_told_by_its_name() {
    let front = Front::with(Limits { message: Bytes::kib(64), ..Limits::default() });
    let refused = async |path: &str, message: Value, status: u16, parts: &[&str]| {
        let (found, answer) = front.post(path, "embed", &message).await;
        let text = answer["error"].as_str().unwrap_or_else(|| panic!("{message}: {answer}"));
        assert_eq!(found.as_u16(), status, "{message}: {text}");
        parts.iter().for_each(|part| assert!(text.contains(part), "'{part}' is not in: {text}"));
        answer["error_type"].as_str().unwrap().to_owned()
    };
    assert_eq!(refused("/embed", json!({"inputs": "web", "normalise": true}), 422, &["normalise"]).await, "Validation");
    refused("/embed", json!({"inputs": 7}), 422, &["a text, a list of texts"]).await;
    refused("/embed", json!({"inputs": [2, 5, 3], "prompt_name": "query"}), 422, &["prompt_name", "token ids"]).await;
    refused("/embed", json!({"inputs": "web", "dimensions": 0}), 422, &["dimensions", "leave it out"]).await;
    refused("/models/%FF/embed", json!({"inputs": "web"}), 422, &["path", "not text"]).await;
    let long_name = json!({"inputs": "web", "x".repeat(2000): 1});
    assert!(front.post("/embed", "embed", &long_name).await.1["error"].as_str().unwrap().len() <= 512);
    refused("/embed", json!({"texts": "web"}), 422, &["texts", "inputs"]).await;
    assert_eq!(refused("/embed", json!({"inputs": []}), 400, &["inputs", "no rows"]).await, "Empty");
    refused("/embed", json!({"inputs": ["web", ""]}), 400, &["inputs[1]", "empty"]).await;
    refused("/embed", json!({"inputs": [[2, 3], []]}), 400, &["inputs[1]", "no tokens"]).await;
    refused("/tokenize", json!({"inputs": ""}), 400, &["inputs", "empty"]).await;
    refused("/embed", json!({"inputs": [[2, 1_000_000]]}), 422, &["inputs[0]", "1000000"]).await;
    refused("/embed", json!({"inputs": "web ".repeat(99)}), 422, &["101 tokens"]).await;
    refused("/embed", json!({"inputs": "web", "dimensions": 9}), 422, &["dimensions", "9"]).await;
    refused("/embed", json!({"inputs": "web", "truncation_direction": "up"}), 422, &["up"]).await;
    refused("/embed", json!({"inputs": "web ".repeat(20_000)}), 413, &["64"]).await;
    refused("/models/none/embed", json!({"inputs": "web"}), 404, &["'none'"]).await;
    assert_eq!(refused("/models/rank/embed", json!({"inputs": "web"}), 424, &["'rerank'"]).await, "Backend");
    refused("/predict", json!({"inputs": "web"}), 424, &["'embed'", "'classify'"]).await;
    let message = json!({"query": "", "texts": ["web", ""]});
    refused("/models/rank/rerank", message, 400, &["texts[1]", "both texts"]).await;
    refused("/embed_all", json!({"inputs": "web", "normalize": true}), 422, &["normalize"]).await;
    assert_eq!(refused("/embed_sparse", json!({}), 501, &["/embed"]).await, "Backend");
    let (status, answer) = front.post("/embed", "", &json!({"inputs": "web"})).await;
    assert_eq!(
        (status, answer["error"].as_str().unwrap().contains("embed, wide")),
        (StatusCode::UNPROCESSABLE_ENTITY, true)
    );
    let (status, _, answer) = front.call(Method::POST, "/embed", "embed", "{\"inputs\": ".to_owned()).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
    front.good("/embed", "embed", json!({"inputs": "web"})).await;
}

#[tokio::test]
async fn embed_all_gives_the_states_of_all_tokens() {
    let front = Front::new();
    let rows = front.good("/embed_all", "embed", json!({"inputs": ["web server", "music"]})).await;
    let seen = front.engine.accepted()[0].rows.clone();
    for (row, seen) in rows.as_array().unwrap().iter().zip(&seen) {
        let tokens: Vec<Vec<f32>> = row.as_array().unwrap().iter().map(floats).collect();
        assert_eq!((seen.wanted, tokens.len()), (Wanted::States, seen.ids.len()));
        assert!(tokens.iter().all(|token| token.len() == DIMENSIONS as usize));
        assert_eq!(tokens.concat(), vector(seen, DIMENSIONS));
    }
    // A list even of one.
    let one = front.good("/models/embed/embed_all", "", json!({"inputs": [2, 5, 3]})).await;
    assert_eq!((one.as_array().unwrap().len(), one[0].as_array().unwrap().len()), (1, 3));
    let cut = json!({"inputs": "web ".repeat(99), "truncate": true, "truncation_direction": "Left"});
    assert_eq!(front.good("/embed_all", "embed", cut).await[0].as_array().unwrap().len(), 32);
}

#[tokio::test]
async fn a_rejection_says_when_to_come_again() {
    let front = Front::new();
    let after = |millis| Failure::Rejected(Rejection::Loading { retry_after: Micros::millis(millis) });
    front.engine.behave(Behaviour::Fail(after(1_200)));
    let body = json!({"inputs": "web"}).to_string();
    let (status, headers, answer) = front.call(Method::POST, "/embed", "embed", body).await;
    assert_eq!((status, headers["retry-after"].as_bytes()), (StatusCode::SERVICE_UNAVAILABLE, &b"2"[..]));
    assert_eq!(answer["error_type"], "Unhealthy");
    let body = json!({"input": "web", "model": "embed"}).to_string();
    let (status, headers, answer) = front.call(Method::POST, "/v1/embeddings", "", body).await;
    assert_eq!((status, headers["retry-after"].as_bytes()), (StatusCode::SERVICE_UNAVAILABLE, &b"2"[..]));
    assert_eq!((&answer["error"]["type"], &answer["error"]["code"]), (&json!("server_error"), &json!("loading")));
}

#[tokio::test]
async fn predict_answers_in_the_form_that_was_asked() {
    let front = Front::new();
    let one = front.good("/predict", "", json!({"inputs": "web server", "raw_scores": true})).await;
    assert_eq!(one.as_array().unwrap().len(), LABELS.len());
    assert!(
        LABELS.contains(&one[0]["label"].as_str().unwrap()) && one[0]["score"].as_f64() >= one[1]["score"].as_f64()
    );
    let pair = front.good("/predict", "", json!({"inputs": ["web", "server"]})).await;
    assert!(pair[0]["score"].is_number() && front.engine.accepted()[1].rows[0].types.contains(&1));
    let several = front.good("/predict", "section", json!({"inputs": [["web server"], ["web", "server"]]})).await;
    assert_eq!((several.as_array().unwrap().len(), several[1][0]["score"].is_number()), (2, true));
    let only = front.good("/predict", "section", json!({"inputs": [["web server"]]})).await;
    assert_eq!(only[0].as_array().unwrap().len(), LABELS.len(), "a list of one is a list");
    front.good("/predict", "section", json!({"inputs": "web", "parameters": {}})).await;
    let (status, answer) = front.post("/predict", "", &json!({"inputs": "web", "parameters": {"top_k": 2}})).await;
    assert!(status == StatusCode::UNPROCESSABLE_ENTITY && answer["error"].as_str().unwrap().contains("top_k"));
    front.good("/predict", "section", json!({"inputs": [["", "server"], ["web", ""]]})).await;
    let (status, answer) = front.post("/predict", "", &json!({"inputs": [["a", "b", "c"]]})).await;
    assert!(status == StatusCode::UNPROCESSABLE_ENTITY && answer["error"].as_str().unwrap().contains("[text, text]"));
}

#[tokio::test]
async fn rerank_ranks_and_returns_texts_when_asked() {
    let front = Front::new();
    let texts = ["python json", "a small web server", "music player"];
    let plain = front.good("/rerank", "", json!({"query": "web", "texts": texts})).await;
    let scores: Vec<f64> = plain.as_array().unwrap().iter().map(|rank| rank["score"].as_f64().unwrap()).collect();
    assert!(scores.len() == 3 && scores.windows(2).all(|pair| pair[0] >= pair[1]) && plain[0].get("text").is_none());
    let told = front.good("/rerank", "", json!({"query": "web", "texts": texts, "return_text": true})).await;
    for rank in told.as_array().unwrap() {
        assert_eq!(rank["text"], texts[rank["index"].as_u64().unwrap() as usize]);
    }
    let best = front.good("/rerank", "", json!({"query": "web", "texts": texts, "top_n": 2})).await;
    assert_eq!(best.as_array().unwrap()[..], plain.as_array().unwrap()[..2]);
    let (status, answer) = front.post("/rerank", "", &json!({"query": "web", "texts": texts, "top_n": 0})).await;
    assert!(status == StatusCode::UNPROCESSABLE_ENTITY && answer["error"].as_str().unwrap().contains("top_n"));
    front.good("/rerank", "", json!({"query": "", "texts": ["web"]})).await;
    let body = json!({"query": "web", "texts": ["ab", "c"]}).to_string();
    let (_, headers, _) = front.call(Method::POST, "/rerank", "", body).await;
    assert_eq!(headers["x-compute-characters"], "9", "the query is read with each");
}

#[tokio::test]
async fn the_root_is_whatever_the_model_is_for() {
    let front = Front::new();
    let embedded = front.good("/", "embed", json!({"inputs": "web server"})).await;
    assert_eq!(floats(&embedded[0]), front.last_row());
    assert!(front.good("/models/section", "", json!({"inputs": "web"})).await[0]["label"].is_string());
    assert_eq!(front.good("/", "rank", json!({"query": "web", "texts": ["a"]})).await[0]["index"], 0);
    let (status, answer) = front.post("/", "rank", &json!({"inputs": "web"})).await;
    assert!(status == StatusCode::UNPROCESSABLE_ENTITY && answer["error"].as_str().unwrap().contains("inputs"));
}

#[tokio::test]
async fn tokens_are_shown_and_become_text_again() {
    let front = Front::new();
    let rows = front.good("/tokenize", "embed", json!({"inputs": ["web server", "web"]})).await;
    let expected = json!({"id": rows[0][1]["id"], "text": "web", "special": false, "start": 0, "stop": 3});
    assert_eq!((rows.as_array().unwrap().len(), &rows[0][1]), (2, &expected));
    assert_eq!((&rows[0][0]["special"], &rows[0][0]["start"]), (&json!(true), &Value::Null));
    let ids: Vec<&Value> = rows[0].as_array().unwrap().iter().map(|token| &token["id"]).collect();
    assert_eq!(front.good("/decode", "embed", json!({"ids": ids})).await, json!(["web server"]));
    let bare = json!({"inputs": "web", "add_special_tokens": false});
    assert_eq!(front.good("/tokenize", "embed", bare).await[0].as_array().unwrap().len(), 1);
    let front = Front::with(Limits { message: Bytes::kib(64), ..Limits::default() });
    let (status, answer) = front.post("/tokenize", "embed", &json!({"inputs": vec!["!".repeat(500); 100]})).await;
    assert_eq!((status, answer["error"].as_str().unwrap().contains("answer")), (StatusCode::PAYLOAD_TOO_LARGE, true));
    let (status, _) = front.post("/decode", "embed", &json!({"ids": [4_000_000]})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn info_and_health_say_how_it_is() {
    let front = Front::new();
    let (_, info) = front.get("/models/section/info").await;
    assert_eq!((&info["model_id"], &info["max_input_length"]), (&json!("section"), &json!(32)));
    assert_eq!(info["model_type"]["classifier"]["id2label"]["1"], LABELS[1]);
    let (_, info) = front.get("/models/embed/info").await;
    assert!(info["model_type"]["embedding"]["pooling"].is_string(), "{info}");
    assert_eq!((&info["model_dtype"], &info["model_sha"]), (&json!("float32"), &Value::Null));
    let (_, info) = front.get("/models/wide/info").await;
    assert_eq!((&info["model_id"], &info["served_model_name"]), (&json!(HUB_ID), &json!("wide")));
    assert_eq!((&info["model_dtype"], &info["model_sha"]), (&json!("float16"), &json!("v1")));
    assert_eq!(info["model_type"]["embedding"]["pooling"], "last_token");
    assert_eq!(front.get("/info").await.0, StatusCode::UNPROCESSABLE_ENTITY);
    for path in ["/health", "/ping", "/"] {
        front.draining.send_replace(false);
        let ready = front.get(path).await.0;
        front.draining.send_replace(true);
        assert_eq!((ready, front.get(path).await.0), (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE), "{path}");
    }
}

#[tokio::test]
async fn openais_embeddings_and_models() {
    let front = Front::new();
    let message = |format: &str| json!({"model": "embed", "input": ["web server", "music"], "encoding_format": format});
    let answer = front.good("/v1/embeddings", "", message("float")).await;
    assert_eq!(
        (&answer["object"], &answer["model"], &answer["data"][1]["index"]),
        (&json!("list"), &json!("embed"), &json!(1))
    );
    assert_eq!(answer["usage"], json!({"prompt_tokens": 7, "total_tokens": 7}));
    assert_eq!(floats(&answer["data"][0]["embedding"]), front.last_row());
    use base64::Engine;
    let coded = front.good("/v1/embeddings", "", message("base64")).await;
    let bytes = base64::prelude::BASE64_STANDARD.decode(coded["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let decoded: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(decoded, front.last_row());
    front
        .good("/v1/embeddings", "", json!({"model": "embed", "input": [2, 5, 3], "dimensions": 4, "user": "me"}))
        .await;

    let (status, answer) = front.post("/v1/embeddings", "", &json!({"model": "rank", "input": "web"})).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("model")));
    let (status, answer) = front.post("/v1/embeddings", "", &json!({"model": "none", "input": "web"})).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
    let many = json!({"model": "embed", "input": "web", "dimensions": "many"});
    let (status, answer) = front.post("/v1/embeddings", "", &many).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("dimensions")));
    let (status, answer) =
        front.post("/v1/embeddings", "", &json!({"model": "embed", "input": "web", "seed": 1})).await;
    let error = &answer["error"];
    assert_eq!((status, &error["type"]), (StatusCode::BAD_REQUEST, &json!("invalid_request_error")));
    assert!(error["message"].as_str().unwrap().contains("seed"), "{error}");
    let (status, answer) = front.post("/v1/embeddings", "", &json!({"model": "embed", "input": ["web", ""]})).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("input[1]")));

    let (_, models) = front.get("/v1/models").await;
    assert_eq!((models["data"].as_array().unwrap().len(), &models["data"][0]["id"]), (5, &json!("embed")));
    assert_eq!(front.get("/v1/models/rank").await.1["id"], "rank");
    assert_eq!(front.get("/v1/models/none").await.0, StatusCode::NOT_FOUND);
    let (_, models) = front.get("/models/rank/v1/models").await;
    assert_eq!((models["data"].as_array().unwrap().len(), &models["data"][0]["id"]), (1, &json!("rank")));
}
