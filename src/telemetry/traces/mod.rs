//! Traces of calls, sent to an OpenTelemetry collector over OTLP.
//!
//! A call has a span, below the one that its headers name (W3C Trace Context); what is known of its request afterwards
//! becomes the spans below that. Nothing of what a client sent is in a span, neither texts nor token ids. While traces
//! are off a call costs a look at an `Option`.

mod delivery;
mod span;

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanKind, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, Key, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, SpanProcessor};

use delivery::Delivery;
pub use span::{Call, CallSpan, StepSpan};

/// How long one message to the collector may take, repetitions included.
const EXPORT_TIME: Duration = Duration::from_secs(5);

/// How long the end of the server waits for the last spans to be delivered.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// Why traces cannot be sent.
#[derive(Debug, thiserror::Error)]
#[error("traces cannot be sent to {endpoint}: {error}")]
pub struct TracesError {
    endpoint: String,
    error: ExporterBuildError,
}

/// Where the spans of calls go; nowhere while traces are off.
#[derive(Clone, Debug)]
pub struct Traces(Option<Arc<Pipeline>>);

#[derive(Debug)]
struct Pipeline {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

impl Traces {
    /// No traces.
    pub fn off() -> Traces {
        Traces(None)
    }

    /// Traces for the collector at `endpoint`, such as `http://127.0.0.1:4317`. It need not be there yet. `sample` is the part of the
    /// traces beginning here that is sent; where a call names its parent, that was decided before.
    ///
    /// To be called within a tokio runtime, which does the sending.
    ///
    /// # Errors
    /// If `endpoint` is no address.
    pub fn to_collector(endpoint: &str, sample: f64) -> Result<Traces, TracesError> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(EXPORT_TIME).build();
        let exporter = exporter.map_err(|error| TracesError { endpoint: endpoint.to_owned(), error })?;
        Ok(Traces::through(Delivery::new(exporter), sample))
    }

    fn through(processor: impl SpanProcessor + 'static, sample: f64) -> Traces {
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(sample)));
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(sampler)
            .with_resource(resource())
            .build();
        let tracer = provider.tracer("plimsoll");
        Traces(Some(Arc::new(Pipeline { provider, tracer, propagator: TraceContextPropagator::new() })))
    }

    /// Traces that stay here, where a test looks at them.
    #[cfg(test)]
    pub(crate) fn in_memory(sample: f64) -> (Traces, opentelemetry_sdk::trace::InMemorySpanExporter) {
        let exporter = opentelemetry_sdk::trace::InMemorySpanExporter::default();
        let processor = opentelemetry_sdk::trace::SimpleSpanProcessor::new(exporter.clone());
        (Traces::through(processor, sample), exporter)
    }

    /// The span of a call that has come now with these headers; it ends when the last copy of it is dropped. `None` if
    /// the call is not to be traced.
    pub fn call_span(&self, call: Call<'_>, headers: &HeaderMap) -> Option<CallSpan> {
        let pipeline = self.0.as_ref()?;
        let parent = pipeline.propagator.extract_with_context(&Context::new(), &Headers(headers));
        let builder = pipeline.tracer.span_builder(call.name()).with_kind(SpanKind::Server);
        let mut span = pipeline.tracer.build_with_context(builder, &parent);
        if !span.is_recording() {
            return None;
        }
        span.set_attributes(call.attributes());
        Some(CallSpan::new(pipeline.tracer.clone(), parent.with_span(span)))
    }

    /// The span that this task works for, by [`CallSpan::carry`]. `None` if the call is not traced.
    pub fn current(&self) -> Option<CallSpan> {
        let pipeline = self.0.as_ref()?;
        let context = Context::current();
        context.has_active_span().then(|| CallSpan::new(pipeline.tracer.clone(), context))
    }

    /// Sends what waits to be sent, for 2 s at most, and ends the traces.
    pub async fn shut_down(&self) {
        let Some(pipeline) = self.0.clone() else { return };
        // What cannot be delivered any more is told where it is counted.
        let _ = tokio::task::spawn_blocking(move || pipeline.provider.shutdown_with_timeout(FLUSH_TIME)).await;
    }
}

/// Who sends them: what the environment says (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES), or else this program.
fn resource() -> Resource {
    let builder = || Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let found = builder().build();
    let name = found.get(&Key::from_static_str("service.name"));
    // What the SDK says where nobody has said anything.
    match name.is_some_and(|name| !name.as_str().starts_with("unknown_service")) {
        true => found,
        false => builder().with_service_name("plimsoll").build(),
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}
