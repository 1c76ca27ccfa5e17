//! The spans of a call: its own, and those below it, made when it is known what became of the request.

use std::borrow::Cow;
use std::future::Future;
use std::time::{Instant, SystemTime};

use opentelemetry::context::FutureExt;
use opentelemetry::trace::{Span, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;

use crate::memory::Rungs;
use crate::scheduler::Reason;
use crate::units::{Bytes, StepId};

/// What a path or a method is called that is not one of ours.
const OTHER: &str = "_OTHER";

/// Longest path of a gRPC call that is taken for one of ours.
const PATH_MAX: usize = 128;

/// What is called.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    /// A method over gRPC.
    Grpc {
        /// The path, `/package.Service/Method`; empty if there is no such method.
        path: &'a str,
    },
    /// A route over HTTP.
    Http {
        /// The method.
        method: &'a str,
        /// The route as it is declared, `/models/{model}/embed`; `None` if the path has none.
        route: Option<&'a str>,
    },
}

impl Call<'_> {
    pub(super) fn name(&self) -> Cow<'static, str> {
        match self {
            Call::Grpc { path } => {
                method(path).map_or(OTHER.into(), |(service, method)| format!("{service}/{method}").into())
            }
            Call::Http { method, route: Some(route) } => format!("{} {route}", verb(method)).into(),
            Call::Http { method, route: None } => verb(method).into(),
        }
    }

    pub(super) fn attributes(&self) -> Vec<KeyValue> {
        match self {
            Call::Grpc { path } => {
                let (service, method) = method(path).unwrap_or((OTHER, OTHER));
                vec![
                    KeyValue::new("rpc.system", "grpc"),
                    KeyValue::new("rpc.service", service.to_owned()),
                    KeyValue::new("rpc.method", method.to_owned()),
                ]
            }
            Call::Http { method, route } => {
                let route = route.map(|route| KeyValue::new("http.route", route.to_owned()));
                [KeyValue::new("http.request.method", verb(method))].into_iter().chain(route).collect()
            }
        }
    }
}

/// The service and the method of a path.
fn method(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix('/')?.split_once('/').filter(|_| path.len() <= PATH_MAX)
}

/// A client may write whatever it likes there.
fn verb(method: &str) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or(OTHER)
}

/// What is told of a step that a request took part in.
#[derive(Clone, Copy, Debug)]
pub struct StepSpan {
    /// The step; those of other requests in its batch have it too.
    pub id: StepId,
    /// When the device began it.
    pub began: Instant,
    /// When it was done.
    pub ended: Instant,
    /// Rows in the batch, those of other requests included.
    pub batch_rows: u32,
    /// Tokens computed, padding included.
    pub computed_tokens: u64,
    /// Which bound decided the size.
    pub reason: Reason,
    /// Peak that the profile predicted.
    pub predicted: Bytes,
    /// True peak.
    pub peak: Bytes,
    /// What it could have used when it was chosen.
    pub headroom: Bytes,
    /// What the out-of-memory ladder did.
    pub rungs: Rungs,
}

impl StepSpan {
    fn attributes(&self) -> Vec<KeyValue> {
        let Rungs { trims, halvings, evictions, refusals } = self.rungs;
        let rungs = [
            ("plimsoll.ladder.trim", trims),
            ("plimsoll.ladder.halve", halvings),
            ("plimsoll.ladder.evict", evictions),
            ("plimsoll.ladder.refuse", refusals),
        ];
        let rungs = rungs.into_iter().filter(|(_, count)| *count > 0);
        let mut attributes = vec![
            number("plimsoll.step_id", self.id.get()),
            number("plimsoll.batch_rows", self.batch_rows.into()),
            number("plimsoll.computed_tokens", self.computed_tokens),
            KeyValue::new("plimsoll.batch_reason", self.reason.as_str()),
            number("plimsoll.predicted_peak_bytes", self.predicted.get()),
            number("plimsoll.true_peak_bytes", self.peak.get()),
            number("plimsoll.headroom_bytes", self.headroom.get()),
        ];
        attributes.extend(rungs.map(|(name, count)| number(name, count.into())));
        attributes
    }
}

