//! The benchmark against a small server of its own, over a real connection.
//!
//! The server has one device that runs calls one after another, and a fault for each test to find.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use super::args::RunArgs;
use super::report::Report;
use super::run::measure;
use super::tries::in_some_try;
use crate::service::proto::plimsoll as wire;

/// What is wrong with the server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    None,
    /// Nothing is computed from the first to the second time after its first call under load.
    Stall(Duration, Duration),
    /// After so many calls, every embedding is another one.
    WrongAfter(u64),
    /// Every second call is refused.
    Refuses,
}

struct Device {
    step: Duration,
    trouble: Trouble,
    calls: AtomicU64,
    began: std::sync::OnceLock<Instant>,
    turn: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Fake(Arc<Device>);

impl Fake {
    /// Waits for its turn, computes, tells of a step that two calls share.
    async fn compute(&self, model: &str, rows: usize) -> Result<(u64, wire::Metadata), Status> {
        let call = self.0.calls.fetch_add(1, Ordering::Relaxed);
        if self.0.trouble == Trouble::Refuses && call % 2 == 1 {
            return Err(Status::resource_exhausted("the queue is full"));
        }
        let _turn = self.0.turn.lock().await;
        if let Trouble::Stall(from, until) = self.0.trouble {
            let now = self.0.began.get_or_init(Instant::now).elapsed();
            if now >= from {
                tokio::time::sleep(until.saturating_sub(now)).await;
            }
        }
        tokio::time::sleep(self.0.step).await;
        let step = wire::StepFacts {
            step_id: call / 2,
            batch_rows: 2 * rows as u32,
            longest: 16,
            reason: wire::BatchReason::Queue.into(),
            predicted_peak_bytes: 2_000,
            true_peak_bytes: 1_000,
            lease_ceiling_bytes: 4_000,
            compute_us: self.0.step.as_micros() as u64,
            headroom_bytes: 8_000,
            computed_tokens: 32 * rows as u64,
        };
        let metadata = wire::Metadata {
            model: model.to_owned(),
            tokens: 8 * rows as u32,
            steps: vec![step],
            ..Default::default()
        };
        Ok((call, metadata))
    }
}

/// A number that depends on the text alone.
fn value(text: &str) -> f32 {
    text.bytes().fold(7u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into())) as f32 / u32::MAX as f32
}

#[tonic::async_trait]
impl wire::embed_server::Embed for Fake {
    async fn embed(&self, request: Request<wire::EmbedRequest>) -> Result<Response<wire::EmbedResponse>, Status> {
        let request = request.into_inner();
        let (call, metadata) = self.compute(&request.model, request.texts.len()).await?;
        let wrong = matches!(self.0.trouble, Trouble::WrongAfter(calls) if call >= calls);
        let embedding = |text: &String| {
            let values = if wrong { vec![-1.0, 0.0] } else { vec![1.0, value(text)] };
            wire::Embedding { values, tokens: 8 }
        };
        let embeddings = request.texts.iter().map(embedding).collect();
        Ok(Response::new(wire::EmbedResponse { embeddings, metadata: Some(metadata) }))
    }
}

#[tonic::async_trait]
impl wire::rerank_server::Rerank for Fake {
    async fn rerank(&self, request: Request<wire::RerankRequest>) -> Result<Response<wire::RerankResponse>, Status> {
        let request = request.into_inner();
        let (_, metadata) = self.compute(&request.model, request.texts.len()).await?;
        let score = |(index, text): (usize, &String)| wire::Rank { index: index as u32, score: value(text) };
        let mut ranks: Vec<_> = request.texts.iter().enumerate().map(score).collect();
        ranks.sort_by(|a, b| b.score.total_cmp(&a.score));
        Ok(Response::new(wire::RerankResponse { ranks, metadata: Some(metadata) }))
    }
}

#[tonic::async_trait]
impl wire::classify_server::Classify for Fake {
    async fn classify(
        &self,
        request: Request<wire::ClassifyRequest>,
    ) -> Result<Response<wire::ClassifyResponse>, Status> {
        let request = request.into_inner();
        let (_, metadata) = self.compute(&request.model, request.texts.len()).await?;
        let label = |index: u32, score: f32| wire::Label { name: index.to_string(), score, index };
        let result = |text: &String| {
            let mut labels = vec![label(0, value(text)), label(1, 1.0 - value(text))];
            labels.sort_by(|a, b| b.score.total_cmp(&a.score));
            wire::Classification { labels }
        };
        let results = request.texts.iter().map(result).collect();
        Ok(Response::new(wire::ClassifyResponse { results, metadata: Some(metadata) }))
    }
}

