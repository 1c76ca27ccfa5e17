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
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

import grpc

from serving import HERE, PLIMSOLL, Server

HITS_MIN, RUNG_MIN = 300, 10

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--plimsoll", default=PLIMSOLL)
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
    options = ["--device", "cuda", "--models", args.repository, "--fail-allocations", kind, "--profile-dir", profiles]
    with Server(args.plimsoll, os.path.join(folder, "server.log"), options) as server, contextlib.ExitStack() as loads:
        server.wait_ready()
        reports = [loads.enter_context(bench(server, number, name)) for number, name in enumerate(args.models.split(","))]
        stop, cycles = threading.Event(), [0, 0]
        comes_and_goes = threading.Thread(target=reload, args=(server, stop, cycles))
        comes_and_goes.start()
        failed = 0
        for report in reports:
            total = report()["total"]
            print(f"  {total['calls']} calls, {total['checked']} of them checked, {total['failed']} failed", flush=True)
            failed += total["failed"]
        stop.set()
        comes_and_goes.join()
        return failed + cycles[1], hits_of(server), rungs_of(server), cycles[0]


def bench(server, number, name):
    return server.benching(name, "--concurrency", "16", "--rows", "64", "--duration", f"{args.seconds}s", "--seed",
                           str(args.seed + number), "--lengths", args.lengths)


def reload(server, stop, cycles):
    """Loads and unloads a model until told to stop; counts cycles and failures."""
    while not stop.is_set():
        for change in (server.load, server.unload):
            status, body = change(args.reloads)
            if status != 200:
                print(f"  {change.__name__}: {status} {body}", flush=True)
                cycles[1] += 1
        cycles[0] += 1
        time.sleep(0.05)


def hits_of(server):
    """Allocations that failed on purpose, by what they were for: in the memory's snapshot, which is JSON in a message."""
    same = lambda data: data
    with grpc.insecure_channel(server.address) as channel:
        snapshot = channel.unary_unary("/plimsoll.v1.Memory/Snapshot", request_serializer=same, response_deserializer=same)
        answer = snapshot(b"", timeout=60).decode("utf-8", "replace")
    found = re.search(r'"failed_on_purpose":\s*\{([^}]*)\}', answer)
    return {name: int(count) for name, count in re.findall(r'"(\w+)":\s*(\d+)', found.group(1))}


def rungs_of(server):
    rungs = {}
    for series, count in server.metrics().items():
        if series.startswith("plimsoll_ladder_total{"):
            rung = re.search(r'rung="(\w+)"', series).group(1)
            rungs[rung] = rungs.get(rung, 0) + count
    return rungs


sys.exit(main())
