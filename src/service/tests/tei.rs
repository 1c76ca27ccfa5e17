//! `tei.v1` over gRPC.

use tokio_stream::iter;
use tonic::{Code, Request};

use super::fake::{DIMENSIONS, HUB_ID, LABELS, vector};
use super::harness::{TestServer, assert_serves, assert_told};
use crate::model::Wanted;
use crate::service::proto::tei::embed_client::EmbedClient;
use crate::service::proto::tei::info_client::InfoClient;
use crate::service::proto::tei::predict_client::PredictClient;
use crate::service::proto::tei::rerank_client::RerankClient;
use crate::service::proto::tei::tokenize_client::TokenizeClient;
use crate::service::proto::tei::*;
use crate::service::results;

/// A call of the model of this name.
fn of<T>(model: &'static str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("model", model.parse().unwrap());
    request
}

fn text(inputs: &str) -> EmbedRequest {
    EmbedRequest { inputs: inputs.to_owned(), ..EmbedRequest::default() }
}

#[tokio::test]
async fn embed_normalizes_unless_told_otherwise_and_says_what_it_took() {
    let server = TestServer::start().await;
    let mut client = EmbedClient::new(server.channel.clone());
    let response = client.embed(of("embed", text("web server"))).await.unwrap().into_inner();
    let row = server.engine.accepted()[0].rows[0].clone();
    let mut expected = vector(&row, DIMENSIONS);
    let raw = expected.clone();
    results::normalize(&mut expected);
    assert_eq!(response.embeddings, expected);
    let told = response.metadata.unwrap();
    assert_eq!((told.compute_chars, told.compute_tokens as usize), (10, row.ids.len()));
    assert_eq!((told.queue_time_ns, told.inference_time_ns), (200_000, 700_000));
    assert!(told.total_time_ns > 0);
    let asked = EmbedRequest { normalize: Some(false), dimensions: Some(3), ..text("web server") };
    assert_eq!(client.embed(of("embed", asked)).await.unwrap().into_inner().embeddings, raw[..3]);
}

#[tokio::test]
async fn a_model_is_named_in_the_metadata_where_there_are_several() {
    let server = TestServer::start().await;
    let mut client = EmbedClient::new(server.channel.clone());
    let unnamed = client.embed(text("web")).await.unwrap_err();
    assert_told(&unnamed, Code::InvalidArgument, &["model", "embed, wide"]);
    assert_told(&client.embed(of("none", text("web"))).await.unwrap_err(), Code::NotFound, &["'none'"]);
    assert_told(&client.embed(of("rank", text("web"))).await.unwrap_err(), Code::InvalidArgument, &["'rerank'"]);
    // There is one reranker.
    let mut client = RerankClient::new(server.channel.clone());
    let request = RerankRequest { query: "web".to_owned(), texts: vec!["server".to_owned()], ..Default::default() };
    client.rerank(request).await.unwrap();
}

#[tokio::test]
async fn what_a_field_cannot_say_is_refused_by_its_name() {
    let server = TestServer::start().await;
    let mut client = EmbedClient::new(server.channel.clone());
    let mut refused = async |request: EmbedRequest, parts: &[&str]| {
        assert_told(&client.embed(of("embed", request)).await.unwrap_err(), Code::InvalidArgument, parts);
    };
    let good = || text("web");
    refused(EmbedRequest { truncation_direction: 7, ..good() }, &["truncation_direction", "7"]).await;
    refused(EmbedRequest { prompt_name: Some("nobody".to_owned()), ..good() }, &["prompt_name", "'nobody'"]).await;
    refused(EmbedRequest { dimensions: Some(9), ..good() }, &["dimensions", "9"]).await;
    refused(text(""), &["inputs[0]", "empty"]).await;
    refused(text(&"web ".repeat(100)), &["102 tokens", "32"]).await;
    let cut = |direction: TruncationDirection| EmbedRequest {
        truncate: true,
        truncation_direction: direction.into(),
        ..text(&format!("{}server", "web ".repeat(100)))
    };
    client.embed(of("embed", cut(TruncationDirection::Right))).await.unwrap();
    client.embed(of("embed", cut(TruncationDirection::Left))).await.unwrap();
    let seen = server.engine.accepted();
    assert_eq!(seen.iter().map(|call| call.rows[0].ids.len()).collect::<Vec<_>>(), [32, 32]);
    assert_ne!(seen[0].rows, seen[1].rows, "the end and the beginning are left out");
    let sparse = client.embed_sparse(EmbedSparseRequest::default()).await.unwrap_err();
    assert_told(&sparse, Code::Unimplemented, &["Embed"]);
    assert_serves(&server).await;
}

