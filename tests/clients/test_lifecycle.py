"""Start, stop, and what ends a start."""

import collections
import signal
import threading
import time

import grpc
import pytest
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc

from server import Server
from tensors import texts


def test_sigterm_under_load_says_not_serving_first_finishes_and_ends_with_0(tmp_path):
    server = Server(tmp_path, "--models", "embedded")
    health = health_pb2_grpc.HealthStub(grpc.insecure_channel(server.address))
    seen = []

    def watch():
        try:
            for update in health.Watch(health_pb2.HealthCheckRequest(service="")):
                seen.append((time.monotonic(), update.status))
        except grpc.RpcError:
            pass

    outcomes, told = collections.Counter(), []

    def load():
        with triton.InferenceServerClient(server.address) as client:
            while True:
                try:
                    client.infer("tiny-embed", [texts(["a text that takes its time " * 8] * 8)])
                    outcomes["answered"] += 1
                except triton.InferenceServerException as error:
                    told.append((time.monotonic(), str(error)))
                    return

    threads = [threading.Thread(target=watch), *(threading.Thread(target=load) for _ in range(4))]
    for thread in threads:
        thread.start()
    while (outcomes["answered"] < 5 or not seen) and all(thread.is_alive() for thread in threads):
        time.sleep(0.05)
    asked = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    code = server.stop()
    for thread in threads:
        thread.join(30)
    assert code == 0, server.log()
    assert outcomes["answered"] > 4
    states = [status for _, status in seen]
    assert states[0] == health_pb2.HealthCheckResponse.SERVING
    assert states[-1] == health_pb2.HealthCheckResponse.NOT_SERVING, states
    not_serving = seen[-1][0]
    assert asked <= not_serving
    for when, message in told:
        assert when >= not_serving, f"refused before health said so: {message}"
        assert "UNAVAILABLE" in message, message
        assert "not registered" not in message and "NOT_FOUND" not in message, message


def ended(server):
    """Exit code and what was written, of a server that does not get to serve."""
    try:
        return server.process.wait(30), server.log()
    finally:
        server.process.kill()  # one that serves after all must not outlive the test


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "no/such:dtype9"], ["dtype9"]),
        (["--model", "./nowhere"], ["nowhere"]),
        (["--models", "./nowhere"], ["nowhere"]),
        (["--models", "embedded", "--memory-budget", "lots"], ["lots"]),
        (["--models", "embedded", "--memory-budget", "1MiB"], ["tiny-embed", "1.00 MiB", "required"]),
        (["--models", "embedded", "--no-such-flag"], ["--no-such-flag"]),
    ],
)
def test_what_cannot_work_ends_the_start_with_a_sentence(tmp_path, arguments, words):
    code, text = ended(Server(tmp_path, *arguments, wait=False))
    assert code not in (0, 101, -6), text
    for word in words:
        assert word in text, text
    assert "backtrace" not in text and "panicked" not in text, text


def test_a_port_in_use_is_one_sentence(tmp_path, server):
    second = Server(tmp_path, "--models", "embedded", port=server.port, wait=False)
    code, text = ended(second)
    assert code not in (0, 101, -6), text
    assert str(server.port) in text and "panicked" not in text, text
