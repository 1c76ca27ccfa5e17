//! Deadlines and clients that go away.

use std::time::{Duration, Instant};

use plimsoll::engine::ModelState;
use plimsoll::service::proto::plimsoll::embed_client::EmbedClient;
use plimsoll::service::proto::plimsoll::{EmbedRequest, TokenIds};
use tokio::task::JoinSet;
use tonic::{Code, Request};

use crate::support::{Model, TestServer, embed, row};

const LONG: Model<'static> = ("long", "tiny-embed", "length_max = 256\nstep_tokens_max = 1024\n");

/// Rows of the batch that keeps the device busy: far longer than any deadline here.
const AHEAD: u32 = 96;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_19_what_is_late_or_gone_never_reaches_the_device() {
    let server = TestServer::start(&[LONG]).await;
    // Probes between the steps only make the queue longer.
    server.until("long", |status| status.state == ModelState::Ready).await;
    let before = server.rows_run("long");
    let ahead = {
        let (channel, rows) = (server.channel.clone(), (0..AHEAD).map(|index| row(index, 250)).collect());
        tokio::spawn(async move { embed(channel, "long".to_owned(), rows).await })
    };
    server.until("long", |status| status.waiting_rows > 0).await;

    let mut gone = JoinSet::new();
    for index in 0..200 {
        let (channel, rows) = (server.channel.clone(), vec![row(index, 100)]);
        gone.spawn(async move { embed(channel, "long".to_owned(), rows).await });
    }
    let mut late = JoinSet::new();
    for index in 0..200 {
        let channel = server.channel.clone();
        late.spawn(async move {
            let tokens = vec![TokenIds { ids: row(index, 100) }];
            let mut request =
                Request::new(EmbedRequest { model: "long".to_owned(), tokens, ..EmbedRequest::default() });
            request.set_timeout(Duration::from_millis(5));
            EmbedClient::new(channel).embed(request).await.map(drop)
        });
    }
    let mut missed = 0;
    for outcome in late.join_all().await {
        match outcome {
            // Where a step ended just before, there was time.
            Ok(()) => {}
            Err(status) => {
                // The client's own timer may be the first to go off: tonic calls that Cancelled.
                let codes = [Code::DeadlineExceeded, Code::Cancelled];
                assert!(codes.contains(&status.code()), "{status:?}");
                missed += 1;
            }
        }
    }
    assert!(missed >= 190, "{missed} of 200 were late behind seconds of work");
    gone.shutdown().await;
    assert_eq!(ahead.await.unwrap().unwrap().embeddings.len(), AHEAD as usize);
    let idle = Instant::now();
    server.until("long", |status| status.waiting_rows == 0).await;
    assert!(idle.elapsed() < Duration::from_secs(5));
    let ran = server.rows_run("long") - before;
    let in_time = 200 - missed;
    assert!(ran <= u64::from(AHEAD) + in_time, "{ran} rows ran, {AHEAD} ahead and {in_time} in time");
    server.assert_serves("long").await;
    server.end().await;
}
