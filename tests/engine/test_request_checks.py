"""A bad request is one sentence at submission, and the other requests do not notice it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.contiguous_cache import ContiguousCache
from weft.core.errors import ConfigError, UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine.beam_search import BeamConfig
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.grammar import make_grammar
from weft.engine.loaded_model import LoadedModel
from weft.engine.request import GenerationRequest
from weft.sampling.params import SamplingParams

from .tiny import tiny

SMALL = EngineConfig(page_size=4, cache_gib=1e-3)
SAMPLED = SamplingParams(temperature=0.9, seed=3, logprobs=2)
PROMPTS = [(5, 9, 30, 7), (5, 9, 30, 8, 40), (20, 21)]
ABSURD = [-1, 317, 2**31 - 2, 2**63, 1.5]
"""The tiny model has 317 ids."""


def engine_of(kind: str = "decoder", **changes: Any) -> Engine:
    checkpoint = tiny(kind, **changes)
    return Engine(checkpoint.model, checkpoint.tokenizer, SMALL)


def requests(kind: str) -> list[GenerationRequest]:
    source = (7, 8, 9) if kind == "encoder-decoder" else None
    found = [GenerationRequest(prompt, 6, source, SAMPLED) for prompt in PROMPTS]
    return [*found, GenerationRequest((5, 6), 6, source, beam=BeamConfig(3), ends=frozenset([2]))]


def results(engine: Engine, asked: list[GenerationRequest], bad: Any = None) -> list[list[Any]]:
    """What each request gets, to the last bit; `bad` is called before every step."""
    found: dict[str, list[Any]] = {engine.submit(one): [] for one in asked}
    while not engine.is_idle:
        if bad is not None:
            bad(engine)
        for output in engine.step():
            logprobs = [one.logprob.hex() for one in output.logprobs]
            beams = [(one.ids, one.score.hex()) for one in output.hypotheses]
            found[output.request_id].append([output.tokens, output.text, logprobs, beams])
    return list(found.values())


BAD_IDS: list[tuple[str, Any]] = [
    ("the prompt", lambda engine, i: engine.submit(GenerationRequest((5, i), 3))),
    ("ends", lambda engine, i: engine.submit(GenerationRequest((5,), 3, ends=frozenset([2, i])))),
    (
        "banned of the beam search",
        lambda engine, i: engine.submit(
            GenerationRequest((5,), 3, beam=BeamConfig(2, banned=(i,)), ends=frozenset([2]))
        ),
    ),
    (
        "first of the beam search",
        lambda engine, i: engine.submit(GenerationRequest((5,), 3, beam=BeamConfig(2, first=i))),
    ),
    ("the text", lambda engine, i: engine.submit_embedding([5, i])),
    ("the text", lambda engine, i: engine.submit_score([5, 6, i])),
]


@pytest.mark.parametrize("index", ABSURD)
@pytest.mark.parametrize(("name", "submit"), BAD_IDS)
def test_an_id_that_the_model_does_not_have_is_refused(name: str, submit: Any, index: Any) -> None:
    engine = engine_of()

    def bad(_: Engine) -> None:
        with pytest.raises(UsageError, match=f"^{name} contains id .*range from 0 to 316"):
            submit(engine, index)

    assert results(engine, requests("decoder"), bad) == results(engine_of(), requests("decoder"))


@pytest.mark.parametrize("index", ABSURD)
def test_an_id_of_the_source_is_checked_against_its_own_vocabulary(index: Any) -> None:
    config = {"source_vocab_size": 50, "embedding": {"tied": "output"}}
    engine = engine_of("encoder-decoder", **config)

    def bad(_: Engine) -> None:
        for wrong in (index, 50):
            with pytest.raises(UsageError, match="^the source contains id .*from 0 to 49"):
                engine.submit(GenerationRequest((1,), 3, (7, wrong)))
            with pytest.raises(UsageError, match="^the text contains id .*from 0 to 49"):
                engine.submit_embedding([7, wrong])

    asked = requests("encoder-decoder")
    assert results(engine, asked, bad) == results(engine_of("encoder-decoder", **config), asked)


WRONG_TYPES: dict[str, list[Any]] = {
    **dict.fromkeys(("max_tokens", "n"), [1.5, float("nan"), True, None, "3", [3]]),
    "min_tokens": [1.5, float("inf"), None, "3"],
    **dict.fromkeys(("prompt", "source", "ends", "visible_ids"), [5, "abc"]),
    **{"prompt": [5, None, "abc", (True,), (5.0,), ("a",)], "ends": [None, frozenset([True])]},
    **{"stops": [None, 5, "abc", (5,)], "salt": [None, b"x", 5], "key": [None, ["a"]]},
    **{"is_streamed": [None, "yes"], "grammar": ["a+"], "beam": [3, "x"], "sampling": [None]},
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG_TYPES.items() for value in values]
)
def test_a_value_of_another_type_is_refused(name: str, value: Any) -> None:
    """A max_tokens of 1.5 was reached by no count: the request never ended."""
    engine = engine_of()
    values: dict[str, Any] = {"prompt": (5, 9), "max_tokens": 3, name: value}
    what = {"prompt": "the prompt", "source": "the source", "stops": "stop"}.get(name, name)
    with pytest.raises(UsageError, match=f"({name}|{what}) .*(it must be|ids range)"):
        engine.submit(GenerationRequest(**values))
    assert engine.is_idle and not engine.requests


@pytest.mark.parametrize("value", [1.5, None, True])
def test_a_beam_search_has_a_whole_number_of_beams(value: Any) -> None:
    beam = BeamConfig(3)
    object.__setattr__(beam, "width", value)
    with pytest.raises(UsageError, match="width of the beam search is .* whole number"):
        engine_of().submit(GenerationRequest((5,), 3, beam=beam, ends=frozenset([2])))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("stops", {"stops": ("m",)}),
        ("grammar", {"grammar": make_grammar("regex", "a+")}),
        ("min_tokens", {"min_tokens": 2}),
        ("logprobs", {"sampling": SAMPLED}),
    ],
)
def test_what_a_beam_search_would_ignore_is_refused(name: str, change: dict[str, Any]) -> None:
    engine, beam, ends = engine_of(), BeamConfig(2), frozenset([2])
    with pytest.raises(UsageError, match=f"^{name} is .*, and beam is set: .*out {name} or beam.$"):
        engine.submit(GenerationRequest((5,), 3, beam=beam, ends=ends, **change))
    assert engine.is_idle and not engine.requests


def test_all_end_tokens_of_a_beam_search_end_it() -> None:
    """Only one of them did, and any one of them."""
    (greedy,) = results(engine_of(), [GenerationRequest((5, 9), 6)])
    ids = [token for output in greedy for token in output[0]]
    end = next(token for token in ids[1:] if token != ids[0])
    for width in (1, 3):
        ends = frozenset([end, *range(300, 306)])
        request = GenerationRequest((5, 9), 6, beam=BeamConfig(width, num_best=width), ends=ends)
        ((*_, (_, _, _, beams)),) = results(engine_of(), [request])
        assert all(not ends & set(tokens) for tokens, _ in beams)
        assert len({tuple(tokens) for tokens, _ in beams}) == width
        if width == 1:
            assert beams[0][0] == ids[: ids.index(end)]


def test_a_source_may_be_an_array() -> None:
    """It was a ValueError of numpy."""
    expected = results(engine_of("encoder-decoder"), requests("encoder-decoder"))
    arrays = [replace(one, source=np.array(one.source)) for one in requests("encoder-decoder")]
    assert results(engine_of("encoder-decoder"), arrays) == expected


@pytest.mark.parametrize("num_top", [-1, 1.5, None, True, 2**70])
def test_a_number_of_tokens_to_report_is_a_count(num_top: Any) -> None:
    engine = engine_of()
    with pytest.raises(UsageError, match="num_top is .*: it must be"):
        engine.prepare_score([5, 6, 7], num_top=num_top)


@pytest.mark.parametrize(
    ("name", "change"),
    [("stops", {"stops": ("m",)}), ("grammar", {"grammar": make_grammar("regex", "a+")})],
)
def test_without_a_tokenizer_there_are_no_texts_to_look_for(
    name: str, change: dict[str, Any]
) -> None:
    """They were an AssertionError."""
    engine = Engine(tiny("decoder").model, config=SMALL)
    with pytest.raises(UsageError, match=f"^{name} is .*: this engine has no tokenizer"):
        engine.submit(GenerationRequest((5,), 3, **change))
    assert engine.is_idle and not engine.requests


def test_the_client_refuses_a_fraction_of_a_token() -> None:
    model = LoadedModel(tiny("decoder"))
    with pytest.raises(UsageError, match="max_tokens is 1.5: it must be an integer"):
        model.generate("the cat", max_tokens=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        {"logit_bias": {5: 1e39}},
        {"logit_bias": {5: -1e39}},
        {"repetition_penalty": 1e-39},
        {"repetition_penalty": 1e39},
        {"temperature": 1e39},
        {"logprobs": 21},
        {"top_p": float("nan")},
        {"min_p": float("nan")},
        {"presence_penalty": float("inf")},
    ],
)
def test_numbers_that_overflow_are_refused_when_they_are_named(values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(ConfigError, match=f"^{name}.* is .*: it must be .*Change {name}"):
        SamplingParams(**{"temperature": 1, **values})


EXTREMES: list[dict[str, Any]] = [
    {"logit_bias": {5: 1e20, 6: -1e20}},
    {"repetition_penalty": 1e6},
    {"repetition_penalty": 1e-6},
    {"temperature": 1e6},
    {"temperature": 1e-5},
    {"temperature": 1e-30},
    {"top_p": 5e-324},
    {"min_p": 5e-324},
    {"min_p": 1 - 1e-16},
    {"top_k": 2**80},
    {"seed": 2**80},
    {"logprobs": 20},
    {"presence_penalty": -2, "frequency_penalty": -2},
    {"logit_bias": {5: 1e20, 6: -1e20}, "repetition_penalty": 1e-6, "temperature": 1e-5},
    {"logit_bias": {5: -1e20, 6: 1e20}, "repetition_penalty": 1e6, "temperature": 1e-5},
    {"logit_bias": {5: -1e20}, "repetition_penalty": 1e6, "temperature": 1e-5, "min_p": 5e-324},
]


def test_every_allowed_number_gives_an_answer_and_changes_no_other() -> None:
    sampled = [SamplingParams(**{"temperature": 1, **values}) for values in EXTREMES]
    extreme = [GenerationRequest((5, 6, 5), 5, sampling=one) for one in sampled]
    found = results(engine_of(), [*extreme, *requests("decoder")])
    for outputs in found[: len(extreme)]:
        assert sum(len(one[0]) for one in outputs) == 5
    assert found[len(extreme) :] == results(engine_of(), requests("decoder"))


def test_a_request_for_a_billion_samples_is_refused_before_they_are_made() -> None:
    engine = engine_of()
    with pytest.raises(UsageError, match="runs 1000000000 sequences at once"):
        engine.submit(GenerationRequest((5,), 3, n=10**9))
    assert engine.is_idle and not engine.samples


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        (["a"] * 65, "stop has 65 strings: at most 64 are allowed"),
        (["ok", "\u00e9" * 257], "has 514 bytes in UTF-8: at most 512 are allowed"),
    ],
)
def test_stop_strings_have_limits(stops: list[str], message: str) -> None:
    engine = engine_of()
    with pytest.raises(UsageError, match=message):
        engine.submit(GenerationRequest((5,), 3, stops=tuple(stops)))
    engine.submit(GenerationRequest((5,), 3, stops=("a" * 512,) * 64))


@pytest.mark.parametrize("prefix_cache", ["radix", "hash"])
def test_a_salt_that_cannot_be_hashed_is_refused(prefix_cache: str) -> None:
    engine = engine_of()
    with pytest.raises(UsageError, match="salt .*surrogate"):
        engine.submit(GenerationRequest((5,), 3, salt="\ud800"))
    assert engine.is_idle


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_a_table_of_positions_shorter_than_max_len_limits_the_length(kind: str) -> None:
    position = {"kind": "learned", "max_len": 12}
    model = LoadedModel(tiny(kind, position=position))
    engine, source = model.client.engine, (7,) if kind == "encoder-decoder" else None
    expected = results(engine_of(kind, position=position), requests(kind))

    def bad(_: Engine) -> None:
        with pytest.raises(UsageError, match=r"max_len is 12 \(position.max_len, the rows of"):
            engine.submit(GenerationRequest((5,) * 10, 3, source))
        with pytest.raises(UsageError, match=r"it may have 1 to 12 \(position.max_len"):
            engine.submit_embedding([5] * 13)

    assert results(engine, requests(kind), bad) == expected
    if kind == "decoder":
        ((completion,),) = model.completions(["the"], temperature=0)
        assert completion.num_prompt + len(completion.tokens) == 12
    else:
        assert model.translate(["the cat sat on the mat the cat sat on the mat"])


def test_a_sequence_beyond_the_table_without_the_engine_names_the_table() -> None:
    model = tiny("decoder", position={"kind": "learned", "max_len": 12}).model
    for cache in (None, ContiguousCache(model.kv_specs(), 1, 40)):
        batch = ForwardBatch(torch.ones(1, 20, dtype=torch.long), cache=cache)
        with pytest.raises(UsageError, match="position 19 is beyond the table of 12 learned"):
            model(batch)