#[tokio::test]
async fn embed_all_gives_the_states_of_all_tokens() {
    let server = TestServer::start().await;
    let mut client = EmbedClient::new(server.channel.clone());
    let all = |inputs: &str| EmbedAllRequest { inputs: inputs.to_owned(), ..EmbedAllRequest::default() };
    let asked = client.embed_all(of("embed", all("web server"))).await.unwrap().into_inner();
    let row = server.engine.accepted()[0].rows[0].clone();
    assert_eq!((row.wanted, row.ids.len()), (Wanted::States, 4));
    let found: Vec<Vec<f32>> = asked.token_embeddings.into_iter().map(|token| token.embeddings).collect();
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [DIMENSIONS as usize; 4], "not scaled or pooled");
    assert_eq!(found.concat(), vector(&row, DIMENSIONS));
    assert_eq!(asked.metadata.unwrap().compute_tokens, 4);
    let messages: Vec<EmbedAllRequest> = (1..9).map(|count| all(&"web ".repeat(count))).collect();
    let mut answers = client.embed_all_stream(of("embed", iter(messages))).await.unwrap().into_inner();
    for count in 1..9 {
        assert_eq!(answers.message().await.unwrap().unwrap().token_embeddings.len(), count + 2);
    }
    assert!(answers.message().await.unwrap().is_none());
    let mut refused = async |model: &'static str, request: EmbedAllRequest, parts: &[&str]| {
        assert_told(&client.embed_all(of(model, request)).await.unwrap_err(), Code::InvalidArgument, parts);
    };
    refused("section", all("web"), &["'classify'"]).await;
    refused("embed", all(&"web ".repeat(100)), &["102 tokens", "32"]).await;
    refused("embed", EmbedAllRequest { truncation_direction: 7, ..all("web") }, &["truncation_direction"]).await;
}

#[tokio::test]
async fn a_stream_answers_in_order_and_ends_with_the_first_failure() {
    let server = TestServer::start().await;
    let mut client = EmbedClient::new(server.channel.clone());
    let texts: Vec<String> = (1..20).map(|count| "web ".repeat(count)).collect();
    let messages: Vec<EmbedRequest> = texts.iter().map(|one| text(one)).collect();
    let mut answers = client.embed_stream(of("embed", iter(messages))).await.unwrap().into_inner();
    for count in 1..20 {
        let told = answers.message().await.unwrap().unwrap().metadata.unwrap();
        assert_eq!(told.compute_tokens, count + 2);
    }
    assert!(answers.message().await.unwrap().is_none());
    let messages = ["web", "", "web"].map(text);
    let mut answers = client.embed_stream(of("embed", iter(messages))).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().is_some());
    assert_told(&answers.message().await.unwrap_err(), Code::InvalidArgument, &["inputs[0]", "empty"]);
}

#[tokio::test]
async fn predict_names_labels_best_first_for_texts_and_for_pairs() {
    let server = TestServer::start().await;
    let mut client = PredictClient::new(server.channel.clone());
    let request = PredictRequest { inputs: "web server".to_owned(), raw_scores: true, ..Default::default() };
    let raw = client.predict(request.clone()).await.unwrap().into_inner().predictions;
    let scores = vector(&server.engine.accepted()[0].rows[0], LABELS.len() as u32);
    assert_eq!(raw.len(), LABELS.len());
    assert!(raw.windows(2).all(|pair| pair[0].score >= pair[1].score));
    for prediction in &raw {
        let index = LABELS.iter().position(|label| *label == prediction.label).unwrap();
        assert_eq!(prediction.score, scores[index]);
    }
    let likely = client.predict(PredictRequest { raw_scores: false, ..request }).await.unwrap().into_inner();
    assert!((likely.predictions.iter().map(|one| one.score).sum::<f32>() - 1.0).abs() < 1e-6);
    let pair = |inputs: &[&str]| PredictPairRequest {
        inputs: inputs.iter().map(|text| (*text).to_owned()).collect(),
        ..PredictPairRequest::default()
    };
    client.predict_pair(pair(&["web", "server"])).await.unwrap();
    let seen = server.engine.accepted();
    assert!(seen[2].rows[0].types.contains(&1), "a pair has two types");
    let three = client.predict_pair(pair(&["web", "server", "more"])).await.unwrap_err();
    assert_told(&three, Code::InvalidArgument, &["inputs", "2 texts, not 3"]);
    let one = client.predict_pair(pair(&["web server"])).await.unwrap().into_inner();
    assert_eq!(one.predictions, likely.predictions, "it is a text");
    client.predict_pair(pair(&["web", ""])).await.unwrap();
    for none in [pair(&[]), pair(&["", ""])] {
        assert_told(&client.predict_pair(none).await.unwrap_err(), Code::InvalidArgument, &["inputs"]);
    }
}

