#!/usr/bin/env python3
"""Failures of other servers that need a card to be seen, one after the other: does this server have them?

usage: cases_card.py [--plimsoll BINARY] [--work FOLDER] [--cases NAME,NAME,..] [--faults LIBRARY] [--seconds S]

    clients      256 callers of four texts of 16 to 512 tokens, a budget with half of the workspace they take without: nobody fails
    neighbour    another program leaves the weights and 1.3 of the smallest batch: served in small batches, in large ones when
                 it has gone; without room for the weights the server says what it needs and what there is
    reload       load, ask, unload, and at once load another that needs the same bytes, 50 times: never refused, same answers,
                 no byte left behind
    together     two servers without profiles start at the same moment: what they measure is what one alone measures
    evict        a card full of models, a request for one that needs two of them gone: the two that were asked longest ago go,
                 those that are busy or pinned stay
    lengths      10,000 requests of 10,000 numbers of tokens: idle memory does not grow
    faults       a forward that fails, one that computes NaN, one that loses the card: the rest is served, the loss is told

The models are BERT-base and BERT-large with random weights, written to FOLDER first. `faults` needs the library made of
launch_faults.c, which is compiled where there is a C compiler. Needs a GPU and numpy. Exit code 1 if anything is not as said.
"""
import argparse
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time

from serving import HERE, MIB, PLIMSOLL, Card, Server, planned

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--plimsoll", default=PLIMSOLL)
parser.add_argument("--work", help="folder for models, profiles and logs, which are kept")
parser.add_argument("--cases", help="some of them; default: all")
parser.add_argument("--faults", help="launch_faults.so")
parser.add_argument("--seconds", type=int, default=10, help="of each load")
parser.add_argument("--reloads", type=int, default=50)
parser.add_argument("--lengths", type=int, default=10_000)
parser.add_argument("--sizes", default="base,large", help="the smaller and the larger model, as random_bert.py has them")
args = parser.parse_args()
SMALL, LARGE = args.sizes.split(",")
# What the driver gives out at a time.
GRANULE = 2 * MIB
# Of an embedding that was computed twice: other batches add up in another order.
SAME = 2e-3


