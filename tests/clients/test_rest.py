"""The Open Inference Protocol over HTTP: tritonclient, and what load generators do."""

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tensors import cosine, reference


@pytest.fixture(scope="module")
def client(server):
    with triton.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        yield client


def texts(values, name="TEXT", binary=True):
    tensor = triton.InferInput(name, [len(values), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[value] for value in values], dtype=np.object_), binary_data=binary)
    return tensor


def tokens(rows, name, binary):
    data = np.array(rows, dtype=np.int64)
    tensor = triton.InferInput(name, list(data.shape), "INT64")
    tensor.set_data_from_numpy(data, binary_data=binary)
    return tensor


@pytest.mark.parametrize("name", ["tiny-embed", "all-MiniLM-L6-v2"])
@pytest.mark.parametrize("binary", [True, False])
def test_embeddings(client, name, binary):
    items = reference(name)["items"]
    expected = [item["embedding"] for item in items]
    output = triton.InferRequestedOutput("embedding", binary_data=binary)
    asked = texts([item["text"] for item in items], binary=binary)
    answer = client.infer(name, [asked], outputs=[output], parameters={"truncate": "end"}, request_id="7")
    assert (cosine(answer.as_numpy("embedding"), expected) >= 0.99999).all()
    assert answer.get_response()["id"] == "7"
    longest = max(len(item["input_ids"]) for item in items)
    ids = [item["input_ids"] + [0] * (longest - len(item["input_ids"])) for item in items]
    mask = [[1] * len(item["input_ids"]) + [0] * (longest - len(item["input_ids"])) for item in items]
    inputs = [tokens(ids, "input_ids", binary), tokens(mask, "attention_mask", not binary)]
    found = client.infer(name, inputs).as_numpy("embedding")
    assert (cosine(found, expected) >= 0.99999).all()


def test_labels(client):
    items = reference("tiny-section")["items"]
    outputs = [triton.InferRequestedOutput("logits"), triton.InferRequestedOutput("scores", class_count=1)]
    answer = client.infer("tiny-section", [texts([item["text"] for item in items])], outputs=outputs)
    assert np.abs(answer.as_numpy("logits") - np.array([item["logits"] for item in items])).max() <= 1e-4
    found = [best[0].decode().rpartition(":")[2] for best in answer.as_numpy("scores")]
    assert found == [item["label"] for item in items]


def test_pairs(client):
    items = reference("tiny-rerank")["items"]
    inputs = [texts([item["query"] for item in items]), texts([item["document"] for item in items], "TEXT_PAIR")]
    found = client.infer("tiny-rerank", inputs).as_numpy("scores")[:, 0]
    assert np.abs(found - [item["score_sigmoid"] for item in items]).max() <= 1e-4


def test_what_it_says_of_itself(client, server):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("tiny-embed", "1")
    assert not client.is_model_ready("none")
    assert client.get_server_metadata()["name"] == "plimsoll"
    assert client.get_model_metadata("tiny-embed")["outputs"][0]["shape"] == [-1, 192]
    assert client.get_model_config("tiny-embed")["dynamic_batching"]["priority_levels"] == 3
    before = client.get_inference_statistics("tiny-embed")["model_stats"][0]["inference_count"]
    client.infer("tiny-embed", [texts(["web server"] * 3)])
    assert client.get_inference_statistics("tiny-embed")["model_stats"][0]["inference_count"] == before + 3
    assert {line["name"] for line in client.get_model_repository_index()} >= {"tiny-embed", "tiny-section"}
    assert client.get_trace_settings()["trace_level"] == ["OFF"] and "log_info" in client.get_log_settings()
    assert client.get_system_shared_memory_status() == [] and client.get_cuda_shared_memory_status() == []
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()


def test_loading(client):
    client.unload_model("tiny-section-int8")
    assert not client.is_model_ready("tiny-section-int8")
    client.load_model("tiny-section-int8")
    assert client.is_model_ready("tiny-section-int8")


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_compressed_requests_get_the_same_answer(client, algorithm, binary):
    asked = [texts(["web server", "mail client"] * 20, binary=binary)]
    plain = client.infer("tiny-embed", asked).as_numpy("embedding")
    both = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
    packed = client.infer("tiny-embed", asked, **both).as_numpy("embedding")
    assert np.allclose(plain, packed, atol=1e-6)


def test_what_changes_nothing_is_taken(client):
    trace = client.get_trace_settings()
    assert client.update_trace_settings(settings={"trace_level": "OFF"}) == trace
    log = client.get_log_settings()
    assert client.update_log_settings(log) == log
    # More levels than there are, for a server that has them.
    assert client.infer("tiny-embed", [texts(["a"])], priority=9).as_numpy("embedding").shape == (1, 192)
    assert client.infer("tiny-embed", [texts(["a"])], sequence_id=0).as_numpy("embedding").shape == (1, 192)


def test_what_is_refused(client):
    def refused(call, status, *words):
        with pytest.raises(InferenceServerException) as error:
            call()
        assert error.value.status() == str(status) and all(word in error.value.message() for word in words), error.value

    refused(lambda: client.infer("none", [texts(["a"])]), 404, "no model 'none'")
    refused(lambda: client.infer("tiny-embed", [texts(["a"], "TXT")]), 400, "there is no such input", "TEXT")
    refused(lambda: client.infer("tiny-embed", [texts(["a"])], sequence_id=5), 400, "sequences are not supported")
    refused(lambda: client.load_model("tiny-embed", config="{}"), 400, "cannot be sent with a load")


def test_many_at_once(server):
    """The client's own way to have several calls in flight."""
    with triton.InferenceServerClient(f"127.0.0.1:{server.http_port}", concurrency=8) as client:
        calls = [client.async_infer("tiny-embed", [texts([f"web server {number}"])]) for number in range(64)]
        assert all(call.get_result().as_numpy("embedding").shape == (1, 192) for call in calls)
