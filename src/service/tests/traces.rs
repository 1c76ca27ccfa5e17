//! The spans of calls: where they belong, what they say, and when there are none.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use opentelemetry::Value;
use opentelemetry::trace::{SpanId, SpanKind, Status, TraceId};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SpanData};
use serde_json::json;
use tokio_stream::StreamExt;
use tower::ServiceExt;

use super::fake::Behaviour;
use super::harness::{TestServer, texts};
use super::http::Front;
use crate::admission::Rejection;
use crate::engine::Failure;
use crate::service::Limits;
use crate::service::proto::inference::ModelInferRequest;
use crate::telemetry::traces::Traces;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

fn asked(traceparent: Option<String>, request: ModelInferRequest) -> tonic::Request<ModelInferRequest> {
    let mut request = tonic::Request::new(request);
    if let Some(traceparent) = traceparent {
        request.metadata_mut().insert("traceparent", traceparent.parse().unwrap());
        request.metadata_mut().insert("tracestate", "vendor=value".parse().unwrap());
    }
    request
}

/// The spans that have ended, once there are so many of them: a call's own ends when its task is done with it.
async fn spans(exporter: &InMemorySpanExporter, count: usize) -> Vec<SpanData> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let found = exporter.get_finished_spans().unwrap();
        if found.len() >= count || Instant::now() > until {
            let names: Vec<_> = found.iter().map(|span| span.name.as_ref()).collect();
            assert_eq!(found.len(), count, "{names:?}");
            return found;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn named<'s>(spans: &'s [SpanData], name: &str) -> &'s SpanData {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name} in {spans:?}"))
}

fn attributes(span: &SpanData) -> BTreeMap<&str, Value> {
    span.attributes.iter().map(|attribute| (attribute.key.as_str(), attribute.value.clone())).collect()
}

#[tokio::test]
async fn a_grpc_call_continues_its_callers_trace() {
    let (traces, exporter) = Traces::in_memory(0.0);
    let server = TestServer::traced(traces).await;
    let before = SystemTime::now();
    server.oip().model_infer(asked(Some(traceparent("01")), texts("embed", &["web server", "music"]))).await.unwrap();
    let spans = spans(&exporter, 4).await;

    let call = named(&spans, "inference.GRPCInferenceService/ModelInfer");
    assert_eq!(call.span_context.trace_id(), TraceId::from_hex(TRACE).unwrap());
    assert_eq!((call.parent_span_id, call.parent_span_is_remote), (SpanId::from_hex(PARENT).unwrap(), true));
    assert_eq!(call.span_context.trace_state().header(), "vendor=value");
    assert_eq!((&call.span_kind, &call.status), (&SpanKind::Server, &Status::Unset));
    let expected: BTreeMap<&str, Value> = BTreeMap::from([
        ("rpc.system", "grpc".into()),
        ("rpc.service", "inference.GRPCInferenceService".into()),
        ("rpc.method", "ModelInfer".into()),
        ("plimsoll.model", "embed".into()),
        ("plimsoll.rows", 2.into()),
        ("plimsoll.tokens", 7.into()),
        ("rpc.grpc.status_code", 0.into()),
    ]);
    assert_eq!(attributes(call), expected);

    for name in ["tokenize", "queue", "step"] {
        let span = named(&spans, name);
        assert_eq!(span.parent_span_id, call.span_context.span_id(), "{name}");
        assert_eq!(span.span_context.trace_id(), call.span_context.trace_id(), "{name}");
        assert!(span.start_time <= span.end_time && span.end_time <= call.end_time, "{name}: {span:?}");
    }
    assert!(call.start_time >= before && named(&spans, "tokenize").start_time >= call.start_time);
    let (queue, step) = (named(&spans, "queue"), named(&spans, "step"));
    assert_eq!(queue.end_time, step.start_time);
    let took = |span: &SpanData| span.end_time.duration_since(span.start_time).unwrap().as_micros();
    assert_eq!((took(queue), took(step)), (200, 700));
    let expected: BTreeMap<&str, Value> = BTreeMap::from([
        ("plimsoll.step_id", 7.into()),
        ("plimsoll.batch_rows", 2.into()),
        ("plimsoll.computed_tokens", 7.into()),
        ("plimsoll.batch_reason", "memory".into()),
        ("plimsoll.predicted_peak_bytes", 102_400.into()),
        ("plimsoll.true_peak_bytes", 92_160.into()),
        ("plimsoll.headroom_bytes", 133_120.into()),
        ("plimsoll.ladder.halve", 1.into()),
    ]);
    assert_eq!(attributes(step), expected);
    assert!(!format!("{spans:?}").contains("web server"), "texts stay out of it: {spans:?}");
}

