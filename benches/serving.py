"""A `plimsoll serve` to be measured, and a GPU as another process sees it. For the programs of this folder; Python's
standard library is enough."""
import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
PLIMSOLL = os.path.join(HERE, "..", "target", "release", "plimsoll")
MIB = 1 << 20
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """`plimsoll serve` on free ports with these options; it gets SIGTERM when the `with` is left. What it says is added to
    the file `log`."""

    def __init__(self, plimsoll, log, options, environment=None):
        self.log, self.plimsoll = log, plimsoll
        self.grpc, self.http, self.observed = free_port(), free_port(), free_port()
        self.address = f"127.0.0.1:{self.grpc}"
        command = [plimsoll, "serve", "--grpc-port", str(self.grpc), "--http-port", str(self.http), "--metrics-port",
                   str(self.observed), *options]
        with open(log, "a", encoding="utf-8") as out:
            self.begin = out.tell()
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **(environment or {})})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Its exit code after a signal to stop."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def said(self):
        with open(self.log, encoding="utf-8") as log:
            log.seek(self.begin)
            return log.read()

    def becomes_ready(self, seconds=120):
        """Whether every required model is loaded within this time."""
        return self.answers("/health/ready", seconds)

    def wait_ready(self, seconds=120):
        if not self.becomes_ready(seconds):
            sys.exit(f"the server is not ready within {seconds} s: {self.said()}")

    def wait_live(self, seconds=60):
        """Until it answers for metrics, with its device started."""
        if not self.answers("/metrics", seconds):
            sys.exit(f"no metrics within {seconds} s: {self.said()}")

    def answers(self, path, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.observed}{path}", timeout=seconds).close()
                return True
            except OSError:
                time.sleep(0.05)
        return False

    def metrics(self):
        """Every series and its value."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.observed}/metrics") as answer:
            lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[:1] not in ("", "#")]
        return {series: float(value) for series, value in lines}

    def parts(self):
        """What of a card is whose, in bytes; empty on a CPU."""
        return parts(self.metrics())

    def resident(self, name):
        """Bytes of a model's weights on the device; 0 if it is not there."""
        return int(self.metrics().get(f'plimsoll_model_resident_bytes{{model="{name}"}}', 0))

    def bench(self, model, *options):
        """What `plimsoll bench` reports of a load on one model."""
        with self.benching(model, *options) as load:
            return load()

    @contextlib.contextmanager
    def benching(self, model, *options):
        """The same beside something else: a function that waits for the report."""
        with tempfile.NamedTemporaryFile(suffix=".json") as report, tempfile.TemporaryFile("w+") as told:
            command = [self.plimsoll, "bench", "--address", self.address, "--model", model, "--json", report.name, *options]
            process = subprocess.Popen(command, stdout=told, stderr=told)

            def wait():
                if process.wait() != 0:
                    told.seek(0)
                    sys.exit(f"{' '.join(command)} ended with {process.returncode}\n{told.read()}")
                return json.load(open(report.name, encoding="utf-8"))

            try:
                yield wait
            finally:
                process.kill()
                process.wait()

    def post(self, path, body=b"", content="application/json", headers=None, timeout=60):
        """Status and body of a call over HTTP; status 0 if the connection ended without one."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", body, {"content-type": content, **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def load(self, model):
        return self.post(f"/v2/repository/models/{model}/load")

    def unload(self, model):
        return self.post(f"/v2/repository/models/{model}/unload")

    def embed(self, model, rows, timeout=60):
        """Status and embeddings (or what is said instead) of rows of token ids."""
        width = max(map(len, rows))
        padded = [row + [0] * (width - len(row)) for row in rows]
        mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
        inputs = [{"name": name, "shape": [len(rows), width], "datatype": "INT64", "data": data}
                  for name, data in (("input_ids", padded), ("attention_mask", mask))]
        status, body = self.post(f"/v2/models/{model}/infer", json.dumps({"inputs": inputs}).encode(), timeout=timeout)
        return status, json.loads(body)["outputs"][0]["data"] if status == 200 else body


def parts(metrics):
    return {part.group(1): value for series, value in metrics.items()
            if series.startswith("plimsoll_device_") and (part := re.search(r'part="(\w+)"', series))}


def planned(plan, name):
    """Weights, the workspace of one longest row and that of the best batch, from a line of the plan's table, which has
    beside the weights what their load takes; None while the model is not measured."""
    line = next(line for line in plan.splitlines() if line.startswith(name + " "))
    sizes = [int(float(number) * UNITS[unit]) for number, unit in re.findall(r"([\d.]+) (B|KiB|MiB|GiB)\b", line)]
    return [sizes[0], *sizes[2:]] if len(sizes) == 4 else None


class Card:
    """A GPU seen from this process, which has a context of its own there and can take memory."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check(self.driver.cuInit(0))
        self.check(self.driver.cuDeviceGet(ctypes.byref(device), 0))
        self.check(self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.context, self.blocks = context, []
        self.before = self.used()

    def check(self, status):
        if status != 0:
            sys.exit(f"the CUDA driver answers {status}")

    def reading(self):
        """Free bytes and all."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check(self.driver.cuCtxSetCurrent(self.context))
        self.check(self.driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return free.value, total.value

    def used(self):
        free, total = self.reading()
        return total - free

    def taken(self):
        """By others since this process has had its context."""
        return self.used() - self.before - sum(size for _, size in self.blocks)

    def leave(self, size):
        """Takes memory until no more than so many bytes are free: in blocks of 2 MiB, which is what the driver has."""
        take = (self.reading()[0] - size) // (2 * MIB) * 2 * MIB
        while take > 0:
            block, part = ctypes.c_uint64(), min(take, 8 << 30)
            self.check(self.driver.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(part)))
            self.blocks.append((block, part))
            take -= part

    def free(self):
        """Gives back what it took."""
        self.check(self.driver.cuCtxSetCurrent(self.context))
        for block, _ in self.blocks:
            self.check(self.driver.cuMemFree_v2(block))
        self.blocks.clear()
