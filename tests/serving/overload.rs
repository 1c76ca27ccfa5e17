//! More than the server can take.

use plimsoll::config::SettingFlags;
use plimsoll::service::proto::plimsoll::{Budget, SetBudgetRequest};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::support::{Model, SMALL, TestServer, embed, row, token_request};

/// Rows that may wait.
const QUEUE: u32 = 64;

fn assert_full(status: &Status) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let hint = status.get_details_retry_info().and_then(|info| info.retry_delay);
    assert!(hint.is_some_and(|delay| !delay.is_zero()), "a hint when to come back: {status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_20_a_flood_is_refused_by_one_rule_and_what_is_accepted_finishes() {
    let settings =
        SettingFlags { queue_rows_max: Some(QUEUE), request_rows_max: Some(QUEUE), ..SettingFlags::default() };
    let server = TestServer::with(&[SMALL], settings).await;
    let before = server.status("small").statistics;
    let mut calls = JoinSet::new();
    // Unary calls, client batches of 16 rows, and a stream, at once.
    for index in 0..400 {
        let (rows, channel) = (if index % 8 == 0 { 16 } else { 1 }, server.channel.clone());
        let batch = (0..rows).map(|at| row(index * 16 + at, 48)).collect();
        calls.spawn(async move { (rows, embed(channel, "small".to_owned(), batch).await.map(drop)) });
    }
    let (sender, receiver) = mpsc::channel(256);
    for index in 0..200 {
        sender.send(token_request("small", &index.to_string(), &[row(index, 48)])).await.unwrap();
    }
    drop(sender);
    let mut stream = server.oip().model_stream_infer(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let (mut accepted, mut accepted_rows, mut refused) = (0, 0, 0);
    for index in 0..200 {
        let answer = stream.message().await.unwrap().unwrap();
        assert_eq!(answer.infer_response.unwrap().id, index.to_string());
        match answer.error_message.as_str() {
            "" => (accepted, accepted_rows) = (accepted + 1, accepted_rows + 1),
            text => {
                assert!(text.starts_with("ResourceExhausted"), "{text}");
                refused += 1;
            }
        }
    }
    for (rows, outcome) in calls.join_all().await {
        match outcome {
            Ok(()) => (accepted, accepted_rows) = (accepted + 1, accepted_rows + u64::from(rows)),
            Err(status) => {
                assert_full(&status);
                refused += 1;
            }
        }
    }
    assert_eq!(accepted + refused, 600);
    assert!(accepted >= u64::from(QUEUE) / 16 && refused > 0, "{accepted} accepted, {refused} refused");
    let after = server.status("small").statistics;
    assert_eq!(after.success.count - before.success.count, accepted, "everything that was accepted was answered");
    assert_eq!(after.rows - before.rows, accepted_rows);
    assert_eq!(after.fail.count - before.fail.count, refused, "exactly the excess is refused, and nothing else");
    server.assert_serves("small").await;
    server.end().await;
}

const LONG: Model<'static> = ("long", "tiny-embed", "length_max = 256\nstep_tokens_max = 512\n");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_21_what_can_never_fit_is_refused_at_once_and_small_ones_flow() {
    let server = TestServer::start(&[LONG]).await;
    server.until_measured("long").await;
    let too_long = server.embed("long", &[row(0, 5), row(0, 257)]).await.unwrap_err();
    assert_eq!(too_long.code(), Code::InvalidArgument, "{too_long:?}");
    assert!(too_long.message().contains("257") && too_long.message().contains("256"), "{}", too_long.message());
    assert!(too_long.get_details_retry_info().is_none(), "trying again is of no use");

    // A limit under which a row of 256 tokens does not fit, and short ones do.
    let resident = server.status("long").resident.get();
    let limit_bytes = resident + (400 << 10);
    let set = SetBudgetRequest {
        model: "long".to_owned(),
        budget: Some(Budget { guaranteed_bytes: 0, limit_bytes }),
        expected_revision: 0,
    };
    let answer = server.models().set_budget(set).await.unwrap().into_inner();
    assert!(answer.applied, "{answer:?}");
    let never = server.embed("long", &[row(0, 256)]).await.unwrap_err();
    assert_eq!(never.code(), Code::InvalidArgument, "{never:?}");
    assert!(never.message().contains("KiB"), "it names what is needed and what is possible: {}", never.message());
    server.assert_serves("long").await;
    server.end().await;
}
