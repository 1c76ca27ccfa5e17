"""Configuration and models read again while the server serves: by SIGHUP, by a call, by `plimsoll reload`."""

import json
import pathlib
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from conftest import generate
from server import ROOT, Server, binary
from tensors import texts

TEXTS = ["a web server", "python json parser"]
SWAPS = 20
# Weights of tiny-embed are 7 MiB in f16 and 13 in f32; what the largest step needs is far below this.
ROOM_FOR_TWO, ROOM_FOR_ONE = "96MiB", "19MiB"


class Site:
    """A repository with one model in one of two forms, and a server over it."""

    def __init__(self, folder, *arguments):
        self.folder = pathlib.Path(folder)
        self.models = self.folder / "models"
        self.models.mkdir()
        self.put("mine")
        self.server = Server(folder, "--models", str(self.models), *arguments)

    def put(self, name, pooling="mean", **settings):
        """Puts a model into the repository as programs do: written elsewhere, then moved to its place."""
        fresh = self.folder / "fresh"
        source = ROOT / "models" / "tiny-embed"
        shutil.copytree(source, fresh)
        lines = ["schema = 1", f'pooling = "{pooling}"']
        lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        lines += ["[source]", 'path = "."']
        (fresh / "model.toml").write_text("\n".join(lines) + "\n")
        old = self.models / name
        if old.exists():
            old.rename(self.folder / "gone")
        fresh.rename(old)
        shutil.rmtree(self.folder / "gone", ignore_errors=True)

    def reload(self):
        """`plimsoll reload`: exit code and what it has printed."""
        command = [binary(), "reload", "--address", self.server.address]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        return done.returncode, done.stdout

    def version(self):
        with triton.InferenceServerClient(self.server.address) as client:
            return int(client.get_model_metadata("mine").versions[0])


@pytest.fixture
def site(tmp_path):
    sites = []

    def start(*arguments):
        sites.append(Site(tmp_path, *arguments))
        return sites[0]

    yield start
    for one in sites:
        assert one.server.stop() == 0, one.server.log()


def embed(client, model="mine"):
    return client.infer(model, [texts(TEXTS)]).as_numpy("embedding")


class Load:
    """Callers on gRPC and HTTP that ask without a pause; every answer has to be one of `expected`."""

    def __init__(self, server, expected):
        self.server, self.expected = server, expected
        self.stop, self.answered, self.wrong = threading.Event(), 0, []
        self.slowest = 0.0
        jobs = [self.over_grpc] * 3 + [self.over_http] * 2
        self.threads = [threading.Thread(target=job) for job in jobs]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(60)

    def note(self, began, values):
        self.slowest = max(self.slowest, time.monotonic() - began)
        if any(np.allclose(values, expected, atol=1e-4) for expected in self.expected):
            self.answered += 1
        else:
            self.wrong.append(values)

    def over_grpc(self):
        with triton.InferenceServerClient(self.server.address) as client:
            while not self.stop.is_set():
                began = time.monotonic()
                try:
                    self.note(began, embed(client))
                except triton.InferenceServerException as error:
                    self.wrong.append(error)

    def over_http(self):
        url = f"http://127.0.0.1:{self.server.http_port}/models/mine/embed"
        body = json.dumps({"inputs": TEXTS}).encode()
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                request = urllib.request.Request(url, body, {"content-type": "application/json"})
                with urllib.request.urlopen(request, timeout=60) as answer:
                    self.note(began, np.array(json.load(answer)))
            except (OSError, urllib.error.HTTPError) as error:
                self.wrong.append(error)


@pytest.mark.parametrize("budget", [ROOM_FOR_TWO, ROOM_FOR_ONE])
def test_twenty_revisions_under_load_lose_nothing(site, budget):
    site = site("--memory-budget", budget, "--memory-safety", "1MiB")
    expected = []
    with triton.InferenceServerClient(site.server.address) as client:
        for pooling in ("mean", "cls"):
            site.put("mine", pooling)
            code, told = site.reload()
            assert code == 0, told
            expected.append(embed(client))
        assert not np.allclose(*expected, atol=1e-2), "the two revisions have to be told apart"
        first = site.version()
        with Load(site.server, expected) as load:
            for number in range(SWAPS):
                site.put("mine", ("mean", "cls")[number % 2])
                code, told = site.reload()
                assert (code, told) == (0, f"mine: replaced, version {first + number + 1}\n")
                # The answers are the new one's from now on.
                assert np.allclose(embed(client), expected[number % 2], atol=1e-4)
    assert not load.wrong, load.wrong[:3]
    assert load.answered > 2 * SWAPS
    assert site.version() == first + SWAPS
    print(f"{budget}: {load.answered} answers, the slowest after {load.slowest:.2f} s")


