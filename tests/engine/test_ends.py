"""How a sample ends: by a complete grammar without an end token, by an end token that completes a
stop string, and by the error of another sample of its request."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import cache
from typing import Any

import pytest

from tests.engine.tiny import tiny
from weft.checkpoint.weft_folder import Checkpoint
from weft.core.errors import DataError, EngineError
from weft.engine.async_engine import AsyncEngine
from weft.engine.client import EngineClient
from weft.engine.config import EngineConfig
from weft.engine.detokenizer import FinishReason
from weft.engine.engine import Engine
from weft.engine.grammar import make_grammar
from weft.engine.request import GenerationRequest, RequestOutput, SampleStateFactory
from weft.sampling.params import SamplingParams

DRAWN = SamplingParams(temperature=1.0, seed=3, logprobs=0)
END = FinishReason("end")


@cache
def checkpoint() -> Checkpoint:
    return tiny("decoder")


@cache
def end_id() -> int:
    end = checkpoint().tokenizer.end_id
    assert end is not None
    return end


def make_engine(**settings: Any) -> Engine:
    one = checkpoint()
    return Engine(one.model, one.tokenizer, EngineConfig(page_size=4, cache_gib=1e-3, **settings))


def run(engine: Engine, request: GenerationRequest) -> list[RequestOutput]:
    engine.submit(request)
    outputs: list[RequestOutput] = []
    while not engine.is_idle:
        outputs += engine.step()
    return outputs


@pytest.mark.parametrize("speculate", [False, True])
@pytest.mark.parametrize("is_banned", [False, True])
@pytest.mark.parametrize(
    ("kind", "source", "texts"),
    [
        ("regex", "[ab]-7", ["a-7", "b-7"]),
        ("choice", ["a", "the cat"], ["a", "the cat"]),
        ("json_schema", {"enum": [True, 17]}, ["true", "17"]),
    ],
)
def test_a_complete_grammar_ends_a_text_that_has_no_end_token(
    kind: str, source: Any, texts: list[str], is_banned: bool, speculate: bool
) -> None:
    """With ignore_eos it failed: the grammar allowed no further token."""
    ends = frozenset([end_id()]) if is_banned else frozenset[int]()
    sampling = DRAWN.model_copy(update={"banned": tuple(ends)})
    grammar = make_grammar(kind, source)
    request = GenerationRequest((5, 6), 20, sampling=sampling, ends=ends, grammar=grammar, n=2)
    outputs = run(make_engine(speculate=speculate), request)
    for index in range(2):
        own = [one for one in outputs if one.index == index]
        assert "".join(one.text for one in own) in texts
        assert own[-1].finish == END and own[-1].error is None
        assert sum(len(one.logprobs) for one in own) == sum(len(one.tokens) for one in own)


def test_a_text_that_matches_ends_where_no_token_can_follow() -> None:
    """The grammar goes on, but all tokens that fit are banned."""
    tokenizer = checkpoint().tokenizer
    with_b = [i for i in range(tokenizer.vocab_size) if b"b" in tokenizer.token_bytes([i])[0]]
    sampling = DRAWN.model_copy(update={"banned": tuple(with_b)})
    grammar = make_grammar("regex", "cb*")
    outputs = run(make_engine(), GenerationRequest((5,), 9, sampling=sampling, grammar=grammar))
    assert "".join(one.text for one in outputs) == "c" and outputs[-1].finish == END
    assert sum(len(one.tokens) for one in outputs) == 1


def test_min_tokens_and_a_grammar_that_is_complete_are_an_error_as_before() -> None:
    ends, grammar = frozenset([end_id()]), make_grammar("choice", ["a"])
    request = GenerationRequest((5,), 9, sampling=DRAWN, ends=ends, grammar=grammar, min_tokens=5)
    assert "exclude every token" in str(run(make_engine(), request)[-1].error)


def test_an_end_token_that_completes_a_stop_string_is_not_part_of_the_output() -> None:
    """The bytes before it are an incomplete character, whose replacement is the stop string."""
    tokenizer = checkpoint().tokenizer
    ids = range(tokenizer.vocab_size)
    byte = next(i for i in ids if tokenizer.token_bytes([i])[0] == b"\xe6")
    factory = SampleStateFactory(tokenizer, tokenizer.vocab_size, False)
    request = GenerationRequest((5,), 9, ends=frozenset([end_id()]), stops=("\ufffd",))
    sample = factory.create(request, 0)
    assert [sample.append(byte), sample.append(end_id())] == ["", ""]
    assert sample.output == [byte]
    assert sample.detokenizer.finish == FinishReason("stop", "\ufffd")
    bias = {byte: 1e6, end_id(): 1e6 - 1e3}
    sampling = SamplingParams(temperature=0, logit_bias=bias, repetition_penalty=1.5)
    for stops in ((), ("\ufffd",)):
        request = GenerationRequest(
            (5, 6), 9, sampling=sampling, ends=frozenset([end_id()]), stops=stops
        )
        outputs = run(make_engine(), request)
        assert [token for one in outputs for token in one.tokens] == [byte]
        assert outputs[-1].finish is not None


def failing(seed: int) -> GenerationRequest:
    """Two samples, of which one may choose the shorter text, after which all tokens are banned."""
    grammar = make_grammar("choice", ["a", "the cat sat on the mat the cat"])
    sampling = SamplingParams(temperature=50.0, seed=seed)
    ends = frozenset([end_id()])
    return GenerationRequest(
        (5, 6, 7), 20, sampling=sampling, ends=ends, grammar=grammar, n=2, min_tokens=4
    )


@cache
def failing_first() -> GenerationRequest:
    """Its first sample fails in a step in which the second one has a token."""
    engine = make_engine()
    for seed in range(60):
        outputs = run(engine, failing(seed))
        failed = next((one.index for one in outputs if one.error is not None), None)
        if failed == 0 and any(one.text.startswith("t") for one in outputs):
            return failing(seed)
    raise AssertionError("no seed fails")


def test_no_output_of_a_request_follows_its_error() -> None:
    outputs = run(make_engine(), failing_first())
    assert outputs[-1].error is not None
    assert [one.error is not None for one in outputs].count(True) == 1


@pytest.mark.parametrize("is_first", [False, True])
def test_a_sample_that_fails_loses_no_other_request(is_first: bool) -> None:
    """It was a KeyError of the whole batch."""
    client = EngineClient(make_engine(), is_threaded=False)
    other = GenerationRequest((5, 6, 8), 25)
    ((expected,),) = client.completions([other])
    requests = [failing_first(), other] if is_first else [other, failing_first()]
    results = list(client.completions(requests, is_checked=False))
    failed, (good,) = results if is_first else results[::-1]
    assert good == expected and good.error is None
    assert all("exclude every token" in str(one.error) for one in failed)


def test_a_stream_ends_with_the_error_of_a_sample() -> None:
    async def collect() -> tuple[list[RequestOutput], int]:
        with AsyncEngine(make_engine()) as engine:
            ends: list[int] = []
            stream = engine.stream(failing_first())
            stream.when_ended = lambda: ends.append(1)
            return [one async for one in stream], len(ends)

    outputs, num_ends = asyncio.run(collect())
    assert outputs[-1].error is not None and num_ends == 1


@pytest.mark.parametrize("name", ["stream", "results", "completions"])
def test_a_thread_that_reads_a_request_that_is_aborted_gets_an_error(name: str) -> None:
    """It waited forever."""
    client = EngineClient(make_engine())
    may_run, errors = threading.Event(), list[BaseException]()
    client.async_engine.call(lambda _: may_run.wait(10))
    request = GenerationRequest((5, 6, 7), 30)
    if name == "completions":
        iterator: Any = client.completions([request])
        (request_id,) = iterator.ids
    else:
        request_id = client.submit(request)
        iterator = client.stream(request_id) if name == "stream" else client.results([request_id])

    def read() -> None:
        try:
            list(iterator)
        except (EngineError, DataError) as error:
            errors.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    time.sleep(0.05)
    client.abort(request_id)
    may_run.set()
    reader.join(10)
    assert not reader.is_alive()
    assert [type(one) for one in errors] == [EngineError]
    assert f"request {request_id} is not active: it was aborted" in str(errors[0])
    ((after,),) = client.completions([GenerationRequest((5, 6, 7), 4)])
    assert len(after.tokens) == 4 and not client.output_queues
    client.close()


def test_a_request_of_a_batch_that_is_aborted_leaves_the_others() -> None:
    client = EngineClient(make_engine())
    may_run = threading.Event()
    requests = [GenerationRequest((5, 6, n), 6) for n in (7, 8, 9)]
    expected = [one.tokens for (one,) in client.completions(requests)]
    client.async_engine.call(lambda _: may_run.wait(10))
    iterator = client.completions(requests, is_checked=False)
    client.abort(iterator.ids[0])
    client.abort(iterator.ids[2])
    may_run.set()
    (first,), (second,), (third,) = iterator
    assert second.tokens == expected[1] and second.error is None
    assert "was aborted" in str(first.error) and "was aborted" in str(third.error)
    client.close()
