"""The Open Inference Protocol as tritonclient speaks it."""

import queue

import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf.unknown_fields import UnknownFieldSet
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tensors import cosine, ids, infer, numbers, refused, texts

MODEL = "tiny-embed"


def test_server_and_models_say_what_they_are(client):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(MODEL)
    assert not client.is_model_ready("nobody")
    server = client.get_server_metadata()
    assert server.name == "plimsoll" and server.version
    assert {"statistics", "model_repository", "model_configuration"} <= set(server.extensions)
    metadata = client.get_model_metadata(MODEL)
    assert metadata.name == MODEL and list(metadata.versions) == ["1"]
    assert {tensor.name: list(tensor.shape) for tensor in metadata.outputs} == {"embedding": [-1, 192]}
    # A sixth field is properties to one kind of client and parameters to another, who cannot read the other's.
    assert len(UnknownFieldSet(metadata)) == 0
    config = client.get_model_config(MODEL).config
    assert config.max_batch_size > 0 and config.parameters["dtype"].string_value == "f32"
    assert {tensor.name for tensor in config.input} == {tensor.name for tensor in metadata.inputs}
    assert {tensor.name for tensor in config.output} == {tensor.name for tensor in metadata.outputs}


def test_a_batch_is_answered_in_order_and_its_id_comes_back(client):
    values = [f"a program that does {number} things" + " at once" * (number % 7) for number in range(33)]
    answer = client.infer(MODEL, [texts(values)], request_id="the-id")
    assert answer.get_response().id == "the-id" and answer.get_response().model_version == "1"
    rows = answer.as_numpy("embedding")
    assert rows.shape == (33, 192) and rows.dtype == np.float32
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-4)
    for index in (0, 1, 2, 16, 32):
        single = infer(client, MODEL, texts([values[index]]), "embedding")
        assert cosine(single, rows[index : index + 1])[0] >= 0.99999


