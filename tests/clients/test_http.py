"""The HTTP interfaces: OpenAI's SDK, LlamaIndex's and Hugging Face's clients of text-embeddings-inference, and curl."""

import json
import subprocess

import numpy as np
import openai
import pytest
from huggingface_hub import InferenceClient
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

from tensors import cosine, reference


@pytest.fixture(scope="module")
def url(server):
    return f"http://127.0.0.1:{server.http_port}"


@pytest.fixture(scope="module")
def sdk(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none is needed", max_retries=0)


def curl(url, message=None, *headers):
    """Status and JSON of a call."""
    command = ["curl", "--silent", "--show-error", "--max-time", "30", "--write-out", "\n%{http_code}", url]
    for header in headers:
        command += ["--header", header]
    if message is not None:
        command += ["--header", "content-type: application/json", "--data-binary", "@-"]
    text = None if message is None else json.dumps(message)
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True)
    body, status = done.stdout.rsplit("\n", 1)
    return int(status), json.loads(body) if body else None


def good(url, message, *headers):
    status, answer = curl(url, message, *headers)
    assert status == 200, answer
    return answer


def assert_references(found, name):
    expected = [item["embedding"] for item in reference(name)["items"]]
    assert np.shape(found) == np.shape(expected)
    assert (cosine(found, expected) >= 0.99999).all()


def values_of(name):
    """The reference texts of a model."""
    return [item["text"] for item in reference(name)["items"]]


def test_openais_sdk(sdk):
    # Its default is base64, which it decodes.
    items = [item for item in reference("tiny-embed")["items"] if len(item["input_ids"]) < 256]
    values = [item["text"] for item in items]
    answer = sdk.embeddings.create(model="tiny-embed", input=values)
    found = [row.embedding for row in answer.data]
    assert (cosine(found, [item["embedding"] for item in items]) >= 0.99999).all()
    assert answer.usage.prompt_tokens == sum(len(item["input_ids"]) for item in items)
    plain = sdk.embeddings.create(model="tiny-embed", input=values[0], encoding_format="float", dimensions=64)
    assert np.allclose(plain.data[0].embedding, np.array(found[0][:64]) / np.linalg.norm(found[0][:64]), atol=1e-5)
    ids = sdk.embeddings.create(model="tiny-embed", input=items[0]["input_ids"])
    assert np.allclose(ids.data[0].embedding, found[0], atol=1e-6)
    assert "tiny-embed" in [model.id for model in sdk.models.list()]
    assert sdk.models.retrieve("tiny-rerank").id == "tiny-rerank"


def test_openais_sdk_is_told_what_is_wrong(sdk):
    with pytest.raises(openai.NotFoundError) as error:
        sdk.embeddings.create(model="none", input="web")
    assert error.value.code == "model_not_found" and "tiny-embed" in error.value.message
    with pytest.raises(openai.BadRequestError) as error:
        sdk.embeddings.create(model="tiny-embed", input=["web", ""])
    assert error.value.param == "input[1]"
    with pytest.raises(openai.BadRequestError) as error:
        sdk.embeddings.create(model="tiny-embed", input="web", extra_body={"task": "query"})
    assert "task" in error.value.message


def test_llama_index(url):
    values = values_of("tiny-embed")
    client = TextEmbeddingsInference(model_name="tiny-embed", base_url=f"{url}/models/tiny-embed", timeout=30)
    found = client.get_text_embedding_batch(values)
    # It puts an instruction before a text unless the model is known to have none, and cuts what is too long.
    assert np.shape(found) == (len(values), 192) and np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-3)
    again = good(f"{url}/embed", {"inputs": [" " + values[0].strip()], "truncate": True}, "model: tiny-embed")
    assert cosine([found[0]], again)[0] > 0.99


