"""`tei.v1` through stubs generated from its .proto, as its clients have them."""

import numpy as np

from tensors import cosine, reference, refused


def of(name):
    return {"metadata": [("model", name)]}


def test_embeddings(tei):
    items = reference("tiny-embed")["items"]
    requests = [tei.messages.EmbedRequest(inputs=item["text"], truncate=True) for item in items]
    expected = [item["embedding"] for item in items]
    found = [tei.embed.Embed(request, **of("tiny-embed")) for request in requests]
    assert (cosine([one.embeddings for one in found], expected) >= 0.99999).all()
    assert all(one.metadata.compute_tokens > 0 and one.metadata.total_time_ns > 0 for one in found)
    streamed = list(tei.embed.EmbedStream(iter(requests), **of("tiny-embed")))
    assert (cosine([one.embeddings for one in streamed], expected) >= 0.99999).all()


def test_states_of_tokens(tei):
    items = reference("tiny-embed")["items"]
    requests = [tei.messages.EmbedAllRequest(inputs=item["text"], truncate=True) for item in items]
    found = [tei.embed.EmbedAll(request, **of("tiny-embed")) for request in requests]
    assert all(len(one.token_embeddings) == one.metadata.compute_tokens for one in found)
    # The model's embeddings are their mean.
    means = [np.mean([token.embeddings for token in one.token_embeddings], axis=0) for one in found]
    assert (cosine(means, [item["embedding"] for item in items]) >= 0.99999).all()
    streamed = list(tei.embed.EmbedAllStream(iter(requests), **of("tiny-embed")))
    assert [len(one.token_embeddings) for one in streamed] == [len(one.token_embeddings) for one in found]


def test_labels(tei):
    items = reference("tiny-section")["items"]
    requests = [tei.messages.PredictRequest(inputs=item["text"], truncate=True) for item in items]
    for answer, item in zip(tei.predict.PredictStream(iter(requests), **of("tiny-section")), items, strict=True):
        assert answer.predictions[0].label == item["label"]
        assert abs(answer.predictions[0].score - max(item["probabilities"])) <= 1e-4
    # A pair of one text is the text.
    alone = tei.messages.PredictPairRequest(inputs=[items[0]["text"]], truncate=True)
    assert tei.predict.PredictPair(alone, **of("tiny-section")).predictions[0].label == items[0]["label"]


def test_ranks(tei):
    items = reference("tiny-rerank")["items"]
    query = items[0]["query"]
    asked = [item for item in items if item["query"] == query]
    texts = [item["document"] for item in asked]
    answer = tei.rerank.Rerank(tei.messages.RerankRequest(query=query, texts=texts, truncate=True), **of("tiny-rerank"))
    expected = np.array([item["score_sigmoid"] for item in asked])
    assert all(abs(rank.score - expected[rank.index]) <= 1e-4 for rank in answer.ranks)
    messages = [tei.messages.RerankStreamRequest(query=query, text=text, truncate=True) for text in texts]
    assert list(tei.rerank.RerankStream(iter(messages), **of("tiny-rerank")).ranks) == list(answer.ranks)


def test_tokens_and_facts(tei):
    request = tei.messages.EncodeRequest(inputs="web server", add_special_tokens=True)
    tokens = tei.tokenize.Tokenize(request, **of("tiny-embed")).tokens
    decode = tei.messages.DecodeRequest(ids=[token.id for token in tokens], skip_special_tokens=True)
    assert tei.tokenize.Decode(decode, **of("tiny-embed")).text == "web server"
    info = tei.info.Info(tei.messages.InfoRequest(), **of("tiny-rerank"))
    assert (info.model_id, info.model_type, info.max_input_length) == ("tiny-rerank", tei.messages.MODEL_TYPE_RERANKER, 512)


def test_an_enum_that_does_not_exist_is_refused(tei):
    request = tei.messages.EmbedRequest(inputs="web", truncation_direction=7)
    refused(lambda: tei.embed.Embed(request, **of("tiny-embed")), "INVALID_ARGUMENT", "truncation_direction", "7")
    tei.embed.Embed(tei.messages.EmbedRequest(inputs="web"), **of("tiny-embed"))
