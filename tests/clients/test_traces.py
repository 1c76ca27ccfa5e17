"""Traces, as a collector gets them over OTLP."""

import collections
import concurrent.futures
import json
import threading
import time
import urllib.request

import grpc
import pytest
import tritonclient.grpc as triton
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from server import Server
from tensors import texts

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "zebracrossing"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """A collector that keeps what it gets."""

    def __init__(self):
        self.arrived, self.spans, self.resources = threading.Condition(), [], []
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def Export(self, request, context):
        with self.arrived:
            for resource in request.resource_spans:
                self.resources.append(values(resource.resource.attributes))
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
            self.arrived.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def take(self, calls, seconds=20):
        """All spans up to those of so many calls, which end last."""
        def ended():
            return [span for span in self.spans if span.kind == Span.SPAN_KIND_SERVER]

        with self.arrived:
            assert self.arrived.wait_for(lambda: len(ended()) >= calls, seconds), [span.name for span in self.spans]
            assert len(ended()) == calls, [span.name for span in self.spans]
            spans, self.spans = self.spans, []
        return spans


def values(attributes):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@pytest.fixture
def collector():
    collector = Collector()
    yield collector
    collector.server.stop(0)


@pytest.fixture
def traced(tmp_path, collector):
    server = Server(tmp_path, "--models", "embedded", "--otlp-endpoint", f"http://127.0.0.1:{collector.port}")
    yield server
    assert server.stop() == 0, server.log()


def below(spans, call):
    """The steps of a call's request, which are as many as its rows were spread over, when all that is below it is right."""
    assert {span.parent_span_id for span in spans if span is not call} == {call.span_id}
    found = collections.defaultdict(list)
    for span in spans:
        assert span.trace_id == call.trace_id
        if span is not call:
            assert span.kind == Span.SPAN_KIND_INTERNAL
            assert call.start_time_unix_nano <= span.start_time_unix_nano + 1000
            assert span.start_time_unix_nano <= span.end_time_unix_nano <= call.end_time_unix_nano + 1000
            found[span.name].append(span)
    assert sorted(found) == ["queue", "step", "tokenize"]
    (tokenize,), (queue,), steps = found["tokenize"], found["queue"], found["step"]
    assert tokenize.end_time_unix_nano <= queue.start_time_unix_nano + 1000
    assert queue.end_time_unix_nano == steps[0].start_time_unix_nano
    for step, following in zip(steps, steps[1:]):
        assert step.end_time_unix_nano <= following.start_time_unix_nano + 1000
    return steps


def assert_steps(steps, rows):
    """Steps of one request alone, which has so many rows."""
    assert 1 <= len(steps) <= rows
    facts = [values(step.attributes) for step in steps]
    assert sum(step["plimsoll.batch_rows"] for step in facts) == rows
    assert len({step["plimsoll.step_id"] for step in facts}) == len(steps)
    for step in facts:
        assert step["plimsoll.computed_tokens"] >= step["plimsoll.batch_rows"] * 3
        assert step["plimsoll.predicted_peak_bytes"] > 0 and step["plimsoll.true_peak_bytes"] > 0
        assert step["plimsoll.batch_reason"] in ("memory", "latency", "knee", "queue", "limit")


