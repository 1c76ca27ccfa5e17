"""Metrics, health over HTTP, logs."""

import re

import pytest

from server import ROOT, Server
from tensors import infer, refused, texts

SECRET = "zebracrossing"


def test_every_documented_metric_is_served_and_every_served_one_documented(server, client):
    infer(client, "tiny-embed", texts(["x"]), "embedding")
    status, body = server.http("/metrics")
    assert status == 200
    served = set(re.findall(r"^# TYPE (\S+) ", body, re.MULTILINE))
    lines = re.findall(r"^\| `(plimsoll_\w+)` \|(.*)", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    # This server runs on a CPU, and in the clear.
    assert served == {name for name, line in lines if " of a card" not in line and "without TLS" not in line}


def test_a_request_is_counted(server, client):
    series = 'plimsoll_requests_total{model="tiny-embed",outcome="answered",reason="answered"}'
    late = 'plimsoll_rows_total{model="tiny-embed",outcome="answered"}'
    before, rows = server.metric(series), server.metric(late)
    infer(client, "tiny-embed", texts(["one", "two", "three"]), "embedding")
    assert server.metric(series) == before + 1 and server.metric(late) == rows + 3
    assert server.metric('plimsoll_model_state{model="tiny-embed",state="ready"}') == 1
    assert server.metric('plimsoll_model_resident_bytes{model="tiny-embed"}') > 1 << 20
    assert server.metric('plimsoll_overruns_total{model="tiny-embed"}') == 0


def test_health_over_http(server):
    assert server.http("/health/live") == (200, "ok\n")
    assert server.http("/health/ready") == (200, "ok\n")


@pytest.fixture
def own_server(tmp_path):
    server = Server(tmp_path, "--models", "embedded", "--log-level", "debug")
    yield server
    assert server.stop() == 0


def test_logs_are_json_name_the_request_and_never_its_text(own_server):
    import tritonclient.grpc as triton

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with triton.InferenceServerClient(own_server.address) as client:
        headers = {"traceparent": trace, "x-request-id": "mine"}
        client.infer("tiny-embed", [texts([SECRET])], headers=headers)
        refused(lambda: client.infer("tiny-embed", [texts([f"{SECRET} " * 500])], headers=headers), "INVALID_ARGUMENT")
    lines = own_server.log_lines()
    assert SECRET not in own_server.log()
    assert any(trace in str(line) and "mine" in str(line) for line in lines), own_server.log()
    ready = [line for line in lines if line.get("model") == "tiny-embed" and "resident_bytes" in line]
    assert len(ready) == 1, own_server.log()
    assert ready[0]["profile"] and ready[0]["batch_rows_max"] > 0 and ready[0]["dtype"] == "f32"


def test_a_flood_of_one_cause_is_one_line_a_second(own_server):
    import tritonclient.grpc as triton

    with triton.InferenceServerClient(own_server.address) as client:
        for _ in range(300):
            refused(lambda: client.infer("tiny-embed", [texts(["word " * 400])]), "INVALID_ARGUMENT")
    about = [line for line in own_server.log_lines() if line["level"] in ("INFO", "WARN", "ERROR")]
    assert len(about) < 60, own_server.log()
