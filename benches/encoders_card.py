#!/usr/bin/env python3
"""Encoders on a GPU beside PyTorch: throughput over gRPC from text, many small calls, dense batches, single texts.

usage: encoders_card.py [--plimsoll BINARY] [--repository FOLDER] [--sizes large,base] [--rounds N] [--seconds S]
                        [--profiles FOLDER] [--only-alternate]

FOLDER holds one model for each size, named by it: `random_bert.py FOLDER base=base large=large`; one of another form has it
in its name (large-int8) and is measured beside the same PyTorch. In each round a server
answers S seconds of mixed-length calls for each size (distinct texts, client on the same host), then, with the server gone,
benches/peers/card.py measures PyTorch; printed are both, their ratio round by round, median and spread. Then, once:

    512 callers of one text each       of the figure with batches; p99
    all rows 512, all rows 128 tokens  tokens/s and TFLOP/s, beside PyTorch's with as many tokens in a batch
    one caller, one text of 128        p50

Needs a GPU, and torch and transformers for the peer.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile

from serving import HERE, PLIMSOLL, Server

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--plimsoll", default=PLIMSOLL)
parser.add_argument("--repository", required=True)
parser.add_argument("--sizes", default="large,base")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--seconds", type=int, default=30)
parser.add_argument("--profiles", help="folder of kept profiles")
parser.add_argument("--only-alternate", action="store_true", help="nothing but the rounds")
args = parser.parse_args()
SIZES = args.sizes.split(",")


class Encoders(Server):
    """The server of all sizes, ready when the `with` begins."""

    def __init__(self, profiles, log):
        super().__init__(args.plimsoll, log, ["--device", "cuda", "--models", args.repository, "--profile-dir", profiles])

    def __enter__(self):
        self.wait_ready()
        return self

    def total(self, model, seconds, *options):
        """The part of the report that says what came of all calls."""
        total = self.bench(model, "--duration", f"{seconds}s", *options)["total"]
        if total["failed"]:
            sys.exit(f"{total['failed']} calls for {model} failed")
        return total


def main():
    log = tempfile.mkstemp(prefix="plimsoll-encoders-", suffix=".log")[1]
    profiles = args.profiles or tempfile.mkdtemp(prefix="plimsoll-profiles-")
    for size in SIZES:
        command = [args.plimsoll, "profile", size, "--device", "cuda", "--models", args.repository, "--profile-dir", profiles]
        with open(log, "a", encoding="utf-8") as out:
            subprocess.run(command, stdout=out, stderr=out, check=True)
    ours, theirs = {size: [] for size in SIZES}, {size: [] for size in SIZES}
    for number in range(args.rounds):
        with Encoders(profiles, log) as server:
            for size in SIZES:
                total = server.total(size, args.seconds, "--concurrency", "32", "--rows", "64", "--lengths", "encode",
                                     "--seed", str(number + 1))
                ours[size].append(total["answered"]["tokens"] / 1e3)
                print(f"round {number + 1}, {size}: {ours[size][-1]:.0f} ktok/s", flush=True)
        peers = torch()
        for size in SIZES:
            # A form of a size is measured beside the size in f16.
            theirs[size].append(peers[size.split("-")[0]])
        for size in SIZES:
            mine, peer = ours[size][-1], theirs[size][-1]
            print(f"round {number + 1}, {size}: {mine:.0f} ktok/s, PyTorch {peer:.0f}: {mine / peer:.2f}", flush=True)
    print()
    for size in SIZES:
        ratios = [mine / peer for mine, peer in zip(ours[size], theirs[size])]
        print(f"{size}: median {statistics.median(ours[size]):.0f} ktok/s ({spread(ours[size])}), PyTorch "
              f"{statistics.median(theirs[size]):.0f} ({spread(theirs[size])}), ratio {statistics.median(ratios):.2f}")
    if not args.only_alternate:
        peer, ceilings = torch_dense()
        print(ceilings)
        with Encoders(profiles, log) as server:
            for size in SIZES:
                once(server, size, statistics.median(ours[size]), peer)


# Width, layers, inner width: those of random_bert.py.
SHAPES = {"base": (768, 12, 3072), "large": (1024, 24, 4096), "minilm": (384, 6, 1536)}


def flops_per_token(size, length):
    """Of the forward pass, a multiply-add counted twice."""
    width, layers, inner = SHAPES[size.split("-")[0]]
    return layers * (2 * (4 * width * width + 2 * width * inner) + 4 * length * width)


def once(server, size, batched, peer):
    seconds = min(args.seconds, 8)
    many = server.total(size, seconds, "--concurrency", "512", "--rows", "1", "--lengths", "encode", "--connections", "16")
    rate = many["answered"]["tokens"] / 1e3
    print(f"{size}, 512 callers of one text: {rate:.0f} ktok/s, {rate / batched:.2f} of that with batches, p99 "
          f"{many['latency_ms']['p99']:.0f} ms", flush=True)
    for length, rows in ((512, 32), (128, 128)):
        dense = server.total(size, seconds, "--concurrency", "32", "--rows", str(rows), "--lengths", f"fixed:{length}")
        rate, theirs = dense["answered"]["tokens"] / 1e3, peer.get((size.split("-")[0], length))
        beside = f", PyTorch {theirs:.0f}: {rate / theirs:.2f}" if theirs else ""
        print(f"{size}, rows of {length} tokens: {rate:.0f} ktok/s, {rate * flops_per_token(size, length) / 1e9:.0f} "
              f"TFLOP/s{beside}", flush=True)
    single = server.total(size, seconds, "--concurrency", "1", "--rows", "1", "--lengths", "fixed:128")
    print(f"{size}, one text of 128 tokens: p50 {single['latency_ms']['p50']:.2f} ms", flush=True)


def peer_lines(*options):
    known = sorted({size.split("-")[0] for size in SIZES})
    command = [sys.executable, os.path.join(HERE, "peers", "card.py"), *known, *options]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def torch_dense():
    """Thousands of tokens a second by size and length, and the line about ceilings."""
    lines = peer_lines("--dense")
    found = (re.match(r"(\w+) \d+ x (\d+): (\d+) ktok/s", line) for line in lines)
    return {(match.group(1), int(match.group(2))): float(match.group(3)) for match in found if match}, lines[0]


def torch():
    lines = peer_lines()
    found = (re.match(r"(\w+) (\d+) ktok/s", line) for line in lines)
    return {match.group(1): float(match.group(2)) for match in found if match}


def spread(values):
    return f"{min(values):.0f} to {max(values):.0f}"


main()
