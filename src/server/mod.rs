//! The assembly: a configuration in, a running server out. `serve`, `demo` and the tests all start it here.

mod settings;
mod offers;
mod reload;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::config::source::Cache;
use crate::config::{self, ConfigError, Environment, Repository, ServeOptions, ServerConfig};
use crate::device::profile_store::ProfileStore;
use crate::device::{self, Device, Report, StartOptions};
use crate::engine::{Engine, EngineError, EngineHandle, Offer};
use crate::memory::{Reading, Readings, Terms};
use crate::service::{self, Drained, Limits, Listeners, Reload, Security, SecurityError, SecurityFiles, ServeError};
use crate::telemetry::traces::{Traces, TracesError};
use crate::telemetry::{Metrics, router};

pub use offers::{blueprint, offer, offers};
pub use reload::Reloader;
use reload::Served;
pub use settings::{available, start_options};
use settings::{books, engine_settings, limits, readings};

/// Where a device reports to.
pub type Reports = Box<dyn FnMut(Report) + Send>;

/// Why a server does not start, or ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A port cannot be had.
    #[error(
        "cannot listen on {address} for {what}: {error}; another program may have the port: choose one with {flag}"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What for.
        what: &'static str,
        /// What the system said.
        error: io::Error,
        /// The setting that changes it.
        flag: &'static str,
    },
    /// A file of certificates, keys or tokens cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// The address of the collector is none.
    #[error(transparent)]
    Traces(#[from] TracesError),
    /// The engine does not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The services ended.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// A running server. Its ports are open; models may still be loading.
pub struct Server {
    /// Where the gRPC services are.
    pub grpc: SocketAddr,
    /// Where the HTTP interfaces are, and metrics and health beside them.
    pub http: SocketAddr,
    /// Where metrics and health are.
    pub metrics: SocketAddr,
    /// Where gRPC is with calls of administration, if that is a place of its own.
    pub admin: Option<SocketAddr>,
    engine: Engine,
    listeners: Listeners,
    limits: Limits,
    security: Security,
    served: Served,
    reload: Option<Arc<Reloader>>,
    traces: Traces,
    metrics_task: JoinHandle<()>,
    /// Set by the signal to stop. The engine goes on admitting: what comes in while load balancers learn of the drain is
    /// served.
    draining: Arc<AtomicBool>,
}

impl Server {
    /// Opens the ports, then starts the engine and with it the first loads. Answers nothing before [`Server::run`].
    ///
    /// # Errors
    /// A [`ServerError`] that says what to change. A broken model is no error: it is served as broken.
    pub async fn start(config: ServerConfig, environment: &Environment) -> Result<Server, ServerError> {
        let device = |options, epoch, reports: Reports| device::start(options, epoch, reports);
        Server::start_on(config, environment, device).await
    }

    /// The same on a device that `device` starts as it is configured; it gets the engine's start, and where to report to.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn start_on(
        config: ServerConfig,
        environment: &Environment,
        device: impl FnOnce(StartOptions, Instant, Reports) -> io::Result<Box<dyn Device>> + Send + 'static,
    ) -> Result<Server, ServerError> {
        let repository = Repository::load(&config)?;
        let security = security(&config)?;
        let at = |port| SocketAddr::new(config.address, port);
        let listener = listen(at(config.grpc_port), "gRPC", "--grpc-port").await?;
        let fronts = listen(at(config.http_port), "HTTP", "--http-port").await?;
        let http = listen(at(config.metrics_port), "metrics and health", "--metrics-port").await?;
        let for_admin = match config.admin_address.get() {
            Some(address) => Some(listen(address, "administration", "--admin-address").await?),
            None => None,
        };
        let (grpc, front, metrics_address) = (local(&listener)?, local(&fronts)?, local(&http)?);
        let admin = for_admin.as_ref().map(local).transpose()?;
        for warning in security.warnings(config.address, admin.map(|admin| admin.ip())) {
            tracing::warn!("{warning}");
        }

        let metrics = Metrics::new();
        let security = security.with_metrics(&metrics);
        let cache = Cache::new(&config, environment);
        let limits = limits(&config);
        let traces = traces(&config)?;
        let (engine, served) = {
            let metrics = metrics.clone();
            // Reads the headers of every model's files.
            let start = move || {
                let offers = offers(repository, &cache);
                let served = Served::of(&config, &offers);
                start_engine(&config, offers, &metrics, device).map(|engine| (engine, served))
            };
            tokio::task::spawn_blocking(start).await.map_err(|error| EngineError::Io(io::Error::other(error)))??
        };
        let (pulse, health) = (engine.handle().pulse(), engine.handle().health());
        let live = move || if pulse.alive() { Ok(()) } else { Err("the engine's loop does not turn".to_owned()) };
        let draining = Arc::new(AtomicBool::new(false));
        let is_draining = draining.clone();
        let ready = move || match is_draining.load(Ordering::Relaxed) {
            true => Err("the server is draining".to_owned()),
            false => health.borrow().readiness(),
        };
        let routes = router(metrics, live, ready);
        let listeners = Listeners { grpc: listener, http: Some((fronts, routes.clone())), admin: for_admin };
        let metrics_task = tokio::spawn(service::serve_routes(http, routes));
        let (http, metrics) = (front, metrics_address);
        Ok(Server {
            grpc,
            http,
            metrics,
            admin,
            engine,
            listeners,
            limits,
            security,
            served,
            reload: None,
            traces,
            metrics_task,
            draining,
        })
    }

    /// Lets it be told to read again what it was started from: these options, in this environment.
    pub fn reloader(&mut self, options: ServeOptions, environment: Environment) -> Arc<Reloader> {
        let served = std::mem::take(&mut self.served);
        let reloader = Arc::new(Reloader::new(options, environment, self.engine.handle(), served));
        self.reload = Some(reloader.clone());
        reloader
    }

    /// A way to the engine.
    pub fn engine(&self) -> EngineHandle {
        self.engine.handle()
    }

    /// Serves until `shutdown` resolves or the device is lost, then drains: health says NOT_SERVING first, what is
    /// accepted is finished within the bound, then everything ends.
    ///
    /// # Errors
    /// A [`ServerError`] if the services end by themselves.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<Ended, ServerError> {
        let handle = self.engine.handle();
        let mut health = handle.health();
        let stop = async {
            tokio::select! {
                () = shutdown => {}
                // An error means that the engine is gone, which it is only after this function.
                _ = health.wait_for(|view| view.poisoned) => {}
            }
            self.draining.store(true, Ordering::Relaxed);
        };
        let reload = self.reload.map(|reloader| reloader as Arc<dyn Reload>);
        let (limits, traces, security) = (self.limits, self.traces, self.security);
        let served = service::serve(self.listeners, handle.clone(), limits, security, traces.clone(), reload, stop);
        let drained = served.await?;
        // Calls have been answered or cut off; what is left in the engine belongs to nobody.
        let _ = tokio::time::timeout(Duration::from_secs(1), handle.drain()).await;
        traces.shut_down().await;
        let device_lost = handle.health().borrow().poisoned;
        self.metrics_task.abort();
        let engine = self.engine;
        let _ = tokio::task::spawn_blocking(move || drop(engine)).await;
        Ok(Ended { drained, device_lost })
    }
}

