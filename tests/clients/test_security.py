"""Tokens, certificates and calls of administration, with the clients that people have."""

import contextlib
import socket
import ssl
import subprocess
import threading

import httpx
import openai
import pytest
import trustme
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from server import Server, binary, free_port
from tensors import cosine, infer, reference, texts

CALLER = "caller-token-for-tests"
ADMIN = "admin-token-for-tests-only"


class Secured:
    """A server with everything on, as other machines would reach it, and what its clients need."""

    def __init__(self, folder):
        authority = trustme.CA()
        names = ("ca.pem", "server.pem", "server.key")
        self.ca, self.certificate, self.key = (str(folder / name) for name in names)
        authority.cert_pem.write_to_path(self.ca)
        own = authority.issue_cert("localhost", "127.0.0.1")
        for index, blob in enumerate(own.cert_chain_pems):
            blob.write_to_path(self.certificate, append=index > 0)
        own.private_key_pem.write_to_path(self.key)
        self.tokens, self.admin_tokens = folder / "tokens", folder / "admin-tokens"
        self.tokens.write_text(f"# callers\n{CALLER}\n")
        self.admin_tokens.write_text(f"{ADMIN}\n")
        self.server = Server(folder, "--models", "embedded", "--address", "0.0.0.0", "--token-file", self.tokens,
                             "--admin-token-file", self.admin_tokens, "--tls-cert", self.certificate, "--tls-key", self.key)
        self.url = f"https://localhost:{self.server.http_port}"

    def triton(self):
        return triton.InferenceServerClient(f"localhost:{self.server.port}", ssl=True, root_certificates=self.ca)


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    secured = Secured(tmp_path_factory.mktemp("secured"))
    yield secured
    assert secured.server.stop() == 0, secured.server.log()
    assert CALLER not in secured.server.log() and ADMIN not in secured.server.log()


def bearer(token):
    return {"authorization": f"Bearer {token}"}


def code_of(error):
    return error.value.status().removeprefix("StatusCode.")


def test_tritons_client(secured):
    with secured.triton() as client:
        items = [item for item in reference("tiny-embed")["items"] if len(item["input_ids"]) < 256]
        asked = texts([item["text"] for item in items])
        found = infer(client, "tiny-embed", asked, "embedding", headers=bearer(CALLER))
        assert (cosine(found, [item["embedding"] for item in items]) >= 0.99999).all()
        for headers in (None, bearer("wrong-token-for-tests!"), bearer(CALLER[:-1]), {"authorization": CALLER}):
            with pytest.raises(InferenceServerException) as error:
                client.is_server_live(headers=headers)
            assert code_of(error) == "UNAUTHENTICATED"
        for call in (lambda **how: client.unload_model("tiny-section", **how), client.get_log_settings):
            with pytest.raises(InferenceServerException) as error:
                call(headers=bearer(CALLER))
            assert code_of(error) == "PERMISSION_DENIED"
        client.unload_model("tiny-section", headers=bearer(ADMIN))
        client.load_model("tiny-section", headers=bearer(ADMIN))


def test_openais_sdk(secured):
    def sdk(key):
        client = httpx.Client(verify=ssl.create_default_context(cafile=secured.ca))
        return openai.OpenAI(base_url=f"{secured.url}/v1", api_key=key, max_retries=0, http_client=client)

    assert len(sdk(CALLER).embeddings.create(model="tiny-embed", input="web server").data[0].embedding) == 192
    with pytest.raises(openai.AuthenticationError, match="no token that is known"):
        sdk("sk-wrong-token-for-tests").embeddings.create(model="tiny-embed", input="web server")


