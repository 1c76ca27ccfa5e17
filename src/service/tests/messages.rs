//! Message sizes and compression: up to the limit everything passes, beyond it the status names the limit, and the
//! connection stays usable.

use std::time::Duration;

use prost::Message;
use tonic::codec::CompressionEncoding;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use super::fake::WIDE;
use super::harness::{TestServer, assert_serves, assert_told, raw_i64, tensor, texts, token_ids, typed_texts};
use crate::service::Limits;
use crate::service::proto::inference::{ModelInferRequest, ModelInferResponse};
use crate::service::proto::plimsoll::embed_client::EmbedClient;
use crate::service::proto::plimsoll::{EmbedRequest, TokenIds};
use crate::units::Bytes;

const MIB: usize = 1 << 20;

/// A good request whose message has exactly so many bytes: long padded rows, and an id that fills what is left.
fn of_size(bytes: usize) -> ModelInferRequest {
    let (rows, real) = (8, 6);
    let length = (bytes - 64 * 1024) / (2 * 8 * rows);
    let row = |value: i64| (0..length).map(move |at| if at < real { value } else { 0 });
    let ids: Vec<i64> = (0..rows as i64).flat_map(|at| row(at + 5)).collect();
    let mask: Vec<i64> = (0..rows).flat_map(|_| row(1)).collect();
    let shape = [rows as i64, length as i64];
    let mut request = ModelInferRequest {
        model_name: "embed".to_owned(),
        inputs: vec![tensor("input_ids", "INT64", &shape), tensor("attention_mask", "INT64", &shape)],
        raw_input_contents: vec![raw_i64(&ids), raw_i64(&mask)],
        ..ModelInferRequest::default()
    };
    // One byte of tag and three of length stand before an id of this size.
    request.id = "x".repeat(bytes - request.encoded_len() - 4);
    assert_eq!(request.encoded_len(), bytes);
    request
}

#[tokio::test]
async fn case_31_requests_pass_up_to_the_limit_and_no_further() {
    let server = TestServer::start().await;
    let limit = 64 * MIB;
    for bytes in [39 * MIB / 10, 41 * MIB / 10, limit] {
        let response = server.infer(of_size(bytes)).await.unwrap();
        assert_eq!(response.outputs[0].shape[0], 8, "{bytes} bytes");
    }
    for bytes in [limit + 1, 80 * MIB] {
        let status = server.infer(of_size(bytes)).await.unwrap_err();
        assert_told(&status, Code::OutOfRange, &[&format!("{bytes} bytes"), "67108864", "64.0 MiB"]);
        assert_serves(&server).await;
    }
}

/// A message of half a mebibyte that would become sixty.
#[tokio::test]
async fn a_message_of_many_empty_fields_is_refused_before_it_is_read() {
    let server = TestServer::start().await;
    let inputs = vec![Default::default(); 1 << 18];
    let request = ModelInferRequest { model_name: "embed".to_owned(), inputs, ..ModelInferRequest::default() };
    let status = server.infer(request).await.unwrap_err();
    assert_told(&status, Code::InvalidArgument, &["message", "131072 fields"]);
    let own = EmbedRequest { model: "embed".to_owned(), texts: vec![String::new(); 1 << 18], ..Default::default() };
    let status = EmbedClient::new(server.channel.clone()).embed(own).await.unwrap_err();
    assert_told(&status, Code::InvalidArgument, &["message", "131072 fields"]);
    assert_serves(&server).await;
}

/// A client that has begun to send and does not go on.
#[tokio::test]
async fn a_message_that_does_not_come_is_not_waited_for() {
    let message_time = Duration::from_millis(300);
    let server = TestServer::with(Limits { message_time, ..Limits::default() }).await;
    let mut client = tonic::client::Grpc::new(server.channel.clone());
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/inference.GRPCInferenceService/ModelInfer");
    let codec = ProstCodec::<ModelInferRequest, ModelInferResponse>::default();
    let never = Request::new(tokio_stream::pending::<ModelInferRequest>());
    let status = client.client_streaming(never, path, codec).await.unwrap_err();
    assert_told(&status, Code::DeadlineExceeded, &["the message was not there in time"]);
    // What takes long otherwise is not that.
    server.engine.hold();
    let slow = tokio::spawn({
        let mut client = server.oip();
        async move { client.model_infer(texts("embed", &["web"])).await }
    });
    server.engine.rows_waiting(1).await;
    tokio::time::sleep(message_time * 2).await;
    server.engine.release();
    slow.await.unwrap().unwrap();
}

