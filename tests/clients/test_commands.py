"""Every command that a page tells to type is typed, in a folder with what the page assumes; those of docs/start.md as one story."""

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
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path != STORY)]

# Commands of the pages that are not typed here, and who does that.
ELSEWHERE = {
    "cargo install --path .": "the story begins with what it makes",
    "scripts/test": "runs this",
    "plimsoll bench pressure": "benches/pressure.sh, minutes",
    "cargo build --release --features cuda": "scripts/test-cuda-rim",
    "plimsoll serve --device cuda": "needs a card",
    "plimsoll gpu-test": "needs a card",
    "plimsoll gpu-test books cost": "needs a card",
    'RUSTFLAGS="-C target-cpu=native" cargo build --release': "minutes, and another processor each",
    'RUSTFLAGS="-C target-cpu=x86-64" cargo build --release': "minutes",
}

# Where a server is asked, for each command that asks one.
ASKS = {"bench": "8001", "reload": "8001", "top": "8002", "health": "8002"}


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
        own = trustme.CA().issue_cert("localhost")
        own.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
        own.private_key_pem.write_to_path(str(folder / "server.key"))
        (folder / "bin").mkdir()
        (folder / "bin/plimsoll").symlink_to(binary())
        (folder / "proto").symlink_to(ROOT / "proto")
        scripts = os.path.dirname(sys.executable)
        self.environment = {
            **os.environ, "PATH": f"{folder / 'bin'}:{scripts}:{os.environ['PATH']}", "HF_ENDPOINT": hub, "NO_PROXY": "127.0.0.1",
            "PLIMSOLL_CACHE_DIR": str(folder / "cache"), "HF_HOME": str(folder / "hub"),
            "PLIMSOLL_PROFILE_DIR": str(folder / "profiles"), "PLIMSOLL_HTTP_PORT": self.ports["8000"],
            "PLIMSOLL_GRPC_PORT": self.ports["8001"], "PLIMSOLL_METRICS_PORT": self.ports["8002"],
        }

    def here(self, command):
        """The command with this place's ports for the usual ones."""
        command = re.sub(r"127\.0\.0\.1:(800[012])", lambda found: f"127.0.0.1:{self.ports[found[1]]}", command)
        for asks, port in ASKS.items():
            command = re.sub(rf"plimsoll {asks}\b(?! pressure)", f"plimsoll {asks} --address 127.0.0.1:{self.ports[port]}", command)
        return command

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
    """The same with a server that serves what `plimsoll serve` does."""
    place = Place(tmp_path_factory.mktemp("asked"), hub)
    server = Server(place.folder)
    place.ports = {"8000": str(server.http_port), "8001": str(server.port), "8002": str(server.metrics_port)}
    yield place
    assert server.stop() == 0, server.log()


def test_what_is_not_typed_here_is_in_a_page():
    assert set(ELSEWHERE) <= set(COMMANDS)
    assert len(SERVES) >= 5 and len(OTHERS) >= 14, (SERVES, OTHERS)


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


def test_start(tmp_path, hub):
    """What docs/start.md says, from its first line to its last, on other ports than those that it names."""
    blocks = re.findall(r"```sh\n(.*?)```", STORY.read_text(), re.S)
    assert len(blocks) >= 5
    place = Place(tmp_path, hub)
    shutil.rmtree(tmp_path / "models")
    script = "set -e -o pipefail; set -m; trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + "\n".join(blocks)
    done = place.run(place.here(script), timeout=180)
    assert done.returncode == 0, done.stdout
    for told in ("[[", '"object"', "my-model", "second: tuned, version 1", "2000", "environment"):
        assert told in done.stdout, (told, done.stdout)
