"""What the tests share: one server with every model, and the stubs of our own services."""

import importlib
import subprocess
import sys

import grpc
import pytest
import tritonclient.grpc as triton

from server import ROOT, Server

# Two of the embedded models and the pulled one are served a second time in int8.
INT8 = ["tiny-embed", "tiny-section", "tiny-rerank", "all-MiniLM-L6-v2"]


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The server of all tests that do not need one of their own."""
    arguments = ["--models", "embedded"]
    for name in INT8:
        arguments += ["--model", f"{name}-int8={name}:int8"]
    server = Server(tmp_path_factory.mktemp("server"), *arguments)
    yield server
    assert server.stop() == 0, server.log()


@pytest.fixture(scope="session")
def client(server):
    """tritonclient, as its users have it."""
    with triton.InferenceServerClient(server.address) as client:
        yield client


@pytest.fixture(scope="session")
def channel(server):
    """A plain gRPC channel; the client's own limit on messages is lifted, so that the server's is the one met."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.address, options) as channel:
        yield channel


def generate(folder, package, name):
    """Messages and stubs of a .proto of the project."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}"]
    command += [f"--grpc_python_out={folder}", f"{package.replace('.', '/')}/{name}.proto"]
    subprocess.run(command, check=True)
    sys.path.insert(0, str(folder))
    return (importlib.import_module(f"{package}.{name}_pb2{end}") for end in ("", "_grpc"))


class Tei:
    """Messages and stubs of `tei.v1`."""

    def __init__(self, folder, channel):
        self.messages, stubs = generate(folder, "tei.v1", "tei")
        self.info = stubs.InfoStub(channel)
        self.embed = stubs.EmbedStub(channel)
        self.predict = stubs.PredictStub(channel)
        self.rerank = stubs.RerankStub(channel)
        self.tokenize = stubs.TokenizeStub(channel)


class Plimsoll:
    """Messages and stubs of `plimsoll.v1`."""

    def __init__(self, folder, channel):
        self.messages, stubs = generate(folder, "plimsoll.v1", "plimsoll")
        self.embed = stubs.EmbedStub(channel).Embed
        self.rerank = stubs.RerankStub(channel).Rerank
        self.classify = stubs.ClassifyStub(channel).Classify
        self.token_classify = stubs.TokenClassifyStub(channel).TokenClassify
        self.models = stubs.ModelsStub(channel)
        self.memory = stubs.MemoryStub(channel)


@pytest.fixture(scope="session")
def tei(tmp_path_factory, channel):
    """The services of text-embeddings-inference."""
    return Tei(tmp_path_factory.mktemp("tei"), channel)


@pytest.fixture(scope="session")
def plimsoll(tmp_path_factory, channel):
    """Our own services."""
    return Plimsoll(tmp_path_factory.mktemp("stubs"), channel)


def pytest_terminal_summary(terminalreporter, config):
    """Counts for the closing line."""
    stats = terminalreporter.stats
    config.closing = {kind: len(stats.get(kind, [])) for kind in ("passed", "failed", "error", "skipped")}


def pytest_unconfigure(config):
    """The last line, which whoever runs this reads."""
    if count := getattr(config, "closing", None):
        skipped = f", {count['skipped']} skipped" if count["skipped"] else ""
        print(f"{count['passed']} passed, {count['failed'] + count['error']} failed{skipped}")
