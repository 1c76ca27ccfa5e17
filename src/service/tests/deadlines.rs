//! Deadlines and cancels: nobody waits longer than asked, and what nobody waits for never runs.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::{Code, Request};

use super::harness::{TestServer, assert_serves, assert_told, texts, with_parameter};
use crate::service::proto::inference::infer_parameter::ParameterChoice;

/// Longer than anything here takes on a busy machine; only a test that hangs meets it.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn case_19_late_and_cancelled_requests_never_run() {
    let server = TestServer::start().await;
    server.engine.hold();
    let mut late = JoinSet::new();
    let mut cancelled = JoinSet::new();
    for _ in 0..200 {
        let mut client = server.oip();
        let request = with_parameter(texts("embed", &["web"]), "timeout", ParameterChoice::Int64Param(5_000));
        late.spawn(async move { client.model_infer(request).await.unwrap_err() });
        let mut client = server.oip();
        cancelled.spawn(async move { client.model_infer(texts("embed", &["server"])).await });
    }
    // The late ones are answered although the step ahead of them runs on.
    let answered = timeout(PATIENCE, late.join_all()).await.expect("answered at the deadline, not after the step");
    assert!(answered.iter().all(|status| status.code() == Code::DeadlineExceeded));
    assert_told(&answered[0], Code::DeadlineExceeded, &["deadline"]);
    timeout(PATIENCE, server.engine.rows_waiting(200)).await.expect("only the ones without a deadline wait");
    cancelled.shutdown().await;
    timeout(PATIENCE, server.engine.were_cancelled(200)).await.expect("a client that goes cancels its request");
    server.engine.rows_waiting(0).await;
    server.engine.release();
    assert_eq!(server.engine.ran(), 0);
    assert_serves(&server).await;
}

#[tokio::test]
async fn the_deadline_of_the_call_is_answered_before_the_transport_cancels() {
    let server = TestServer::start().await;
    server.engine.hold();
    for tries_left in (0..10).rev() {
        let mut request = Request::new(texts("embed", &["web"]));
        request.set_timeout(Duration::from_millis(500));
        let started = Instant::now();
        let status = server.oip().model_infer(request).await.unwrap_err();
        assert!(started.elapsed() >= Duration::from_millis(400), "{:?}", started.elapsed());
        // A machine that stalls over both timers lets either be the first: not so every time.
        if status.code() == Code::Cancelled && tries_left > 0 {
            continue;
        }
        assert_told(&status, Code::DeadlineExceeded, &["deadline"]);
        break;
    }
    assert!(server.engine.accepted()[0].deadline.is_some(), "the engine knows of it");
}
