"""Our own services, through stubs generated from their .proto."""

import json

import numpy as np
import pytest

from tensors import refused

MODEL = "tiny-embed"


def rows(answer):
    return np.array([row.values for row in answer.embeddings])


def test_an_answer_tells_how_it_was_served(plimsoll):
    request = plimsoll.messages.EmbedRequest(model=MODEL, texts=["compiler", "mail server"], request_id="mine")
    answer = plimsoll.embed(request)
    metadata = answer.metadata
    assert metadata.request_id == "mine" and metadata.model == MODEL
    assert metadata.tokens == sum(row.tokens for row in answer.embeddings) > 0
    assert metadata.total_us >= metadata.compute_us > 0
    assert 1 <= len(metadata.steps) <= 2
    for step in metadata.steps:
        assert step.reason != plimsoll.messages.BATCH_REASON_UNSPECIFIED
        assert step.batch_rows >= 1 and step.longest >= 3 and step.computed_tokens >= step.longest
        assert 0 < step.true_peak_bytes <= step.lease_ceiling_bytes
        assert 0 < step.predicted_peak_bytes <= step.lease_ceiling_bytes <= step.headroom_bytes


def test_the_options_of_embeddings(plimsoll):
    def embed(**options):
        return rows(plimsoll.embed(plimsoll.messages.EmbedRequest(model=MODEL, texts=["web server"], **options)))

    whole = embed()
    assert whole.shape == (1, 192) and abs(np.linalg.norm(whole) - 1) < 1e-4
    first = embed(dimensions=64)
    assert first.shape == (1, 64) and abs(np.linalg.norm(first) - 1) < 1e-4
    assert np.allclose(first, whole[:, :64] / np.linalg.norm(whole[:, :64]), atol=1e-5)
    plain = embed(normalize=False)
    assert abs(np.linalg.norm(plain) - 1) > 1e-3
    assert np.allclose(plain / np.linalg.norm(plain), whole, atol=1e-5)


def test_truncation_is_asked_for(plimsoll):
    long = "one two three " * 300

    def embed(text, **options):
        return plimsoll.embed(plimsoll.messages.EmbedRequest(model=MODEL, texts=["short", text], **options))

    refused(lambda: embed(long), "INVALID_ARGUMENT", "256")
    end, start = embed(long, truncate="TRUNCATE_END"), embed(long, truncate="TRUNCATE_START")
    assert end.embeddings[1].tokens == start.embeddings[1].tokens == 256
    assert not np.allclose(rows(end)[1], rows(start)[1])


def test_ranks_come_best_first(plimsoll):
    texts = ["a text editor", "MP3 player for the console", "library of linear algebra"]
    request = plimsoll.messages.RerankRequest(model="tiny-rerank", query="play music in the terminal", texts=texts)
    ranks = plimsoll.rerank(request).ranks
    assert ranks[0].index == 1 and sorted(rank.index for rank in ranks) == [0, 1, 2]
    request.top_n = 1
    assert [rank.index for rank in plimsoll.rerank(request).ranks] == [1]
    request.raw_scores = True
    (raw,) = plimsoll.rerank(request).ranks
    assert abs(1 / (1 + np.exp(-raw.score)) - ranks[0].score) < 1e-4


def test_labels_are_a_distribution(plimsoll):
    request = plimsoll.messages.ClassifyRequest(model="tiny-section", texts=["header files", "a game of chess"])
    for result in plimsoll.classify(request).results:
        scores = [label.score for label in result.labels]
        assert len(scores) == 12 and scores == sorted(scores, reverse=True) and abs(sum(scores) - 1) < 1e-4
    request.top_k = 2
    assert [len(result.labels) for result in plimsoll.classify(request).results] == [2, 2]


@pytest.mark.parametrize(
    ("code", "words", "fields"),
    [
        ("NOT_FOUND", ["nobody"], {"model": "nobody", "texts": ["x"]}),
        ("INVALID_ARGUMENT", [], {"model": MODEL}),
        ("INVALID_ARGUMENT", [], {"model": MODEL, "texts": ["x"], "tokens": [{"ids": [2, 3]}]}),
        ("INVALID_ARGUMENT", ["193"], {"model": MODEL, "texts": ["x"], "dimensions": 193}),
        ("INVALID_ARGUMENT", ["shout"], {"model": MODEL, "texts": ["x"], "prompt_name": "shout"}),
        ("INVALID_ARGUMENT", ["77"], {"model": MODEL, "texts": ["x"], "truncate": 77}),
        ("INVALID_ARGUMENT", ["78"], {"model": MODEL, "texts": ["x"], "priority": 78}),
        ("INVALID_ARGUMENT", ["tiny-section"], {"model": "tiny-section", "texts": ["x"]}),
        ("INVALID_ARGUMENT", ["9999"], {"model": MODEL, "tokens": [{"ids": [2, 3]}, {"ids": [2, 9999, 3]}]}),
        ("INVALID_ARGUMENT", [], {"model": MODEL, "tokens": [{"ids": []}]}),
        ("INVALID_ARGUMENT", ["1024", "1025"], {"model": MODEL, "texts": ["x"] * 1025}),
    ],
)
def test_bad_calls_get_one_clear_error(plimsoll, code, words, fields):
    refused(lambda: plimsoll.embed(plimsoll.messages.EmbedRequest(**fields)), code, *words)
    assert len(plimsoll.embed(plimsoll.messages.EmbedRequest(model=MODEL, texts=["x"])).embeddings) == 1


