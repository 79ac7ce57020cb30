"""Dynamic RoPE scaling: plain RoPE up to the original length, refused beyond it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.contiguous_cache import ContiguousCache
from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest
from weft.models.transformer import Decoder

from .test_engine_requests import engine_of, finish
from .tiny import tiny

ORIGINAL = 16
DYNAMIC = {"kind": "dynamic", "factor": 2.0, "original_max_len": ORIGINAL}
PROMPTS = [(5, 9, 30), (5, 9, 31, 7), (40, 41, 42, 43, 44, 45, 46)]


def make(**scaling: Any) -> Engine:
    return engine_of(position={"kind": "rotary", "scaling": scaling or {"kind": "none"}})


def tokens(engine: Engine) -> dict[str, list[int]]:
    lines: dict[str, list[int]] = {}
    for prompt in PROMPTS:
        engine.submit(GenerationRequest(prompt, ORIGINAL - len(prompt)))
    for update in finish(engine):
        lines.setdefault(update.request_id, []).extend(update.tokens)
    return lines


def test_within_the_original_length_the_tokens_are_those_of_plain_rope() -> None:
    """Packed with others, although all of them together are longer than the original length."""
    assert sum(map(len, PROMPTS)) < ORIGINAL < len(PROMPTS) * ORIGINAL
    dynamic, plain = make(**DYNAMIC), make()
    assert dynamic.model.state_dict().keys() == plain.model.state_dict().keys()
    assert tokens(dynamic) == tokens(plain)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        (
            range(5, 5 + ORIGINAL),
            1,
            r"the prompt has 16 tokens but max_len is 16 \(original_max_len of the model's dynamic "
            r"RoPE scaling, .*Shorten it to 15 or fewer",
        ),
        (
            (5, 9, 30),
            14,
            r"together 17, but max_len is 16 \(original_max_len .*max_tokens to at most 13",
        ),
    ],
)
def test_a_request_beyond_the_original_length_is_refused(
    prompt: Any, max_tokens: int, message: str
) -> None:
    engine = make(**DYNAMIC)
    with pytest.raises(UsageError, match=message):
        engine.submit(GenerationRequest(tuple(prompt), max_tokens))
    assert engine.is_idle


def test_a_text_beyond_the_original_length_is_refused() -> None:
    engine = make(**DYNAMIC)
    with pytest.raises(UsageError, match=r"17 tokens: it may have 1 to 16 \(original_max_len"):
        engine.submit_embedding(range(5, 22))


@torch.no_grad()
def test_a_cache_is_refused_beyond_the_original_length_and_a_plain_pass_is_not() -> None:
    model, plain = (
        tiny("decoder", position={"kind": "rotary", "scaling": scaling}).model
        for scaling in (DYNAMIC, {"kind": "none"})
    )
    assert isinstance(model, Decoder)
    ids_1T, cache = torch.arange(5, 25)[None], ContiguousCache(model.kv_specs(), 1, 20)
    model(ForwardBatch(ids_1T[:, :ORIGINAL], cache=cache))
    cache.advance(ORIGINAL)
    with pytest.raises(UsageError, match=r"17 tokens .* is 16, up to which .* without a cache"):
        model(ForwardBatch(ids_1T[:, ORIGINAL : ORIGINAL + 1], cache=cache))
    beyond, short = model(ForwardBatch(ids_1T)), model(ForwardBatch(ids_1T[:, :ORIGINAL]))
    assert not torch.allclose(beyond[:, :ORIGINAL], short, atol=1e-4), "angles depend on the length"
    expected = plain(ForwardBatch(ids_1T[:, :ORIGINAL]))
    torch.testing.assert_close(short, expected, atol=1e-5, rtol=1e-5)
