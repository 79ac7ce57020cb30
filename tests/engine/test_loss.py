"""Scores from the engine's packed pass: those of the tokens one by one, in any batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine import model_runner
from weft.engine.client import EngineClient
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.pooling import score_rows, score_texts
from weft.engine.request import GenerationRequest
from weft.models.transformer import Decoder

from .test_attention_rows import MODELS
from .tiny import LINES, tiny

ROWS = [[5, 9, 30, 7, 8, 6, 40, 41, 9], [5, 9], [5, 9, 30, 7, 8, 6, 40, 41, 50, 51, 52, 53, 54]]
DECODERS = [name for name, model in MODELS.items() if model["kind"] == "decoder"]
DYNAMIC = {"kind": "rotary", "scaling": {"kind": "dynamic", "factor": 2.0, "original_max_len": 16}}


def ignore(amount: int) -> None:
    """No progress is shown."""


def client_of(**model: Any) -> EngineClient:
    checkpoint = tiny("decoder", **{k: v for k, v in model.items() if k != "kind"})
    config = EngineConfig(page_size=4, cache_gib=1e-3, encoder_budget=20)
    return EngineClient(Engine(checkpoint.model, checkpoint.tokenizer, config), is_threaded=False)


@torch.no_grad()
def one_by_one(client: EngineClient, rows: list[list[int]]) -> float:
    nats = 0.0
    for row in rows:
        model = client.engine.model
        assert isinstance(model, Decoder)
        logp_TV = model(ForwardBatch(torch.tensor([row[:-1]])))[0].log_softmax(-1)
        nats -= float(logp_TV[range(len(row) - 1), row[1:]].double().sum())
    return nats


@pytest.mark.parametrize("model", [*(MODELS[name] for name in DECODERS), {"position": DYNAMIC}])
def test_the_loss_is_that_of_uncached_passes(model: dict[str, Any]) -> None:
    client, done = client_of(**model), []
    assert score_rows(client, ROWS, done.append) == pytest.approx(
        one_by_one(client, ROWS), rel=1e-5
    )
    assert done == [1] * len(ROWS)
    counts = client.engine.statistics()
    assert counts.encoded_tokens == sum(len(row) - 1 for row in ROWS), "no padding is run"
    assert (
        counts.pages_cached == counts.pages_in_use == 0 and not client.engine.state.texts_to_score
    )


def test_a_text_has_the_same_bits_in_a_batch_and_when_its_prefix_is_cached() -> None:
    client = client_of()
    alone = [score_rows(client, [row], ignore) for row in ROWS]
    for _ in client.stream(client.submit(GenerationRequest(tuple(ROWS[2]), 5))):
        pass
    running = client.submit(GenerationRequest(tuple(ROWS[0]), 12))
    client.step()
    together = [0.0] * len(ROWS)
    for place, update in client.results([client.submit_score(row) for row in ROWS]):
        assert [one.id for one in update.logprobs] == ROWS[place][1:]
        together[place] = -sum(one.logprob for one in update.logprobs)
    assert together == alone and client.engine.is_active(running)


def test_rows_of_logits_are_made_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of()
    expected = score_rows(client, ROWS, ignore)
    seen: list[int] = []
    logits = client.engine.runner.logits
    monkeypatch.setattr(model_runner, "SCORED_ROWS", 5)
    watched = lambda x: (seen.append(x.shape[1]), logits(x))[1]  # noqa: E731
    monkeypatch.setattr(client.engine.runner, "logits", watched)
    assert score_rows(client, ROWS, ignore) == expected
    assert sorted(seen) == sorted([5, 3, 1, 5, 5, 2])


def test_the_score_does_not_depend_on_the_token_budget() -> None:
    client = client_of()
    tokenizer, model = client.engine.tokenizer, client.engine.model
    assert tokenizer is not None
    other = EngineClient(Engine(model, config=EngineConfig.for_batches(64)), is_threaded=False)
    texts = [*LINES, " ".join(LINES * 8), "", " "]
    score = score_texts(client, tokenizer, texts, ignore)
    assert score_texts(other, tokenizer, texts, ignore) == score and score.tokens > 80
    assert score_rows(other, ROWS, ignore) == score_rows(client, ROWS, ignore)


def test_texts_that_cannot_be_scored_are_rejected() -> None:
    client = client_of()
    with pytest.raises(UsageError, match="the text has 1 tokens: .* at least 2"):
        client.submit_score([5])
    with pytest.raises(UsageError, match="the text has 41 tokens: it may have 1 to 40"):
        client.submit_score([5] * 42)
    checkpoint = tiny("encoder-decoder")
    with pytest.raises(UsageError, match="kind encoder-decoder: .* need a decoder"):
        Engine(checkpoint.model, checkpoint.tokenizer).submit_score([5, 6, 7])
    assert (
        client.engine.is_idle
        and not client.engine.state.texts_to_score
        and not client.output_queues
    )


def test_a_cancelled_text_is_forgotten() -> None:
    client = client_of()
    name = client.submit_score(ROWS[0])
    client.abort(name)
    assert client.engine.is_idle and not client.engine.state.texts_to_score
