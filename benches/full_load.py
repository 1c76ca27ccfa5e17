#!/usr/bin/env python3
"""Several models at full load within a budget that binds: is it kept, who gets the device, does anything fail?

usage: full_load.py [--plimsoll BINARY] [--seconds S] [--repository FOLDER] [--models A,B,..] [--shares X,Y,..]
                    [--device cpu|cuda] [--step-tokens N[,N..]] [--keep FOLDER]

The budget is the weights of all models, as a server without a budget measures them, and half of the largest workspace
at a knee, as `plimsoll plan` says after `plimsoll profile` has measured them. With --step-tokens the models have steps of
so many tokens (one number for all, or one for each), and it is half of the workspace of the largest of those: on a CPU a batch gains nothing beyond one long
row, so that half of the workspace at the knee would not hold that row. Each model has its own closed loop of
callers, so that every queue is always deeper than any batch; the answers of a sample are compared with undisturbed ones;
the memory of the server is read from outside every 10 ms (on a CPU /proc/PID/smaps_rollup, on a card cuMemGetInfo of
another process). Steps and device time are those of the server's metrics over S seconds in which all queues were full.
Printed, and judged by the exit code:

    failed calls                       0
    steps with reason=memory           at least 30 % of all
    device time against the shares     within 10 % of each
    peak memory                        on a CPU over the idle server, at most the budget and 150 MiB (what the system's
                                       allocator holds back); on a card in all, at most the budget and what the server
                                       says is fixed
    weights and the largest step       at least 90 % of the budget

The idle server is this executable with the same models registered and none of them loaded. On a card the fixed part is
the context, the kernels loaded so far and what libraries keep outside of the program's pools; it grows with the first
steps. Only Python's standard library is needed.
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from serving import HERE, MIB, PLIMSOLL, Card, Server, parts, planned

ALLOCATOR_CONSTANT = 150 * MIB
MEMORY_REASON_MIN = 0.30
SHARE_TOLERANCE = 0.10
USED_MIN = 0.90
REASONS = ("memory", "latency", "knee", "queue", "limit")
# Seconds that both benches may take to ask for their undisturbed answers and to fill the queues.
FILLING_MAX = 150

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--plimsoll", default=PLIMSOLL)
parser.add_argument("--seconds", type=float, default=60)
parser.add_argument("--repository", default=os.path.join(HERE, "..", "models"), help="folder of the models")
parser.add_argument("--models", default="all-MiniLM-L6-v2,tiny-embed", help="folders of the repository")
parser.add_argument("--shares", default="2,1")
parser.add_argument("--callers", type=int, default=16, help="callers of each model")
parser.add_argument("--rows", type=int, default=32, help="rows of a call")
parser.add_argument("--lengths", default="encode", help="lengths of the rows, as in plimsoll bench")
parser.add_argument("--device", default="cpu", help="cpu or cuda")
parser.add_argument("--step-tokens", help="tokens of the largest step; measured as a whole")
parser.add_argument("--keep", help="keep repository, profiles, logs and reports in this folder")
args = parser.parse_args()


def main():
    folder = args.keep or tempfile.mkdtemp(prefix="plimsoll-full-load-")
    os.makedirs(folder, exist_ok=True)
    try:
        return run(folder)
    finally:
        if not args.keep:
            shutil.rmtree(folder)


def run(folder):
    names = args.models.split(",")
    shares = [float(share) for share in args.shares.split(",")]
    assert len(names) == len(shares) >= 2, "as many shares as models, and at least two"
    options = ["--profile-dir", os.path.join(folder, "profiles")]
    if args.device != "cpu":
        options += ["--device", args.device]
    serving = write_repository(os.path.join(folder, "serving"), names, shares, "startup")
    idle = write_repository(os.path.join(folder, "idle"), names, shares, "manual")

    plan = plimsoll("plan", "--models", serving, *options)
    for name in names:
        if planned(plan, name) is None:
            print(f"profiling {name}", flush=True)
            plimsoll("profile", name, "--models", serving, *options)
    plan = plimsoll("plan", "--models", serving, *options)
    print(plan)
    _, leasts, knees = zip(*(planned(plan, name) for name in names))
    if args.step_tokens:
        knees = [largest_step(folder, name) for name in names]
    # As measured: the plan's figure comes from the headers of the files.
    with Loaded(folder, "weights", ["--models", serving, *options]) as server:
        server.wait_ready()
        weights = server.weights(names)
    budget = sum(weights) + max(knees) // 2
    if max(leasts) > max(knees) // 2:
        print("one longest row alone needs more than half of the larger workspace at a knee: such rows will be refused")
    options += ["--memory-budget", str(budget)]

    watch = Resident() if args.device == "cpu" else Given()
    with Loaded(folder, "idle", ["--models", idle, *options]) as server:
        server.wait_live()
        time.sleep(1)
        idle_bytes = watch.now(server)
    with Loaded(folder, "serving", ["--models", serving, *options]) as server:
        server.wait_ready()
        time.sleep(1)
        server.all_resident(names)
        loaded_bytes = watch.now(server)
        with watch.watching(server):
            reports, window = load(server, folder, names)
        allowed = watch.allowed(budget, idle_bytes, server.metrics())
    memory = (idle_bytes, loaded_bytes, allowed, watch)
    return judge(names, shares, budget, sum(weights), memory, reports, window)


def write_repository(folder, names, shares, load):
    """The models' own files, with this share and loaded in this way."""
    for name, share in zip(names, shares):
        source = os.path.join(args.repository, name)
        target = os.path.join(folder, name)
        shutil.copytree(source, target, dirs_exist_ok=True)
        path = os.path.join(target, "model.toml")
        lines = open(path, encoding="utf-8").read().splitlines()
        kept = [line for line in lines if not re.match(r"(load|required|share|pinned|step_tokens_max)\s*=", line)]
        own = [f'load = "{load}"', "required = " + str(load == "startup").lower(), f"share = {share}"]
        if args.step_tokens:
            own.append(f"step_tokens_max = {step_tokens(names.index(name))}")
        after = next(index for index, line in enumerate(kept) if line.startswith("schema")) + 1
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(kept[:after] + own + kept[after:]) + "\n")
    return folder


