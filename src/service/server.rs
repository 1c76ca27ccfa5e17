//! The ports with all services, from the first connection to the end of the drain.

use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::server::health_reporter;

use super::access::{Door, Guarded};
use super::call::CallLayer;
use super::carried::Held;
use super::context::Context;
use super::health::{Health, service_name};
use super::limits::Limits;
use super::oip::Oip;
use super::own::Own;
use super::port::{Inference, Operations, Reload};
use super::proto::DESCRIPTORS;
use super::proto::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use super::proto::plimsoll::classify_server::ClassifyServer;
use super::proto::plimsoll::embed_server::EmbedServer;
use super::proto::plimsoll::memory_server::MemoryServer;
use super::proto::plimsoll::models_server::ModelsServer;
use super::proto::plimsoll::rerank_server::RerankServer;
use super::proto::plimsoll::token_classify_server::TokenClassifyServer;
use super::proto::tei::embed_server::EmbedServer as TeiEmbedServer;
use super::proto::tei::info_server::InfoServer as TeiInfoServer;
use super::proto::tei::predict_server::PredictServer as TeiPredictServer;
use super::proto::tei::rerank_server::RerankServer as TeiRerankServer;
use super::proto::tei::tokenize_server::TokenizeServer as TeiTokenizeServer;
use super::security::Security;
use super::tei::Tei;
use super::transport::{Accepting, Incoming, Protocol, Written, serve_http};
use crate::telemetry::traces::Traces;

/// Bytes that a client may send on one call before we have read any: what HTTP/2 starts with is 64 KiB, which makes a
/// large request wait for a round trip every 64 KiB. Raising it costs host memory for each call in flight.
const CALL_WINDOW: u32 = 1 << 20;
/// The same over all calls of one connection.
const CONNECTION_WINDOW: u32 = 8 << 20;
/// How often an idle connection is asked whether its client is still there, and how long the client may take.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));

/// How long connections may stay on which nothing happens any more, after the last call is answered: what is open then has
/// no call, or one that is not sent to its end.
const LINGER: Duration = Duration::from_secs(3);

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Accepted calls that did not finish within the bound; 0 after a clean drain.
    pub unfinished_calls: usize,
}