/// One that would become a hundred times as much: the fields are those of a message within.
#[tokio::test]
async fn fields_of_messages_within_are_counted() {
    let server = TestServer::start().await;
    let many = typed_texts("embed", &vec![""; 1 << 18]);
    let mut zipped = server.oip().send_compressed(CompressionEncoding::Gzip);
    let status = zipped.model_infer(many.clone()).await.unwrap_err();
    assert_told(&status, Code::InvalidArgument, &["message", "131072 fields"]);
    let mut streams = zipped.model_stream_infer(tokio_stream::iter([many])).await.unwrap().into_inner();
    let status = streams.message().await.unwrap_err();
    assert_told(&status, Code::InvalidArgument, &["message", "131072 fields"]);
    assert_serves(&server).await;
}

#[tokio::test]
async fn case_31_a_smaller_limit_is_named_in_both_directions() {
    let server = TestServer::with(Limits { message: Bytes::kib(100), request_rows: 1000, ..Limits::default() }).await;
    let status = server.infer(of_size(MIB)).await.unwrap_err();
    assert_told(&status, Code::OutOfRange, &["1048576 bytes", "102400", "100 KiB"]);
    // 50 rows of 1,024 numbers are 200 KiB. The refusal costs no step.
    let ids = |rows: usize| vec![5; rows];
    let status = server.infer(token_ids("wide", 50, &ids(50))).await.unwrap_err();
    assert_told(&status, Code::OutOfRange, &["200 KiB", "100 KiB"]);
    let tokens = vec![TokenIds { ids: vec![5] }; 50];
    let own = EmbedRequest { model: "wide".to_owned(), tokens, ..EmbedRequest::default() };
    let status = EmbedClient::new(server.channel.clone()).embed(own).await.unwrap_err();
    assert_told(&status, Code::OutOfRange, &["200 KiB", "100 KiB"]);
    assert_eq!(server.engine.ran(), 0);
    // 25 rows are exactly 100 KiB of numbers; with what surrounds them they are too large, which only shows at the end.
    let status = server.infer(token_ids("wide", 25, &ids(25))).await.unwrap_err();
    assert_told(&status, Code::OutOfRange, &["100 KiB"]);
    server.infer(token_ids("wide", 24, &ids(24))).await.unwrap();
}

#[tokio::test]
async fn case_31_large_answers_arrive_whole_or_are_refused_at_once() {
    let server = TestServer::with(Limits { request_rows: 100_000, ..Limits::default() }).await;
    let rows = 16_000;
    let ids: Vec<i64> = (0..rows).map(|row| row % 90 + 1).collect();
    let response = server.infer(token_ids("wide", rows as usize, &ids)).await.unwrap();
    assert_eq!(response.raw_output_contents[0].len(), rows as usize * WIDE as usize * 4);
    let status = server.infer(token_ids("wide", 100_000, &vec![5; 100_000])).await.unwrap_err();
    assert_told(&status, Code::OutOfRange, &["391 MiB", "64.0 MiB", "fewer rows"]);
    assert_eq!(server.engine.ran(), 1);
    assert_serves(&server).await;
}

#[tokio::test]
async fn compression_is_answered_in_kind() {
    let server = TestServer::start().await;
    for (encoding, name) in [
        (CompressionEncoding::Gzip, "gzip"),
        (CompressionEncoding::Zstd, "zstd"),
        (CompressionEncoding::Deflate, "deflate"),
    ] {
        let mut client = server.oip().send_compressed(encoding).accept_compressed(encoding);
        let response = client.model_infer(texts("embed", &["web"; 50])).await.unwrap();
        assert_eq!(response.metadata().get("grpc-encoding").unwrap(), name);
        assert_eq!(response.into_inner().outputs[0].shape[0], 50);
    }
    // Of what a client can read it is given what it uses itself.
    let client = server.oip().send_compressed(CompressionEncoding::Gzip);
    let client = client.accept_compressed(CompressionEncoding::Deflate);
    let mut client = client.accept_compressed(CompressionEncoding::Gzip);
    let response = client.model_infer(texts("embed", &["web"; 50])).await.unwrap();
    assert_eq!(response.metadata().get("grpc-encoding").unwrap(), "gzip");
    // A client that merely could read gzip is not made to.
    let mut client = server.oip().accept_compressed(CompressionEncoding::Gzip);
    let response = client.model_infer(texts("embed", &["web"; 50])).await.unwrap();
    assert!(response.metadata().get("grpc-encoding").is_none());
}

#[tokio::test]
async fn a_small_message_that_unpacks_beyond_the_limit_is_refused() {
    let server = TestServer::with(Limits { message: Bytes::mib(1), ..Limits::default() }).await;
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Zstd, CompressionEncoding::Deflate] {
        let mut client = server.oip().send_compressed(encoding);
        let status = client.model_infer(of_size(8 * MIB)).await.unwrap_err();
        assert_told(&status, Code::OutOfRange, &["1048576", "1.00 MiB"]);
        assert_serves(&server).await;
    }
}
