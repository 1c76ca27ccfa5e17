//! What every call gets before its service sees it: a look at who it is from, a deadline, a span, a trace, a place in the count of calls in flight, an
//! answer compressed only if it is itself, and a status in our words where the transport refuses its message.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::{Instrument, Span, field};

use super::access::{Access, Door, Pass};
use super::arriving::timely;
use super::carried::{Carried, Held};
use super::errors::rephrase_transport;
use super::schema::SCHEMA;
use super::server::{Count, InFlight};
use super::transport::{OfConnection, lasting};
use crate::telemetry::traces::{Call, Traces};
use crate::units::Bytes;

/// Longest part of a client's request id and traceparent that goes into the log.
const ID_LENGTH_MAX: usize = 128;

/// When a call came and when its answer is of no more use. In the extensions of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// When its headers were read.
    pub(crate) at: Instant,
    /// From the header `grpc-timeout`.
    pub(crate) deadline: Option<Instant>,
}

impl Arrival {
    /// Of a request that went through [`CallLayer`]; one that did not has come just now.
    pub(crate) fn of<T>(request: &tonic::Request<T>) -> Arrival {
        request.extensions().get().copied().unwrap_or_else(|| Arrival { at: Instant::now(), deadline: None })
    }

    fn read(headers: &HeaderMap) -> Arrival {
        let at = Instant::now();
        let timeout = headers.get("grpc-timeout").and_then(|value| value.to_str().ok()).and_then(parse_timeout);
        Arrival { at, deadline: timeout.and_then(|timeout| at.checked_add(timeout.saturating_sub(margin(timeout)))) }
    }

    /// The earlier of the call's deadline and `timeout` after its arrival.
    pub(crate) fn deadline_within(&self, timeout: Option<Duration>) -> Option<Instant> {
        let own = timeout.and_then(|timeout| self.at.checked_add(timeout));
        match (self.deadline, own) {
            (Some(call), Some(own)) => Some(call.min(own)),
            (call, own) => call.or(own),
        }
    }
}

/// How much before the client's deadline we answer. At the deadline itself the transport answers CANCELLED by its own
/// timer, which starts just after ours and counts in milliseconds; the answer also has to reach the client.
fn margin(timeout: Duration) -> Duration {
    (timeout / 10).clamp(Duration::from_millis(2), Duration::from_millis(20)).min(timeout / 2)
}

