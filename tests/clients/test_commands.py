"""Every command that a page tells to type is typed, in a folder with what the page assumes; those of docs/start.md as one story.
So is its Python run, and its model.toml read."""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading

import pytest
import trustme

from server import ROOT, Server, binary, free_port

STORY = ROOT / "docs/start.md"
CLIENTS = ROOT / "docs/clients.md"
MODELS = ROOT / "docs/models.md"
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path != STORY)]

# Commands of the pages that are not typed here, and who does that.
ELSEWHERE = {
    "cargo install --path . --locked": "the story begins with what it makes",
    "scripts/test": "runs this",
    "plimsoll bench pressure": "benches/pressure.sh, minutes",
    "cargo build --release --features cuda": "scripts/test-cuda-rim",
    "plimsoll serve --device cuda": "needs a card",
    "plimsoll serve --device cuda:0": "needs a card",
    "plimsoll serve --device cuda:1 --grpc-port 8011 --http-port 8010 --metrics-port 8012": "needs two",
    "plimsoll gpu-test": "needs a card",
    "plimsoll gpu-test books cost": "needs a card",
    'RUSTFLAGS="-C target-cpu=native" cargo build --release': "minutes, and another processor each",
    'RUSTFLAGS="-C target-cpu=x86-64" cargo build --release': "minutes",
}

# Where a server is asked, for each command that asks one.
ASKS = {"bench": "8001", "reload": "8001", "top": "8002", "health": "8002"}


# Clients that read the details of a status have these messages from grpcio-status, which is not among those that are
# installed here: they are made from their definition.
STATUS = """
syntax = "proto3"; package google.rpc;
import "google/protobuf/any.proto"; import "google/protobuf/duration.proto";
message Status { int32 code = 1; string message = 2; repeated google.protobuf.Any details = 3; }
message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
message RetryInfo { google.protobuf.Duration retry_delay = 1; }
"""
RPC_STATUS = """
from google.rpc import error_details_pb2


def from_call(call):
    details = dict(call.trailing_metadata() or []).get("grpc-status-details-bin")
    return error_details_pb2.Status.FromString(details) if details else None
"""

# The library that answers are compared with: it knows what the server answers on another front.
SENTENCE_TRANSFORMERS = """
import openai


class SentenceTransformer:
    def __init__(self, folder):
        self.client = openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
        self.model = folder.rsplit("/", 1)[1]

    def encode(self, texts, normalize_embeddings):
        import numpy
        rows = self.client.embeddings.create(model=self.model, input=texts).data
        return numpy.array([row.embedding for row in rows])
"""

# Stands for the plugins that make Go of .proto files, which need to be told a package for each of them.
GO_PLUGIN = """#!{python}
import sys
from google.protobuf.compiler import plugin_pb2
asked = plugin_pb2.CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
answer = plugin_pb2.CodeGeneratorResponse(supported_features=plugin_pb2.CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL)
for file in asked.proto_file:
    if file.name in asked.file_to_generate:
        named = [part for part in asked.parameter.split(",") if part.startswith(f"M{{file.name}}=")]
        if not named and not file.options.go_package:
            answer.error = f"{{file.name}} has no package for Go"
        answer.file.add(name=file.name.replace(".proto", "{end}"), content="".join(named) or file.options.go_package)
sys.stdout.buffer.write(answer.SerializeToString())
"""


