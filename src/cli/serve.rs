//! `plimsoll serve`: serves models over gRPC until a signal ends it.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{Effective, Environment, ServeOptions, ServerConfig};
use crate::device::cpu::{set_compute_threads, usable_cores};
use crate::server::{Ended, Server};
use crate::service::Reload;
use crate::telemetry::logs;

/// Options of `serve`.
#[derive(clap::Args, Clone, Debug)]
pub struct ServeArgs {
    /// What is served, and how.
    #[command(flatten)]
    pub options: ServeOptions,
}

/// Serves. Exits with 0 after a clean drain, with 2 if work was cut off, and with 3 if the device was lost.
///
/// # Errors
/// Why it cannot start.
pub fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let environment = Environment::of_process();
    let Effective { config, .. } = ServerConfig::load(&args.options, &environment)?;
    // Every connection takes a file, and what a process may open from the start is often 1,024 of them. Where the system
    // allows no more, it stays as it is.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    // Before any other thread is started.
    let threads = NonZeroUsize::new(config.threads.count()).unwrap_or(NonZeroUsize::MIN);
    set_compute_threads(threads)?;
    logs::init(config.log_format, &config.log_level)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(server_threads(usable_cores()))
        .thread_name("server")
        .enable_all()
        .build()
        .context("the server's threads cannot be started")?;
    let ended = runtime.block_on(serve(config, args.options, environment))?;
    Ok(ExitCode::from(ended.exit_code()))
}

/// Threads for connections on a machine of `cores`. Texts have threads of their own, and so has the device; a few are
/// enough for the rest, but the answers of a large step of single texts all go out at once.
fn server_threads(cores: NonZeroUsize) -> usize {
    (cores.get() / 4).clamp(2, 8)
}

async fn serve(config: ServerConfig, options: ServeOptions, environment: Environment) -> anyhow::Result<Ended> {
    // Installed before the ports open: a signal is never lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut server = Server::start(config, &environment).await?;
    let reloader = server.reloader(options, environment);
    tracing::info!(
        grpc = %server.grpc,
        http = %server.http,
        metrics = %server.metrics,
        "gRPC on {}, HTTP on http://{}, metrics and health on http://{}",
        server.grpc,
        server.http,
        server.metrics
    );
    if let Some(admin) = server.admin {
        tracing::info!(%admin, "gRPC with calls of administration on {admin}");
    }
    // Ends with the runtime: what is read by then is said in the log.
    tokio::spawn(async move {
        while hang_up.recv().await.is_some() {
            tracing::info!("SIGHUP: reading the configuration again");
            // What came of it is in the log.
            let _ = reloader.reload().await;
        }
    });
    let stop = async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!("{name}: draining");
    };
    let ended = server.run(stop).await?;
    match ended.drained.unfinished_calls {
        0 => tracing::info!("drained"),
        cut_off => tracing::warn!(cut_off, "the drain's time is over: {cut_off} calls were cut off"),
    }
    Ok(ended)
}
