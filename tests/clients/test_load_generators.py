"""Load generators of others, unchanged: k6 and perf_analyzer."""

import csv
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
K6 = str(pathlib.Path(sys.executable).parent / "k6")


def run(command, folder, **environment):
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("script", ["infer.js", "stream.js"])
def test_k6(server, tmp_path, script):
    command = [K6, "run", "--quiet", "--no-usage-report", str(HERE / "k6" / script)]
    try:
        run(command, tmp_path, ADDRESS=server.address)
    except AssertionError as error:
        # k6 itself crashes now and then: its exit code is that of Go's runtime, and its last words are a stack.
        if "goroutine" not in str(error):
            raise
        run(command, tmp_path, ADDRESS=server.address)


@pytest.mark.skipif("PLIMSOLL_TEST_PERF_ANALYZER" not in os.environ, reason="perf_analyzer exists for x86-64 Linux only")
@pytest.mark.parametrize(
    ("protocol", "arguments"),
    [
        ("grpc", ["-b", "4", "--concurrency-range", "1:4:3"]),
        ("grpc", ["-b", "1", "--request-rate-range", "50", "--request-distribution", "poisson"]),
        ("grpc", ["-b", "1", "--concurrency-range", "2", "--async", "--streaming"]),
        ("http", ["-b", "4", "--concurrency-range", "2"]),
    ],
    ids=["batches", "open-loop", "streaming", "http"],
)
def test_perf_analyzer(server, tmp_path, protocol, arguments):
    report = tmp_path / "report.csv"
    address = {"grpc": server.address, "http": f"127.0.0.1:{server.http_port}"}[protocol]
    command = [os.environ["PLIMSOLL_TEST_PERF_ANALYZER"], "-m", "tiny-embed", "-u", address, "-i", protocol]
    # Any spread between its windows will do: how steady this machine is, is not what is tested.
    command += ["--string-data", "a text editor", "-p", "1000", "-s", "999", "-r", "10", "-f", str(report), *arguments]
    run(command, tmp_path)
    with open(report, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("Inferences/Second")]
    assert rows and all(float(row["Inferences/Second"]) > 0 for row in rows)
