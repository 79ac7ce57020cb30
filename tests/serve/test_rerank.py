"""/v1/rerank and /v1/score: cosines of `LoadedModel.embed`, in the shapes of Jina and vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.engine.tiny import tiny
from tests.serve.server import RunningServer, make_service, running
from weft.serve.rerank import RerankResult, ScoreList

QUERY = "the cat"
DOCUMENTS = ["a dog ate two apples", "the cat sat on the mat", "mat", "the cat"]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    models = {"encoder": tiny("encoder"), "decoder": tiny("decoder"), "pair": tiny()}
    with running(make_service(models)) as one:
        yield one


def cosines(server: RunningServer, first: list[str], second: list[str]) -> Any:
    loaded = server.service.models.get("encoder").loaded
    a, b = (loaded.embed(texts).double().numpy() for texts in (first, second))
    return (a * b).sum(1)


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_documents_are_ordered_by_their_cosine(server, path):
    body = {"model": "encoder", "query": QUERY, "documents": DOCUMENTS}
    value = server.post(path, body).json()
    RerankResult.model_validate(value)
    expected = cosines(server, [QUERY], DOCUMENTS)
    order = [one["index"] for one in value["results"]]
    assert order == sorted(range(4), key=lambda index: -expected[index]) and order[0] == 3
    for one in value["results"]:
        assert one["relevance_score"] == pytest.approx(min(1, expected[one["index"]]), abs=1e-12)
        assert "document" not in one
    tokenizer = server.service.models.get("encoder").tokenizer
    num_tokens = sum(map(len, tokenizer.encode_batch([QUERY, *DOCUMENTS])))
    assert value["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert value["model"] == "encoder"


def test_top_n_and_documents(server):
    documents = [{"text": text} for text in DOCUMENTS]
    body = {"model": "encoder", "query": QUERY, "documents": documents, "top_n": 2}
    results = server.post("/v1/rerank", {**body, "return_documents": True}).json()["results"]
    assert len(results) == 2
    assert results[0]["document"] == {"text": DOCUMENTS[results[0]["index"]]}
    assert len(server.post("/v1/rerank", {**body, "top_n": 99}).json()["results"]) == 4


@pytest.mark.parametrize(
    "first, second",
    [("mat", "cat"), ("mat", DOCUMENTS), (["mat"], DOCUMENTS), (DOCUMENTS, DOCUMENTS[::-1])],
)
def test_scores_of_pairs(server, first, second):
    body = {"model": "encoder", "text_1": first, "text_2": second}
    value = server.post("/v1/score", body).json()
    ScoreList.model_validate(value)
    lists = [[one] if isinstance(one, str) else one for one in (first, second)]
    expected = np.clip(cosines(server, *lists), -1, 1)
    assert [one["index"] for one in value["data"]] == list(range(len(expected)))
    assert [one["score"] for one in value["data"]] == pytest.approx(list(expected), abs=1e-12)


def test_an_encoder_decoder_scores_by_its_encoder(server):
    body = {"model": "pair", "text_1": "the cat", "text_2": ["the cat", "apples"]}
    same, other = (one["score"] for one in server.post("/score", body).json()["data"])
    assert same == pytest.approx(1, abs=1e-6) and other < 0.999


def test_a_decoder_scores_by_its_embeddings_with_a_warning(server):
    body = {"model": "decoder", "query": "the cat", "documents": ["apples", "the cat"]}
    answer = server.post("/v1/rerank", body)
    first = answer.json()["results"][0]
    assert first["index"] == 1 and first["relevance_score"] == pytest.approx(1, abs=1e-6)
    assert "cosines of its embeddings" in answer.headers["x-weft-warning"]
    body["model"] = "encoder"
    assert "x-weft-warning" not in server.post("/v1/rerank", body).headers


@pytest.mark.parametrize(
    "path, change, message",
    [
        ("/v1/rerank", {"documents": []}, "documents has 0 entries: 1 to 1024 are allowed"),
        ("/v1/rerank", {"documents": ["a", "the cat " * 60]}, "documents 1 has "),
        ("/v1/rerank", {"query": "the cat " * 60}, "query has "),
        ("/v1/rerank", {"top_n": 0}, "top_n"),
        ("/v1/rerank", {"topn": 1}, "Did you mean 'top_n'?"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": "c"}, "text_1 has 2 texts and text_2 1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2 has 0 entries"),
        ("/v1/score", {"text_1": "a", "text_2": "the cat " * 60}, "text_2 0 has "),
    ],
)
def test_a_wrong_request_is_one_sentence(server, path, change, message):
    base = {"query": QUERY, "documents": DOCUMENTS} if "rerank" in path else {}
    answer = server.post(path, {"model": "encoder", **base, **change})
    error = answer.json()["error"]
    assert answer.status_code == 400 and message in error["message"], error
    assert set(error) == {"message", "type", "param", "code"}