#[tokio::test]
async fn an_http_call_is_named_by_its_route() {
    let (traces, exporter) = Traces::in_memory(1.0);
    let front = Front::traced(Limits::default(), traces);
    let request = Request::post("/models/embed/embed").header("traceparent", traceparent("01"));
    let body = Body::from(json!({"inputs": "web server"}).to_string());
    assert_eq!(front.app.clone().oneshot(request.body(body).unwrap()).await.unwrap().status(), StatusCode::OK);
    let first = spans(&exporter, 4).await;
    let call = named(&first, "POST /models/{model}/embed");
    assert_eq!(call.span_context.trace_id(), TraceId::from_hex(TRACE).unwrap());
    let told = attributes(call);
    assert_eq!(told["http.route"], "/models/{model}/embed".into());
    assert_eq!((&told["http.request.method"], &told["http.response.status_code"]), (&"POST".into(), &200.into()));
    assert_eq!((&told["plimsoll.model"], &told["plimsoll.rows"]), (&"embed".into(), &1.into()));

    exporter.reset();
    front.engine.behave(Behaviour::Fail(Failure::Rejected(Rejection::Draining)));
    let (status, ..) = front.call(Method::POST, "/embed", "embed", json!({"inputs": [2, 5, 3]}).to_string()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let failed = spans(&exporter, 1).await;
    assert_eq!(attributes(&failed[0])["error.type"], "draining".into());
    assert_eq!(failed[0].status, Status::error(""));
    assert_eq!(failed[0].parent_span_id, SpanId::INVALID, "it began here");

    exporter.reset();
    for path in ["/health", "/v2/health/ready"] {
        front.get(path).await;
    }
    front.get("/no/such/path").await;
    let lost = spans(&exporter, 1).await;
    assert_eq!((lost[0].name.as_ref(), attributes(&lost[0]).get("http.route")), ("GET", None), "probes are none");
}

#[tokio::test]
async fn a_trace_that_is_not_sampled_has_no_spans() {
    let (traces, exporter) = Traces::in_memory(1.0);
    let server = TestServer::traced(traces).await;
    server.oip().model_infer(asked(Some(traceparent("00")), texts("embed", &["web"]))).await.unwrap();
    assert!(exporter.get_finished_spans().unwrap().is_empty(), "its caller has decided against it");
    server.oip().model_infer(asked(Some("broken".to_owned()), texts("embed", &["web"]))).await.unwrap();
    assert_eq!(spans(&exporter, 4).await[3].parent_span_id, SpanId::INVALID, "it began here");

    let (traces, exporter) = Traces::in_memory(0.0);
    let server = TestServer::traced(traces).await;
    server.oip().model_infer(asked(None, texts("embed", &["web"]))).await.unwrap();
    assert!(exporter.get_finished_spans().unwrap().is_empty());
}

#[tokio::test]
async fn a_failure_is_told_by_its_code_and_reason() {
    let (traces, exporter) = Traces::in_memory(1.0);
    let server = TestServer::traced(traces).await;
    server.infer(texts("none", &["web"])).await.unwrap_err();
    let refused = spans(&exporter, 1).await;
    assert_eq!(attributes(&refused[0])["rpc.grpc.status_code"], 5.into());
    assert_eq!(refused[0].status, Status::Unset, "it is the client's mistake");
    exporter.reset();
    server.engine.behave(Behaviour::Fail(Failure::Rejected(Rejection::NotLoaded)));
    server.infer(texts("embed", &["web"])).await.unwrap_err();
    let failed = spans(&exporter, 2).await;
    let call = named(&failed, "inference.GRPCInferenceService/ModelInfer");
    assert_eq!(attributes(call)["error.type"], "not_loaded".into());
    assert_eq!(named(&failed, "tokenize").parent_span_id, call.span_context.span_id());
}

#[tokio::test]
async fn each_message_of_a_stream_has_a_span() {
    let (traces, exporter) = Traces::in_memory(1.0);
    let server = TestServer::traced(traces).await;
    let requests = tokio_stream::iter([texts("embed", &["web"]), texts("wide", &["web", "server"])]);
    let answers = server.oip().model_stream_infer(requests).await.unwrap().into_inner();
    assert_eq!(answers.collect::<Vec<_>>().await.len(), 2);
    let spans = spans(&exporter, 9).await;
    let call = named(&spans, "inference.GRPCInferenceService/ModelStreamInfer");
    let messages: Vec<_> = spans.iter().filter(|span| span.name == "message").collect();
    assert_eq!(messages.len(), 2);
    for message in messages {
        assert_eq!(message.parent_span_id, call.span_context.span_id());
        assert!(message.end_time <= call.end_time, "the call lasts until its last answer");
        let below = spans.iter().filter(|span| span.parent_span_id == message.span_context.span_id());
        assert_eq!(below.count(), 3);
        assert!(attributes(message).contains_key("plimsoll.model"));
    }
}

#[tokio::test]
async fn a_collector_that_is_not_there_hurts_nobody() {
    let traces = Traces::to_collector("http://127.0.0.1:9", 1.0).unwrap();
    let server = TestServer::traced(traces.clone()).await;
    for _ in 0..20 {
        server.infer(texts("embed", &["web"])).await.unwrap();
    }
    let started = Instant::now();
    traces.shut_down().await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    server.infer(texts("embed", &["web"])).await.unwrap();
}
