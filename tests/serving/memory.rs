//! What the server says about its memory, and that it does not grow.

use plimsoll::service::proto::plimsoll::{MemorySnapshotRequest, MemoryTraceRequest};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::support::{Model, TestServer, embed, row};

const LONG: Model<'static> = ("long", "tiny-embed", "length_max = 256\nstep_tokens_max = 512\n");

async fn snapshot(server: &TestServer) -> Value {
    let response = server.memory().snapshot(MemorySnapshotRequest {}).await.unwrap().into_inner();
    serde_json::from_str(&response.json).unwrap()
}

/// Everything that is held and is not weights.
async fn held(server: &TestServer) -> u64 {
    let snapshot = snapshot(server).await;
    let number = |value: &Value| value.as_u64().unwrap();
    number(&snapshot["server_bytes"])
        + number(&snapshot["library"]["live_bytes"])
        + number(&snapshot["models"][0]["device"]["library"]["live_bytes"])
        + number(&snapshot["models"][0]["device"]["workspace"]["live_bytes"])
}

/// One request for each of the lengths that the model takes, in an order that is different each time.
async fn all_lengths(server: &TestServer, round: u32) {
    for part in 0..4 {
        let mut calls = JoinSet::new();
        for index in 0..64 {
            let length = 1 + (part * 64 + index + round * 37) % 256;
            let rows = vec![row(round * 1_000 + length, length)];
            calls.spawn(embed(server.channel.clone(), "long".to_owned(), rows));
        }
        assert!(calls.join_all().await.iter().all(Result::is_ok));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_12_distinct_lengths_leave_nothing_behind() {
    let server = TestServer::start(&[LONG]).await;
    server.until_measured("long").await;
    for round in 0..2 {
        all_lengths(&server, round).await;
    }
    let before = held(&server).await;
    for round in 2..8 {
        all_lengths(&server, round).await;
    }
    let after = held(&server).await;
    assert!(after < before + (2 << 20), "{before} bytes before, {after} after 1,536 more requests");
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_holds_the_books_the_device_and_the_past() {
    let server = TestServer::start(&[LONG]).await;
    server.until_measured("long").await;
    server.embed("long", &[row(1, 200)]).await.unwrap();
    let snapshot = snapshot(&server).await;
    let model = &snapshot["models"][0];
    assert_eq!(model["model"], "long");
    let weights = model["weights_bytes"].as_u64().unwrap();
    assert!(weights > 6 << 20, "{weights}");
    let device = &model["device"];
    let counted = device["weights"]["live_bytes"].as_u64().unwrap() + device["library"]["live_bytes"].as_u64().unwrap();
    assert!(counted.abs_diff(weights) < 1 << 20, "the books say {weights}, the allocator {counted}");
    assert!(device["counters"]["steps"].as_u64().unwrap() > 1);
    assert!(device["counters"]["step_peak_bytes_max"].as_u64().unwrap() > 0);
    assert_eq!(device["counters"]["overruns"], 0);
    assert_eq!(snapshot["events"][0]["event"], "loaded");
    assert!(snapshot["workspace"]["reserved_bytes"].is_u64() && snapshot["library"]["live_bytes"].is_u64());

    // The same counts are metrics.
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    let metrics = scrape(server.metrics).await;
    let count = |event: &str| {
        let label = format!("event=\"{event}\"");
        let line = metrics.lines().find(|line| line.contains("allocator_events_total{") && line.contains(&label));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0)
    };
    assert!(count("allocate") > 100.0 && count("free") > 100.0, "{metrics}");
    let watchdog = metrics.lines().find(|line| line.starts_with("plimsoll_watchdog_total")).unwrap();
    assert!(watchdog.ends_with(" 0"), "{watchdog}");
    server.end().await;
}

async fn scrape(address: std::net::SocketAddr) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    connection.read_to_string(&mut text).await.unwrap();
    text
}

/// While requests are served, a trace says which layer holds what, and its numbers agree with one another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_server_says_where_the_memory_of_a_step_goes() {
    let server = TestServer::start(&[LONG]).await;
    server.until_measured("long").await;
    let mut calls = JoinSet::new();
    for index in 0..16 {
        calls.spawn(embed(server.channel.clone(), "long".to_owned(), vec![row(index, 100)]));
    }
    let ask = |rows, length| MemoryTraceRequest { model: "long".to_owned(), rows, length };
    let trace = server.memory().trace(ask(2, 200)).await.unwrap().into_inner();
    assert!(calls.join_all().await.iter().all(Result::is_ok));

    assert_eq!(trace.shape, "400 tokens (longest 200)");
    assert!(trace.predicted_bytes >= trace.peak_bytes && trace.events_missed == 0);
    let held: u64 = trace.holders.iter().map(|holder| holder.bytes).sum();
    assert!(held.abs_diff(trace.peak_bytes) < 64 << 10, "{held} in the table, {} measured", trace.peak_bytes);
    assert!(trace.holders.is_sorted_by_key(|holder| std::cmp::Reverse(holder.bytes)));
    // 400 tokens of the 768 values between the halves of a feed-forward block, in f32.
    let widest = &trace.holders[0];
    assert_eq!((widest.layer.as_str(), widest.shape.as_str()), ("workspace", "400 x 768"));
    assert!(widest.bytes >= 400 * 768 * 4, "{widest:?}");
    assert!(trace.holders.iter().any(|holder| holder.layer == "embeddings"), "{:?}", trace.holders);
    assert_eq!(trace.timeline.iter().map(|moment| moment.live_bytes).max(), Some(held));
    assert!(trace.timeline_svg.starts_with("<svg"));

    let refused = server.memory().trace(ask(3, 200)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused:?}");
    server.assert_serves("long").await;
    server.end().await;
}
