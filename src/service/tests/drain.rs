//! Going down: NOT_SERVING first, then no more connections, then what was accepted finishes, within a bound.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::harness::{TestServer, assert_serves, assert_told, texts};
use crate::service::proto::inference::{ModelInferRequest, ServerReadyRequest};
use crate::service::proto::tei::EmbedRequest;
use crate::service::proto::tei::embed_client::EmbedClient;
use crate::service::{Drained, Limits};

#[tokio::test]
async fn case_24_health_says_so_first_and_accepted_work_finishes() {
    let mut server = TestServer::with(Limits { drain_notice: Duration::from_secs(2), ..Limits::default() }).await;
    server.engine.hold();
    let accepted = {
        let mut client = server.oip();
        tokio::spawn(async move { client.model_infer(texts("embed", &["web"])).await })
    };
    server.engine.rows_waiting(1).await;
    let mut health = HealthClient::new(server.channel.clone());
    let mut watch = health.watch(HealthCheckRequest { service: "embed".to_owned() }).await.unwrap().into_inner();
    assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::Serving);

    server.shut_down();
    assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    for service in ["", "inference.GRPCInferenceService", "plimsoll.v1.Embed", "embed"] {
        let status = health.check(HealthCheckRequest { service: service.to_owned() }).await.unwrap();
        assert_eq!(status.into_inner().status(), ServingStatus::NotServing, "'{service}'");
    }
    assert!(!server.oip().server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
    // Who has not heard yet is still served.
    let endpoint = server.endpoint.clone();
    endpoint.connect().await.expect("the port is open during the notice");
    server.engine.release();
    assert_serves(&server).await;

    assert_eq!(accepted.await.unwrap().unwrap().into_inner().outputs[0].shape[0], 1);
    assert!(watch.next().await.is_none(), "the watch is ended by the server");
    drop((health, watch));
    assert_eq!(server.drained().await, Drained { unfinished_calls: 0 });
    assert!(endpoint.connect().await.is_err(), "the port is closed");
}

#[tokio::test]
async fn case_24_a_drain_ends_within_its_bound() {
    let limits = Limits { drain_notice: Duration::ZERO, drain_bound: Duration::from_millis(200), ..Limits::default() };
    let mut server = TestServer::with(limits).await;
    server.engine.hold();
    let stuck = {
        let mut client = server.oip();
        tokio::spawn(async move { client.model_infer(texts("embed", &["web"])).await })
    };
    server.engine.rows_waiting(1).await;
    server.shut_down();
    assert_eq!(server.drained().await, Drained { unfinished_calls: 1 });
    stuck.abort();
}

#[tokio::test]
async fn case_24_open_streams_finish_what_they_have_and_end() {
    let mut server = TestServer::start().await;
    server.engine.hold();
    let (requests, receiver) = mpsc::channel::<ModelInferRequest>(4);
    let mut answers = server.oip().model_stream_infer(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    requests.send(texts("embed", &["web"])).await.unwrap();
    server.engine.rows_waiting(1).await;
    server.shut_down();
    server.engine.release();
    assert!(answers.message().await.unwrap().unwrap().error_message.is_empty());
    assert!(answers.message().await.unwrap().is_none(), "the server ends the stream although the client would go on");
    drop((requests, answers));
    assert_eq!(server.drained().await, Drained { unfinished_calls: 0 });
}

#[tokio::test]
async fn case_24_calls_over_http_are_answered_to_the_last_byte() {
    let mut server = TestServer::start().await;
    server.engine.hold();
    // A few hundred kilobytes, which no socket takes at once, to a client that does not read yet.
    let rows = vec!["web"; 40];
    let body = serde_json::json!({ "inputs": rows }).to_string();
    let mut connection = TcpStream::connect(server.http).await.unwrap();
    let head = format!("POST /models/wide/embed HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len());
    connection.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    // One that only stands open is in nobody's way.
    let idle = TcpStream::connect(server.http).await.unwrap();
    server.engine.rows_waiting(rows.len()).await;
    server.shut_down();
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.engine.release();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.expect("the server closes the connection behind the answer");
    let (head, vectors) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let vectors: Vec<Vec<f32>> = serde_json::from_str(vectors).expect("all of it is there");
    assert_eq!((vectors.len(), vectors[0].len()), (rows.len(), 1024));
    let address = server.http;
    assert_eq!(server.drained().await, Drained { unfinished_calls: 0 });
    assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
    drop(idle);
}

#[tokio::test]
async fn case_24_a_stream_whose_answers_have_no_names_does_not_end_without_a_word() {
    let mut server = TestServer::start().await;
    let (requests, receiver) = mpsc::channel::<EmbedRequest>(4);
    let mut call = tonic::Request::new(ReceiverStream::new(receiver));
    call.metadata_mut().insert("model", "embed".parse().unwrap());
    let mut answers = EmbedClient::new(server.channel.clone()).embed_stream(call).await.unwrap().into_inner();
    requests.send(EmbedRequest { inputs: "web".to_owned(), ..EmbedRequest::default() }).await.unwrap();
    assert!(answers.message().await.unwrap().is_some());
    server.shut_down();
    assert_told(&answers.message().await.unwrap_err(), Code::Unavailable, &["going down"]);
    drop((requests, answers));
    assert_eq!(server.drained().await, Drained { unfinished_calls: 0 });
}

#[tokio::test]
async fn case_24_whoever_never_ends_his_message_delays_nobodys_end() {
    let mut server = TestServer::with(Limits { drain_bound: Duration::from_secs(300), ..Limits::default() }).await;
    let grpc = server.endpoint.uri().authority().unwrap().as_str().to_owned();
    let mut held = Vec::new();
    for (address, begun) in [
        (server.http.to_string(), &b""[..]),
        (server.http.to_string(), b"POST /embed HTTP/1.1\r\nhost"),
        (server.http.to_string(), b"GET /health HTTP/1.1\r\nhost: a\r\n\r\nGET /hea"),
        (grpc.clone(), b""),
        (grpc, b"PRI * HTTP/2.0\r\n"),
    ] {
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(begun).await.unwrap();
        held.push(connection);
    }
    assert_serves(&server).await;
    server.shut_down();
    let drained = tokio::time::timeout(Duration::from_secs(60), server.drained()).await;
    assert_eq!(drained.expect("long before its bound"), Drained { unfinished_calls: 0 });
    drop(held);
}
