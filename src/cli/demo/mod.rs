//! `plimsoll demo`: what the server does, in a minute, offline, through a real gRPC connection.

mod texts;
mod ask;
mod burst;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use tonic::transport::{Channel, Endpoint};

use crate::config::{Amount, DeviceKind, Effective};
use crate::config::{Environment, LogFilter, LogFormat, MemoryBudget, ServeOptions, ServerConfig, SettingFlags};
use crate::device::cpu::{set_compute_threads, usable_cores};
use crate::engine::{EngineHandle, ModelState};
use crate::memory::ProfileState;
use crate::server::Server;
use crate::telemetry::logs;
use crate::units::Bytes;

/// The models: the same embedder twice, in f32 and in int8, a reranker and a classifier.
const MODELS: [&str; 4] = ["tiny-embed", "tiny-embed-int8=tiny-embed:int8", "tiny-rerank", "tiny-section"];

/// What the server may use: the weights of the four and less workspace than its best batches would take, so that
/// memory decides the size of some.
const BUDGET: Bytes = Bytes::mib(64);

/// The same on a GPU, where libraries have 32 MiB and more to themselves.
const BUDGET_GPU: Bytes = Bytes::gib(1);

/// How long the demo waits for profiles.
const MEASURING_MAX: Duration = Duration::from_secs(25);

/// Options of `demo`.
#[derive(clap::Args, Clone, Debug)]
pub struct DemoArgs {
    /// Memory for models and their steps; 64 MiB on a CPU and 1 GiB on a GPU unless it is said.
    #[arg(long, value_name = "BYTES")]
    pub memory_budget: Option<Bytes>,

    /// Device that runs the models.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceKind::Cpu)]
    pub device: DeviceKind,
}

impl DemoArgs {
    fn budget(&self) -> Bytes {
        self.memory_budget.unwrap_or(if self.device == DeviceKind::Cpu { BUDGET } else { BUDGET_GPU })
    }
}

/// Runs the demo.
///
/// # Errors
/// A port cannot be had, or a call fails that should not.
pub fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let environment = Environment::of_process();
    let Effective { config, .. } = ServerConfig::load(&options(&args)?, &environment)?;
    set_compute_threads(NonZeroUsize::new(config.threads.count()).unwrap_or_else(usable_cores))?;
    logs::init(config.log_format, &config.log_level)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = Server::start(config, &environment).await?;
        let address = format!("http://{}", server.grpc);
        let engine = server.engine();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        let channel = Endpoint::from_shared(address.clone())?.connect().await.context("the server does not answer")?;
        let shown = show(channel, &engine, &address, args.budget(), started).await;
        drop(stop);
        serving.await??;
        shown
    })?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: &DemoArgs) -> anyhow::Result<ServeOptions> {
    let models: Result<Vec<_>, _> = MODELS.iter().map(|model| model.parse()).collect();
    Ok(ServeOptions {
        model: models.map_err(|error| anyhow::anyhow!("{error}"))?,
        settings: SettingFlags {
            grpc_port: Some(0),
            http_port: Some(0),
            metrics_port: Some(0),
            memory_budget: Some(MemoryBudget::Amount(Amount::Bytes(args.budget()))),
            device: Some(args.device),
            // A small queue, so that the burst meets its bound.
            queue_rows_max: Some(burst::QUEUE_ROWS),
            request_rows_max: Some(burst::QUEUE_ROWS),
            log_format: Some(LogFormat::Auto),
            log_level: Some(LogFilter::quiet()),
            ..SettingFlags::default()
        },
        ..ServeOptions::default()
    })
}

async fn show(
    channel: Channel,
    engine: &EngineHandle,
    address: &str,
    budget: Bytes,
    started: Instant,
) -> anyhow::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "Plimsoll {} on {address}, {budget} for models and their steps\n", env!("CARGO_PKG_VERSION"))?;
    // The first answer does not wait for the other models.
    let vectors = ask::embed(&channel, "tiny-embed", &texts::DESCRIPTIONS).await?;
    writeln!(out, "first answer after {:.1} s: {} texts embedded\n", started.elapsed().as_secs_f64(), vectors.len())?;
    wait_ready(engine).await;
    write_models(&mut out, engine)?;

    writeln!(out, "\nNearest descriptions (f32 | the same by int8), then reranked:")?;
    let vectors_int8 = ask::embed(&channel, "tiny-embed-int8", &texts::DESCRIPTIONS).await?;
    for query in texts::QUERIES {
        ask::show_query(&mut out, &channel, query, &vectors, &vectors_int8).await?;
    }
    writeln!(out, "\nArchive sections of some of them:")?;
    ask::show_sections(&mut out, &channel).await?;

    wait_measured(&mut out, engine).await?;
    writeln!(out, "\nA burst on all four models, each call with texts of mixed lengths:")?;
    burst::run(&mut out, &channel, engine).await?;
    writeln!(out, "\nDone in {:.0} s. To go on:", started.elapsed().as_secs_f64())?;
    out.write_all(NEXT.as_bytes())?;
    Ok(())
}

const NEXT: &str = "  plimsoll serve                                   serve these models on port 8001
  plimsoll serve --model ./my-model:int8           serve a Hugging Face folder, quantized
  plimsoll pull all-MiniLM-L6-v2                   fetch a larger embedder; `serve` then loads it on demand
  grpcurl -plaintext -d '{\"model\": \"tiny-embed\", \"texts\": [\"web server\"]}' \\
      127.0.0.1:8001 plimsoll.v1.Embed/Embed
  python3 -c 'import numpy, tritonclient.grpc as t
  text = t.InferInput(\"TEXT\", [1], \"BYTES\"); text.set_data_from_numpy(numpy.array([b\"web server\"], object))
  print(t.InferenceServerClient(\"127.0.0.1:8001\").infer(\"tiny-embed\", [text]).as_numpy(\"embedding\"))'
";

/// Waits until every model is ready. Each reports its readiness through the same watch that health checks use.
async fn wait_ready(engine: &EngineHandle) {
    let all_ready = |view: &crate::engine::HealthView| view.models.iter().all(|(_, state)| *state == ModelState::Ready);
    // An error means that the engine is gone; the next call says so better.
    let _ = engine.health().wait_for(all_ready).await;
}

/// Gives the server idle time to measure its models' batches, as it does between requests, but not for longer than a demo
/// may take.
async fn wait_measured(out: &mut impl Write, engine: &EngineHandle) -> io::Result<()> {
    let complete = || engine.models().iter().filter(|model| model.profile == Some(ProfileState::Complete)).count();
    let started = Instant::now();
    while complete() < MODELS.len() && started.elapsed() < MEASURING_MAX {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    writeln!(
        out,
        "\nMeasured memory and time of their batches while nobody asked, for {:.0} s: {} of {} profiles complete{}",
        started.elapsed().as_secs_f64(),
        complete(),
        MODELS.len(),
        if complete() < MODELS.len() { "; larger batches than measured so far are not used yet" } else { "" }
    )
}

fn write_models(out: &mut impl Write, engine: &EngineHandle) -> io::Result<()> {
    let mut rows = vec![["model", "task", "dtype", "weights"].map(str::to_owned)];
    let mut sum = Bytes::ZERO;
    for (registered, status) in engine.registered().iter().zip(engine.models()) {
        let Some(card) = registered.card() else { continue };
        rows.push([status.name, card.task.to_string(), card.dtype.to_string(), status.resident.to_string()]);
        sum += status.resident;
    }
    super::table::write(out, &rows)?;
    writeln!(out, "{sum} of weights together; what is left of the budget is for steps, one at a time")
}