/// The value of a `grpc-timeout` header: up to 8 digits and a unit. `None` if it is anything else, as the transport
/// takes it too.
fn parse_timeout(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let digits = text.strip_suffix(unit)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        'H' => Some(Duration::from_secs(count * 3600)),
        'M' => Some(Duration::from_secs(count * 60)),
        'S' => Some(Duration::from_secs(count)),
        'm' => Some(Duration::from_millis(count)),
        'u' => Some(Duration::from_micros(count)),
        'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// Puts a request id into the current call's span.
pub(crate) fn note_request_id(id: &str) {
    if !id.is_empty() {
        Span::current().record("request_id", printable(id).as_str());
    }
}

/// A client's id made fit for a log: cut, and without control characters.
fn printable(id: &str) -> String {
    id.chars().take(ID_LENGTH_MAX).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The span of a call, over whatever it comes: with its path, and what its headers say of where it belongs.
pub(crate) fn span(path: &str, headers: &HeaderMap) -> Span {
    let span = tracing::info_span!("call", rpc = path, request_id = field::Empty, traceparent = field::Empty);
    for (header, name) in [("x-request-id", "request_id"), ("traceparent", "traceparent")] {
        if let Some(text) = headers.get(header).and_then(|value| value.to_str().ok()) {
            span.record(name, printable(text).as_str());
        }
    }
    span
}

/// Whether a list of encodings has this one.
fn lists(accepted: &HeaderValue, used: &HeaderValue) -> bool {
    accepted.as_bytes().split(|byte| *byte == b',').any(|one| one.trim_ascii() == used.as_bytes())
}

/// Wraps the services; see the module.
#[derive(Clone)]
pub(crate) struct CallLayer {
    pub(crate) message_limit: Bytes,
    pub(crate) in_flight: Arc<Count>,
    pub(crate) access: Arc<Access>,
    pub(crate) door: Door,
    pub(crate) traces: Traces,
    pub(crate) held: Arc<Held>,
    pub(crate) message_time: Duration,
}

impl<S> Layer<S> for CallLayer {
    type Service = CallService<S>;

    fn layer(&self, inner: S) -> CallService<S> {
        CallService { inner, layer: self.clone() }
    }
}

/// A service under [`CallLayer`].
#[derive(Clone)]
pub(crate) struct CallService<S> {
    inner: S,
    layer: CallLayer,
}

impl<S> Service<Request<Body>> for CallService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let arrival = Arrival::read(request.headers());
        // Many clients say that they can read gzip and few want it: vectors of floats shrink by a tenth and take longer
        // than the step that made them. An answer is compressed if its call is, and in the same way.
        let accepted = request.headers_mut().remove("grpc-accept-encoding");
        let used = request.headers().get("grpc-encoding").cloned();
        if let Some(used) = used.filter(|used| accepted.is_some_and(|accepted| lists(&accepted, used))) {
            request.headers_mut().insert("grpc-accept-encoding", used);
        }
        request.extensions_mut().insert(arrival);
        let path = request.uri().path();
        let span = span(path, request.headers());
        // Health watches and reflection streams last as long as their clients like; a drain does not wait for them.
        let is_work = !path.starts_with("/grpc.");
        let counted = is_work.then(|| InFlight::enter(&self.layer.in_flight));
        let connection = request.extensions().get::<OfConnection>().cloned();
        let connection = connection.map(|connection| (connection.calls.begin(), connection));
        let CallLayer { message_limit: limit, message_time, ref access, door, ref traces, .. } = self.layer;
        let admitted = access.admit(path, request.headers(), door);
        // Who is not let in fills no collector.
        let is_traced = is_work && admitted.is_ok();
        // A client may write what it likes into a path.
        let named = if SCHEMA.knows(path) { path } else { "" };
        let traced = is_traced.then(|| traces.call_span(Call::Grpc { path: named }, request.headers())).flatten();
        let told = traced.clone();
        let carried = SCHEMA.is_stream(path).then(|| {
            let pass = Arc::new(Pass::new(access, path, request.headers(), door));
            Carried { pass, held: self.layer.held.clone() }
        });
        // Of a stream nobody can say when its next message is due.
        let is_timed = SCHEMA.knows(path) && carried.is_none();
        let request = if is_timed { timely(request, message_time) } else { request };
        let answer = admitted.map(|()| self.inner.call(request));
        let observed = async move {
            let response = match (answer, carried) {
                (Ok(answer), None) => answer.await?,
                (Ok(answer), Some(carried)) => carried.along(answer).await?,
                (Err(problem), _) => Status::from(problem).into_http(),
            };
            let status = Status::from_header_map(response.headers());
            drop(counted);
            let named = status.as_ref().and_then(|status| rephrase_transport(status, limit));
            if let Some(told) = told {
                told.note_grpc_status(named.as_ref().or(status.as_ref()).map_or(Code::Ok, Status::code) as i32);
            }
            let Some(status) = status else {
                return Ok(match connection {
                    Some((busy, connection)) => lasting(response, connection, busy),
                    None => response,
                });
            };
            tracing::debug!(code = ?status.code(), elapsed_us = arrival.at.elapsed().as_micros() as u64, "call failed");
            Ok(named.map_or(response, Status::into_http))
        };
        match traced {
            Some(traced) => Box::pin(traced.carry(observed.instrument(span))),
            None => Box::pin(observed.instrument(span)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_the_protocol_writes_them() {
        let check = |text: &str, expected: Option<Duration>| assert_eq!(parse_timeout(text), expected, "{text:?}");
        check("5m", Some(Duration::from_millis(5)));
        check("100u", Some(Duration::from_micros(100)));
        check("7n", Some(Duration::from_nanos(7)));
        check("3S", Some(Duration::from_secs(3)));
        check("2M", Some(Duration::from_secs(120)));
        check("99999999H", Some(Duration::from_secs(99_999_999 * 3600)));
        check("999999999S", None);
        check("S", None);
        check("", None);
        check("-5S", None);
        check("5 S", None);
        check("5é", None);
    }

    #[test]
    fn the_answer_comes_before_the_clients_deadline() {
        for ms in [1, 5, 20, 100, 1_000, 3_600_000] {
            let timeout = Duration::from_millis(ms);
            assert!(margin(timeout) > Duration::ZERO && margin(timeout) <= timeout / 2, "{ms} ms");
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", format!("{ms}m").parse().expect("a header's value"));
            let arrival = Arrival::read(&headers);
            assert_eq!(arrival.deadline, Some(arrival.at + timeout - margin(timeout)), "{ms} ms");
        }
    }

    #[test]
    fn ids_are_cut_and_cleaned_for_the_log() {
        assert_eq!(printable("a\nb"), "a?b");
        assert_eq!(printable(&"x".repeat(500)).len(), ID_LENGTH_MAX);
    }
}