def blocks(page, language):
    """The fenced blocks of a page in this language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


def typed(page):
    """The commands in the code blocks of a page, without what is said behind them."""
    text = page.read_text().replace("\\\n", " ")
    in_fence = False
    for line in text.splitlines():
        if line.startswith("```"):
            in_fence = line == "```sh"
        elif in_fence or line.startswith("    "):
            command = re.sub(r"\s{2,}# .*", "", line.strip().removeprefix("$ "))
            if re.match(r"(\w+=\S+ |RUSTFLAGS=\"[^\"]*\" )*(plimsoll|curl|buf|cargo|scripts/\S+)( |$)", command):
                yield re.sub(r"\s+", " ", command).strip()


COMMANDS = sorted({command for page in PAGES for command in typed(page)})
SERVES = [command for command in COMMANDS if command.startswith("plimsoll serve") and command not in ELSEWHERE]
OTHERS = [command for command in COMMANDS if command not in SERVES and command not in ELSEWHERE]
PYTHON = [pytest.param(code, id=f"{page.name}-{number}")
          for page in (ROOT / "README.md", CLIENTS, MODELS) for number, code in enumerate(blocks(page, "python"))]


class Hub(http.server.BaseHTTPRequestHandler):
    """Plays the hub that models are pulled from: every repository is the built-in embedder."""

    protocol_version = "HTTP/1.1"
    commit = "0123456789abcdef0123456789abcdef01234567"
    files = {name: (ROOT / "models/tiny-embed" / name).read_bytes()
             for name in ("config.json", "tokenizer.json", "model.safetensors")}

    def do_GET(self):
        if "/api/models/" in self.path:
            siblings = [{"rfilename": name, "size": len(content)} for name, content in self.files.items()]
            return self.answer(200, json.dumps({"sha": self.commit, "siblings": siblings}).encode())
        content = self.files.get(self.path.rsplit("/", 1)[1])
        if content is None:
            return self.answer(404, b"")
        start, end = re.match(r"bytes=(\d+)-(\d*)", self.headers["range"]).groups()
        start, end = int(start), int(end) + 1 if end else len(content)
        return self.answer(206, content[start:end], **{"content-range": f"bytes {start}-{end - 1}/{len(content)}",
                                                       "etag": f'"small{len(content)}"', "x-repo-commit": self.commit})

    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Place:
    """A folder with a model, a repository, tokens and a certificate; a hub; ports of its own."""

    def __init__(self, folder, hub):
        self.folder = folder
        self.ports = {port: str(free_port()) for port in ("8000", "8001", "8002")}
        shutil.copytree(ROOT / "models/tiny-embed", folder / "my-model")
        (folder / "my-model/model.toml").unlink()
        shutil.copytree(folder / "my-model", folder / "models/first")
        (folder / "tokens").write_text("a-token-of-the-commands\n")
        (folder / "admin-tokens").write_text("another-token-of-the-commands\n")
        authority = trustme.CA()
        own = authority.issue_cert("localhost")
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        own.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
        own.private_key_pem.write_to_path(str(folder / "server.key"))
        (folder / "bin").mkdir()
        (folder / "bin/plimsoll").symlink_to(binary())
        shutil.copytree(ROOT / "proto", folder / "proto")
        scripts = os.path.dirname(sys.executable)
        self.environment = {
            **os.environ, "PATH": f"{folder / 'bin'}:{scripts}:{os.environ['PATH']}", "HF_ENDPOINT": hub, "NO_PROXY": "127.0.0.1",
            "PLIMSOLL_CACHE_DIR": str(folder / "cache"), "HF_HOME": str(folder / "hub"),
            "PLIMSOLL_PROFILE_DIR": str(folder / "profiles"), "PLIMSOLL_HTTP_PORT": self.ports["8000"],
            "PLIMSOLL_GRPC_PORT": self.ports["8001"], "PLIMSOLL_METRICS_PORT": self.ports["8002"],
        }

    def here(self, command):
        """The command with this place's ports for the usual ones, and for those of a second server."""
        command = re.sub(r"(127\.0\.0\.1|localhost):(800[012])", lambda found: f"{found[1]}:{self.ports[found[2]]}", command)
        command = re.sub(r"-port 801([012])", lambda found: f"-port {self.ports['800' + found[1]]}", command)
        for asks, port in ASKS.items():
            command = re.sub(rf"plimsoll {asks}\b(?! pressure)", f"plimsoll {asks} --address 127.0.0.1:{self.ports[port]}", command)
        return command

    def make_tools(self):
        """The programs and modules of the pages that are not installed here."""
        python, modules = sys.executable, self.folder / "modules"
        for name, text in {
            "protoc": f'#!/bin/sh\nexec {python} -m grpc_tools.protoc "$@"\n',
            "protoc-gen-go": GO_PLUGIN.format(python=python, end=".pb.go"),
            "protoc-gen-go-grpc": GO_PLUGIN.format(python=python, end="_grpc.pb.go"),
        }.items():
            (self.folder / "bin" / name).write_text(text)
            (self.folder / "bin" / name).chmod(0o755)
        (modules / "google/rpc").mkdir(parents=True)
        (modules / "google/rpc/error_details.proto").write_text(STATUS)
        subprocess.run([python, "-m", "grpc_tools.protoc", f"-I{modules}", f"--python_out={modules}",
                        "google/rpc/error_details.proto"], check=True)
        (modules / "grpc_status").mkdir()
        (modules / "grpc_status/rpc_status.py").write_text(RPC_STATUS)
        (modules / "sentence_transformers.py").write_text(self.here(SENTENCE_TRANSFORMERS))
        self.environment["PYTHONPATH"] = str(modules)

    def run(self, script, timeout=300, **environment):
        return subprocess.run(["bash", "-c", script], cwd=self.folder, env={**self.environment, **environment}, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout)

    def serving(self, command):
        """Runs the server until it is ready, then ends it as a supervisor does."""
        return self.run(f"set -e; {command} & server=$!; trap 'kill $server 2>/dev/null || true' EXIT\n"
                        f"until {self.here('plimsoll health')} 2>/dev/null; do kill -0 $server; sleep 0.1; done\n"
                        "kill $server; wait $server")