fn number(name: &'static str, count: u64) -> KeyValue {
    KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX))
}

/// The span of a call that is traced. It ends when the last copy is dropped, those in the futures that it carries too.
#[derive(Clone, Debug)]
pub struct CallSpan {
    tracer: SdkTracer,
    context: Context,
}

impl CallSpan {
    /// `context` has the span.
    pub(super) fn new(tracer: SdkTracer, context: Context) -> CallSpan {
        CallSpan { tracer, context }
    }

    /// The same future, whose work is for this call: [`Traces::current`](super::Traces::current) is this span there.
    pub fn carry<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        future.with_context(self.context.clone())
    }

    /// A span below this one for one message of a stream.
    pub fn message(&self) -> CallSpan {
        let span = self.tracer.start_with_context("message", &self.context);
        CallSpan { tracer: self.tracer.clone(), context: self.context.with_span(span) }
    }

    /// Notes what is asked, and of whom.
    pub fn note_rows(&self, model: &str, rows: usize) {
        let model = KeyValue::new("plimsoll.model", model.to_owned());
        self.context.span().set_attributes([model, number("plimsoll.rows", rows as u64)]);
    }

    /// Notes the tokens of all rows.
    pub fn note_tokens(&self, tokens: u64) {
        self.context.span().set_attribute(number("plimsoll.tokens", tokens));
    }

    /// Notes that texts were tokenized.
    pub fn note_tokenized(&self, began: Instant, ended: Instant) {
        self.child(&Clock::read(), "tokenize", began, ended, Vec::new());
    }

    /// Notes that a request was accepted and answered by these steps, in order of time.
    pub fn note_answered(&self, accepted: Instant, steps: impl IntoIterator<Item = StepSpan>) {
        let clock = Clock::read();
        let mut steps = steps.into_iter().peekable();
        if let Some(first) = steps.peek() {
            self.child(&clock, "queue", accepted, first.began, Vec::new());
        }
        for step in steps {
            self.child(&clock, "step", step.began, step.ended, step.attributes());
        }
    }

    /// Notes why the engine has no answer, in the word of the metrics.
    pub fn note_failed(&self, reason: &'static str) {
        self.context.span().set_attribute(KeyValue::new("error.type", reason));
    }

    /// Notes the code of the status.
    pub fn note_grpc_status(&self, code: i32) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(code)));
        // Those that are the server's doing, not the client's, by the conventions for servers.
        if matches!(code, 2 | 4 | 12..=15) {
            span.set_status(Status::error(""));
        }
    }

    /// Notes the status of the answer.
    pub fn note_http_status(&self, status: u16) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        if status >= 500 {
            span.set_status(Status::error(""));
        }
    }

    fn child(&self, clock: &Clock, name: &'static str, began: Instant, ended: Instant, attributes: Vec<KeyValue>) {
        let builder = self.tracer.span_builder(name).with_start_time(clock.time(began)).with_attributes(attributes);
        let mut span = self.tracer.build_with_context(builder, &self.context);
        span.end_with_timestamp(clock.time(ended));
    }
}

/// What turns moments that lie behind us into times of the calendar.
struct Clock {
    now: Instant,
    time: SystemTime,
}

impl Clock {
    fn read() -> Clock {
        Clock { now: Instant::now(), time: SystemTime::now() }
    }

    fn time(&self, moment: Instant) -> SystemTime {
        let ago = self.now.saturating_duration_since(moment);
        self.time.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_few_whatever_a_client_writes() {
        let check = |call: Call<'_>, name: &str| assert_eq!(call.name(), name);
        check(Call::Grpc { path: "/plimsoll.v1.Embed/Embed" }, "plimsoll.v1.Embed/Embed");
        check(Call::Grpc { path: "no path" }, "_OTHER");
        check(Call::Grpc { path: &format!("/a/{}", "b".repeat(200)) }, "_OTHER");
        check(Call::Http { method: "POST", route: Some("/models/{model}/embed") }, "POST /models/{model}/embed");
        check(Call::Http { method: "GET", route: None }, "GET");
        check(Call::Http { method: "zebracrossing", route: None }, "_OTHER");
    }
}