#[tonic::async_trait]
impl wire::models_server::Models for Fake {
    async fn list(
        &self,
        _request: Request<wire::ListModelsRequest>,
    ) -> Result<Response<wire::ListModelsResponse>, Status> {
        let model = |task: &str| wire::Model {
            name: task.to_owned(),
            task: task.to_owned(),
            dtype: "f32".to_owned(),
            state: wire::ModelState::Ready.into(),
            length_max: 64,
            ..Default::default()
        };
        Ok(Response::new(wire::ListModelsResponse { models: ["embed", "rerank", "classify"].map(model).to_vec() }))
    }

    async fn load(&self, _: Request<wire::LoadModelRequest>) -> Result<Response<wire::LoadModelResponse>, Status> {
        Err(Status::unimplemented("the benchmark loads nothing"))
    }

    async fn unload(
        &self,
        _: Request<wire::UnloadModelRequest>,
    ) -> Result<Response<wire::UnloadModelResponse>, Status> {
        Err(Status::unimplemented("the benchmark unloads nothing"))
    }

    async fn pin(&self, _: Request<wire::PinModelRequest>) -> Result<Response<wire::PinModelResponse>, Status> {
        Err(Status::unimplemented("the benchmark pins nothing"))
    }

    async fn set_budget(
        &self,
        _: Request<wire::SetBudgetRequest>,
    ) -> Result<Response<wire::SetBudgetResponse>, Status> {
        Err(Status::unimplemented("the benchmark sets nothing"))
    }

    async fn reload(&self, _: Request<wire::ReloadRequest>) -> Result<Response<wire::ReloadResponse>, Status> {
        Err(Status::unimplemented("the benchmark reloads nothing"))
    }
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: RunArgs,
}

/// Starts a server whose steps last `step_ms`, and runs `plimsoll bench` with these options against it.
fn bench(step_ms: u64, trouble: Trouble, options: &str) -> anyhow::Result<Report> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let fake = Fake(Arc::new(Device {
            step: Duration::from_millis(step_ms),
            trouble,
            calls: AtomicU64::new(0),
            began: std::sync::OnceLock::new(),
            turn: tokio::sync::Mutex::new(()),
        }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let server = tonic::transport::Server::builder()
            .add_service(wire::embed_server::EmbedServer::new(fake.clone()))
            .add_service(wire::rerank_server::RerankServer::new(fake.clone()))
            .add_service(wire::classify_server::ClassifyServer::new(fake.clone()))
            .add_service(wire::models_server::ModelsServer::new(fake))
            .serve_with_incoming(TcpIncoming::from(listener));
        tokio::spawn(server);
        let words = ["bench", "--address", &address, "--warmup", "0s"].into_iter().chain(options.split_whitespace());
        measure(&Line::try_parse_from(words)?.args).await
    })
}

fn outcome(report: &Report, name: &str) -> u64 {
    report.total.outcomes.get(name).copied().unwrap_or(0)
}

#[test]
fn all_tasks_are_asked_checked_and_counted() {
    let report =
        bench(1, Trouble::None, "--rate 200 --arrivals constant --duration 1s --rows 3 --check-share 0.5").unwrap();
    let total = &report.total;
    assert_eq!((total.calls, total.failed, outcome(&report, "OK")), (200, 0, 200), "{:?}", report.first_wrong);
    assert!((60..140).contains(&total.checked), "{}", total.checked);
    assert_eq!(report.models.len(), 3);
    for part in &report.models {
        assert!(part.calls > 30 && part.checked > 5, "{part:?}");
    }
    // Two calls tell of the same step: it counts once, with the rows of both. The undisturbed calls before the load are
    // not part of it.
    let steps = total.steps.as_ref().unwrap();
    assert!((99..=101).contains(&steps.count), "{}", steps.count);
    assert_eq!((steps.rows_max, steps.true_to_predicted_max, steps.excesses), (6, 0.5, 0));
    assert!((steps.padded_ratio - 2.0).abs() < 0.05, "{}", steps.padded_ratio);
    let shares: f64 = report.models.iter().filter_map(|part| part.steps.as_ref()).map(|part| part.device_share).sum();
    assert!((shares - 1.0).abs() < 1e-9);
    assert!(total.latency_ms.p50 >= 1.0 && report.late_after_ms.is_none());
}