/// Why the services ended before they were told to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The tokenizer's threads could not be started.
    #[error("the tokenizer's threads could not be started: {0}")]
    Tokenizer(#[from] std::io::Error),
    /// The transport failed.
    #[error("the gRPC transport failed: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// A port was closed although nobody has asked for it; the log has the cause.
    #[error("a port was closed by a fault of the server: its log has the cause")]
    Ended,
    /// The descriptors built into this program are not what reflection takes.
    #[error("reflection does not take the descriptors of this program: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Where the services listen.
pub struct Listeners {
    /// For gRPC.
    pub grpc: TcpListener,
    /// For HTTP, with the routes of others that go along with ours.
    pub http: Option<(TcpListener, Router)>,
    /// For gRPC with calls of administration, which `grpc` may not have.
    pub admin: Option<TcpListener>,
}

/// Serves on `listeners` until `shutdown` resolves, then drains: health says NOT_SERVING; after `limits.drain_notice`
/// nothing more is accepted; what is accepted finishes, for `limits.drain_bound` at most.
///
/// The engine has to run until this returns.
///
/// # Errors
/// A [`ServeError`] if the services end before `shutdown`.
pub async fn serve<E: Inference + Operations>(
    listeners: Listeners,
    engine: E,
    limits: Limits,
    security: Security,
    traces: Traces,
    reload: Option<Arc<dyn Reload>>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<Drained, ServeError> {
    let (start_drain, draining) = watch::channel(false);
    let (notice, bound) = (limits.drain_notice, limits.drain_bound);
    let message_size = limits.message_size();
    let (message_limit, streams) = (limits.message, limits.streams);
    let (held, message_time) = (Arc::new(Held::new(limits.streams_held)), limits.message_time);
    let context = Arc::new(Context::new(engine, limits, traces.clone(), draining.clone(), reload)?);
    let in_flight = context.in_flight.clone();
    let (reporter, health_service) = health_reporter();

    // Answers are compressed for calls that are compressed themselves; see `call`.
    macro_rules! service {
        ($server:ident, $implementation:expr) => {
            $server::new($implementation)
                .max_decoding_message_size(message_size)
                .max_encoding_message_size(message_size)
                .accept_compressed(CompressionEncoding::Gzip)
                .accept_compressed(CompressionEncoding::Zstd)
                .accept_compressed(CompressionEncoding::Deflate)
                .send_compressed(CompressionEncoding::Gzip)
                .send_compressed(CompressionEncoding::Zstd)
                .send_compressed(CompressionEncoding::Deflate)
        };
    }
    let own = || Own::new(context.clone());
    let oip = service!(GrpcInferenceServiceServer, Oip { context: context.clone() });
    let embed = service!(EmbedServer, own());
    let rerank = service!(RerankServer, own());
    let classify = service!(ClassifyServer, own());
    let token_classify = service!(TokenClassifyServer, own());
    let models = service!(ModelsServer, own());
    let memory = service!(MemoryServer, own());
    let tei = || Tei { context: context.clone() };
    let tei_info = service!(TeiInfoServer, tei());
    let tei_embed = service!(TeiEmbedServer, tei());
    let tei_predict = service!(TeiPredictServer, tei());
    let tei_rerank = service!(TeiRerankServer, tei());
    let tei_tokenize = service!(TeiTokenizeServer, tei());
    let services = vec![
        service_name(&oip),
        service_name(&embed),
        service_name(&rerank),
        service_name(&classify),
        service_name(&token_classify),
        service_name(&models),
        service_name(&memory),
        service_name(&tei_info),
        service_name(&tei_embed),
        service_name(&tei_predict),
        service_name(&tei_rerank),
        service_name(&tei_tokenize),
    ];
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };

    let health = || Health::new(reporter.clone(), services.clone(), context.engine.health(), draining.clone());
    // Before the first connection is answered: the reporter starts with SERVING.
    health().publish().await;
    let following = AbortOnDrop(tokio::spawn(health().follow()));

    let routes = Routes::new(oip)
        .add_service(embed)
        .add_service(rerank)
        .add_service(classify)
        .add_service(token_classify)
        .add_service(models)
        .add_service(memory)
        .add_service(tei_info)
        .add_service(tei_embed)
        .add_service(tei_predict)
        .add_service(tei_rerank)
        .add_service(tei_tokenize)
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        // Clients older than reflection v1 ask for this one.
        .add_service(reflection().build_v1alpha()?);

    // Its end is the signal.
    let (stop_accepting, stopped) = watch::channel(());
    let _secrets = AbortOnDrop(tokio::spawn(security.clone().follow()));
    let Security { access, tls, origins, .. } = security;
    let written = Written::default();
    let incoming = |listener, protocol| {
        Incoming::new(listener, Accepting { tls: tls.clone(), protocol, written: written.clone() }, stopped.clone())
    };
    let over_grpc = |listener, door| {
        Server::builder()
            .initial_stream_window_size(CALL_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(streams)
            // A client that gives up many calls at once must not lose the connection, and with it its other calls: the
            // transport's own bound on calls that were given up before they were looked at is 20.
            .http2_max_pending_accept_reset_streams(Some(streams as usize))
            .http2_keepalive_interval(Some(KEEPALIVE.0))
            .http2_keepalive_timeout(Some(KEEPALIVE.1))
            .layer(CallLayer {
                message_limit,
                in_flight: in_flight.clone(),
                access: access.clone(),
                door,
                traces: traces.clone(),
                held: held.clone(),
                message_time,
            })
            .add_routes(routes.clone())
            // The signal is the end of what comes in: what has come until then is still served.
            .serve_with_incoming_shutdown(incoming(listener, Protocol::Grpc).into_stream(), pending())
    };
    // Dropped, it ends all of them.
    let mut serving = JoinSet::new();
    serving.spawn(over_grpc(listeners.grpc, Door::Main));
    if let Some(listener) = listeners.admin {
        serving.spawn(over_grpc(listener, Door::Admin));
    }
    if let Some((listener, others)) = listeners.http {
        let routes = super::http::router(context.clone()).merge(others);
        let guarded = Guarded { access: access.clone(), origins: Arc::new(origins.clone()) };
        let guarded = routes.layer(axum::middleware::from_fn_with_state(guarded, super::access::guard));
        // In front of the guard: a browser that asks whether it may call has no token yet.
        let guarded = match super::http::cors::layer(&origins) {
            Some(cors) => guarded.layer(cors),
            None => guarded,
        };
        let incoming = incoming(listener, Protocol::Http);
        serving.spawn(async move {
            serve_http(incoming, guarded).await;
            Ok(())
        });
    }
    tokio::select! {
        ended = serving.join_next() => {
            return match ended {
                Some(Ok(Err(error))) => Err(error.into()),
                _ => Err(ServeError::Ended),
            };
        }
        () = shutdown => {}
    }

    start_drain.send_replace(true);
    health().publish().await;
    sleep(notice).await;
    drop(stop_accepting);
    let last_call_ends = async {
        in_flight.idle().await;
        drop(following);
        health().close().await;
        // Answers may still be on their way, and calls come in over what is open, until their clients have heard of the end.
        loop {
            let seen = (in_flight.begun(), written.bytes());
            sleep(LINGER).await;
            in_flight.idle().await;
            if seen == (in_flight.begun(), written.bytes()) {
                break;
            }
        }
    };
    // Each ends when the last of its connections has been answered and closed.
    let all_end = async { while serving.join_next().await.is_some() {} };
    let drained = async {
        tokio::select! {
            () = all_end => {}
            () = last_call_ends => tracing::debug!("connections without a call are cut off"),
        }
    };
    if timeout(bound, drained).await.is_err() {
        tracing::warn!(unfinished_calls = in_flight.count(), "the drain took too long and is cut off");
    }
    Ok(Drained { unfinished_calls: in_flight.count() })
}

/// Serves these routes over HTTP, by themselves and without TLS, for as long as this is polled.
pub async fn serve_routes(listener: TcpListener, routes: Router) {
    let (_until, stopped) = watch::channel(());
    let accepting = Accepting { tls: None, protocol: Protocol::Http, written: Written::default() };
    serve_http(Incoming::new(listener, accepting, stopped), routes).await;
}

/// A task that ends with its owner.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Calls in flight; holding one counts one.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Count>);

/// How many calls are in flight.
#[derive(Debug, Default)]
pub(crate) struct Count {
    calls: AtomicUsize,
    begun: AtomicU64,
    none_left: Notify,
}

impl InFlight {
    /// Counts one more call until the result is dropped.
    pub(crate) fn enter(count: &Arc<Count>) -> InFlight {
        count.calls.fetch_add(1, Ordering::AcqRel);
        count.begun.fetch_add(1, Ordering::AcqRel);
        InFlight(count.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.0.calls.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none_left.notify_waiters();
        }
    }
}

impl Count {
    /// Calls now.
    pub(crate) fn count(&self) -> usize {
        self.calls.load(Ordering::Acquire)
    }

    /// Calls so far.
    fn begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    /// Waits until there are none.
    pub(crate) async fn idle(&self) {
        loop {
            // Made before the look at the count, so that a notice between the two is not missed.
            let none_left = self.none_left.notified();
            if self.count() == 0 {
                return;
            }
            none_left.await;
        }
    }
}