def test_curl(secured):
    def status(*options):
        command = ["curl", "--silent", "--max-time", "10", "--output", "/dev/null", "--write-out", "%{http_code}", *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        return done.returncode, done.stdout

    health, trust = f"{secured.url}/health", ["--cacert", secured.ca]
    assert status(*trust, "--header", f"authorization: Bearer {CALLER}", health) == (0, "200")
    assert status(*trust, health) == (0, "401")
    assert status(health)[0] == 60, "nobody it trusts has signed the certificate"
    assert status(health.replace("https", "http"))[0] != 0, "nothing is answered in the clear"
    # Probes need nothing.
    for path in ("/health/live", "/health/ready", "/metrics"):
        assert secured.server.http(path)[0] == 200


@contextlib.contextmanager
def old_server(secured, version):
    """The port of one that speaks this version of TLS alone, with the same certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secured.certificate, secured.key)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version

    def serve(listener):
        plain, _ = listener.accept()
        with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as stream:
            stream.recv(1)

    with socket.create_server(("localhost", 0)) as listener:
        serving = threading.Thread(target=serve, args=[listener])
        serving.start()
        yield listener.getsockname()[1]
        serving.join()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_versions_and_ciphers(secured):
    """What is agreed on with clients of each kind: TLS 1.2 and 1.3, forward secrecy and authenticated encryption alone."""

    def agreed(port, version, ciphers=None):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(secured.ca)
        context.minimum_version = context.maximum_version = version
        if ciphers:
            context.set_ciphers(ciphers)
        try:
            with socket.create_connection(("localhost", port), 5) as plain:
                with context.wrap_socket(plain, server_hostname="localhost") as stream:
                    return stream.version(), stream.cipher()[0]
        except (ssl.SSLError, ConnectionError):
            return None

    every = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    every.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    old = [cipher["name"] for cipher in every.get_ciphers() if cipher["protocol"] != "TLSv1.3"]
    assert len(old) > 30
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        # Whether this client would: somebody who takes it.
        with old_server(secured, version) as port:
            assert agreed(port, version, "ALL:@SECLEVEL=0") is not None
        for port in (secured.server.port, secured.server.http_port):
            assert agreed(port, version, "ALL:@SECLEVEL=0") is None
    for port in (secured.server.port, secured.server.http_port):
        assert agreed(port, ssl.TLSVersion.TLSv1_3)[0] == "TLSv1.3"
        found = {agreed(port, ssl.TLSVersion.TLSv1_2, f"{name}:@SECLEVEL=0") for name in old} - {None}
        assert found == {
            ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
            ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
            ("TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        }


def test_our_own_load(secured):
    """`plimsoll bench` over TLS with a token, which it takes from the server's own file."""
    command = [binary(), "bench", "--address", f"localhost:{secured.server.port}", "--model", "tiny-embed"]
    command += ["--duration", "1s", "--warmup", "0s", "--concurrency", "2", "--tls-ca", secured.ca]
    done = subprocess.run([*command, "--token-file", secured.tokens], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode != 0 and "needs a token" in refused.stderr, refused.stderr


def test_our_own_view(secured):
    """`plimsoll top` on the HTTP port, which asks for what the metrics port does not."""
    command = [binary(), "top", "--once", "--interval", "200ms", "--address", f"localhost:{secured.server.http_port}"]
    command += ["--tls-ca", secured.ca]
    done = subprocess.run([*command, "--token-file", secured.tokens], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "tiny-embed" in done.stdout, done.stderr
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1 and "401" in refused.stderr, refused.stderr


def test_without_tokens_administration_is_closed_to_other_machines(tmp_path):
    port = free_port()
    server = Server(tmp_path, "--models", "embedded", "--address", "0.0.0.0", "--admin-address", f"127.0.0.1:{port}")
    with triton.InferenceServerClient(server.address) as client:
        assert client.is_server_live()
        for call in (client.unload_model, client.load_model):
            with pytest.raises(InferenceServerException) as error:
                call("tiny-embed")
            assert code_of(error) == "PERMISSION_DENIED"
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        client.unload_model("tiny-embed")
        client.load_model("tiny-embed")
    log = server.log()
    assert "--admin-token-file" in log and "--token-file" in log, log
    assert server.stop() == 0, server.log()


def test_files_that_cannot_be_used(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("good-enough-to-be-one\nsecret but wrong\n")
    for command in ("check", "serve"):
        done = subprocess.run([binary(), command, "--token-file", tokens], capture_output=True, text=True, timeout=60)
        said = done.stdout + done.stderr
        assert done.returncode == 1 and f"{tokens}: line 2: " in said and "secret" not in said, said
    done = subprocess.run([binary(), "serve", "--tls-cert", tokens], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "tls_cert needs tls_key" in done.stderr, done.stderr


def test_a_page_of_a_listed_origin_may_call_and_no_other(tmp_path):
    page, other, token = "https://page.invalid", "https://other.invalid", "a-token-of-a-page"
    (tmp_path / "tokens").write_text(f"{token}\n")
    arguments = ["--models", "embedded", "--token-file", str(tmp_path / "tokens"), "--cors-origins", page]
    server = Server(tmp_path, *arguments)
    try:
        url = f"http://127.0.0.1:{server.http_port}/models/tiny-embed/embed"
        asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
        answers = {origin: httpx.options(url, headers={"origin": origin} | asks) for origin in (page, other)}
        allowed = answers[page].headers
        assert answers[page].status_code == 200 and allowed["access-control-allow-origin"] == page
        assert allowed["access-control-allow-headers"] == "authorization,content-type"
        assert "POST" in allowed["access-control-allow-methods"]
        assert "access-control-allow-origin" not in answers[other].headers
        # Being allowed to call is not being known: a token is asked for all the same, which the page can read.
        refused = httpx.post(url, json={"inputs": "web"}, headers={"origin": page})
        assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == page
        known = {"origin": page, "authorization": f"Bearer {token}"}
        answer = httpx.post(url, json={"inputs": "web"}, headers=known, timeout=30)
        assert answer.status_code == 200 and len(answer.json()[0]) == 192
        assert answer.headers["access-control-allow-origin"] == page
        assert "x-compute-tokens" in answer.headers["access-control-expose-headers"]
    finally:
        assert server.stop() == 0, server.log()


def test_without_origins_pages_of_elsewhere_are_refused(server):
    here = f"127.0.0.1:{server.http_port}"
    url = f"http://{here}/models/tiny-embed/embed"
    answer = httpx.post(url, json={"inputs": "web"}, headers={"origin": "https://page.invalid"})
    assert answer.status_code == 403 and "--cors-origins" in answer.json()["error"]
    assert "access-control-allow-origin" not in answer.headers
    # What a browser sends without asking first.
    simple = {"origin": "https://page.invalid", "content-type": "text/plain"}
    assert httpx.post(url, content='{"inputs": "web"}', headers=simple).status_code == 403
    own = httpx.post(url, json={"inputs": "web"}, headers={"origin": f"http://{here}"}, timeout=30)
    assert own.status_code == 200 and "access-control-allow-origin" not in own.headers


def test_pages_do_not_administrate(server):
    here = f"127.0.0.1:{server.http_port}"
    url = f"http://{here}/v2/repository/models/tiny-section/load"
    for headers in ({"origin": "https://page.invalid"}, {"sec-fetch-site": "cross-site"},
                    {"host": "page.invalid:8000"}, {"host": "page.invalid", "origin": "http://page.invalid"}):
        answer = httpx.post(url, headers=headers)
        assert answer.status_code == 403, (headers, answer.text)
    for headers in ({}, {"host": "localhost"}, {"origin": f"http://{here}", "sec-fetch-site": "same-origin"}):
        answer = httpx.post(url, headers=headers, timeout=60)
        assert answer.status_code == 200, (headers, answer.text)