#[tokio::test]
async fn rerank_returns_texts_when_asked_and_takes_them_one_by_one() {
    let server = TestServer::start().await;
    let mut client = RerankClient::new(server.channel.clone());
    let texts = ["python json", "a small web server", "music player"].map(str::to_owned).to_vec();
    let request = RerankRequest { query: "web".to_owned(), texts: texts.clone(), ..RerankRequest::default() };
    let plain = client.rerank(request.clone()).await.unwrap().into_inner().ranks;
    assert!(plain.iter().all(|rank| rank.text.is_none() && (0.0..=1.0).contains(&rank.score)));
    let told = client.rerank(RerankRequest { return_text: true, ..request }).await.unwrap().into_inner().ranks;
    assert!(told.iter().all(|rank| rank.text.as_ref() == Some(&texts[rank.index as usize])));
    let message = |query: &str, text: &String| RerankStreamRequest {
        query: query.to_owned(),
        text: text.clone(),
        ..RerankStreamRequest::default()
    };
    let messages: Vec<_> = texts.iter().map(|text| message("web", text)).collect();
    let streamed = client.rerank_stream(iter(messages.clone())).await.unwrap().into_inner().ranks;
    assert_eq!(streamed, plain);
    let mut mixed = messages;
    mixed[2].query = "music".to_owned();
    assert_told(&client.rerank_stream(iter(mixed)).await.unwrap_err(), Code::InvalidArgument, &["query", "message 2"]);
    let mut mixed: Vec<_> = texts.iter().map(|text| message("", text)).collect();
    mixed[0].query = "web".to_owned();
    mixed[1].truncate = true;
    assert_told(
        &client.rerank_stream(iter(mixed)).await.unwrap_err(),
        Code::InvalidArgument,
        &["truncate", "message 1"],
    );
    let none = client.rerank_stream(iter([])).await.unwrap_err();
    assert_told(&none, Code::InvalidArgument, &["no messages"]);
}

#[tokio::test]
async fn tokens_are_shown_and_become_text_again() {
    let server = TestServer::start().await;
    let mut client = TokenizeClient::new(server.channel.clone());
    let request = EncodeRequest { inputs: "web server".to_owned(), add_special_tokens: true, prompt_name: None };
    let tokens = client.tokenize(of("embed", request)).await.unwrap().into_inner().tokens;
    assert!(tokens[0].special && tokens[0].start.is_none());
    assert_eq!((tokens[1].text.as_str(), tokens[1].start, tokens[1].stop), ("web", Some(0), Some(3)));
    let ids = tokens.iter().map(|token| token.id).collect();
    let decode = DecodeRequest { ids, skip_special_tokens: true };
    assert_eq!(client.decode(of("embed", decode)).await.unwrap().into_inner().text, "web server");
    let unknown = DecodeRequest { ids: vec![1 << 30], skip_special_tokens: false };
    assert_told(&client.decode(of("embed", unknown)).await.unwrap_err(), Code::InvalidArgument, &["ids"]);
}

#[tokio::test]
async fn info_says_the_limits() {
    let server = TestServer::start().await;
    let mut client = InfoClient::new(server.channel.clone());
    let info = client.info(of("section", InfoRequest {})).await.unwrap().into_inner();
    assert_eq!((info.model_id.as_str(), info.model_type()), ("section", ModelType::Classifier));
    assert_eq!((info.max_input_length, info.max_batch_requests), (32, Some(32)));
    assert_eq!((info.version.as_str(), info.model_sha), (env!("CARGO_PKG_VERSION"), None));
    let info = client.info(of("wide", InfoRequest {})).await.unwrap().into_inner();
    let found = (info.model_id.as_str(), info.model_sha.as_deref(), info.model_dtype.as_str());
    assert_eq!(found, (HUB_ID, Some("v1"), "float16"));
    assert_told(&client.info(InfoRequest {}).await.unwrap_err(), Code::InvalidArgument, &["name one of", "section"]);
}