/// How a server ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The drain.
    pub drained: Drained,
    /// It ended because the device was lost.
    pub device_lost: bool,
}

impl Ended {
    /// The process's exit code, for its supervisor: 0 after a clean drain, 2 if work was cut off, 3 if the device was lost.
    pub fn exit_code(&self) -> u8 {
        match self {
            Ended { device_lost: true, .. } => 3,
            Ended { drained, .. } if drained.unfinished_calls > 0 => 2,
            Ended { .. } => 0,
        }
    }
}

/// Who may call, by the configuration's files.
///
/// # Errors
/// Which of them cannot be used.
pub fn security(config: &ServerConfig) -> Result<Security, SecurityError> {
    let files = SecurityFiles {
        tokens: config.token_file.path(),
        admin_tokens: config.admin_token_file.path(),
        certificate: config.tls_cert.path().zip(config.tls_key.path()),
        client_authorities: config.tls_client_ca.path(),
    };
    Ok(Security::open(config.address, files)?.with_origins(config.cors_origins.clone()))
}

/// Traces, if the configuration says where to.
fn traces(config: &ServerConfig) -> Result<Traces, TracesError> {
    match config.otlp_endpoint.get() {
        Some(endpoint) => Traces::to_collector(endpoint, config.otlp_sample.get()),
        None => Ok(Traces::off()),
    }
}

async fn listen(address: SocketAddr, what: &'static str, flag: &'static str) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address).await.map_err(|error| ServerError::Listen { address, what, error, flag })
}

fn local(listener: &TcpListener) -> Result<SocketAddr, ServerError> {
    listener.local_addr().map_err(|error| ServerError::Engine(EngineError::Io(error)))
}

fn start_engine(
    config: &ServerConfig,
    offers: Vec<Offer>,
    metrics: &Metrics,
    device: impl FnOnce(StartOptions, Instant, Reports) -> io::Result<Box<dyn Device>>,
) -> Result<Engine, EngineError> {
    let readings = readings(config);
    // A fixed batch runs whatever is free: the device does not look before it either.
    let before_steps = match config.batching {
        config::Batching::Profile => readings,
        config::Batching::Fixed(_) => Readings::Off,
    };
    let start = start_options(config, before_steps);
    let device = move |epoch, reports| device(start, epoch, reports);
    let profiles = ProfileStore::new(config.profile_dir.clone());
    let books = |reading: &Reading, terms: Terms| books(config, readings, reading, terms);
    Engine::start(engine_settings(config), offers, metrics, profiles, device, books)
}
