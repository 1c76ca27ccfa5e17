//! What clients of text-embeddings-inference and of OpenAI's interface rely on beside the routes themselves.

use axum::http::{Method, StatusCode};
use serde_json::json;

use super::fake::{DIMENSIONS, HUB_ID, LENGTH_MAX, PROMPTED, vector};
use super::http::{Front, floats};
use crate::service::results;

#[tokio::test]
async fn headers_say_what_a_call_took() {
    let front = Front::new();
    for (path, message, characters, tokens) in [
        ("/embed", json!({"inputs": "web"}), "3", "3"),
        ("/embed", json!({"inputs": [[2, 5, 3], [2, 3]]}), "5", "5"),
        ("/embed_all", json!({"inputs": "web"}), "3", "3"),
        ("/v1/embeddings", json!({"input": "web"}), "3", "3"),
        ("/similarity", json!({"inputs": {"source_sentence": "web", "sentences": ["web"]}}), "6", "6"),
    ] {
        let (_, headers, answer) = front.call(Method::POST, path, "embed", message.to_string()).await;
        assert!(headers.contains_key("x-compute-tokens"), "{path}: {answer}");
        assert_eq!(headers["x-compute-characters"], characters, "{path}");
        assert_eq!(headers["x-compute-tokens"], tokens, "{path}");
        assert_eq!(headers["x-compute-type"], "cpu");
        for name in ["x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"] {
            headers[name].to_str().unwrap().parse::<u64>().unwrap();
        }
    }
}

