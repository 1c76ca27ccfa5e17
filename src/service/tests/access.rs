//! Tokens, and calls of administration, over real connections.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};

use super::harness::{assert_told, texts};
use super::secured::{Files, Secured, call};
use crate::service::SecurityFiles;
use crate::service::access::admin_paths;
use crate::service::proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;

const CALLER: &str = "caller-caller-caller";
const ADMIN: &str = "admin-admin-admin-admin";
const LIVE: &str = "/inference.GRPCInferenceService/ServerLive";
const HEALTH: &str = "/grpc.health.v1.Health/Check";

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

#[tokio::test]
async fn administration_is_refused_where_others_reach_it_and_allowed_at_its_own_address() {
    let server = Secured::start(SecurityFiles::default()).await;
    assert_eq!(call(server.grpc, LIVE, None).await.map_err(|status| status.code()), Ok(()));
    for path in admin_paths() {
        for authorization in [None, Some("Bearer anything-at-all-will-do")] {
            let status = call(server.grpc, &path, authorization).await.expect_err(&path);
            assert_told(&status, Code::PermissionDenied, &["calls of administration", "log says how"]);
        }
        // What the service itself says to an empty message is not that.
        if let Err(status) = call(server.admin, &path, None).await {
            assert!(!is_refusal(&status), "{path}: {status:?}");
        }
    }
}

#[tokio::test]
async fn tokens_open_what_they_are_for() {
    let files = Files::new();
    let tokens = files.write("tokens", &format!("{CALLER}\nold-old-old-old-old until 2020-01-01T00:00:00Z\n"));
    let admin_tokens = files.write("admin", ADMIN);
    let files = SecurityFiles { tokens: Some(&tokens), admin_tokens: Some(&admin_tokens), ..SecurityFiles::default() };
    let server = Secured::start(files).await;
    for path in [LIVE, HEALTH, "/tei.v1.Info/Info", "/no.such.Service/Call"] {
        let refused = |status: Result<(), Status>| status.expect_err(path);
        assert_told(&refused(call(server.grpc, path, None).await), Code::Unauthenticated, &["Bearer TOKEN"]);
        let wrong = ["Bearer caller-caller-calle", "Bearer caller-caller-callers", "Basic x", "Bearer ", CALLER];
        for authorization in wrong {
            let status = refused(call(server.grpc, path, Some(authorization)).await);
            assert_told(&status, Code::Unauthenticated, &["no token that is known"]);
        }
        let status = refused(call(server.grpc, path, Some("Bearer old-old-old-old-old")).await);
        assert_told(&status, Code::Unauthenticated, &["time is over"]);
    }
    for token in [CALLER, ADMIN] {
        call(server.grpc, LIVE, Some(&bearer(token))).await.unwrap();
        call(server.grpc, HEALTH, Some(&bearer(token))).await.unwrap();
    }
    for path in admin_paths() {
        for address in [server.grpc, server.admin] {
            let refused = |status: Result<(), Status>| status.expect_err(&path);
            let status = refused(call(address, &path, None).await);
            assert_told(&status, Code::Unauthenticated, &["needs a token"]);
            let status = refused(call(address, &path, Some(&bearer(CALLER))).await);
            assert_told(&status, Code::PermissionDenied, &["not one for those"]);
            if let Err(status) = call(address, &path, Some(&bearer(ADMIN))).await {
                assert!(!is_refusal(&status), "{path}: {status:?}");
            }
        }
    }
}

#[tokio::test]
async fn http_asks_for_the_same_tokens() {
    let files = Files::new();
    let tokens = files.write("tokens", CALLER);
    let server = Secured::start(SecurityFiles { tokens: Some(&tokens), ..SecurityFiles::default() }).await;
    let get = |path: &'static str, authorization: String| async move {
        let mut stream = TcpStream::connect(server.http).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{authorization}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    for path in ["/info", "/health", "/models/embed/info", "/v1/models", "/metrics", "/no/such/path"] {
        for authorization in ["", "authorization: Bearer caller-caller-calle\r\n", "authorization: Bearer\r\n"] {
            let answer = get(path, authorization.to_owned()).await;
            assert!(answer.starts_with("HTTP/1.1 401 "), "{path}: {answer}");
            assert!(answer.contains("www-authenticate: Bearer"), "{path}: {answer}");
            let form = if path.starts_with("/v1") { "authentication_error" } else { "\"error_type\":" };
            assert!(answer.contains(form), "{path}: {answer}");
        }
    }
    for path in ["/v1/models", "/metrics"] {
        let answer = get(path, format!("authorization: {}\r\n", bearer(CALLER))).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        let twice = format!("authorization: {0}\r\nauthorization: {0}\r\n", bearer(CALLER));
        assert!(get(path, twice).await.starts_with("HTTP/1.1 401 "), "{path}");
    }
    // A large message is not in the answer's way.
    let mut stream = TcpStream::connect(server.http).await.unwrap();
    let message = vec![b' '; 500_000];
    let head =
        format!("POST /embed HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", message.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&message).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
}

#[tokio::test]
async fn a_file_of_tokens_that_is_replaced_counts() {
    const NEXT: &str = "next-next-next-next";
    let files = Files::new();
    let tokens = files.write("tokens", CALLER);
    let server = Secured::start(SecurityFiles { tokens: Some(&tokens), ..SecurityFiles::default() }).await;
    let opens = |token: &'static str| async move { call(server.grpc, LIVE, Some(&bearer(token))).await.is_ok() };
    assert!(opens(CALLER).await && !opens(NEXT).await);
    // Half written, it changes nothing.
    files.write("tokens", "short\n");
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert!(opens(CALLER).await);
    files.write("tokens", NEXT);
    for _ in 0..200 {
        if opens(NEXT).await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(opens(NEXT).await && !opens(CALLER).await);
}

#[tokio::test]
async fn a_token_that_is_taken_back_ends_what_it_has_opened() {
    const NEXT: &str = "next-next-next-next";
    let files = Files::new();
    let tokens = files.write("tokens", CALLER);
    let server = Secured::start(SecurityFiles { tokens: Some(&tokens), ..SecurityFiles::default() }).await;
    let channel = Endpoint::from_shared(format!("http://{}", server.grpc)).unwrap().connect().await.unwrap();
    let (requests, receiver) = mpsc::channel(1);
    let mut request = Request::new(ReceiverStream::new(receiver));
    request.metadata_mut().insert("authorization", bearer(CALLER).parse().unwrap());
    let answers = GrpcInferenceServiceClient::new(channel).model_stream_infer(request).await;
    let mut answers = answers.unwrap().into_inner();
    requests.send(texts("embed", &["web"])).await.unwrap();
    assert!(answers.message().await.unwrap().unwrap().error_message.is_empty());
    files.write("tokens", NEXT);
    while call(server.grpc, LIVE, Some(&bearer(NEXT))).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    requests.send(texts("embed", &["web"])).await.unwrap();
    let status = answers.message().await.unwrap_err();
    assert_told(&status, Code::Unauthenticated, &["no token that is known"]);
}

fn is_refusal(status: &Status) -> bool {
    matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied)
}
