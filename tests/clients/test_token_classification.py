"""Labels of tokens on every front: a grammar tagger of 213 labels, and a small model that tells names, against transformers."""

import json
import os

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from huggingface_hub import InferenceClient

from conftest import Plimsoll, Tei
from server import ROOT, Server
from tensors import ids, refused, texts
from test_http import curl, good

NAMES = "bert-tokens"
ITEMS = json.loads((ROOT / "tests/reference/data/quire-grammar.reference.json").read_text())["items"]
VALUES = [item["text"] for item in ITEMS]
SMALL = json.loads((ROOT / "tests/reference/data" / NAMES / "reference.json").read_text())["items"]
STRATEGIES = ["none", "simple", "first", "average", "max"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One with both models."""
    arguments = ["--model", f"tagger={os.environ['PLIMSOLL_TEST_TAGGER']}:f32"]
    arguments += ["--model", f"{NAMES}={ROOT / 'tests/reference/data' / NAMES}:f32"]
    server = Server(tmp_path_factory.mktemp("tagger"), *arguments)
    yield server
    assert server.stop() == 0, server.log()


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.address) as channel:
        yield channel


@pytest.fixture(scope="module")
def own(tmp_path_factory, channel):
    return Plimsoll(tmp_path_factory.mktemp("stubs"), channel)


@pytest.fixture(scope="module")
def url(server):
    return f"http://127.0.0.1:{server.http_port}"


def inner(values):
    """Without the special tokens."""
    return values[1:-1]


def test_our_own_service_gives_every_label_and_logit(own):
    message = own.messages.TokenClassifyRequest(
        model="tagger", texts=VALUES, aggregation="AGGREGATION_NONE", raw_scores=True, all_scores=True
    )
    answer = own.token_classify(message)
    assert len(answer.results) == len(ITEMS)
    for row, item in zip(answer.results, ITEMS):
        assert [span.label for span in row.spans] == inner(item["labels"])
        assert [span.index for span in row.spans] == inner(item["argmax"])
        assert [span.first_token for span in row.spans] == list(range(1, len(item["labels"]) - 1))
        assert np.allclose([span.score for span in row.spans], inner(item["max_logit"]), rtol=0, atol=1e-4)
        assert np.allclose(row.spans[0].scores, item["logits_first_token"], rtol=0, atol=1e-4)
        assert all(item["text"][span.start : span.end] == span.text for span in row.spans)
    # Ids that a client has made itself have labels, and no place in a text.
    rows = [{"ids": item["input_ids"]} for item in ITEMS]
    message = own.messages.TokenClassifyRequest(model="tagger", tokens=rows, aggregation="AGGREGATION_NONE")
    for row, item in zip(own.token_classify(message).results, ITEMS):
        assert [span.label for span in row.spans] == item["labels"]
    message.aggregation = own.messages.AGGREGATION_FIRST
    refused(lambda: own.token_classify(message), "INVALID_ARGUMENT", "aggregation", "send texts")


def test_spans_are_those_of_transformers_pipeline(own, url):
    client = InferenceClient(f"{url}/models/{NAMES}")
    for strategy in STRATEGIES:
        message = own.messages.TokenClassifyRequest(
            model=NAMES, texts=[item["text"] for item in SMALL], aggregation=f"AGGREGATION_{strategy.upper()}"
        )
        for row, item in zip(own.token_classify(message).results, SMALL):
            expected = item["spans"][strategy]
            assert [[span.label, span.start, span.end] for span in row.spans] == [[label, *place] for label, _, *place in expected]
            assert np.allclose([span.score for span in row.spans], [score for _, score, *_ in expected], atol=1e-4)
        for item in SMALL:
            found = client.token_classification(item["text"], aggregation_strategy=strategy, ignore_labels=["LOC"])
            expected = [span for span in item["spans"][strategy] if span[0] != "LOC"]
            labels = [span.entity if strategy == "none" else span.entity_group for span in found]
            assert [[label, span.start, span.end] for label, span in zip(labels, found)] == [
                [label, *place] for label, _, *place in expected
            ]


@pytest.mark.parametrize("over", ["grpc", "http"])
def test_the_open_inference_protocol_gives_every_logit(server, over):
    address = server.address if over == "grpc" else f"127.0.0.1:{server.http_port}"
    module = triton if over == "grpc" else triton_http
    with module.InferenceServerClient(address) as client:

        values = np.array([[value.encode()] for value in VALUES], dtype=np.object_)
        text = module.InferInput("TEXT", list(values.shape), "BYTES")
        text.set_data_from_numpy(values)
        answer = client.infer("tagger", [text])
        logits, offsets, tokens = (answer.as_numpy(name) for name in ("logits", "offsets", "tokens"))
        longest = max(len(item["labels"]) for item in ITEMS)
        assert logits.shape == (len(ITEMS), longest, 213) and offsets.shape == (len(ITEMS), longest, 2)
        for row, item in enumerate(ITEMS):
            count = len(item["labels"])
            assert tokens[row, 0] == count
            assert logits[row, :count].argmax(-1).tolist() == item["argmax"]
            assert np.abs(logits[row, :count].max(-1) - item["max_logit"]).max() <= 1e-4
            assert np.abs(logits[row, 1] - item["logits_first_token"]).max() <= 1e-4
            assert (logits[row, count:] == 0).all() and (offsets[row, count:] == -1).all()
            assert (offsets[row, 0] == -1).all() and offsets[row, 1, 0] == 0
        if over == "http":
            asked = [module.InferRequestedOutput(name, binary_data=False) for name in ("offsets", "tokens")]
            answer = client.infer("tagger", [text], outputs=asked)
            assert (answer.as_numpy("offsets") == offsets).all() and (answer.as_numpy("tokens") == tokens).all()
        metadata = client.get_model_metadata("tagger")
        outputs = metadata["outputs"] if over == "http" else [
            {"name": output.name, "shape": list(output.shape)} for output in metadata.outputs
        ]
        shapes = {output["name"]: [int(size) for size in output["shape"]] for output in outputs}
        assert shapes == {"scores": [-1, -1, 213], "logits": [-1, -1, 213], "offsets": [-1, -1, 2], "tokens": [-1, 1]}


def test_ids_of_the_client_are_answered_where_they_are_in_its_tensor(server):
    with triton.InferenceServerClient(server.address) as client:
        rows = [item["input_ids"] for item in ITEMS]
        right = client.infer("tagger", ids(rows)).as_numpy("logits")
        width = max(map(len, rows)) + 3
        padded = np.array([[0] * (width - len(row)) + row for row in rows], dtype=np.int64)
        mask = np.array([[0] * (width - len(row)) + [1] * len(row) for row in rows], dtype=np.int64)
        inputs = []
        for name, values in (("input_ids", padded), ("attention_mask", mask)):
            tensor = triton.InferInput(name, list(values.shape), "INT64")
            tensor.set_data_from_numpy(values)
            inputs.append(tensor)
        answer = client.infer("tagger", inputs)
        left = answer.as_numpy("logits")
        assert left.shape == (len(rows), width, 213) and answer.as_numpy("offsets") is None
        for row, (found, item) in enumerate(zip(left, ITEMS)):
            count = len(item["argmax"])
            assert found[-count:].argmax(-1).tolist() == item["argmax"] and (found[:-count] == 0).all()
            assert np.abs(found[-count:] - right[row, :count]).max() <= 1e-4
        best = triton.InferRequestedOutput("scores", class_count=2)
        classes = client.infer("tagger", [texts(VALUES[:1])], outputs=[best]).as_numpy("scores")
        assert classes.shape[:2] == (1, len(ITEMS[0]["labels"]))
        # What the client cuts out of its own flat list has score, number and label.
        assert classes.reshape(-1)[4].decode().split(":")[2] == ITEMS[0]["labels"][2]
        asked = [triton.InferRequestedOutput("offsets")]
        refused(lambda: client.infer("tagger", ids(rows), outputs=asked), "INVALID_ARGUMENT", "offsets", "send texts")


def test_text_embeddings_inference_says_a_label_for_each_token(tmp_path_factory, channel):
    tei = Tei(tmp_path_factory.mktemp("tei"), channel)
    of = {"metadata": [("model", "tagger")]}
    requests = [tei.messages.PredictRequest(inputs=item["text"], raw_scores=True) for item in ITEMS]
    for answer, item in zip(tei.predict.PredictStream(iter(requests), **of), ITEMS, strict=True):
        assert [prediction.label for prediction in answer.predictions] == inner(item["labels"])
        found = [prediction.score for prediction in answer.predictions]
        assert np.allclose(found, inner(item["max_logit"]), rtol=0, atol=1e-4)
    pair = tei.messages.PredictPairRequest(inputs=["a", "b"])
    refused(lambda: tei.predict.PredictPair(pair, **of), "INVALID_ARGUMENT", "single texts")


def test_predict_over_http(url):
    parameters = {"aggregation_strategy": "none", "ignore_labels": []}
    message = {"inputs": [[value] for value in VALUES], "raw_scores": True, "parameters": parameters}
    for found, item in zip(good(f"{url}/models/tagger/predict", message), ITEMS, strict=True):
        assert [token["entity"] for token in found] == inner(item["labels"])
        assert [token["index"] for token in found] == list(range(1, len(item["labels"]) - 1))
        assert np.allclose([token["score"] for token in found], inner(item["max_logit"]), rtol=0, atol=1e-4)
        assert all(item["text"][token["start"] : token["end"]] == token["word"] for token in found)
    # As transformers' inference service: put together, and what is outside of everything left out.
    item = next(item for item in SMALL if any(span[0] == "O" for span in item["spans"]["simple"]))
    found = good(f"{url}/models/{NAMES}", {"inputs": item["text"]})
    expected = [span for span in item["spans"]["simple"] if span[0] != "O"]
    assert [[token["entity_group"], token["start"], token["end"]] for token in found] == [
        [label, *place] for label, _, *place in expected
    ]
    for change, word in (
        ({"parameters": {"aggregation_strategy": "best"}}, "none, simple, first"),
        ({"parameters": {"stride": 3}}, "stride"),
        ({"inputs": [["a", "b"]]}, "single texts"),
        ({"raw_scores": True, "parameters": {"aggregation_strategy": "max"}}, "raw_scores"),
    ):
        status, answer = curl(f"{url}/models/tagger/predict", {"inputs": "a"} | change)
        assert status in (400, 413, 422) and word in answer["error"], answer
    info = good_get(f"{url}/models/tagger/info")
    assert len(info["model_type"]["classifier"]["id2label"]) == 213


def good_get(url):
    status, answer = curl(url)
    assert status == 200, answer
    return answer


def test_the_load_generator_checks_answers_of_tokens_too(server):
    import subprocess

    from server import binary

    for protocol in ("plimsoll", "oip"):
        command = [binary(), "bench", "--address", server.address, "--protocol", protocol, "--model", NAMES, "--duration", "2s"]
        command += ["--concurrency", "4", "--rows", "3", "--lengths", "uniform:4-20"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