/// Goal: a stall is felt by every call that fell due meanwhile, not only by the one that was being computed. Method: an
/// open loop of 100 calls/s for a second, no answer from 0.3 to 0.8 s: the 50 calls due then wait 250 ms on average. A
/// generator that waits for answers would have sent one call instead, and its p90 would not have shown the stall.
#[test]
fn a_stall_counts_for_every_call_that_was_due() {
    in_some_try(|| {
        let stall = Trouble::Stall(Duration::from_millis(300), Duration::from_millis(800));
        let options = "--model embed --rate 100 --arrivals constant --duration 1s --check 0 --late-after 200ms";
        let report = bench(0, stall, options).unwrap();
        let total = &report.total;
        assert_eq!((total.calls, total.failed), (100, total.late));
        assert!(total.latency_ms.max > 450.0, "{:?}", total.latency_ms);
        assert!(total.latency_ms.p90 > 300.0, "{:?}", total.latency_ms);
        // 30 were due more than 200 ms before its end. On a busy machine the queue behind it lasts longer, but what was
        // answered before it, 30 of 100, does not feel it.
        assert!((20..=70).contains(&total.late), "{}", total.late);
    });
}

#[test]
fn a_closed_loop_keeps_so_many_callers_busy() {
    in_some_try(|| {
        let report = bench(5, Trouble::None, "--model embed --concurrency 4 --duration 1s --check 0").unwrap();
        let total = &report.total;
        assert!((40.0..=200.0).contains(&total.answered.calls), "the device does less than 200/s: {total:?}");
        // Four callers share the device: each waits for three others.
        assert!(total.latency_ms.p50 >= 15.0, "{:?}", total.latency_ms);
    });
}

#[test]
fn an_answer_that_changes_under_load_is_wrong() {
    let options = "--model embed --rate 100 --duration 1s --check 8 --check-share 0.5 --fail-on failed>0";
    let report = bench(0, Trouble::WrongAfter(8), options).unwrap();
    let total = &report.total;
    assert!(total.wrong > 20 && total.wrong == total.failed && total.wrong == total.checked, "{total:?}");
    assert!(report.first_wrong.as_ref().unwrap().starts_with("model 'embed': row 0 has cosine"));
    assert!("failed>0".parse::<super::fail_on::FailOn>().unwrap().broken_by(&report).is_some());
}

#[test]
fn refusals_deadlines_and_cancels_are_told_apart() {
    let report =
        bench(0, Trouble::Refuses, "--model embed --rate 100 --arrivals constant --duration 500ms --check 0").unwrap();
    assert_eq!((outcome(&report, "OK"), outcome(&report, "RESOURCE_EXHAUSTED")), (25, 25));
    assert_eq!(report.total.failed, 25);
    let slow = "--model embed --rate 20 --arrivals constant --duration 500ms --check 0";
    let report = bench(400, Trouble::None, &format!("{slow} --deadline 100ms")).unwrap();
    assert_eq!((outcome(&report, "DEADLINE_EXCEEDED"), report.total.failed), (10, 10));
    let report = bench(400, Trouble::None, &format!("{slow} --cancel 1 --cancel-after 100ms")).unwrap();
    assert_eq!((outcome(&report, "cancelled by the client"), report.total.failed), (10, 0));
}

/// Goal: the capacity of a device that takes 5 ms a call is found, and lateness follows from the load at 70 % of it.
#[test]
fn capacity_and_lateness_are_found() {
    in_some_try(|| {
        let options = "--model embed --find-capacity --undisturbed 2s --duration 500ms --check 0";
        let report = bench(5, Trouble::None, options).unwrap();
        let found = report.undisturbed.unwrap();
        assert!((30.0..=200.0).contains(&found.capacity_calls_per_s), "{found:?}"); // 200/s less the timers' lateness
        assert!(found.p99_ms >= 5.0);
        assert!((report.late_after_ms.unwrap() / found.p99_ms - 10.0).abs() < 1e-6);
        assert!(report.load["pacing"].starts_with("open loop, poisson"));
    });
}

#[test]
fn what_cannot_work_is_said_at_once() {
    let error = |options: &str| format!("{:#}", bench(0, Trouble::None, options).unwrap_err());
    assert_eq!(error("--model nope"), "--model nope: the server has embed, rerank, classify");
    assert!(error("--smaps-pid 4294967295").starts_with("/proc/4294967295/smaps_rollup"));
    assert!(error("--rate 0").contains("'0' is not a rate"));
    assert!(error("--rate 5 --concurrency 5").contains("cannot be used with"));
    let line = Line::parse_from(["bench", "--address", "127.0.0.1:1"]);
    let nobody = measure(&line.args);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(nobody).unwrap_err().to_string().contains("no gRPC server answers at 127.0.0.1:1"));
}
