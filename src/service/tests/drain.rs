//! Going down: NOT_SERVING first, then no more connections, then what was accepted finishes, within a bound.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::harness::{TestServer, assert_serves, texts};
use crate::service::proto::inference::{ModelInferRequest, ServerReadyRequest};
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
