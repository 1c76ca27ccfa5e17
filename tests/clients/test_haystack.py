"""Haystack's clients of text-embeddings-inference, as a pipeline has them."""

import numpy as np
import pytest
from haystack import Document
from haystack.components.embedders import HuggingFaceAPIDocumentEmbedder, HuggingFaceAPITextEmbedder
from haystack.components.rankers import HuggingFaceTEIRanker

from server import Server
from tensors import cosine, reference


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A server with one reranker: the ranker asks the root of the host, whatever path its URL has."""
    server = Server(tmp_path_factory.mktemp("haystack"), "--models", "embedded")
    yield f"http://127.0.0.1:{server.http_port}"
    assert server.stop() == 0, server.log()


def test_embedders(url):
    items = reference("tiny-embed")["items"]
    settings = {"api_type": "text_embeddings_inference", "api_params": {"url": f"{url}/models/tiny-embed"}, "token": None}
    found = HuggingFaceAPITextEmbedder(**settings).run(text=items[0]["text"])["embedding"]
    assert cosine([found], [items[0]["embedding"]])[0] >= 0.99999
    documents = [Document(content=item["text"]) for item in items]
    found = HuggingFaceAPIDocumentEmbedder(**settings, progress_bar=False).run(documents=documents)["documents"]
    assert min(cosine([document.embedding for document in found], [item["embedding"] for item in items])) >= 0.99999


def test_ranker(url):
    items = reference("tiny-rerank")["items"]
    items = [item for item in items if item["query"] == items[0]["query"]]
    scores = {item["document"]: item["score_sigmoid"] for item in items}
    ranker = HuggingFaceTEIRanker(url=url, top_k=len(items), token=None)
    documents = [Document(content=text) for text in scores]
    found = ranker.run(query=items[0]["query"], documents=documents)["documents"]
    assert [document.content for document in found] == sorted(scores, key=scores.get, reverse=True)
    assert np.allclose([document.score for document in found], [scores[document.content] for document in found], atol=1e-4)