def test_a_broken_file_changes_nothing(site):
    site = site()
    (site.models / "mine" / "model.toml").write_text('schema = 1\npoolin = "cls"\n[source]\npath = "."\n')
    code, told = site.reload()
    assert code == 1 and "nothing was reloaded" in told and "poolin" in told, told
    (site.models / "mine" / "model.toml").write_text('schema = 1\n[source]\npath = "."\n')
    (site.models / "mine" / "config.json").write_text("{")
    code, told = site.reload()
    assert code == 1 and "config.json" in told, told
    weights = site.models / "mine" / "model.safetensors"
    site.put("mine")
    weights.write_bytes(weights.read_bytes()[:1000])
    code, told = site.reload()
    assert code == 1 and "model.safetensors" in told, told
    with triton.InferenceServerClient(site.server.address) as client:
        assert embed(client).shape == (2, 192)
    assert site.version() == 1
    site.put("mine")
    assert site.reload() == (0, "mine: replaced, version 2\n")


def test_models_come_and_go_and_settings_change(site, tmp_path):
    site = site()
    assert site.reload() == (0, "nothing has changed\n")
    site.put("other", "cls")
    toml = site.models / "mine" / "model.toml"
    toml.write_text(toml.read_text().replace("schema = 1", "schema = 1\nshare = 3.0\npinned = true"))
    (tmp_path / "server.toml").write_text("queue_rows_max = 7000\n")
    code, told = site.reload()
    *models, setting = told.splitlines()
    assert (code, sorted(models)) == (0, ["mine: tuned, version 1", "other: added, version 1"])
    assert setting.startswith("queue_rows_max: ") and setting.endswith(" -> 7000: from the next start"), told
    with triton.InferenceServerClient(site.server.address) as client:
        assert embed(client, "other").shape == (2, 192)
        shutil.rmtree(site.models / "mine")
        code, told = site.reload()
        assert code == 0 and "mine: removed" in told, told
        with pytest.raises(triton.InferenceServerException, match="mine"):
            embed(client)
        assert client.is_server_ready() and not client.is_model_ready("mine")
        assert embed(client, "other").shape == (2, 192)


def test_sighup_does_the_same_and_tells_the_log(site):
    site = site()
    site.put("mine", "cls")
    site.server.process.send_signal(signal.SIGHUP)
    end = time.monotonic() + 60
    while site.version() != 2:
        assert time.monotonic() < end, site.server.log()
        time.sleep(0.1)
    told = [line for line in site.server.log_lines() if "reloaded: mine" in str(line)]
    assert told and "version 2" in str(told[0]), site.server.log()
    (site.models / "mine" / "model.toml").write_text("schema = 99\n")
    site.server.process.send_signal(signal.SIGHUP)
    while "nothing was reloaded" not in site.server.log():
        assert time.monotonic() < end, site.server.log()
        time.sleep(0.1)
    assert site.version() == 2


def test_a_call_does_the_same(site, tmp_path):
    site = site()
    messages, stubs = generate(tmp_path, "plimsoll.v1", "plimsoll")
    with grpc.insecure_channel(site.server.address) as channel:
        models = stubs.ModelsStub(channel)
        site.put("mine", "cls")
        answer = models.Reload(messages.ReloadRequest())
        assert [(change.model, change.kind, change.version) for change in answer.changes] == [("mine", "replaced", "2")]
        listed = models.List(messages.ListModelsRequest()).models
        assert [(model.name, model.version) for model in listed] == [("mine", "2")]
        (site.models / "mine" / "config.json").unlink()
        with pytest.raises(grpc.RpcError) as refused:
            models.Reload(messages.ReloadRequest())
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION


def test_a_caller_who_goes_leaves_nothing_half_done(site):
    site = site()
    site.put("mine", "cls")
    site.put("other")
    gone = subprocess.Popen([binary(), "reload", "--address", site.server.address], stdout=subprocess.DEVNULL)
    time.sleep(0.05)
    gone.kill()
    gone.wait()
    # Whatever it had begun is done, and the next one finds what is there.
    shutil.rmtree(site.models / "other")
    end = time.monotonic() + 60
    while True:
        code, told = site.reload()
        if code == 0:
            break
        assert "another reload is under way" in told, told
        assert time.monotonic() < end
        time.sleep(0.1)
    assert site.version() == 2
    assert site.reload() == (0, "nothing has changed\n")
    with triton.InferenceServerClient(site.server.address) as client:
        assert embed(client).shape == (2, 192)
        with pytest.raises(triton.InferenceServerException):
            embed(client, "other")