def test_messages_up_to_the_limit_are_taken_and_one_beyond_it_names_it(plimsoll):
    def embed(size):
        count = size // 900_000 + 1  # one text may have 1 MiB
        texts = ["many words " * (size // count // 11)] * count
        request = plimsoll.messages.EmbedRequest(model=MODEL, texts=texts, truncate="TRUNCATE_END")
        return plimsoll.embed(request)

    for size in (3_900_000, 4_300_000):
        assert len(embed(size).embeddings) == 5
    refused(lambda: embed(68_000_000), "OUT_OF_RANGE", "67108864")
    assert len(embed(1000).embeddings) == 1, "the connection stays usable"


def test_models_are_listed_pinned_and_budgeted(plimsoll):
    messages = plimsoll.messages

    def model():
        listed = plimsoll.models.List(messages.ListModelsRequest()).models
        return {model.name: model for model in listed}["tiny-section-int8"]

    before = model()
    assert before.state == messages.MODEL_STATE_READY and before.resident_bytes > 0
    assert before.task == "classify" and before.dtype == "int8" and before.batch_rows_max > 0
    plimsoll.models.Pin(messages.PinModelRequest(model=before.name, pinned=True))
    assert model().pinned and model().revision > before.revision
    budget = messages.Budget(limit_bytes=before.resident_bytes + (64 << 20))
    stale = messages.SetBudgetRequest(model=before.name, budget=budget, expected_revision=before.revision)
    refused(lambda: plimsoll.models.SetBudget(stale), "ABORTED", before.revision)
    answer = plimsoll.models.SetBudget(messages.SetBudgetRequest(model=before.name, budget=budget))
    # A step that runs meanwhile may hold more than the new limit: then the answer says so.
    assert answer.applied or answer.overage_bytes > 0
    assert model().budget.limit_bytes == budget.limit_bytes
    absurd = messages.Budget(guaranteed_bytes=2, limit_bytes=1)
    refused(lambda: plimsoll.models.SetBudget(messages.SetBudgetRequest(model=before.name, budget=absurd)), "INVALID_ARGUMENT")
    plimsoll.models.SetBudget(messages.SetBudgetRequest(model=before.name, budget=before.budget))
    plimsoll.models.Pin(messages.PinModelRequest(model=before.name, pinned=False))


def test_unloading_gives_the_bytes_back(plimsoll):
    messages, name = plimsoll.messages, "tiny-section-int8"
    resident = plimsoll.models.Load(messages.LoadModelRequest(model=name)).model.resident_bytes
    for _ in range(3):
        released = plimsoll.models.Unload(messages.UnloadModelRequest(model=name)).released_bytes
        assert abs(released - resident) <= 1 << 20
        again = plimsoll.models.Load(messages.LoadModelRequest(model=name)).model
        assert again.state == messages.MODEL_STATE_READY and abs(again.resident_bytes - resident) <= 1 << 20


def test_the_books_balance_and_a_plan_tells_what_fits(plimsoll):
    messages = plimsoll.messages
    books = plimsoll.memory.Snapshot(messages.MemorySnapshotRequest())
    weights = sum(model.weights_bytes + model.kv_bytes for model in books.models)
    held = weights + books.library_bytes + books.workspace_reserved_bytes + books.fixed_bytes
    assert 0 < weights and held <= books.capacity_bytes
    assert books.workspace_cached_bytes <= books.workspace_reserved_bytes
    assert isinstance(json.loads(books.json), dict)
    fits = plimsoll.memory.Plan(messages.MemoryPlanRequest())
    assert fits.fits and fits.needed_bytes <= fits.available_bytes and fits.text
    tight = plimsoll.memory.Plan(messages.MemoryPlanRequest(models=[MODEL], budget_bytes=1 << 20))
    assert not tight.fits and tight.needed_bytes > tight.available_bytes
    refused(lambda: plimsoll.memory.Plan(messages.MemoryPlanRequest(models=["nobody"])), "NOT_FOUND", "nobody")