#[tokio::test]
async fn what_changes_nothing_may_be_there() {
    let front = Front::new();
    for (path, message) in [
        ("/models/embed/embed", json!({"inputs": "web"})),
        ("/models/embed/embed_all", json!({"inputs": "web"})),
        ("/models/section/predict", json!({"inputs": "web"})),
        ("/models/rank/rerank", json!({"query": "web", "texts": ["a"]})),
        ("/models/embed/tokenize", json!({"inputs": "web"})),
        ("/models/embed/decode", json!({"ids": [5]})),
        ("/models/embed/similarity", json!({"inputs": {"source_sentence": "web", "sentences": ["a"]}})),
    ] {
        for (name, value) in [
            ("options", json!({"wait_for_model": true, "use_cache": {}})),
            ("options", json!(null)),
            ("parameters", json!({})),
            ("parameters", json!(null)),
        ] {
            let mut message = message.clone();
            message[name] = value;
            front.good(path, "", message).await;
        }
        let mut message = message.clone();
        message["parameters"] = json!({"top_k": 2});
        let (status, answer) = front.post(path, "", &message).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{path}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains("top_k"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn token_ids_are_cut_where_a_text_would_be() {
    let front = Front::new();
    let (most, ids) = (LENGTH_MAX as usize, (0..40).collect::<Vec<u32>>());
    let rows = || front.engine.accepted().last().unwrap().rows[0].ids.clone();
    front.good("/embed", "embed", json!({"inputs": [ids], "truncate": true})).await;
    assert_eq!(rows(), ids[..most]);
    front.good("/embed_all", "embed", json!({"inputs": ids, "truncate": true, "truncation_direction": "left"})).await;
    assert_eq!(rows(), ids[ids.len() - most..]);
    // What a request leaves open the model's configuration says.
    front.good("/v1/embeddings", "wide", json!({"input": ids})).await;
    assert_eq!(rows(), ids[ids.len() - most..]);
    front.good("/embed", "embed", json!({"inputs": [2, 5, 3], "truncate": true})).await;
    assert_eq!(rows(), [2, 5, 3]);
    let (status, answer) = front.post("/embed", "embed", &json!({"inputs": ids})).await;
    assert_eq!((status, &answer["error_type"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("Validation")));
}

#[tokio::test]
async fn an_empty_prompt_name_is_no_prompt() {
    let front = Front::serving(&[PROMPTED]);
    let tokens = async |message| {
        front.good("/embed", "", message).await;
        front.engine.accepted().last().unwrap().rows[0].ids.len()
    };
    let with = tokens(json!({"inputs": "web"})).await;
    assert_eq!(tokens(json!({"inputs": "web", "prompt_name": null})).await, with);
    assert_eq!(tokens(json!({"inputs": "web", "prompt_name": "query"})).await, with);
    assert_eq!(tokens(json!({"inputs": "web", "prompt_name": ""})).await, 3);
    // Ids are taken as they are.
    assert_eq!(tokens(json!({"inputs": [2, 5, 3]})).await, 3);
    assert_eq!(tokens(json!({"inputs": [2, 5, 3], "prompt_name": ""})).await, 3);
    let pieces = async |message| front.good("/tokenize", "", message).await[0].as_array().unwrap().len();
    assert_eq!(pieces(json!({"inputs": "web"})).await, with);
    assert_eq!(pieces(json!({"inputs": "web", "prompt_name": ""})).await, 3);
}

#[tokio::test]
async fn sentences_are_compared() {
    let front = Front::new();
    let inputs = json!({"source_sentence": "web server", "sentences": ["web server", "music player"]});
    let found = front.good("/similarity", "embed", json!({"inputs": inputs})).await;
    let rows = front.engine.accepted()[0].rows.clone();
    let vectors: Vec<_> = rows.iter().map(|row| vector(row, DIMENSIONS)).collect();
    let expected: Vec<f32> = vectors[1..].iter().map(|other| results::cosine(&vectors[0], other)).collect();
    assert_eq!(floats(&found), expected);
    assert!((expected[0] - 1.0).abs() < 1e-6 && expected[1] < 1.0);
    // The root takes it too, as that of an embedder.
    for path in ["/", "/invocations"] {
        assert_eq!(front.good(path, "embed", json!({"inputs": inputs, "parameters": {"truncate": true}})).await, found);
    }
    let long = json!({"inputs": {"source_sentence": "web", "sentences": ["web ".repeat(99)]}});
    assert_eq!(front.post("/similarity", "embed", &long).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    let mut cut = long;
    cut["parameters"] = json!({"truncate": true, "truncation_direction": "Left", "prompt_name": "query"});
    front.good("/similarity", "embed", cut).await;
    for (inputs, part) in [
        (json!({"source_sentence": "web", "sentences": []}), "inputs.sentences"),
        (json!({"source_sentence": "", "sentences": ["web"]}), "inputs.source_sentence"),
        (json!({"source_sentence": "web", "sentences": ["web", ""]}), "inputs.sentences[1]"),
    ] {
        let (status, answer) = front.post("/similarity", "embed", &json!({"inputs": inputs})).await;
        assert_eq!((status, &answer["error_type"]), (StatusCode::BAD_REQUEST, &json!("Empty")), "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(part), "{answer}");
    }
    let (status, answer) = front.post("/", "embed", &json!({"inputs": {"source_sentence": "web"}})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(answer["error"].as_str().unwrap().contains("sentences"), "{answer}");
    assert_eq!(front.post("/similarity", "rank", &json!({"inputs": inputs})).await.0, StatusCode::FAILED_DEPENDENCY);
}

#[tokio::test]
async fn a_model_has_its_full_id_too() {
    let front = Front::new();
    let body = json!({"model": HUB_ID, "input": "web"});
    assert_eq!(front.good("/v1/embeddings", "", body).await["model"], "wide");
    front.good("/embed", HUB_ID, json!({"inputs": "web"})).await;
    assert_eq!(front.get("/v1/models/acme%2Fwide-v1").await.1["id"], "wide");
    assert_eq!(front.get("/models/acme%2Fwide-v1/info").await.1["served_model_name"], "wide");
    let (status, answer) = front.post("/v1/embeddings", "", &json!({"model": "acme/none", "input": "web"})).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
}

#[tokio::test]
async fn any_name_is_that_of_the_only_embedder() {
    let front = Front::serving(&["embed", "rank"]);
    for model in [json!(null), json!(""), json!("text-embedding-3-small"), json!("embed")] {
        let answer = front.good("/v1/embeddings", "", json!({"model": model, "input": "web"})).await;
        assert_eq!(answer["model"], "embed");
    }
    assert_eq!(front.good("/embeddings", "", json!({"input": "web"})).await["model"], "embed");
    let (status, answer) = front.post("/v1/embeddings", "", &json!({"model": "rank", "input": "web"})).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("model")));
    // Where there are several it has to be known, but for a path or a header, which go before it.
    let front = Front::new();
    let unknown = json!({"model": "text-embedding-3-small", "input": "web"});
    assert_eq!(front.post("/v1/embeddings", "", &unknown).await.0, StatusCode::NOT_FOUND);
    assert_eq!(front.good("/v1/embeddings", "wide", unknown.clone()).await["model"], "wide");
    assert_eq!(front.good("/models/embed/v1/embeddings", "", unknown.clone()).await["model"], "embed");
    assert_eq!(front.good("/models/embed/embeddings", "", unknown).await["model"], "embed");
    let (status, answer) = front.post("/v1/embeddings", "", &json!({"input": "web"})).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("model")));
}
