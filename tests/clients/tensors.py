"""Small helpers around tritonclient and references."""

import json

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from server import ROOT


def texts(values, name="TEXT"):
    """A BYTES tensor of one text a row."""
    data = np.array([value.encode() for value in values], dtype=np.object_).reshape(-1, 1)
    tensor = triton.InferInput(name, list(data.shape), "BYTES")
    tensor.set_data_from_numpy(data)
    return tensor


def numbers(values, name, dtype=np.int64):
    """A tensor of integers."""
    data = np.array(values, dtype=dtype)
    tensor = triton.InferInput(name, list(data.shape), {np.int64: "INT64", np.int32: "INT32"}[dtype])
    tensor.set_data_from_numpy(data)
    return tensor


def ids(rows, dtype=np.int64):
    """`input_ids` and `attention_mask`, padded on the right."""
    longest = max(map(len, rows))
    padded = [row + [0] * (longest - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    return [numbers(padded, "input_ids", dtype), numbers(mask, "attention_mask", dtype)]


def infer(client, model, inputs, output, **options):
    """One output of a call."""
    return client.infer(model, inputs if isinstance(inputs, list) else [inputs], **options).as_numpy(output)


def cosine(a, b):
    """Row by row."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def reference(model):
    """What the model should answer, computed by other programs."""
    return json.loads((ROOT / "tests/reference/data" / f"{model}.reference.json").read_text())


def refused(call, code, *words):
    """Asserts that the call ends with this status and that its message has each of the words."""
    try:
        answer = call()
    except (grpc.RpcError, InferenceServerException) as error:
        status = error.code() if isinstance(error, grpc.RpcError) else error.status()
        message = error.details() if isinstance(error, grpc.RpcError) else error.message()
        found = status.name if isinstance(status, grpc.StatusCode) else str(status).rpartition(".")[2]
        assert found == code, f"{found}: {message}"
        for word in words:
            assert str(word) in message, f"'{word}' is not in: {message}"
        return message
    raise AssertionError(f"answered instead of {code}: {answer}")
