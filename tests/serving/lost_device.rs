//! A device that is lost under load.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use plimsoll::config::SettingFlags;
use plimsoll::device::{Device, Report, RowFailure, StartOptions, start};
use plimsoll::model::Fault;
use plimsoll::server::Reports;
use tokio::task::JoinSet;
use tonic::Code;

use crate::support::{SMALL, TestServer, embed, row};

/// A device that works until it is told otherwise: then every step comes back as from a card with a sticky error.
fn losing(
    lost: Arc<AtomicBool>,
) -> impl FnOnce(StartOptions, Instant, Reports) -> io::Result<Box<dyn Device>> + Send + 'static {
    move |options, epoch, mut reports| {
        let spoiled = move |mut report| {
            if let Report::Ran(ran) = &mut report
                && lost.load(SeqCst)
            {
                let fault = Fault::DeviceLost { message: "told to".to_owned() };
                ran.rows.fill(Err(RowFailure::Fault(fault)));
            }
            reports(report);
        };
        start(options, epoch, spoiled)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_device_answers_every_call_and_ends_the_server_with_its_own_code() {
    let lost = Arc::new(AtomicBool::new(false));
    let server = TestServer::on(&[SMALL], SettingFlags::default(), losing(lost.clone())).await;
    let mut calls = JoinSet::new();
    for index in 0..10 {
        let rows = (0..50).map(|at| row(index * 50 + at, 60)).collect();
        calls.spawn(embed(server.channel.clone(), "small".to_owned(), rows));
    }
    server.until("small", |status| status.waiting_rows > 200).await;
    lost.store(true, SeqCst);
    let (mut faults, mut waited) = (0, 0);
    for outcome in calls.join_all().await {
        match outcome {
            Ok(response) => assert_eq!(response.embeddings.len(), 50, "answered before"),
            Err(status) if status.code() == Code::Internal => faults += 1,
            Err(status) if status.code() == Code::Unavailable => waited += 1,
            Err(status) => panic!("neither at fault nor to be asked elsewhere: {status:?}"),
        }
    }
    assert!(faults >= 1 && waited >= 1, "{faults} calls had rows in the step, {waited} waited");
    let ended = server.ended().await;
    assert_eq!((ended.exit_code(), ended.drained.unfinished_calls), (3, 0));
    assert!(ended.device_lost);
}
