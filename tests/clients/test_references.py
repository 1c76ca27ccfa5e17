"""Answers against references that other programs computed, through tritonclient and through `plimsoll.v1`."""

import numpy as np
import pytest

from tensors import cosine, ids, infer, reference, texts

# Some references are of texts that are longer than the model takes.
TRUNCATE = {"truncate": "end"}
COSINE = {"": 0.99999, "-int8": 0.995}


def models(*names):
    """Each model in f32 and in int8."""
    return pytest.mark.parametrize(("name", "suffix"), [(name, suffix) for name in names for suffix in COSINE])


def assert_close(found, items, least, key="embedding"):
    expected = [item[key] for item in items]
    assert np.shape(found) == np.shape(expected)
    similar = cosine(found, expected)
    assert (similar >= least).all(), f"cosines {similar}, allowed are {least} and above"


@models("tiny-embed", "all-MiniLM-L6-v2")
def test_embeddings_of_texts(client, plimsoll, name, suffix):
    items = reference(name)["items"]
    values = [item["text"] for item in items]
    assert_close(infer(client, name + suffix, texts(values), "embedding", parameters=TRUNCATE), items, COSINE[suffix])
    request = plimsoll.messages.EmbedRequest(model=name + suffix, texts=values, truncate="TRUNCATE_END")
    assert_close([row.values for row in plimsoll.embed(request).embeddings], items, COSINE[suffix])


@models("tiny-embed", "all-MiniLM-L6-v2")
def test_embeddings_of_token_ids(client, plimsoll, name, suffix):
    items = reference(name)["items"]
    rows = [item["input_ids"] for item in items]
    for dtype in (np.int64, np.int32):
        assert_close(infer(client, name + suffix, ids(rows, dtype), "embedding"), items, COSINE[suffix])
    request = plimsoll.messages.EmbedRequest(model=name + suffix, tokens=[{"ids": row} for row in rows])
    assert_close([row.values for row in plimsoll.embed(request).embeddings], items, COSINE[suffix])


@models("tiny-section")
def test_labels(client, plimsoll, name, suffix):
    items = reference(name)["items"]
    values = [item["text"] for item in items]
    expected = [item["label"] for item in items]
    found = infer(client, name + suffix, texts(values), "logits", parameters=TRUNCATE)
    assert_close(found, items, COSINE[suffix], "logits")
    request = plimsoll.messages.ClassifyRequest(model=name + suffix, texts=values, truncate="TRUNCATE_END")
    answer = plimsoll.classify(request)
    assert [result.labels[0].name for result in answer.results] == expected
    if not suffix:
        for result, item in zip(answer.results, items):
            scores = {label.index: label.score for label in result.labels}
            found = [scores[index] for index in range(len(scores))]
            assert np.allclose(found, item["probabilities"], atol=1e-4)


@models("tiny-rerank")
def test_ranks(client, plimsoll, name, suffix):
    items = reference(name)["items"]
    queries, documents = [item["query"] for item in items], [item["document"] for item in items]
    expected = np.array([item["score_sigmoid"] for item in items])
    tolerance = 1e-4 if not suffix else 0.05
    pairs = [texts(queries), texts(documents, "TEXT_PAIR")]
    scores = infer(client, name + suffix, pairs, "scores", parameters=TRUNCATE).reshape(-1)
    assert np.abs(scores - expected).max() <= tolerance, (scores, expected)
    for query in dict.fromkeys(queries):
        asked = [index for index, found in enumerate(queries) if found == query]
        request = plimsoll.messages.RerankRequest(
            model=name + suffix, query=query, texts=[documents[index] for index in asked], truncate="TRUNCATE_END"
        )
        ranks = plimsoll.rerank(request).ranks
        assert [rank.score for rank in ranks] == sorted((rank.score for rank in ranks), reverse=True)
        for rank in ranks:
            assert abs(rank.score - expected[asked[rank.index]]) <= tolerance


def test_int8_weights_are_held_as_int8(plimsoll):
    listed = plimsoll.models.List(plimsoll.messages.ListModelsRequest()).models
    resident = {model.name: model.resident_bytes for model in listed}
    # Embeddings and biases stay as they are; the bound on the matrices alone is a test of the loader.
    assert 0 < resident["all-MiniLM-L6-v2-int8"] < 0.65 * resident["all-MiniLM-L6-v2"]
