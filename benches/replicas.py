#!/usr/bin/env python3
"""Two servers behind HAProxy, one of which dies under load: who notices?

usage: replicas.py [--plimsoll BINARY] [--seconds S] [--callers N]

HAProxy speaks HTTP/2 on both sides, shares calls among the servers and asks each one's /health/ready. After a third of the time one
server is killed (SIGKILL), after two thirds it is started again. Every caller asks again, up to five times, when a call ends with
UNAVAILABLE, and compares the answer with one that nothing disturbed. Printed, and judged by the exit code:

    calls that failed at first        no more than were in flight at the killed server: one a caller
    calls without a right answer      0
    calls answered by each server     both, before and after

Needs haproxy, and Python's grpc with tests/clients/requirements.txt.
"""
import argparse
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

HERE = pathlib.Path(__file__).resolve().parent
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--plimsoll", default=HERE / ".." / "target" / "release" / "plimsoll")
parser.add_argument("--seconds", type=int, default=30)
parser.add_argument("--callers", type=int, default=8)
args = parser.parse_args()

CONFIG = """
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
  option redispatch
  retries 2
frontend grpc
  bind 127.0.0.1:{port} proto h2
  default_backend servers
backend servers
  balance leastconn
  option httpchk GET /health/ready
  http-reuse always
  server a 127.0.0.1:{a[0]} proto h2 check check-proto h1 port {a[1]} inter 200ms fall 1 rise 1 on-marked-down shutdown-sessions
  server b 127.0.0.1:{b[0]} proto h2 check check-proto h1 port {b[1]} inter 200ms fall 1 rise 1 on-marked-down shutdown-sessions
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Replica:
    def __init__(self, folder, name):
        self.folder, self.name, self.ports = folder, name, (free_port(), free_port())
        self.start()

    def start(self):
        command = [args.plimsoll, "serve", "--models", "embedded", "--grpc-port", str(self.ports[0]), "--http-port", "0",
                   "--metrics-port", str(self.ports[1]), "--profile-dir", self.folder / self.name]
        log = open(self.folder / f"{self.name}.log", "a")
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(300):
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{self.ports[1]}/health/ready").close()
            except OSError:
                time.sleep(0.1)
        sys.exit(f"server {self.name} is not ready within half a minute")

    def answered(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[1]}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        wanted = 'plimsoll_rows_total{model="tiny-embed",outcome="answered"}'
        return int(float(next(line.rsplit(" ", 1)[1] for line in lines if line.startswith(wanted))))


class Caller(threading.Thread):
    def __init__(self, address, number, expected):
        super().__init__()
        self.address, self.number, self.expected = address, number, expected
        self.calls = self.failed_first = self.lost = 0
        self.until = time.monotonic() + args.seconds

    def run(self):
        client = triton.InferenceServerClient(self.address, channel_args=[("grpc.use_local_subchannel_pool", 1)])
        while time.monotonic() < self.until:
            self.calls += 1
            for attempt in range(6):
                try:
                    found = ask(client, f"web server {self.number}")
                    self.lost += int(np.abs(found - self.expected).max() > 1e-4)
                    break
                except InferenceServerException as error:
                    self.failed_first += attempt == 0
                    if "UNAVAILABLE" not in str(error.status()) or attempt == 5:
                        self.lost += 1
                        break
                    time.sleep(0.05 * (attempt + 1))


def ask(client, text):
    tensor = triton.InferInput("TEXT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text]], dtype=np.object_))
    return client.infer("tiny-embed", [tensor], client_timeout=20).as_numpy("embedding")


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="plimsoll-replicas-"))
    a, b = Replica(folder, "a"), Replica(folder, "b")
    port = free_port()
    config = folder / "haproxy.cfg"
    config.write_text(CONFIG.format(port=port, a=a.ports, b=b.ports))
    proxy = subprocess.Popen(["haproxy", "-db", "-f", config], stdout=open(folder / "proxy.log", "w"), stderr=subprocess.STDOUT)
    try:
        time.sleep(2)
        with triton.InferenceServerClient(f"127.0.0.1:{b.ports[0]}") as client:
            expected = [ask(client, f"web server {number}") for number in range(args.callers)]
        callers = [Caller(f"127.0.0.1:{port}", number, expected[number]) for number in range(args.callers)]
        for caller in callers:
            caller.start()
        time.sleep(args.seconds / 3)
        before = a.answered(), b.answered()
        a.process.send_signal(signal.SIGKILL)
        a.process.wait()
        time.sleep(args.seconds / 3)
        a.start()
        for caller in callers:
            caller.join()
        after = a.answered(), b.answered()
    finally:
        for process in (proxy, a.process, b.process):
            process.terminate()
    calls, failed = sum(caller.calls for caller in callers), sum(caller.failed_first for caller in callers)
    lost = sum(caller.lost for caller in callers)
    print(f"{calls} calls by {args.callers} callers; answered before the kill: {before[0]} and {before[1]}; "
          f"by the server started again: {after[0]}, by the other in all: {after[1]}")
    lines = [("calls that failed at first", f"{failed} (at most {args.callers})", failed <= args.callers),
             ("calls without a right answer", f"{lost}", lost == 0),
             ("both servers answered, before and after", "", all(before) and all(after) and after[1] > before[1])]
    for what, found, good in lines:
        print(f"{'ok  ' if good else 'MISS'} {what}: {found}")
    return 0 if all(good for *_, good in lines) else 1


sys.exit(main())
