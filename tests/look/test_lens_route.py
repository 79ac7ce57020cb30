"""GET /look/{id}/lens: the lens of Python, where the trace itself has none; and that of files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import pytest
from pydantic import TypeAdapter

from tests.engine.tiny import tiny
from tests.look.test_routes import serving
from tests.serve.server import RunningServer, make_service
from weft.look import recorder
from weft.look.export import file_json
from weft.look.logit_lens import logit_lens
from weft.look.recorder import record
from weft.look.route_bodies import LensResult, NextTokenResult
from weft.look.trace import Trace

TEXT = "the cat sat on the mat"


@pytest.fixture(autouse=True)
def large_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces have no lens, as those of a model whose LM head is large."""
    monkeypatch.setattr(recorder, "MAX_LENS_PRODUCTS", 0)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    kinds = {"decoder": "decoder", "reader": "encoder"}
    models = {name: tiny(kind, max_len=300) for name, kind in kinds.items()}
    with serving(make_service(models)) as one:
        yield one


@pytest.mark.parametrize("text", [TEXT, " ".join([TEXT] * 20)])
def test_the_route_has_the_lens_of_python(server, text):
    trace = server.post("/look", {"model": "decoder", "text": text}).json()
    assert trace["lens"] is None
    last = len(trace["tokens"]["src"]) - 1
    answer = server.get(f"/look/{trace['id']}/lens?token={last}&token=2")
    lens = TypeAdapter(LensResult).validate_json(answer.content, strict=True)
    loaded = server.service.models.get("decoder").loaded
    expected = record(loaded.model, loaded.tokenizer, text).logit_lens([last, 2])
    assert lens.positions == [last, 2] and len(lens.top) == len(expected.top) == 2
    for rows, others in zip(lens.top, expected.top, strict=True):
        for shown, tokens in zip(rows, others, strict=True):
            assert [one.id for one in shown] == [one.id for one in tokens]
            assert [one.p for one in shown] == pytest.approx([one.p for one in tokens], abs=1e-5)
    assert lens.top[0][0][0] == NextTokenResult(**answer.json()["top"][0][0][0])


@pytest.mark.parametrize("query", ["token=99", "token=-1", "", "&".join(["token=1"] * 65)])
def test_positions_that_do_not_exist_and_too_many_are_refused(server, query):
    trace = server.post("/look", {"model": "decoder", "text": TEXT}).json()
    assert server.get(f"/look/{trace['id']}/lens?{query}").status_code == 400


def test_an_encoder_and_a_trace_that_was_dropped_have_none(server):
    trace = server.post("/look", {"model": "reader", "text": TEXT}).json()
    answer = server.get(f"/look/{trace['id']}/lens?token=0")
    assert answer.status_code == 400 and "LM head" in answer.json()["error"]["message"]
    gone = server.get("/look/t_unknown/lens?token=0")
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "trace_expired"


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder", "encoder"])
def test_a_file_has_the_lens_that_the_trace_has_not(kind):
    one = tiny(kind)
    target = "a dog" if kind == "encoder-decoder" else None
    trace = record(one.model, one.tokenizer, TEXT, target)
    assert trace.lens is None
    lens = file_json(trace)["lens"]
    assert lens == (None if kind == "encoder" else asdict(logit_lens(trace)))
    assert file_json(Trace.from_json(trace.to_json()))["lens"] is None, "it has no model"


def test_a_file_of_a_long_text_has_no_lens():
    one = tiny("decoder", max_len=300)
    assert file_json(record(one.model, one.tokenizer, " ".join([TEXT] * 20)))["lens"] is None