def test_a_grpc_call_and_an_http_call(traced, collector):
    with triton.InferenceServerClient(traced.address) as client:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=value"}
        client.infer("tiny-embed", [texts([SECRET, "web server"])], headers=headers)
    spans = collector.take(calls=1)
    (call,) = [span for span in spans if span.kind == Span.SPAN_KIND_SERVER]
    assert call.name == "inference.GRPCInferenceService/ModelInfer"
    assert (call.trace_id.hex(), call.parent_span_id.hex(), call.trace_state) == (TRACE, PARENT, "vendor=value")
    facts = values(call.attributes)
    assert facts.pop("plimsoll.tokens") > 4
    assert facts == {"rpc.system": "grpc", "rpc.service": "inference.GRPCInferenceService", "rpc.method": "ModelInfer",
                     "rpc.grpc.status_code": 0, "plimsoll.model": "tiny-embed", "plimsoll.rows": 2}
    # Two, where the profile does not know yet what both rows together cost.
    assert_steps(below(spans, call), rows=2)
    assert SECRET not in str(spans)
    assert collector.resources[0]["service.name"] == "plimsoll" and collector.resources[0]["service.version"]

    message = json.dumps({"inputs": [SECRET]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{traced.http_port}/models/tiny-embed/embed", message, {
        "content-type": "application/json", "traceparent": f"00-{TRACE}-{PARENT}-01"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200
    spans = collector.take(calls=1)
    (call,) = [span for span in spans if span.kind == Span.SPAN_KIND_SERVER]
    assert call.name == "POST /models/{model}/embed"
    assert (call.trace_id.hex(), call.parent_span_id.hex()) == (TRACE, PARENT)
    facts = values(call.attributes)
    assert facts["http.route"] == "/models/{model}/embed" and facts["http.response.status_code"] == 200
    assert (facts["plimsoll.model"], facts["plimsoll.rows"]) == ("tiny-embed", 1)
    assert_steps(below(spans, call), rows=1)
    assert call.status.code == Status.STATUS_CODE_UNSET and SECRET not in str(spans)


def test_each_step_of_a_request_has_its_span(tmp_path, collector):
    endpoint = f"http://127.0.0.1:{collector.port}"
    server = Server(tmp_path, "--models", "embedded", "--otlp-endpoint", endpoint, "--batching", "fixed:2")
    with triton.InferenceServerClient(server.address) as client:
        client.infer("tiny-embed", [texts(["web"] * 5)])
    spans = collector.take(calls=1)
    (call,) = [span for span in spans if span.kind == Span.SPAN_KIND_SERVER]
    steps = below(spans, call)
    assert [values(step.attributes)["plimsoll.batch_rows"] for step in steps] == [2, 2, 1]
    assert_steps(steps, rows=5)
    assert server.stop() == 0, server.log()


def test_a_caller_who_does_not_sample_is_not_traced(traced, collector):
    with triton.InferenceServerClient(traced.address) as client:
        client.infer("tiny-embed", [texts(["web"])], headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
        client.infer("tiny-embed", [texts(["web"])])
    (call,) = [span for span in collector.take(calls=1) if span.kind == Span.SPAN_KIND_SERVER]
    assert call.trace_id.hex() != TRACE and not call.parent_span_id


def test_what_waits_is_sent_before_the_end(tmp_path, collector):
    endpoint = f"http://127.0.0.1:{collector.port}"
    server = Server(tmp_path, "--models", "embedded", "--otlp-endpoint", endpoint, "--otlp-sample", "0.5")
    with triton.InferenceServerClient(server.address) as client:
        for _ in range(100):
            client.infer("tiny-embed", [texts(["web"])])
    assert server.stop() == 0, server.log()
    names = collections.Counter(span.name for span in collector.spans)
    # Half of them: nobody sees less than a tenth or more than nine in ten once in a million years.
    assert 10 < names["step"] < 90 and names["step"] == names["queue"] == names["tokenize"], names


def test_a_collector_that_is_gone_hurts_nobody(tmp_path, collector):
    server = Server(tmp_path, "--models", "embedded", "--otlp-endpoint", f"http://127.0.0.1:{collector.port}")
    collector.server.stop(0).wait()
    with triton.InferenceServerClient(server.address) as client:
        started = time.monotonic()
        for _ in range(20):
            client.infer("tiny-embed", [texts(["web"])])
        assert time.monotonic() - started < 10
        end = time.monotonic() + 20
        while time.monotonic() < end and not [line for line in server.log_lines() if "lost_in_all" in line]:
            client.infer("tiny-embed", [texts(["web"])])
            time.sleep(0.1)
    started = time.monotonic()
    assert server.stop() == 0, server.log()
    assert time.monotonic() - started < 15
    lines = [line for line in server.log_lines() if "lost_in_all" in line]
    assert 1 <= len(lines) <= 2 and lines[0]["level"] == "WARN" and lines[0]["lost"] > 0, server.log()
