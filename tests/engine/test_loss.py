"""Losses from the engine's packed pass: those of the tokens one by one, in any company."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine import runner
from weft.engine.config import EngineConfig
from weft.engine.desk import Desk
from weft.engine.engine import Engine
from weft.engine.loss import batch_loss, rows_loss, text_loss
from weft.engine.writing import Writing
from weft.models.decoder import Decoder

from .test_attention import MODELS
from .tiny import LINES, tiny

ROWS = [[5, 9, 30, 7, 8, 6, 40, 41, 9], [5, 9], [5, 9, 30, 7, 8, 6, 40, 41, 50, 51, 52, 53, 54]]
DECODERS = [name for name, model in MODELS.items() if model["kind"] == "decoder"]
DYNAMIC = {"kind": "rotary", "scaling": {"kind": "dynamic", "factor": 2.0, "original_max_len": 16}}


def ignore(amount: int) -> None:
    """Nobody watches."""


def desk_of(**model: Any) -> Desk:
    checkpoint = tiny("decoder", **{k: v for k, v in model.items() if k != "kind"})
    config = EngineConfig(page_size=4, cache_gib=1e-3, encoder_budget=20)
    return Desk(Engine(checkpoint.model, checkpoint.tokenizer, config))


@torch.no_grad()
def one_by_one(desk: Desk, rows: list[list[int]]) -> float:
    nats = 0.0
    for row in rows:
        model = desk.engine.model
        assert isinstance(model, Decoder)
        logp_TV = model(ForwardBatch(torch.tensor([row[:-1]])))[0].log_softmax(-1)
        nats -= float(logp_TV[range(len(row) - 1), row[1:]].double().sum())
    return nats


@pytest.mark.parametrize("model", [*(MODELS[name] for name in DECODERS), {"position": DYNAMIC}])
def test_the_loss_is_that_of_uncached_passes(model: dict[str, Any]) -> None:
    desk, done = desk_of(**model), []
    assert rows_loss(desk, ROWS, done.append) == pytest.approx(one_by_one(desk, ROWS), rel=1e-5)
    assert done == [1] * len(ROWS)
    counts = desk.engine.statistics()
    assert counts.encoded_tokens == sum(len(row) - 1 for row in ROWS), "no padding is run"
    assert counts.pages_cached == counts.pages_in_use == 0 and not desk.engine.scored


def test_a_text_has_the_same_bits_in_company_and_when_its_beginning_is_cached() -> None:
    desk = desk_of()
    alone = [rows_loss(desk, [row], ignore) for row in ROWS]
    for _ in desk.follow(desk.open(Writing(tuple(ROWS[2]), 5))):
        pass
    running = desk.open(Writing(tuple(ROWS[0]), 12))
    desk.step()
    together = [0.0] * len(ROWS)
    for place, update in desk.results([desk.open_scored(row) for row in ROWS]):
        assert [one.id for one in update.logprobs] == ROWS[place][1:]
        together[place] = -sum(one.logprob for one in update.logprobs)
    assert together == alone and desk.engine.has(running)


def test_rows_of_logits_are_made_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of()
    expected = rows_loss(desk, ROWS, ignore)
    seen: list[int] = []
    chances = desk.engine.runner.chances
    monkeypatch.setattr(runner, "SCORED_ROWS", 5)
    watched = lambda x: (seen.append(x.shape[1]), chances(x))[1]  # noqa: E731
    monkeypatch.setattr(desk.engine.runner, "chances", watched)
    assert rows_loss(desk, ROWS, ignore) == expected
    assert sorted(seen) == sorted([5, 3, 1, 5, 5, 2])


def test_a_desk_and_a_model_give_the_same_loss() -> None:
    desk = desk_of()
    tokenizer, model = desk.engine.tokenizer, desk.engine.model
    assert tokenizer is not None and isinstance(model, Decoder)
    texts = [*LINES, " ".join(LINES * 8), "", " "]
    shared = text_loss(desk, tokenizer, texts, 1, ignore)
    own = text_loss(model, tokenizer, texts, 64, ignore)
    assert own == shared and shared.tokens > 80
    assert batch_loss(model, ROWS) == rows_loss(desk, ROWS, ignore)


def test_what_cannot_be_foreseen_is_refused() -> None:
    desk = desk_of()
    with pytest.raises(UsageError, match="a text of 1 tokens .*takes 2 tokens and a decoder"):
        desk.open_scored([5])
    with pytest.raises(UsageError, match="the text has 41 tokens: it may have 1 to 40"):
        desk.open_scored([5] * 42)
    checkpoint = tiny("encoder-decoder")
    with pytest.raises(UsageError, match="by a model of kind encoder-decoder"):
        Engine(checkpoint.model, checkpoint.tokenizer).submit_scored([5, 6, 7])
    assert desk.engine.is_idle and not desk.engine.scored and not desk.inboxes


def test_a_cancelled_text_is_forgotten() -> None:
    desk = desk_of()
    name = desk.open_scored(ROWS[0])
    desk.close(name)
    assert desk.engine.is_idle and not desk.engine.scored
