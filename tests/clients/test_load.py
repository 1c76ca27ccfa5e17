"""Many clients at once: every answer is its own, every refusal is one that the client can act on."""

import collections
import concurrent.futures
import random

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from conftest import Plimsoll
from server import Server
from tensors import cosine, infer, texts

WORDS = "web server mail client library of linear algebra text editor game chess python bindings".split()


def lines(seed, count):
    """Texts of mixed lengths."""
    source = random.Random(seed)
    return [" ".join(source.choices(WORDS, k=source.choice([2, 5, 9, 40]))) for _ in range(count)]


def at_once(function, arguments, workers=16):
    """The results in order, or what was raised."""

    def call(argument):
        try:
            return function(argument)
        except (grpc.RpcError, triton.InferenceServerException) as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(call, arguments))


def test_interleaved_models_answer_each_for_itself(client):
    values = lines(seed=1, count=96)
    models = ["tiny-embed", "tiny-embed-int8"]
    alone = {model: infer(client, model, texts(values), "embedding") for model in models}
    calls = [(model, index) for index in range(len(values)) for model in models]
    random.Random(2).shuffle(calls)
    found = at_once(lambda call: infer(client, call[0], texts([values[call[1]]]), "embedding"), calls)
    for (model, index), answer in zip(calls, found):
        assert not isinstance(answer, Exception), answer
        # int8 has activations quantized row by row: the batch around a row changes nothing in it.
        assert cosine(answer, alone[model][index : index + 1])[0] >= 0.9999, (model, values[index])


def test_a_large_call_is_split_and_its_rows_keep_their_order(tmp_path):
    server = Server(tmp_path, "--models", "embedded", "--batching", "fixed:32")
    try:
        with grpc.insecure_channel(server.address) as channel:
            plimsoll = Plimsoll(tmp_path, channel)
            values = lines(seed=3, count=100)
            answer = plimsoll.embed(plimsoll.messages.EmbedRequest(model="tiny-embed", texts=values))
            rows = [row.values for row in answer.embeddings]
            singles = [
                plimsoll.embed(plimsoll.messages.EmbedRequest(model="tiny-embed", texts=[value])).embeddings[0].values
                for value in values[::7]
            ]
        assert (cosine(rows[::7], singles) >= 0.99999).all()
        assert len(answer.metadata.steps) >= 4
        assert all(step.batch_rows <= 32 for step in answer.metadata.steps)
    finally:
        assert server.stop() == 0


def test_a_full_queue_refuses_the_excess_with_a_hint_and_finishes_the_rest(tmp_path):
    server = Server(tmp_path, "--models", "embedded", "--queue-rows-max", "64", "--request-rows-max", "16")
    try:
        with grpc.insecure_channel(server.address) as channel:
            plimsoll = Plimsoll(tmp_path, channel)
            request = plimsoll.messages.EmbedRequest(
                model="tiny-embed", texts=["many words " * 400] * 16, truncate="TRUNCATE_END"
            )
            found = at_once(lambda _: plimsoll.embed(request), range(64), workers=64)
        refused = [answer for answer in found if isinstance(answer, grpc.RpcError)]
        answered = [answer for answer in found if not isinstance(answer, grpc.RpcError)]
        assert answered and refused
        assert all(len(answer.embeddings) == 16 for answer in answered)
        for error in refused:
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
            assert "64" in error.details(), error.details()
            details = dict(error.trailing_metadata())["grpc-status-details-bin"]
            assert b"google.rpc.RetryInfo" in details
        series = 'plimsoll_requests_total{model="tiny-embed",outcome="rejected",reason="queue_full_rows"}'
        assert server.metric(series) == len(refused)
        assert server.metric('plimsoll_queue_rows{model="tiny-embed"}') == 0
    finally:
        assert server.stop() == 0


def test_unloading_under_load_answers_or_says_unavailable(client):
    name = "tiny-section-int8"
    values = lines(seed=4, count=8)
    alone = infer(client, name, texts(values), "logits")

    def call(number):
        if number == 60:
            client.unload_model(name)
            return None
        return infer(client, name, texts(values), "logits")

    outcomes = collections.Counter()
    for answer in at_once(call, range(200)):
        if isinstance(answer, Exception):
            assert str(answer.status()).endswith("UNAVAILABLE"), answer
            outcomes["unavailable"] += 1
        elif answer is not None:
            assert np.allclose(answer, alone, atol=1e-3)
            outcomes["answered"] += 1
    assert outcomes["answered"] >= 40 and outcomes["unavailable"] >= 1, outcomes
    client.load_model(name)
    assert np.allclose(infer(client, name, texts(values), "logits"), alone, atol=1e-3)


@pytest.mark.parametrize("name", ["tiny-embed", "tiny-embed-int8"])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 33])
def test_batched_answers_equal_single_ones(client, name, count):
    values = lines(seed=count, count=count)
    batch = infer(client, name, texts(values), "embedding")
    singles = np.concatenate([infer(client, name, texts([value]), "embedding") for value in values])
    assert (cosine(batch, singles) >= 0.9999).all()
