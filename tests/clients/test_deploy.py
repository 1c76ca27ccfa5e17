"""What deploy/ holds: of the form that its readers expect, and of the metrics and settings that there are."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import kubernetes_validate
import promql_parser
import pytest
import yaml

from server import ROOT, binary

DEPLOY = ROOT / "deploy"
HERE = pathlib.Path(sys.executable).parent
# An image's own paths and KServe's variable are not there where `check` looks at its options.
PROM_SUFFIX = re.compile(r"_(bucket|sum|count)$")


@pytest.fixture(scope="module")
def metrics():
    """The labels of every metric, by its name, as the reference page has them."""
    rows = re.findall(r"^\| `(plimsoll_\w+)` \| (\w+) \| ([^|]*) \|", (ROOT / "docs/metrics.md").read_text(), re.M)
    return {name: set(labels.replace(" ", "").split(",")) - {""} for name, _, labels in rows}


def assert_known(expression, metrics):
    """The expression is PromQL, and every metric and label in it is there."""
    promql_parser.parse(expression)
    found = re.findall(r"\b(plimsoll_\w+|up)\b(?:\{([^}]*)\})?", expression)
    assert found, expression
    # Prometheus' own.
    metrics = {**metrics, "up": set()}
    for name, labels in found:
        base = PROM_SUFFIX.sub("", name)
        assert name in metrics or base in metrics, name
        known = metrics.get(name) or metrics[base]
        # Prometheus adds where it has them from.
        added = {"instance", "job", "namespace", "pod"}
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels)) <= known | added | {"le"}, expression


def test_alerts(metrics):
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert rules
    headings = set(re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(), re.M))
    assert headings == {rule["alert"] for rule in rules}
    for rule in rules:
        assert_known(rule["expr"], metrics)
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("warning", "critical") and rule["annotations"]["summary"]


def test_board(metrics):
    board = json.loads((DEPLOY / "grafana/plimsoll.json").read_text())
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    assert len(targets) > 10 and all(panel["description"] for panel in board["panels"])
    for target in targets:
        assert_known(target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*"), metrics)


def documents(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_kubernetes():
    for document in documents("kubernetes/plimsoll.yaml"):
        kubernetes_validate.validate(document, "1.32", strict=True)


def test_monitoring(metrics):
    """What scrapes the servers finds them, and what their number follows is a metric of theirs."""
    monitor, = documents("kubernetes/monitoring.yaml")
    kinds = {document["kind"]: document["spec"] for document in documents("kubernetes/plimsoll.yaml") if "spec" in document}
    pod = kinds["Deployment"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports
    values, = documents("kubernetes/prometheus-adapter-values.yaml")
    rules = values["rules"]["custom"]
    for rule in rules:
        assert_known(rule["seriesQuery"], metrics)
        series = rule["seriesQuery"].partition("{")[0]
        query = rule["metricsQuery"].replace("<<.Series>>", series)
        assert_known(query.replace("<<.LabelMatchers>>", 'pod="a"').replace("<<.GroupBy>>", "pod"), metrics)
    wanted = {metric["pods"]["metric"]["name"] for metric in kinds["HorizontalPodAutoscaler"]["metrics"]}
    assert wanted == {rule["seriesQuery"].partition("{")[0] for rule in rules}
    # What scales the Deployment is not set back by who applies it.
    assert "replicas" not in kinds["Deployment"]


def test_kserve():
    """Services ask for protocols that the runtime speaks, at the ports that it is started with."""
    runtime, *services = documents("kubernetes/kserve.yaml")
    container, = runtime["spec"]["containers"]
    given = dict(argument.split("=", 1) for argument in container["args"] if argument.startswith("--"))
    # Where KServe sends what names no port.
    assert given["--http-port"] == "8080" and "ports" not in container
    protocols = set()
    for service in services:
        model = service["spec"]["predictor"]["model"]
        assert model["runtime"] == runtime["metadata"]["name"]
        ports = [str(port["containerPort"]) for port in model.get("ports", [])]
        assert ports == ([given["--grpc-port"]] if model["protocolVersion"] == "grpc-v2" else [])
        protocols.add(model["protocolVersion"])
    assert protocols == set(runtime["spec"]["protocolVersions"])


def arguments_of(command):
    assert command[0] == "serve"
    return command[1:]


def test_options_are_the_servers():
    """Everything that starts a server starts it with options that there are."""
    deployment = next(one for one in documents("kubernetes/plimsoll.yaml") if one["kind"] == "Deployment")
    runtime = documents("kubernetes/kserve.yaml")[0]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    unit = (DEPLOY / "plimsoll.service").read_text()
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    commands = [
        deployment["spec"]["template"]["spec"]["containers"][0]["args"],
        runtime["spec"]["containers"][0]["args"],
        *(service["command"] for service in compose["services"].values()),
        re.search(r"^ExecStart=\S*plimsoll (.*)$", unit, re.M)[1].split(),
        *(json.loads(found) for found in re.findall(r"^CMD (\[.*\])$", dockerfile, re.M)),
    ]
    assert len(commands) == 7
    known = subprocess.run([binary(), "serve", "--help"], capture_output=True, text=True, check=True).stdout
    options = set(re.findall(r"--[\w-]+", known))
    for command in commands:
        given = {argument.partition("=")[0] for argument in arguments_of(command) if argument.startswith("--")}
        assert given <= options, (given - options, command)
    settings = {line.split()[0] for line in subprocess.run(
        [binary(), "config"], capture_output=True, text=True, check=True).stdout.splitlines() if line.strip()}
    for text in (unit, dockerfile):
        for variable in re.findall(r"PLIMSOLL_(\w+)=", text):
            assert variable.lower() in settings, variable
    config = next(one for one in documents("kubernetes/plimsoll.yaml") if one["kind"] == "ConfigMap")
    for key in re.findall(r"^(?:# )?(\w+) =", config["data"]["server.toml"], re.M):
        assert key in settings, key


def test_dockerfile():
    done = subprocess.run([HERE / "hadolint", DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (DEPLOY / "Dockerfile").read_text()
    final = text.split("\nFROM ")[3:]
    for stage in final:
        for wanted in ("USER 10001", "HEALTHCHECK", 'ENTRYPOINT ["plimsoll"]', "PLIMSOLL_ADDRESS=0.0.0.0"):
            assert wanted in stage, (wanted, stage)
    # The toolkit that the bindings are told of is the image's.
    major, minor = re.search(r"^FROM nvidia/cuda:(\d+)\.(\d+)\S* AS build-cuda$", text, re.M).groups()
    assert f"CUDARC_CUDA_VERSION={int(major) * 1000 + int(minor) * 10} " in text
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services["cuda"]["build"]["args"]) <= set(re.findall(r"^ARG (\w+)", text, re.M))


def test_unit(tmp_path):
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not here")
    # The program is not installed; everything else is looked at as it is.
    text = (DEPLOY / "plimsoll.service").read_text().replace("/usr/local/bin/plimsoll", binary())
    unit = tmp_path / "plimsoll.service"
    unit.write_text(text)
    done = subprocess.run([verify, "verify", "--man=no", unit], capture_output=True, text=True)
    mine = [line for line in (done.stdout + done.stderr).splitlines() if "plimsoll" in line]
    assert not mine, mine


def test_health(tmp_path):
    from server import Server, free_port

    server = Server(tmp_path, "--models", "embedded")
    ask = [binary(), "health", "--address", f"127.0.0.1:{server.metrics_port}"]
    for command, expected in ((ask, "ready\n"), ([*ask, "--live"], "live\n")):
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, expected), done.stderr
    assert server.stop() == 0
    nobody = subprocess.run([binary(), "health", "--address", f"127.0.0.1:{free_port()}"], capture_output=True)
    assert nobody.returncode == 1
