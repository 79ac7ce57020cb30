"""/v1/embeddings: the vectors of `LoadedModel.embed`, bit for bit, in OpenAI's shapes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from tests.engine.tiny import tiny
from tests.serve.server import RunningServer, make_service, running
from weft.serve.openai_embeddings import EmbeddingList

TEXTS = ["the cat sat", "a dog ate two apples", "", "mat"]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    models = {"encoder": tiny("encoder"), "decoder": tiny("decoder"), "pair": tiny()}
    with running(make_service(models)) as one:
        yield one


def embed(server: RunningServer, **body: Any) -> httpx.Response:
    return server.post("/v1/embeddings", {"model": "encoder", **body})


def vectors_of(value: Any) -> np.ndarray:
    EmbeddingList.model_validate(value)
    assert [one["index"] for one in value["data"]] == list(range(len(value["data"])))
    return np.array([one["embedding"] for one in value["data"]], np.float32)


def expected(server: RunningServer, texts: list[str], model: str = "encoder") -> np.ndarray:
    return server.service.models.get(model).loaded.embed(texts).numpy()


@pytest.mark.parametrize("model", ["encoder", "decoder", "pair"])
def test_vectors_are_those_of_the_python_api(server, model):
    value = embed(server, model=model, input=TEXTS).json()
    assert np.array_equal(vectors_of(value), expected(server, TEXTS, model))
    tokenizer = server.service.models.get(model).tokenizer
    num_tokens = sum(map(len, tokenizer.encode_batch(TEXTS)))
    assert value["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert value["object"] == "list" and value["model"] == model
    server.wait_idle()


def test_a_text_and_token_ids_give_the_same_vector(server):
    ids = server.service.models.get("encoder").tokenizer.encode_batch(TEXTS[:2])
    one = vectors_of(embed(server, input=TEXTS[0]).json())
    assert np.array_equal(one, vectors_of(embed(server, input=ids[0]).json()))
    assert np.array_equal(vectors_of(embed(server, input=ids).json()), expected(server, TEXTS[:2]))


def test_base64_is_little_endian_float32(server):
    value = embed(server, input=TEXTS, encoding_format="base64").json()
    EmbeddingList.model_validate(value)
    rows = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in value["data"]]
    assert np.array_equal(np.stack(rows), expected(server, TEXTS))


def test_dimensions_keep_the_first_numbers_and_length_1(server):
    array = vectors_of(embed(server, input=TEXTS, dimensions=8).json())
    whole = expected(server, TEXTS)[:, :8]
    assert array.shape == (4, 8)
    assert np.allclose((array**2).sum(1), 1, atol=1e-6)
    assert np.allclose(array, whole / np.linalg.norm(whole, axis=1, keepdims=True), atol=1e-6)


def test_concurrent_requests_get_their_own_vectors(server):
    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(lambda text: embed(server, input=text).json(), TEXTS * 4))
    array = np.concatenate([vectors_of(value) for value in values])
    assert np.array_equal(array, expected(server, TEXTS * 4))
    server.wait_idle()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"input": "the cat " * 60}, "tokens, and the model reads 1 to 40"),
        ({"input": [[1], [1] * 41]}, "input 1 has 41 tokens, and the model reads 1 to 40"),
        ({"input": [[99999]]}, "99999"),
        ({"input": []}, "input has 0 entries: 1 to 2048 are allowed"),
        ({"input": [[]]}, "input 0 has 0 tokens"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": "a", "dimensions": 33}, "dimensions is 33, but the vectors of model 'encoder'"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimension": 3}, "Did you mean 'dimensions'?"),
    ],
)
def test_a_wrong_request_is_one_sentence(server, change, message):
    answer = embed(server, **change)
    error = answer.json()["error"]
    assert answer.status_code == 400 and message in error["message"], error
    assert set(error) == {"message", "type", "param", "code"}


def test_a_timeout_cancels_the_request(server):
    answer = server.post(
        "/v1/embeddings",
        {"model": "encoder", "input": ["the cat sat on the mat"] * 2000},
        headers={"x-request-timeout": "0.0001"},
    )
    assert answer.status_code == 504 and "0.0001 s" in answer.json()["error"]["message"]
    server.wait_idle()


def test_a_client_that_leaves_ends_its_request(server):
    async def leave() -> None:
        async with httpx.AsyncClient(base_url=server.url) as client:
            body = {"model": "encoder", "input": ["the cat sat on the mat"] * 2000}
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/embeddings", json=body, timeout=0.05)

    asyncio.run(leave())
    server.wait_idle()


def test_errors_and_the_response_are_declared(server):
    route = server.get("/openapi.json").json()["paths"]["/v1/embeddings"]["post"]
    assert {"200", "400", "401", "404", "413", "415", "429", "503", "504"} <= set(
        route["responses"]
    )
    assert "422" not in route["responses"]
    schema = route["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/EmbeddingList"}
