"""A real server process for the tests: started on free ports, stopped with SIGTERM."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]


def binary():
    """The program under test; `tests/clients/run` says where it is."""
    return os.environ["PLIMSOLL_TEST_BINARY"]


def free_port():
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """`plimsoll serve` with these arguments. `log` holds what it has written to standard error."""

    def __init__(self, folder, *arguments, port=None, wait=True):
        self.port, self.http_port, self.metrics_port = port or free_port(), free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.log_path = pathlib.Path(folder) / f"server-{self.port}.log"
        command = [binary(), "serve", "--grpc-port", str(self.port), "--http-port", str(self.http_port)]
        command += ["--metrics-port", str(self.metrics_port)]
        command += ["--log-format", "json", "--profile-dir", str(pathlib.Path(folder) / "profiles"), *arguments]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if wait:
            self.wait_ready()

    def http(self, path):
        """Status and body of a GET on the metrics port; (0, reason) while it does not listen."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def wait_ready(self, seconds=60):
        """Returns when /health/ready answers 200."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log()}")
            if self.http("/health/ready")[0] == 200:
                return
            time.sleep(0.05)
        raise AssertionError(f"not ready within {seconds} s: {self.http('/health/ready')}\n{self.log()}")

    def log(self):
        """What it has written so far."""
        return self.log_path.read_text()

    def log_lines(self):
        """The log's lines, parsed."""
        return [json.loads(line) for line in self.log().splitlines()]

    def metric(self, series):
        """The value of one series such as `plimsoll_evictions_total{model="a"}`."""
        status, body = self.http("/metrics")
        assert status == 200, body
        for line in body.splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        raise AssertionError(f"no series {series} in\n{body}")

    def stop(self, seconds=40):
        """SIGTERM, then the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"it did not end within {seconds} s of SIGTERM:\n{self.log()}") from None