def test_hugging_faces_client(url):
    client = InferenceClient(f"{url}/models/tiny-embed", timeout=30)
    items = reference("tiny-embed")["items"][:3]
    found = client.feature_extraction(items[0]["text"], normalize=True, truncate=True)
    assert cosine(np.array(found).reshape(1, -1), [items[0]["embedding"]])[0] >= 0.99999
    # The root of an embedder compares sentences.
    first, *others = [item["text"] for item in items]
    alike = client.sentence_similarity(first, others)
    expected = [cosine([items[0]["embedding"]], [item["embedding"]])[0] for item in items[1:]]
    assert np.allclose(alike, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["tiny-embed", "all-MiniLM-L6-v2"])
def test_embeddings_by_curl(url, name):
    found = good(f"{url}/models/{name}/embed", {"inputs": values_of(name), "truncate": True})
    assert_references(found, name)
    assert good(f"{url}/embed", {"inputs": values_of(name), "truncate": True}, f"model: {name}") == found
    # The model's embeddings are the means of these.
    states = good(f"{url}/embed_all", {"inputs": values_of(name), "truncate": True}, f"model: {name}")
    assert_references([np.mean(tokens, axis=0) for tokens in states], name)


def test_labels_by_curl(url):
    items = reference("tiny-section")["items"]
    message = {"inputs": [[item["text"]] for item in items], "truncate": True, "raw_scores": True}
    names = good(f"{url}/models/tiny-section/info", None)["model_type"]["classifier"]["id2label"]
    for labels, item in zip(good(f"{url}/models/tiny-section/predict", message), items, strict=True):
        assert labels[0]["label"] == item["label"]
        found = {label["label"]: label["score"] for label in labels}
        found = [found[names[str(index)]] for index in range(len(names))]
        assert np.allclose(found, item["logits"], atol=1e-4)


def test_ranks_by_curl(url):
    items = reference("tiny-rerank")["items"]
    for query in dict.fromkeys(item["query"] for item in items):
        asked = [item for item in items if item["query"] == query]
        documents = [item["document"] for item in asked]
        message = {"query": query, "texts": documents, "truncate": True, "return_text": True}
        ranks = good(f"{url}/rerank", message, "model: tiny-rerank")
        assert [rank["score"] for rank in ranks] == sorted((rank["score"] for rank in ranks), reverse=True)
        for rank in ranks:
            assert abs(rank["score"] - asked[rank["index"]]["score_sigmoid"]) <= 1e-4
            assert rank["text"] == documents[rank["index"]]


def test_what_is_beside_them(url, server):
    for path in ("/health", "/ping", "/"):
        assert curl(f"{url}{path}")[0] == 200
    assert curl(f"{url}/embed", {"inputs": ""}, "model: tiny-embed")[0] == 400
    status, answer = curl(f"{url}/embed", {"inputs": "web"}, "model: tiny-rerank")
    assert status == 424 and answer["error_type"] == "Backend"
    answer = good(f"{url}/invocations", {"query": "web", "texts": ["a", "b", "c"], "top_n": 2}, "model: tiny-rerank")
    assert len(answer) == 2
    info = good(f"{url}/info", None, "model: tiny-embed")
    assert (info["served_model_name"], info["model_dtype"]) == ("tiny-embed", "float32")
    status, answer = curl(f"{url}/embed", {"inputs": "web", "normalise": True}, "model: tiny-embed")
    assert status == 422 and answer["error_type"] == "Validation" and "normalise" in answer["error"]
    tokens = good(f"{url}/tokenize", {"inputs": "web server"}, "model: tiny-embed")[0]
    assert [token["text"] for token in tokens if not token["special"]] == ["web", "server"]
    ids = [token["id"] for token in tokens]
    assert good(f"{url}/decode", {"ids": ids}, "model: tiny-embed") == ["web server"]
    metrics = subprocess.run(["curl", "--silent", f"{url}/metrics"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "plimsoll_requests_total" in metrics and server.http("/metrics")[0] == 200