@pytest.fixture(scope="module")
def hub():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def place(tmp_path_factory, hub):
    return Place(tmp_path_factory.mktemp("place"), hub)


@pytest.fixture(scope="module")
def asked(tmp_path_factory, hub):
    """The same with a server that serves what `plimsoll serve` does, and the model of one's own."""
    yield from asking(tmp_path_factory.mktemp("asked"), hub, "--models", "embedded", "--model", "./my-model")


@pytest.fixture(scope="module")
def secured(tmp_path_factory, hub):
    """The same where callers need a token and encrypt."""
    yield from asking(tmp_path_factory.mktemp("secured"), hub, "--token-file", "tokens", "--tls-cert", "server.pem",
                      "--tls-key", "server.key")


def asking(folder, hub, *arguments):
    place = Place(folder, hub)
    server = Server(folder, *arguments)
    place.ports = {"8000": str(server.http_port), "8001": str(server.port), "8002": str(server.metrics_port)}
    place.make_tools()
    yield place
    assert server.stop() == 0, server.log()


@pytest.fixture(scope="module")
def with_stubs(asked):
    """What docs/clients.md has in its shell before its Python."""
    done = asked.run("set -e\n" + "\n".join(blocks(CLIENTS, "sh")))
    assert done.returncode == 0, done.stdout
    made = {str(path.relative_to(asked.folder / "stubs")) for path in (asked.folder / "stubs").rglob("*.go")}
    assert {"plimsoll/v1/plimsoll.pb.go", "plimsoll/v1/plimsoll_grpc.pb.go"} <= made, made
    return asked


def test_what_is_not_typed_here_is_in_a_page():
    assert set(ELSEWHERE) <= set(COMMANDS)
    assert len(SERVES) >= 8 and len(OTHERS) >= 20 and len(PYTHON) >= 7, (SERVES, OTHERS, PYTHON)


@pytest.mark.parametrize("command", SERVES, ids=str)
def test_a_server(place, command):
    for name in re.findall(r"--model ([\w-]+/[\w.-]+)", command):
        assert place.run(f"plimsoll pull hf:{name}").returncode == 0
    done = place.serving(place.here(command))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("command", OTHERS, ids=str)
def test_a_command(asked, command):
    # A pull by name is from where everybody has it, into the cache that it is in already.
    environment = {} if "hf:" in command else {"PLIMSOLL_CACHE_DIR": os.environ.get("PLIMSOLL_CACHE_DIR", "")}
    environment = {name: value for name, value in environment.items() if value} if "pull" in command else {}
    command = asked.here(command.replace("cargo run --release --", "plimsoll"))
    command = re.sub(r"plimsoll (top)(.*)", r"plimsoll \1\2 --once", command) if "--once" not in command else command
    done = asked.run(f"set -e -o pipefail; {re.sub('^curl', 'curl -fsS', command)}", **environment)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("code", PYTHON)
def test_python(request, code):
    place = request.getfixturevalue("secured" if "ssl" in code else "with_stubs")
    (place.folder / "page.py").write_text(place.here(code))
    done = place.run(f"{sys.executable} page.py")
    assert done.returncode == 0 and done.stdout, done.stdout
    # Behind a call that prints stands what it prints, where that is always the same.
    for told in re.findall(r"^ *print\(.*\)\s+# (\W.*|\d+)$", code, re.M):
        assert told in done.stdout, (told, done.stdout)
    for found in re.findall(r"^ *print\(.*# above ([\d.]+)", code, re.M):
        assert float(done.stdout) > float(found)


def test_model_toml(place):
    """Each model.toml of docs/models.md, in the folder of a model."""
    texts = blocks(MODELS, "toml")
    assert len(texts) >= 2
    for number, text in enumerate(texts):
        folder = place.folder / f"written-{number}"
        shutil.copytree(place.folder / "my-model", folder)
        (folder / "model.toml").write_text(text)
        done = place.run(f"plimsoll check ./{folder.name} && plimsoll plan --model ./{folder.name}")
        assert done.returncode == 0 and "left out" not in done.stdout, done.stdout


def test_start(tmp_path, hub):
    """What docs/start.md says, from its first line to its last, on other ports than those that it names."""
    parts = blocks(STORY, "sh")
    assert len(parts) >= 5
    place = Place(tmp_path, hub)
    script = "set -e -o pipefail; set -m; trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + "\n".join(parts)
    done = place.run(place.here(script), timeout=180)
    assert done.returncode == 0, done.stdout
    for told in ("[[", '"object"', "my-model", "second: tuned, version 1", "2000", "environment"):
        assert told in done.stdout, (told, done.stdout)


def test_waiting_ends_when_the_server_dies(place):
    waits = set(re.findall(r"^while .*", STORY.read_text(), re.M))
    assert waits
    for wait in waits:
        place.run(f"false & sleep 0.2; {place.here(wait)}", timeout=20)