def step_tokens(index):
    """Of the model with this number."""
    numbers = args.step_tokens.split(",")
    return int(numbers[index % len(numbers)])


def plimsoll(*arguments):
    done = subprocess.run([args.plimsoll, *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"plimsoll {' '.join(arguments)} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def largest_step(folder, name):
    """The largest workspace that the profile of a model holds."""
    profiles = (json.load(open(entry.path)) for entry in os.scandir(os.path.join(folder, "profiles")))
    own = (profile for profile in profiles if profile["model"] == name)
    return max(point["peak_bytes"] for profile in own for point in profile["points"])


class Loaded(Server):
    """A server whose models are all to be there at once."""

    def __init__(self, folder, name, options):
        super().__init__(args.plimsoll, os.path.join(folder, name + ".log"), options)

    def weights(self, names):
        """Bytes of the weights of each model, once they are published."""
        for _ in range(100):
            weights = [self.resident(name) for name in names]
            if all(weights):
                return weights
            time.sleep(0.1)
        sys.exit("the metrics say nothing about the weights")

    def all_resident(self, names):
        """Ends the run if not all models are there at once: one that had to make room for another counts as ready."""
        absent = [name for name in names if not self.resident(name)]
        if absent:
            lines = [line for line in self.said().splitlines() if "evict" in line or "not loaded" in line]
            sys.exit(f"{', '.join(absent)} had to make room: half of the largest step is less than loading takes beside the "
                     "weights; give larger --step-tokens\n" + "\n".join(lines))

    def when_full(self, names, running):
        """The metrics as soon as at least half of the callers of every model wait."""
        for _ in range(10 * FILLING_MAX):
            for process, _, log in running:
                if process.poll() is not None:
                    sys.exit(f"a bench ended with {process.returncode}: {open(log).read()}")
            found = self.metrics()
            waiting = [found.get(f'plimsoll_queue_rows{{model="{name}"}}', 0) for name in names]
            if min(waiting) >= args.callers * args.rows / 2:
                return found
            time.sleep(0.1)
        sys.exit(f"the queues hold {waiting} rows after {FILLING_MAX} s: not a full load")


class Watch:
    """Memory from outside, every 10 ms on a thread of its own."""

    peak = samples = 0

    def watching(self, server):
        self.server, self.stop = server, threading.Event()
        self.thread = threading.Thread(target=self.sample)
        return self

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def sample(self):
        self.thread_is_well = False
        while not self.stop.wait(0.01):
            self.peak = max(self.peak, self.now(self.server))
            self.samples += 1
        self.thread_is_well = True


class Resident(Watch):
    """The memory of the server's process."""

    def allowed(self, budget, idle, _):
        return idle + budget + ALLOCATOR_CONSTANT

    def now(self, server):
        for line in open(f"/proc/{server.process.pid}/smaps_rollup"):
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
        raise ValueError("smaps_rollup has no Pss")


class Given(Watch):
    """What the card has given out since this process has had its context: all of it to the server, on a card of its own."""

    def __init__(self):
        self.card = Card()

    def allowed(self, budget, _, metrics):
        found = parts(metrics)
        print("parts, as the server says: " + ", ".join(f"{part} {value / MIB:.1f}" for part, value in found.items() if part != "free"))
        if not self.thread_is_well:
            sys.exit("the thread that watches the card has died: its peak says nothing")
        return budget + found["fixed"]

    def now(self, _):
        return self.card.taken()


def load(server, folder, names):
    """A closed loop for each model, at the same time."""
    running = []
    length = args.seconds + FILLING_MAX
    for number, name in enumerate(names):
        report = os.path.join(folder, f"{name}.json")
        command = [args.plimsoll, "bench", "--address", server.address, "--model", name]
        command += ["--concurrency", str(args.callers), "--rows", str(args.rows), "--duration", f"{length}s"]
        command += ["--seed", str(number + 1), "--lengths", args.lengths, "--json", report]
        log = open(os.path.join(folder, f"{name}.bench.log"), "w")
        running.append((subprocess.Popen(command, stdout=log, stderr=log), report, log.name))
    before = server.when_full(names, running)
    time.sleep(args.seconds)
    after = server.metrics()
    still = [process.poll() is None for process, *_ in running]
    if not all(still):
        sys.exit("a bench ended before the window did")
    window = {series: value - before.get(series, 0) for series, value in after.items()}
    reports = []
    for process, *_ in running:
        process.send_signal(signal.SIGINT)
    for process, report, log in running:
        if process.wait() != 0:
            sys.exit(f"a bench ended with {process.returncode}: {open(log).read()}")
        reports.append(json.load(open(report)))
    return reports, window


def judge(names, shares, budget, weights, memory, reports, window):
    def of(metric, name, **labels):
        """Sum of the series of a model that have these labels."""
        wanted = [f'{key}="{value}"' for key, value in {"model": name, **labels}.items()]
        series = (item for item in window.items() if item[0].startswith(f"plimsoll_{metric}{{"))
        return sum(value for text, value in series if all(label in text for label in wanted))

    steps = [of("steps_total", name) for name in names]
    reasons = [{reason: int(of("steps_total", name, reason=reason)) for reason in REASONS} for name in names]
    device = [of("device_seconds_total", name, purpose="serve") for name in names]
    by_memory = sum(reason["memory"] for reason in reasons) / sum(steps)
    failed = sum(report["total"]["failed"] for report in reports)
    idle_bytes, loaded_bytes, allowed, watch = memory
    used = weights + max(report["models"][0]["steps"]["true_peak_bytes_max"] for report in reports)
    print(f"\n{'model':<20} {'rows/s':>8} {'calls':>7} {'failed':>7} {'checked':>8} {'steps':>7} {'rows/step':>10}  reasons")
    for name, report, count, reason in zip(names, reports, steps, reasons):
        total = report["total"]
        print(
            f"{name:<20} {total['good']['rows']:>8.1f} {total['calls']:>7} {total['failed']:>7} {total['checked']:>8} "
            f"{count:>7.0f} {of('batch_rows_sum', name) / count:>10.1f}  {reason}"
        )
    lines = [("failed calls", f"{failed}", failed == 0)]
    lines.append(("steps with reason=memory", f"{by_memory:.1%} (at least {MEMORY_REASON_MIN:.0%})", by_memory >= MEMORY_REASON_MIN))
    for name, share, seconds in zip(names, shares, device):
        wanted, found = share / sum(shares), seconds / sum(device)
        close = abs(found / wanted - 1) <= SHARE_TOLERANCE
        lines.append((f"device time of {name}", f"{found:.1%}, share {wanted:.1%}, off by {found / wanted - 1:+.1%}", close))
    figure = f"{watch.peak / MIB:.1f} MiB (at most {allowed / MIB:.1f}, of which the budget is {budget / MIB:.1f})"
    lines.append(("peak memory", figure, watch.peak <= allowed))
    lines.append(("weights and the largest step", f"{used / budget:.1%} of the budget (at least {USED_MIN:.0%})", used >= USED_MIN * budget))
    print(f"\nidle {idle_bytes / MIB:.1f} MiB, with models loaded {loaded_bytes / MIB:.1f} MiB; {watch.samples} samples")
    for what, found, good in lines:
        print(f"{'ok  ' if good else 'MISS'} {what}: {found}")
    return 0 if all(good for *_, good in lines) else 1


sys.exit(main())
