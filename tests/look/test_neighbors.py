"""Tokens with similar embeddings: those of all cosines, for the side that the token is of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from tests.engine.tiny import tiny
from tests.look.test_routes import serving
from tests.serve.server import RunningServer, make_service
from weft.core.errors import UsageError
from weft.look import neighbors
from weft.look.recorder import record
from weft.look.route_bodies import NeighborsResult
from weft.look.trace import Trace

TEXT = "the cat sat on the mat"


def by_brute_force(words: Any, token: int) -> list[tuple[int, float]]:
    table = words.weight.detach().numpy().astype(np.float64)
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    cosines = unit @ unit[token]
    order = [int(one) for one in np.argsort(-cosines, kind="stable") if one != token][:5]
    return [(one, float(cosines[one])) for one in order]


@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder-decoder"])
@pytest.mark.parametrize("rows", [7, 4096])
def test_neighbors_have_the_largest_cosines(kind, rows, monkeypatch):
    monkeypatch.setattr(neighbors, "ROWS", rows)
    one = tiny(kind)
    target = "a dog" if kind == "encoder-decoder" else None
    trace = record(one.model, one.tokenizer, TEXT, target)
    stacks = (
        {"src": trace.model.main_part} if target is None else {"src": "encoder", "tgt": "decoder"}
    )
    for side, stack in stacks.items():
        words = getattr(one.model, stack).embedding.words
        for token in (0, len(trace.tokens[side]) - 1):
            expected = by_brute_force(words, trace.tokens[side][token].id)
            found = trace.neighbors(side, token)
            assert [near.id for near in found] == [index for index, _ in expected]
            cosines = [near.cosine for near in found]
            np.testing.assert_allclose(cosines, [cosine for _, cosine in expected], atol=1e-5)
            assert all(near.bytes or near.text for near in found)


def test_a_token_that_does_not_exist_and_a_trace_of_a_file_are_refused():
    one = tiny("decoder")
    trace = record(one.model, one.tokenizer, TEXT)
    with pytest.raises(UsageError, match="token 99 of 'src' does not exist: src has"):
        trace.neighbors("src", 99)
    with pytest.raises(UsageError, match="token 0 of 'tgt' does not exist"):
        trace.neighbors("tgt", 0)
    with pytest.raises(UsageError, match="has no embedding table"):
        Trace.from_json(trace.to_json()).neighbors("src", 0)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving(make_service({"decoder": tiny("decoder")})) as one:
        yield one


def test_the_route_has_the_neighbors_of_python(server):
    trace = server.post("/look", {"model": "decoder", "text": TEXT}).json()
    answer = server.get(f"/look/{trace['id']}/neighbors?token=2")
    TypeAdapter(NeighborsResult).validate_json(answer.content, strict=True)
    loaded = server.service.models.get("decoder").loaded
    expected = record(loaded.model, loaded.tokenizer, TEXT).neighbors("src", 2)
    near = answer.json()["neighbors"]
    assert [one["id"] for one in near] == [one.id for one in expected]
    assert [one["text"] for one in near] == [one.text for one in expected]
    assert answer.json()["token"] == trace["tokens"]["src"][2]["id"]
    assert server.get(f"/look/{trace['id']}/neighbors?token=99").status_code == 400
    gone = server.get("/look/t_unknown/neighbors?token=0")
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "trace_expired"