def test_texts_and_their_token_ids_get_the_same_answer(client):
    rows = [[2, 1058, 3], [2, 447, 1011, 318, 310, 942, 1085, 371, 12, 447, 23, 13, 3]]
    values = ["compiler", "Python bindings for the image processing library (Python 3)"]
    of_texts = infer(client, MODEL, texts(values), "embedding")
    of_ids = infer(client, MODEL, ids(rows), "embedding")
    assert np.allclose(of_texts, of_ids, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_calls_get_the_same_answer(client, algorithm):
    plain = infer(client, MODEL, texts(["a text"] * 3), "embedding")
    packed = infer(client, MODEL, texts(["a text"] * 3), "embedding", compression_algorithm=algorithm)
    assert np.allclose(plain, packed, atol=1e-6)


def test_classification_answers_labels(client):
    wanted = triton.InferRequestedOutput("logits", class_count=3)
    answer = client.infer("tiny-section", [texts(["header files and static library"])], outputs=[wanted])
    (labels,) = answer.as_numpy("logits")
    scores = [float(label.decode().split(":")[0]) for label in labels]
    assert len(labels) == 3 and scores == sorted(scores, reverse=True)
    assert labels[0].decode().split(":")[2] == "libdevel"


def test_statistics_count_rows_and_requests(client):
    def now():
        (statistics,) = client.get_inference_statistics(MODEL).model_stats
        return statistics

    before = now()
    for _ in range(3):
        infer(client, MODEL, texts(["one", "two"]), "embedding")
    after = now()
    assert after.inference_count - before.inference_count == 6
    assert after.inference_stats.success.count - before.inference_stats.success.count == 3
    assert after.inference_stats.queue.count - before.inference_stats.queue.count == 3
    assert 1 <= after.execution_count - before.execution_count <= 6
    assert after.inference_stats.compute_infer.ns > before.inference_stats.compute_infer.ns
    assert after.last_inference > 0


def test_models_are_unloaded_and_loaded(client):
    name = "tiny-rerank-int8"

    def state():
        return {model.name: model.state for model in client.get_model_repository_index().models}[name]

    pair = [texts(["a query"]), texts(["a text"], "TEXT_PAIR")]
    assert state() == "READY"
    before = infer(client, name, pair, "scores")
    client.unload_model(name)
    assert state() == "UNAVAILABLE" and not client.is_model_ready(name)
    # What was unloaded by hand stays away until it is loaded by hand: requests do not bring it back.
    refused(lambda: infer(client, name, pair, "scores"), "UNAVAILABLE", name)
    assert state() == "UNAVAILABLE"
    client.load_model(name)
    assert state() == "READY" and client.is_model_ready(name)
    assert np.allclose(infer(client, name, pair, "scores"), before)
    refused(lambda: client.load_model("nobody"), "NOT_FOUND", "nobody")
    refused(lambda: client.unload_model("nobody"), "NOT_FOUND", "nobody")


def test_a_stream_answers_each_request_and_goes_on_after_a_bad_one(client):
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    try:
        for number in range(8):
            client.async_stream_infer(MODEL, [texts([f"text {number}"])], request_id=str(number))
        found = {}
        for _ in range(8):
            result, error = answers.get(timeout=30)
            assert error is None
            response = result.get_response()
            assert response.parameters["triton_final_response"].bool_param
            found[response.id] = result.as_numpy("embedding")
        assert set(found) == {str(number) for number in range(8)}
        assert cosine(found["5"], infer(client, MODEL, texts(["text 5"]), "embedding"))[0] >= 0.99999

        client.async_stream_infer("nobody", [texts(["x"])], request_id="bad")
        result, error = answers.get(timeout=30)
        assert result is None and "nobody" in str(error)
        client.async_stream_infer(MODEL, [texts(["x"])], request_id="good")
        result, error = answers.get(timeout=30)
        assert error is None and result.get_response().id == "good"
    finally:
        client.stop_stream()


def test_a_deadline_that_cannot_be_met_is_deadline_exceeded(client):
    many = texts(["a rather long text that keeps the device busy for a while " * 20] * 256)
    parameters = {"truncate": "end"}
    refused(lambda: client.infer(MODEL, [many], client_timeout=0.02, parameters=parameters), "DEADLINE_EXCEEDED")
    refused(lambda: client.infer(MODEL, [many], timeout=20_000, parameters=parameters), "DEADLINE_EXCEEDED")


@pytest.mark.parametrize(
    ("code", "words", "call"),
    [
        ("NOT_FOUND", ["nobody"], lambda c: c.infer("nobody", [texts(["x"])])),
        ("NOT_FOUND", ["7"], lambda c: c.infer(MODEL, [texts(["x"])], model_version="7")),
        ("NOT_FOUND", ["nobody"], lambda c: c.get_model_metadata("nobody")),
        ("NOT_FOUND", ["nobody"], lambda c: c.get_model_config("nobody")),
        ("INVALID_ARGUMENT", ["TEXTS"], lambda c: c.infer(MODEL, [texts(["x"], "TEXTS")])),
        ("INVALID_ARGUMENT", ["nothing"], lambda c: c.infer(MODEL, [texts(["x"])], outputs=[triton.InferRequestedOutput("nothing")])),
        ("INVALID_ARGUMENT", ["sequence"], lambda c: c.infer(MODEL, [texts(["x"])], sequence_id=9)),
        ("INVALID_ARGUMENT", ["256"], lambda c: c.infer(MODEL, [texts(["fine", "word " * 500])])),
        ("INVALID_ARGUMENT", ["9000"], lambda c: c.infer(MODEL, ids([[2, 9000, 3]]))),
        ("INVALID_ARGUMENT", ["-5"], lambda c: c.infer(MODEL, ids([[2, -5, 3]]))),
        ("INVALID_ARGUMENT", ["attention_mask"], lambda c: c.infer(MODEL, [numbers([[2, 3]], "input_ids"), numbers([[1]], "attention_mask")])),
        ("INVALID_ARGUMENT", ["1024"], lambda c: c.infer(MODEL, [texts(["x"] * 1025)])),
    ],
)
def test_what_cannot_be_answered_gets_one_clear_error(client, code, words, call):
    refused(lambda: call(client), code, *words)
    assert client.is_server_live()


def raw(shape, blob, datatype="BYTES"):
    """A request whose bytes no client library has put in order."""
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="TEXT", datatype=datatype, shape=shape)
    request.raw_input_contents.append(blob)
    return request


@pytest.mark.parametrize(
    "request_",
    [
        raw([1], b"\x05\0\0\0ab"),  # a length prefix beyond the end
        raw([1], b"\x05\0"),  # half a length prefix
        raw([2], b"\x01\0\0\0a"),  # fewer rows than the shape says
        raw([1], b"\x01\0\0\0a\x01\0\0\0b"),  # more rows than the shape says
        raw([-1], b"\x01\0\0\0a"),
        raw([2**62, 2**62], b"\x01\0\0\0a"),  # the product overflows
        raw([0], b""),
        raw([1], b"\x02\0\0\0\xc3\x28"),  # not UTF-8
        raw([1], b"\0\0\0\0a"),
        raw([1], b"\x01\0\0\0a", "COMPLEX"),
        raw([1], b"\x01\0\0\0a", "FP32"),
        service_pb2.ModelInferRequest(model_name=MODEL),
    ],
)
def test_malformed_tensors_are_refused_and_the_server_lives(client, channel, request_):
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    refused(lambda: stub.ModelInfer(request_), "INVALID_ARGUMENT")
    assert client.is_server_live()


def test_shared_memory_is_not_offered(client):
    assert not client.get_system_shared_memory_status().regions
    client.unregister_system_shared_memory()
    refused(lambda: client.register_system_shared_memory("a", "/a", 64), "UNIMPLEMENTED", "shared")
