//! A full queue: exactly the excess is refused, with a hint, by one rule for every kind of call.

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic_types::StatusExt;

use super::fake::FakeEngine;
use super::harness::{TestServer, assert_told, texts};
use crate::config::Truncate;
use crate::service::Limits;
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::proto::plimsoll::EmbedRequest;
use crate::service::proto::plimsoll::embed_client::EmbedClient;
use crate::service::request::Encoding;
use crate::service::tokenizer::Tokenizer;
use crate::units::Bytes;

#[tokio::test]
async fn case_20_exactly_the_excess_is_refused_with_a_hint() {
    let server = TestServer::start().await;
    server.engine.bound_queue(100);
    server.engine.hold();
    let mut calls = JoinSet::new();
    for _ in 0..160 {
        let mut client = server.oip();
        calls.spawn(async move { client.model_infer(texts("embed", &["web"])).await });
    }
    let mut refused = 0;
    while refused < 60 {
        let status = calls.join_next().await.unwrap().unwrap().unwrap_err();
        assert_told(&status, Code::ResourceExhausted, &["100 rows wait", "1 and 100 may wait"]);
        assert_eq!(status.get_details_retry_info().unwrap().retry_delay.unwrap().as_millis(), 250);
        refused += 1;
    }
    server.engine.rows_waiting(100).await;
    server.engine.release();
    assert!(calls.join_all().await.iter().all(Result::is_ok), "what was accepted is answered");
    assert_eq!(server.engine.ran(), 100);
}

#[tokio::test]
async fn case_20_unary_stream_and_client_batch_meet_the_same_rule() {
    let server = TestServer::start().await;
    server.engine.bound_queue(10);
    server.engine.hold();
    let filling = {
        let mut client = server.oip();
        tokio::spawn(async move { client.model_infer(texts("embed", &["web"; 10])).await })
    };
    server.engine.rows_waiting(10).await;
    let unary = server.infer(texts("embed", &["web"])).await.unwrap_err();
    assert_told(&unary, Code::ResourceExhausted, &["10 rows wait", "has 1 and"]);
    let batch = EmbedRequest { model: "embed".into(), texts: vec!["web".into(); 4], ..EmbedRequest::default() };
    let batch = EmbedClient::new(server.channel.clone()).embed(batch).await.unwrap_err();
    assert_told(&batch, Code::ResourceExhausted, &["10 rows wait", "has 4 and"]);
    let (sender, receiver) = mpsc::channel(1);
    sender.send(texts("embed", &["web"])).await.unwrap();
    let mut stream = server.oip().model_stream_infer(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let answer = stream.next().await.unwrap().unwrap();
    assert!(answer.error_message.starts_with("ResourceExhausted"), "{}", answer.error_message);
    assert_eq!(answer.error_message, format!("ResourceExhausted: {}", unary.message()));
    server.engine.release();
    filling.await.unwrap().unwrap();
}

#[tokio::test]
async fn rows_that_wait_for_the_tokenizer_are_bounded() {
    let server = TestServer::with(Limits { tokenizer_rows: 4, ..Limits::default() }).await;
    server.infer(texts("embed", &["web"; 4])).await.unwrap();
    let status = server.infer(texts("embed", &["web"; 5])).await.unwrap_err();
    assert_told(&status, Code::ResourceExhausted, &["0 rows wait", "5 and 4 may wait"]);
    assert!(status.get_details_retry_info().is_some());
    server.infer(texts("embed", &["web"; 4])).await.unwrap();
}

#[tokio::test]
async fn bytes_that_wait_for_the_tokenizer_are_bounded() {
    let bytes = |kib| Limits { tokenizer_bytes: Bytes::kib(kib), message: Bytes::kib(kib), ..Limits::default() };
    let tokenizer = Tokenizer::new(&bytes(4)).unwrap();
    let card = FakeEngine::new().find("rank").unwrap().definition.clone().unwrap().card.clone();
    let encoding = Encoding::new(Truncate::End, "texts");
    let (query, long) = ("web ".repeat(512), vec!["web ".repeat(513)]);
    let problem = tokenizer.encode_pairs(&card, query.clone(), long, &encoding).await.unwrap_err();
    let full = Problem::TokenizerFull { unit: "bytes", waiting: 0, asked: 4100, limit: 4096 };
    assert_eq!(problem, full);
    // The query counts once, however many texts it is paired with.
    let texts = vec!["web ".to_owned(); 512];
    assert_eq!(tokenizer.encode_pairs(&card, query, texts, &encoding).await.unwrap().len(), 512);
    // What a message may hold has room in any case.
    let tokenizer = Tokenizer::new(&Limits { message: Bytes::kib(8), ..bytes(4) }).unwrap();
    let texts = vec!["web ".repeat(1024)];
    tokenizer.encode_pairs(&card, "web".to_owned(), texts, &encoding).await.unwrap();
}
