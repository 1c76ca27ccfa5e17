#!/usr/bin/env python3
"""Does anybody notice when a GPU's allocations fail? Two servers under load, one with failures at random, drawn anew on
each retry, one that never gets a block above a size, so that half a batch goes through.

usage: injected_failures.py [--plimsoll BINARY] [--repository FOLDER] [--models A,B,..] [--seconds S] [--seed N]
                            [--probability P] [--above BYTES] [--reloads NAME]

Each model has its own closed loop of callers, whose answers are compared with undisturbed ones; beside them a model is
loaded, asked and unloaded again and again, so that weights fail too. Printed for each server, and judged by the exit code:

    failed calls                          0
    allocations that failed on purpose    at least 300, by what they were for
    rungs: trims, halvings                at least 10 of each in both servers together
    evictions, refusals                   0

Needs a card and Python's grpc.
"""
import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import grpc

HERE = os.path.dirname(os.path.abspath(__file__))
HITS_MIN, RUNG_MIN = 300, 10

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--plimsoll", default=os.path.join(HERE, "..", "target", "release", "plimsoll"))
parser.add_argument("--repository", default=os.path.join(HERE, "..", "models"))
parser.add_argument("--models", default="tiny-embed,tiny-rerank")
parser.add_argument("--reloads", default="tiny-section", help="the model that comes and goes")
parser.add_argument("--seconds", type=int, default=60)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--probability", type=float, default=0.05)
parser.add_argument("--above", default="64MiB")
parser.add_argument("--lengths", default="encode")
parser.add_argument("--profiles", help="folder of kept profiles; what it lacks is measured first, where nothing fails")
args = parser.parse_args()


def main():
    verdicts, profiles = [], profile()
    rungs_of_both = {"trim": 0, "halve": 0}
    for kind in (f"random:{args.probability}:{args.seed}", f"above:{args.above}"):
        failed, hits, rungs, cycles = run(kind, profiles)
        total = sum(hits.values())
        print(f"\n--fail-allocations {kind}: {failed} failed calls; {cycles} loads and unloads beside them")
        print(f"  allocations that failed: {total}, for " + ", ".join(f"{name} {count}" for name, count in hits.items()))
        print("  rungs: " + ", ".join(f"{name} {count:.0f}" for name, count in rungs.items()))
        for name in rungs_of_both:
            rungs_of_both[name] += rungs.get(name, 0)
        verdicts += [failed == 0, total >= HITS_MIN, rungs.get("evict", 0) == 0, rungs.get("refuse", 0) == 0]
    verdicts += [count >= RUNG_MIN for count in rungs_of_both.values()]
    print("\nholds" if all(verdicts) else "\nMISSED")
    return 0 if all(verdicts) else 1


def profile():
    """Measures the models before anything fails: a server would measure between its steps, and the failures would be the
    measurement's."""
    folder = args.profiles or tempfile.mkdtemp(prefix="plimsoll-profiles-")
    options = ["--device", "cuda", "--models", args.repository, "--profile-dir", folder]
    plan = subprocess.run([args.plimsoll, "plan", *options], check=True, stdout=subprocess.PIPE, text=True).stdout
    missing = {line.split()[0] for line in plan.splitlines() if "not measured" in line}
    for name in [*args.models.split(","), args.reloads]:
        if name in missing:
            subprocess.run([args.plimsoll, "profile", name, *options], check=True, stdout=subprocess.DEVNULL)
    return folder


def run(kind, profiles):
    folder = tempfile.mkdtemp(prefix="plimsoll-failures-")
    ports = [free_port(), free_port()]
    log = open(os.path.join(folder, "server.log"), "w")
    server = subprocess.Popen(
        [args.plimsoll, "serve", "--device", "cuda", "--models", args.repository, "--grpc-port", str(ports[0]),
         "--http-port", "0", "--metrics-port", str(ports[1]), "--fail-allocations", kind, "--profile-dir", profiles], stdout=log, stderr=log)
    try:
        names = args.models.split(",")
        wait_ready(server, ports[1], log.name)
        loads = [bench(folder, ports[0], number, name) for number, name in enumerate(names)]
        stop, cycles = threading.Event(), [0, 0]
        comes_and_goes = threading.Thread(target=reload, args=(ports[0], stop, cycles))
        comes_and_goes.start()
        failed = 0
        for process, report, log_of_bench in loads:
            if process.wait() != 0:
                sys.exit(f"a bench ended with {process.returncode}: {open(log_of_bench).read()}")
            total = json.load(open(report))["total"]
            print(f"  {total['calls']} calls, {total['checked']} of them checked, {total['failed']} failed", flush=True)
            failed += total["failed"]
        stop.set()
        comes_and_goes.join()
        return failed + cycles[1], hits_of(ports[0]), rungs_of(ports[1]), cycles[0]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def bench(folder, port, number, name):
    report, log = os.path.join(folder, name + ".json"), os.path.join(folder, name + ".log")
    command = [args.plimsoll, "bench", "--address", f"127.0.0.1:{port}", "--model", name, "--concurrency", "16", "--rows",
               "64", "--duration", f"{args.seconds}s", "--seed", str(args.seed + number), "--lengths", args.lengths,
               "--json", report]
    with open(log, "w") as out:
        return subprocess.Popen(command, stdout=out, stderr=out), report, log


def reload(port, stop, cycles):
    """Loads, asks and unloads a model until told to stop; counts cycles and failures."""
    name = text_field(2, args.reloads)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        while not stop.is_set():
            for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
                try:
                    call(channel, f"/inference.GRPCInferenceService/{method}", name)
                except grpc.RpcError as error:
                    print(f"  {method}: {error.code()} {error.details()}", flush=True)
                    cycles[1] += 1
            cycles[0] += 1
            time.sleep(0.05)


def hits_of(port):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = call(channel, "/plimsoll.v1.Memory/Snapshot", b"").decode("utf-8", "replace")
    found = re.search(r'"failed_on_purpose":\s*\{([^}]*)\}', answer)
    return {name: int(count) for name, count in re.findall(r'"(\w+)":\s*(\d+)', found.group(1))}


def rungs_of(port):
    rungs = {}
    for line in metrics(port).splitlines():
        if line.startswith("plimsoll_ladder_total{"):
            rung = re.search(r'rung="(\w+)"', line).group(1)
            rungs[rung] = rungs.get(rung, 0) + float(line.rsplit(" ", 1)[1])
    return rungs


def call(channel, method, request):
    """A unary call in bytes: what is sent and read here is too little for generated code."""
    same = lambda data: data
    return channel.unary_unary(method, request_serializer=same, response_deserializer=same)(request, timeout=60)


def text_field(number, text):
    data = text.encode()
    return bytes([number << 3 | 2, len(data)]) + data


def wait_ready(server, port, log):
    for _ in range(600):
        if server.poll() is not None:
            sys.exit(f"the server ended: {open(log).read()}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready"):
                return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"not ready within a minute: {open(log).read()}")


def metrics(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return answer.read().decode()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


sys.exit(main())