class Stage:
    """Models, profiles and the card."""

    def __init__(self, work):
        self.work, self.card = work, Card()
        self.models, self.profiles = os.path.join(work, "models"), os.path.join(work, "profiles")
        writer = os.path.join(HERE, "random_bert.py")
        if not os.path.exists(os.path.join(self.models, LARGE)):
            subprocess.run([sys.executable, writer, self.models, f"{SMALL}={SMALL}", f"{LARGE}={LARGE}"], check=True)
        for name in (SMALL, LARGE):
            if not measured(self.profiles, name):
                self.plimsoll("profile", name, "--models", self.models, "--profile-dir", self.profiles)

    def plimsoll(self, *arguments):
        done = subprocess.run([args.plimsoll, *arguments, "--device", "cuda"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"plimsoll {' '.join(arguments)} ended with {done.returncode}\n{done.stdout}")
        return done.stdout

    def repository(self, name, models):
        """A folder of models: by name, the model whose files it has and keys for its model.toml."""
        folder = os.path.join(self.work, name)
        shutil.rmtree(folder, ignore_errors=True)
        for model, (files, keys) in models.items():
            own = os.path.join(folder, model)
            os.makedirs(own)
            for entry in os.scandir(os.path.join(self.models, files)):
                if entry.name != "model.toml":
                    os.link(entry.path, os.path.join(own, entry.name))
            lines = open(os.path.join(self.models, files, "model.toml"), encoding="utf-8").read().splitlines()
            with open(os.path.join(own, "model.toml"), "w", encoding="utf-8") as file:
                file.write("\n".join([lines[0], *keys, *lines[1:]]) + "\n")
        return folder

    def serve(self, case, repository, *options, profiles=None, environment=None):
        options = ["--device", "cuda", "--models", repository, "--profile-dir", profiles or self.profiles, *options]
        return Server(args.plimsoll, os.path.join(self.work, case + ".log"), options, environment)

    def workspace(self, name):
        """Workspace of one longest row of a model, by its profile."""
        plan = self.plimsoll("plan", "--models", self.models, "--profile-dir", self.profiles)
        return planned(plan, name)[1]

    def alone(self, name):
        """What the card has given out for a model that has served: its weights, and `rest`, which is all else but workspace."""
        with self.serve("alone", self.repository("alone", {name: (name, ['load = "startup"'])})) as server:
            server.wait_ready()
            # Libraries load a kernel at the first step of its shape: what it takes is no step's.
            ask(server, name, [row(512, 1)])
            server.bench(name, "--concurrency", "8", "--rows", "8", "--duration", "2s")
            time.sleep(2)
            parts = server.parts()
            weights = server.resident(name)
            # The budget has it too.
            return {"weights": weights, "library": int(parts["library"]), "rest": self.card.taken() - weights - int(parts["workspace"])}


def row(length, seed):
    """So many token ids."""
    draw = random.Random(seed)
    return [draw.randrange(5, 8000) for _ in range(length)]


def ask(server, model, rows, timeout=60):
    """Embeddings, one after the other; ends the run if there are none."""
    status, found = server.embed(model, rows, timeout)
    if status != 200:
        sys.exit(f"{model} answers {status}: {found}")
    return found


def apart(one, other):
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def counted(server, metric, **labels):
    """Sum of the series of a metric that have these labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    found = server.metrics().items()
    return int(sum(value for series, value in found if series.startswith(f"plimsoll_{metric}{{") and all(part in series for part in wanted)))


def mib(size):
    return f"{size / MIB:.1f} MiB"


def clients(stage):
    alone, repository = stage.alone(LARGE), stage.repository("clients", {LARGE: (LARGE, ['load = "startup"'])})
    load = ["--concurrency", "256", "--connections", "16", "--rows", "4", "--lengths", "uniform:16-512", "--duration", f"{args.seconds}s"]
    with stage.serve("clients", repository) as server:
        server.wait_ready()
        liked = server.bench(LARGE, *load)["models"][0]["steps"]["true_peak_bytes_max"]
    budget = alone["weights"] + alone["library"] + liked // 2
    with stage.serve("clients", repository, "--memory-budget", str(budget)) as server:
        server.wait_ready(20)
        report = server.bench(LARGE, *load)
        total, largest = report["total"], report["models"][0]["steps"]["true_peak_bytes_max"]
        by_memory = counted(server, "steps_total", model=LARGE, reason="memory") / counted(server, "steps_total", model=LARGE)
        refused = counted(server, "steps_failed_total", model=LARGE)
    yield f"failed of {total['calls']} calls, {total['checked']} of them compared", f"{total['failed']}", total["failed"] == 0
    yield "steps bounded by memory", f"{by_memory:.0%}", by_memory > 0.5
    yield "largest step", f"{mib(largest)} of {mib(liked // 2)}, half of what it is without a budget", largest <= liked // 2
    yield "steps that failed for want of memory", f"{refused}", refused == 0


def neighbour(stage):
    model, least = LARGE, stage.workspace(LARGE)
    alone = stage.alone(model)
    needed = alone["rest"] + alone["weights"]
    repository = stage.repository("neighbour", {model: (model, ['load = "startup"'])})
    # The budget as a part of the card: the usual one is a part of what is free at the start.
    options = ["--memory-budget", "90%"]
    load = ["--concurrency", "16", "--rows", "16", "--duration", "4s", "--lengths", "encode"]
    try:
        stage.card.leave(needed + int(1.3 * least))
        left = stage.card.reading()[0] - needed
        with stage.serve("neighbour", repository, *options) as server:
            started = server.becomes_ready(15)
            yield f"starts with {mib(left)} beside the weights and the context (one longest row: {mib(least)})", \
                "ready" if started else server.said().strip()[-300:], started
            if started:
                before = server.parts()
                small, small_peak, rows_small = served_beside(server, model, load)
                grown = server.parts()["fixed"] - before["fixed"]
                yield "what is in no book grows meanwhile by", mib(grown), grown <= 2 * GRANULE
                yield "calls that failed beside it", f"{small['failed']} of {small['calls']}", small["failed"] == 0
                stage.card.free()
                time.sleep(1)
                large, large_peak, rows_large = served_beside(server, model, load)
                speed = [total["answered"]["tokens"] / 4e3 for total in (small, large)]
                yield "the largest step grows when it has gone", f"{mib(small_peak)}, then {mib(large_peak)}", large_peak > 4 * small_peak
                yield "as the server says, in longest rows", f"{rows_small:.0f}, then {rows_large:.0f}", rows_large > 4 * rows_small
                yield "calls that failed then", f"{large['failed']} of {large['calls']}; {speed[0]:.0f}, then {speed[1]:.0f} ktok/s", large["failed"] == 0
        stage.card.free()
        # With room for the context and half of the weights.
        stage.card.leave(needed - alone["weights"] // 2)
        with stage.serve("neighbour", repository, *options) as server:
            started = server.becomes_ready(8)
            said = [line for line in server.said().splitlines() if re.search(r"needs [\d.]+ [MG]iB", line)]
            yield "without room for the weights", said[-1].strip() if said else server.said()[-300:], not started and bool(said)
    finally:
        stage.card.free()


def served_beside(server, model, load):
    """What came of a load, its largest step, and the rows of the longest length that fit a step."""
    report = server.bench(model, *load)
    return report["total"], report["models"][0]["steps"]["true_peak_bytes_max"], counted(server, "model_batch_max_rows", model=model)


def reload(stage):
    weights = stage.alone(LARGE)["weights"]
    names = ["one", "other"]
    repository = stage.repository("reload", {name: (LARGE, ['load = "manual"']) for name in names})
    rows = [row(300, 1), row(17, 2)]
    with stage.serve("reload", repository, "--memory-budget", str(weights + 160 * MIB)) as server:
        server.wait_live()
        failed, first, held, readings, differences, begun = 0, None, [], [], [], time.monotonic()
        for _ in range(args.reloads):
            for name in names:
                status, said = server.load(name)
                if status == 200:
                    status, said = server.embed(name, rows)
                if status == 200:
                    first = first or said
                    differences.append(apart(first, said))
                if status != 200:
                    print(f"  {name}: {status} {said}", flush=True)
                    failed += 1
                status, said = server.unload(name)
                failed += status != 200
            readings.append(stage.card.taken())
            # They are published twice a second.
            time.sleep(0.6)
            parts = server.parts()
            held.append(int(parts["weights"] + parts["workspace"] + parts["library"]))
        took = time.monotonic() - begun
    spread, moved = max(held) - min(held), max(readings[1:]) - min(readings[1:])
    yield f"loads, answers and unloads that failed, of {2 * args.reloads} each", f"{failed}; {took / args.reloads / 2:.2f} s for the three", failed == 0
    yield "answers differ by", f"{max(differences):.1e}", max(differences) <= SAME
    yield "reserved after each cycle", f"{mib(held[0])}, then within {mib(spread)}", spread <= GRANULE
    yield "the card's own reading after each but the first", f"within {mib(moved)}", moved <= GRANULE


def together(stage):
    """With each a folder of profiles, so that both measure."""
    alone = measured(stage.profiles, SMALL)
    repository = stage.repository("together", {SMALL: (SMALL, ['load = "startup"'])})
    folders = [os.path.join(stage.work, f"together-{number}") for number in range(2)]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    # Not a part of what is free, which the other takes from meanwhile: so that both are to be had.
    servers = [stage.serve(f"together-{number}", repository, "--memory-budget", "40%", profiles=folder) for number, folder in enumerate(folders)]
    try:
        for server in servers:
            server.wait_ready()
        until = time.monotonic() + 60
        while time.monotonic() < until and not all(measured(folder, SMALL) for folder in folders):
            time.sleep(0.2)
        budgets = [server.metrics()[next(s for s in server.metrics() if s.startswith("plimsoll_device_capacity_bytes"))] for server in servers]
        loads = [server.bench(SMALL, "--concurrency", "8", "--rows", "32", "--duration", "3s")["total"] for server in servers]
    finally:
        for server in servers:
            server.stop()
    for number, folder in enumerate(folders):
        found = measured(folder, SMALL)
        common = found.keys() & alone.keys()
        off = max((abs(found[shape] / alone[shape] - 1) for shape in common), default=1)
        yield f"server {number + 1}: peaks of {len(common)} shapes beside those measured alone", f"off by {off:.1%} at most", \
            len(common) >= len(alone) // 2 and off <= 0.05
    yield "budgets", ", ".join(map(mib, budgets)), all(budget > 0 for budget in budgets)
    failed = sum(load["failed"] for load in loads)
    yield "calls that failed", f"{failed} of {sum(load['calls'] for load in loads)}", failed == 0


def measured(folder, name):
    """Peaks by shape in the profile of a model; nothing while there is none."""
    if not os.path.isdir(folder):
        return {}
    for entry in os.scandir(folder):
        if entry.name.endswith(".json"):
            profile = json.load(open(entry.path, encoding="utf-8"))
            if profile["model"] == name:
                return {(point["batch"], point["extent"]): point["peak_bytes"] for point in profile["points"]}
    return {}


def evict(stage):
    small, large = stage.alone(SMALL)["weights"], stage.alone(LARGE)["weights"]
    idle = ["oldest", "older", "newer"]
    on_demand = ['load = "on_demand"', "required = false"]
    models = {name: (SMALL, on_demand) for name in [*idle, "busy"]}
    models["pinned"] = (SMALL, [*on_demand, "pinned = true"])
    models["wanted"] = (LARGE, on_demand)
    # All five fit; the large one does beside three of them, not beside four: some of a small one is left for steps.
    budget = 3 * small + large + int(0.7 * small)
    options = ["--memory-budget", str(budget), "--minimum-residency", "1s"]
    with stage.serve("evict", stage.repository("evict", models), *options) as server:
        server.wait_live()
        for name in ["pinned", "busy", *idle]:
            ask(server, name, [row(100, 3)])
        before = [name for name in models if server.resident(name)]
        time.sleep(1.5)
        with server.benching("busy", "--concurrency", "4", "--rows", "4", "--duration", "5s", "--warmup", "0s", "--lengths", "encode") as load:
            time.sleep(2)
            begun = time.monotonic()
            status, found = server.embed("wanted", [row(100, 4)])
            took = time.monotonic() - begun
            after = [name for name in models if server.resident(name)]
            busy = load()["total"]
    gone = [name for name in before if name not in after]
    yield "loaded before", ", ".join(before), set(before) == set(models) - {"wanted"}
    yield "the request for another that needs two gone", f"{status} in {took:.2f} s" + ("" if status == 200 else f": {found}"), status == 200
    yield "evicted", ", ".join(gone), gone == ["oldest", "older"]
    yield "calls of the busy one that failed", f"{busy['failed']} of {busy['calls']}", busy["failed"] == 0 and busy["calls"] > 0


def lengths(stage):
    repository = stage.repository("lengths", {SMALL: (SMALL, ['load = "startup"'])})
    numbers = list(range(1, args.lengths + 1))
    random.Random(5).shuffle(numbers)
    warm = len(numbers) // 10
    with stage.serve("lengths", repository) as server:
        server.wait_ready()
        begun, failed, idle = time.monotonic(), 0, []
        for part in (numbers[:warm], numbers[warm:]):
            # One after the other, so that each is a step of its own.
            failed += send_all(server, part)
            took = time.monotonic() - begun
            time.sleep(3)
            parts = server.parts()
            idle.append((stage.card.taken(), int(parts["workspace"] + parts["graphs"]), resident_of(server.process.pid)))
        distinct = len(set(numbers))
    yield f"requests of {distinct} numbers of tokens that failed", f"{failed}, {took:.0f} s", failed == 0
    for what, (first, last), most in (("of the card", [one[0] for one in idle], GRANULE), ("of workspace and graphs", [one[1] for one in idle], GRANULE),
                                      ("of the host", [one[2] for one in idle], 64 * MIB)):
        yield f"idle memory {what} after {warm} and after all", f"{mib(first)}, {mib(last)}", last <= first + most


def send_all(server, numbers):
    """Sends a request of each number of tokens, in rows of up to 512; how many failed."""
    failed = 0
    for number in numbers:
        rows = -(-number // 512)
        width = min(number, 512)
        tail = number - (rows - 1) * 512 if rows > 1 else width
        ids = struct.pack(f"<{rows * width}q", *([7 + number % 5000] * (rows * width)))
        mask = [1] * (rows * width)
        mask[(rows - 1) * width + tail:] = [0] * (width - tail)
        mask = struct.pack(f"<{rows * width}q", *mask)
        head = json.dumps({"inputs": [{"name": name, "shape": [rows, width], "datatype": "INT64", "parameters": {"binary_data_size": len(data)}}
                                      for name, data in (("input_ids", ids), ("attention_mask", mask))]}).encode()
        status, said = server.post(f"/v2/models/{SMALL}/infer", head + ids + mask, "application/octet-stream",
                                   {"inference-header-content-length": str(len(head))})
        if status != 200:
            failed += 1
            print(f"  {number} tokens: {status} {said}", flush=True)
    return failed


def resident_of(pid):
    for line in open(f"/proc/{pid}/status", encoding="utf-8"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise ValueError("no VmRSS")


def faults(stage):
    library = args.faults or compile_faults(stage.work)
    fault = os.path.join(stage.work, "fault")
    repository = stage.repository("faults", {name: (SMALL, ['load = "startup"']) for name in (SMALL, "poisoned")})
    poison(os.path.join(repository, "poisoned"))
    stage.plimsoll("profile", "poisoned", "--models", repository, "--profile-dir", stage.profiles)
    environment = {"LD_PRELOAD": library, "PLIMSOLL_LAUNCH_FAULT": fault}
    with stage.serve("faults", repository, environment=environment) as server:
        server.wait_ready()
        good = row(200, 6)
        expected = ask(server, "poisoned", [good])
        statuses = [server.embed("poisoned", [[*good[:50], POISON, *good[51:]] if at % 20 == 7 else good]) for at in range(200)]
        failed = [at for at, (status, _) in enumerate(statuses) if status != 200]
        wrong = [at for at, (status, found) in enumerate(statuses) if status == 200 and apart(found, expected) > SAME]
        yield "a result that is not a number in 1 of 20 steps", f"{len(failed)} of 200 calls fail, {len(wrong)} are wrong: {statuses[failed[0]][1][:120] if failed else ''}", \
            failed == list(range(7, 200, 20)) and not wrong
        expected, found = ask(server, SMALL, [good] * 3), []
        for at in range(200):
            if at % 20 == 7:
                tell(fault, "refuse")
            # Too large to be a recording, in which nothing is launched by itself.
            found.append(server.embed(SMALL, [good] * 3 + [row(300 + at, at)] * 8))
        failed = [at for at, (status, _) in enumerate(found) if status != 200]
        wrong = [at for at, (status, values) in enumerate(found) if status == 200 and apart(values[:len(expected)], expected) > SAME]
        yield "a launch that is refused in 1 of 20", f"{len(failed)} of 200 calls fail, {len(wrong)} are wrong: {found[failed[0]][1][:160] if failed else ''}", \
            failed == list(range(7, 200, 20)) and not wrong
        steps = counted(server, "steps_failed_total", outcome="faulted")
        yield "steps that failed, as the server counts", f"{steps}", steps == 20
        ready = server.becomes_ready(1)
        yield "the server is ready", f"{ready}", ready
        results = {}
        callers = [threading.Thread(target=lambda at: results.update({at: server.embed(SMALL, [row(90 + at, at)] * (1 + at), timeout=20)}), args=(at,)) for at in range(8)]
        tell(fault, "wild")
        begun = time.monotonic()
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        try:
            code = server.process.wait(20)
        except subprocess.TimeoutExpired:
            code = None
        took = time.monotonic() - begun
        said = sorted({text[:150] for status, text in results.values() if status != 200})
        yield "calls when the card is lost", f"{sum(status == 200 for status, _ in results.values())} answered; {said}", \
            all(status in (0, 200, 500, 503) for status, _ in results.values()) and any(status != 200 for status, _ in results.values())
        yield "the process ends", f"with {code} after {took:.2f} s", code not in (None, 0)
    with stage.serve("faults", repository) as server:
        server.wait_ready()
        difference = apart(ask(server, SMALL, [good] * 3), expected)
        yield "one that is started then answers the same", f"{difference:.1e}", difference <= SAME


POISON = 4999


def poison(folder):
    """Makes a small model overflow at one token, all its weights finite: the token is one channel alone, which the norm makes
    as large as the root of the width; a weight of the first inner layer multiplies it beyond what f16 holds, and what other
    tokens have there by as much, which stays within."""
    path = os.path.join(folder, "model.safetensors")
    # What lies there is the same file as that of the other models.
    data = open(path, "rb").read()
    os.unlink(path)
    head = struct.unpack("<Q", data[:8])[0]
    tensors, data = json.loads(data[8:8 + head]), bytearray(data)

    def place(name, at, values):
        start = 8 + head + tensors[name]["data_offsets"][0] + 2 * at
        data[start:start + 2 * len(values)] = struct.pack(f"<{len(values)}e", *values)

    width = tensors["embeddings.word_embeddings.weight"]["shape"][1]
    place("embeddings.word_embeddings.weight", POISON * width, [1.0] + [0.0] * (width - 1))
    place("encoder.layer.0.intermediate.dense.weight", 0, [1.5 * 65504 / width**0.5])
    with open(path, "wb") as file:
        file.write(data)


def compile_faults(work):
    library = os.path.join(work, "launch_faults.so")
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if compiler is None:
        sys.exit("`faults` needs a C compiler, or --faults with the library made of launch_faults.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, os.path.join(HERE, "launch_faults.c"), "-ldl"], check=True)
    return library


def tell(path, fault):
    """As a whole, so that nobody reads a part."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(fault)
    os.rename(path + ".new", path)


def until_its_end(lines):
    """What a case says, and why it ended where it could not go on."""
    try:
        yield from lines
    except SystemExit as end:
        yield "ended", end, False


CASES = {case.__name__: case for case in (clients, neighbour, reload, together, evict, lengths, faults)}


def main():
    work = args.work or tempfile.mkdtemp(prefix="plimsoll-cases-")
    chosen = args.cases.split(",") if args.cases else list(CASES)
    if unknown := [name for name in chosen if name not in CASES]:
        sys.exit(f"there is no case {', '.join(unknown)}: there are {', '.join(CASES)}")
    stage, missed = Stage(work), 0
    for name in chosen:
        begun = time.monotonic()
        for what, found, good in until_its_end(CASES[name](stage)):
            missed += not good
            print(f"{'ok  ' if good else 'MISS'} {name}: {what}: {found}", flush=True)
        print(f"     {name} took {time.monotonic() - begun:.0f} s", flush=True)
    print("\nall as said" if missed == 0 else f"\n{missed} lines are not as said")
    return 0 if missed == 0 else 1


sys.exit(main())
