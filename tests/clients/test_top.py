"""`plimsoll top --once`, as a script reads it."""

import contextlib
import re
import subprocess
import threading

import tritonclient.grpc as triton

from server import binary, free_port
from tensors import infer, texts


def top(address, *options):
    """Exit code, what it printed, and what it complained of."""
    command = [binary(), "top", "--once", "--address", address, *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@contextlib.contextmanager
def load(address, model):
    """Calls one after the other."""
    done = threading.Event()

    def call():
        with triton.InferenceServerClient(address) as client:
            while not done.is_set():
                infer(client, model, texts(["a web server", "mail client"]), "embedding")

    caller = threading.Thread(target=call)
    caller.start()
    try:
        yield
    finally:
        done.set()
        caller.join()


def test_it_says_what_a_model_does(server):
    with load(server.address, "tiny-embed"):
        code, view, complaint = top(f"127.0.0.1:{server.metrics_port}", "--interval", "2s")
    assert (code, complaint) == (0, "")
    assert re.match(r"Plimsoll \S+ at 127\.0\.0\.1:\d+, ready; rates over 2 s\n", view), view
    assert re.search(r"^cpu.*  \S+ \S+ used of a budget of .* headroom  busy \d+%$", view, re.M), view
    heads = re.search(r"^model +(req/s +rows/s +tok/s .*)$", view, re.M)
    row = re.search(r"^tiny-embed +([\d.]+(?: [kM])?) +([\d.]+(?: [kM])?) +([\d.]+(?: [kM])?) +[\d.]+ m?s ", view, re.M)
    assert heads and row, view
    # Numbers as `12 k` are above 0 too.
    assert all(float(figure.split()[0]) > 0 for figure in row.groups()), view
    assert re.search(r"^tiny-embed +[-=#~|]+ .*\d+%", view, re.M), view
    assert "\x1b" not in view


def test_nobody_is_an_error():
    code, view, complaint = top(f"127.0.0.1:{free_port()}")
    assert (code, view) == (1, "") and complaint.startswith("error: no answer from 127.0.0.1:"), complaint
