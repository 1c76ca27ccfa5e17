//! ModelStreamInfer.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};
use tonic_types::StatusExt;

use super::harness::{TestServer, assert_serves, assert_told, texts};
use crate::service::Limits;
use crate::service::proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use crate::service::proto::inference::infer_parameter::ParameterChoice;
use crate::service::proto::inference::{ModelInferRequest, ModelStreamInferResponse};
use crate::service::proto::tei::RerankStreamRequest;
use crate::service::proto::tei::rerank_client::RerankClient;
use crate::units::Bytes;

type Requests = mpsc::Sender<ModelInferRequest>;

async fn open(server: &TestServer) -> (Requests, Streaming<ModelStreamInferResponse>) {
    let (sender, receiver) = mpsc::channel(64);
    let answers = server.oip().model_stream_infer(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    (sender, answers)
}

fn numbered(number: usize, text: &str) -> ModelInferRequest {
    ModelInferRequest { id: number.to_string(), ..texts("embed", &[text]) }
}

#[tokio::test]
async fn answers_keep_the_order_and_are_final() {
    let server = TestServer::start().await;
    let (requests, mut answers) = open(&server).await;
    for number in 0..20 {
        requests.send(numbered(number, "web server")).await.unwrap();
    }
    drop(requests);
    for number in 0..20 {
        let response = answers.message().await.unwrap().unwrap().infer_response.unwrap();
        assert_eq!(response.id, number.to_string());
        let last = response.parameters["triton_final_response"].parameter_choice.clone();
        assert_eq!(last, Some(ParameterChoice::BoolParam(true)));
        assert_eq!(response.raw_output_contents.len(), 1);
    }
    assert!(answers.message().await.unwrap().is_none(), "the stream ends after the last request");
}

#[tokio::test]
async fn a_request_that_fails_is_answered_in_the_stream_which_goes_on() {
    let server = TestServer::start().await;
    let (requests, mut answers) = open(&server).await;
    requests.send(numbered(0, "")).await.unwrap();
    requests.send(ModelInferRequest { model_name: "none".to_owned(), ..numbered(1, "web") }).await.unwrap();
    requests.send(numbered(2, "web")).await.unwrap();
    let bad = answers.message().await.unwrap().unwrap();
    assert!(bad.error_message.starts_with("InvalidArgument: inputs['TEXT'][0]"), "{}", bad.error_message);
    assert_eq!(bad.infer_response.unwrap().id, "0");
    let unknown = answers.message().await.unwrap().unwrap();
    assert!(unknown.error_message.starts_with("NotFound"), "{}", unknown.error_message);
    let good = answers.message().await.unwrap().unwrap();
    assert_eq!((good.error_message.as_str(), good.infer_response.unwrap().id.as_str()), ("", "2"));
}

#[tokio::test]
async fn a_bounded_number_is_in_flight_and_all_are_answered() {
    let server = TestServer::with(Limits { stream_requests: 4, ..Limits::default() }).await;
    server.engine.hold();
    let (requests, mut answers) = open(&server).await;
    for number in 0..30 {
        requests.send(numbered(number, "web")).await.unwrap();
    }
    // Four in the channel and one with the writer.
    server.engine.rows_waiting(5).await;
    let more = timeout(Duration::from_millis(100), server.engine.rows_waiting(6)).await;
    assert!(more.is_err(), "a sixth request was started");
    server.engine.release();
    for number in 0..30 {
        assert_eq!(answers.message().await.unwrap().unwrap().infer_response.unwrap().id, number.to_string());
    }
}

#[tokio::test]
async fn a_client_that_goes_cancels_what_it_has_in_flight() {
    let server = TestServer::start().await;
    server.engine.hold();
    let (requests, answers) = open(&server).await;
    for number in 0..10 {
        requests.send(numbered(number, "web")).await.unwrap();
    }
    server.engine.rows_waiting(10).await;
    drop((requests, answers));
    server.engine.were_cancelled(10).await;
    server.engine.rows_waiting(0).await;
    assert_eq!(server.engine.ran(), 0);
}

#[tokio::test]
async fn streams_are_bounded_and_come_back() {
    let server = TestServer::with(Limits { streams: 2, ..Limits::default() }).await;
    let first = open(&server).await;
    // On a connection of its own: one connection has at most two calls in flight here.
    let mut client = GrpcInferenceServiceClient::new(server.endpoint.connect().await.unwrap());
    let pending = || tokio_stream::pending::<ModelInferRequest>();
    let second = client.model_stream_infer(pending()).await.unwrap();
    let status = client.model_stream_infer(pending()).await.unwrap_err();
    assert_told(&status, Code::ResourceExhausted, &["2 streams"]);
    assert!(status.get_details_retry_info().is_some());
    drop((first, second));
    // The server learns of the client's going when it gets round to it.
    while let Err(status) = client.model_stream_infer(pending()).await {
        assert_eq!(status.code(), Code::ResourceExhausted);
        tokio::task::yield_now().await;
    }
    assert_serves(&server).await;
}

#[tokio::test]
async fn case_31_a_message_over_the_limit_ends_the_stream_not_the_connection() {
    let server = TestServer::with(Limits { message: Bytes::kib(64), ..Limits::default() }).await;
    let (requests, mut answers) = open(&server).await;
    requests.send(numbered(0, "web")).await.unwrap();
    requests.send(numbered(1, &"x".repeat(100_000))).await.unwrap();
    assert_eq!(answers.message().await.unwrap().unwrap().infer_response.unwrap().id, "0");
    let status = answers.message().await.unwrap_err();
    assert_told(&status, Code::OutOfRange, &["65536", "64.0 KiB"]);
    assert_serves(&server).await;
}

#[tokio::test]
async fn a_stream_on_which_nothing_happens_is_ended() {
    // Longer than the machine stalls between two requests.
    let idle = Duration::from_secs(3);
    let server = TestServer::with(Limits { stream_idle: idle, ..Limits::default() }).await;
    // A request in flight is something.
    server.engine.hold();
    let (requests, mut answers) = open(&server).await;
    requests.send(numbered(0, "web")).await.unwrap();
    server.engine.rows_waiting(1).await;
    assert!(timeout(idle * 4 / 3, answers.message()).await.is_err());
    server.engine.release();
    assert!(answers.message().await.unwrap().unwrap().error_message.is_empty());
    requests.send(numbered(1, "web")).await.unwrap();
    assert!(answers.message().await.unwrap().unwrap().error_message.is_empty());
    let status = answers.message().await.unwrap_err();
    assert_told(&status, Code::DeadlineExceeded, &["nothing was sent", "open another"]);
    let (sender, receiver) = mpsc::channel::<RerankStreamRequest>(1);
    let mut client = RerankClient::new(server.channel.clone());
    let status = client.rerank_stream(ReceiverStream::new(receiver)).await.unwrap_err();
    assert_told(&status, Code::DeadlineExceeded, &["nothing was sent"]);
    drop(sender);
    assert_serves(&server).await;
}

#[tokio::test]
async fn what_open_streams_keep_for_large_messages_is_bounded() {
    let server = TestServer::with(Limits { streams_held: Bytes::mib(3), ..Limits::default() }).await;
    let large = "x".repeat(1 << 20);
    let mut streams = Vec::new();
    for number in 0..2 {
        let (requests, mut answers) = open(&server).await;
        for _ in 0..3 {
            requests.send(numbered(number, &large)).await.unwrap();
            answers.message().await.unwrap().unwrap();
        }
        streams.push((requests, answers));
    }
    let (requests, mut answers) = open(&server).await;
    requests.send(numbered(2, "web")).await.unwrap();
    assert!(answers.message().await.unwrap().unwrap().error_message.is_empty());
    requests.send(numbered(3, &large)).await.unwrap();
    let status = answers.message().await.unwrap_err();
    assert_told(&status, Code::ResourceExhausted, &["2.00 MiB", "3.00 MiB"]);
    // A call that is no stream keeps nothing.
    server.infer(texts("embed", &[&large])).await.unwrap();
    drop(streams);
    // The server learns of the client's going when it gets round to it.
    loop {
        let (requests, mut answers) = open(&server).await;
        requests.send(numbered(4, &large)).await.unwrap();
        match answers.message().await {
            Ok(_) => break,
            Err(status) => assert_eq!(status.code(), Code::ResourceExhausted),
        }
    }
    assert_serves(&server).await;
}
