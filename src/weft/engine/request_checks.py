"""Checks at submission: a request with values of other types than those it is declared with, or
with token ids that the model does not have -> a UsageError.

An id without a row in the embedding would fail in the forward pass, together with every other
request of that step; a max_tokens of 1.5 is reached by no count, so that the request would never
end. So the engine checks all values of a request before it is scheduled; those of SamplingParams
are checked when they are created.
"""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral
from typing import Any

from weft.core.errors import UsageError, shown
from weft.engine.beam_search import BeamConfig
from weft.engine.grammar import Grammar
from weft.engine.request import GenerationRequest
from weft.models.config import ModelConfig
from weft.sampling.params import SamplingParams
from weft.text.tokenizer import Tokenizer

COUNTS = ("max_tokens", "n", "min_tokens")
MAX_COUNT = 2**63 - 1
COLLECTIONS = ("prompt", "ends", "stops", "visible_ids")
TYPES: dict[str, type] = {
    **{"sampling": SamplingParams, "salt": str, "key": str, "is_streamed": bool},
    **{"grammar": Grammar, "beam": BeamConfig},
}
OPTIONAL = ("grammar", "beam")


def check_request_types(request: GenerationRequest) -> None:
    """Raise a UsageError that names the first value of another type than it is declared with."""
    for name in COUNTS:
        check_count(name, getattr(request, name))
    for name in COLLECTIONS:
        check_collection(name, getattr(request, name))
    if request.source is not None:
        check_collection("source", request.source)
    for name, kind in TYPES.items():
        value = getattr(request, name)
        if not isinstance(value, kind) and not (value is None and name in OPTIONAL):
            raise UsageError(f"{name} is {shown(value)}: it must be a {kind.__name__}. Use one.")
    for stop in request.stops:
        if not isinstance(stop, str):
            raise UsageError(f"a stop is {shown(stop)}: it must be a str. Use texts.")
    if request.beam is not None:
        check_count("width of the beam search", request.beam.width)
        check_count("num_best of the beam search", request.beam.num_best)


def check_count(name: str, value: object) -> None:
    if not is_integer(type(value)):
        raise UsageError(f"{name} is {shown(value)}: it must be an integer. Use a whole number.")
    if isinstance(value, Integral) and abs(int(value)) > MAX_COUNT:
        raise UsageError(f"{name} is {shown(value)}: it must be at most {MAX_COUNT}. Use less.")


def check_collection(name: str, value: Any) -> None:
    if isinstance(value, str) or not (hasattr(value, "__iter__") and hasattr(value, "__len__")):
        raise UsageError(f"{name} is {shown(value)}: it must be a tuple. Use one.")


def is_integer(kind: type) -> bool:
    return issubclass(kind, Integral) and not issubclass(kind, bool)


def check_request_ids(request: GenerationRequest, config: ModelConfig) -> None:
    """Raise a UsageError for ids of a request that are outside the vocabulary."""
    size, beam = config.vocab_size, request.beam
    request.sampling.check_ids(size)
    check_token_ids("the prompt", request.prompt, size)
    source = () if request.source is None else request.source
    check_token_ids("the source", source, source_vocab_size(config))
    check_token_ids("ends", request.ends, size)
    if any("\ud800" <= character <= "\udfff" for character in request.salt):
        raise UsageError(
            f"salt is {request.salt!a}: it has half of a surrogate pair, which is not text. Use "
            "other characters."
        )
    if beam is not None:
        check_token_ids("banned of the beam search", beam.banned, size)
        first = () if beam.first is None else (beam.first,)
        check_token_ids("first of the beam search", first, size)


def check_beam_request(request: GenerationRequest) -> None:
    """Raise a UsageError for what a beam search would ignore."""
    if request.beam is None:
        return
    ignored = {
        "stops": len(request.stops) > 0,
        "grammar": request.grammar is not None,
        "min_tokens": request.min_tokens > 0,
        "logprobs": request.sampling.logprobs is not None,
    }
    for name, is_set in ignored.items():
        if is_set:
            value = shown(getattr(request if name != "logprobs" else request.sampling, name))
            raise UsageError(
                f"{name} is {value}, and beam is set: a beam search has no stop strings, grammar, "
                f"min_tokens or logprobs. Leave out {name} or beam."
            )


def check_has_tokenizer(request: GenerationRequest, tokenizer: Tokenizer | None) -> None:
    """Raise a UsageError for what needs the text of the tokens."""
    for name, is_set in (
        ("stops", len(request.stops) > 0),
        ("grammar", request.grammar is not None),
    ):
        if is_set and tokenizer is None:
            raise UsageError(
                f"{name} is {shown(getattr(request, name))}: this engine has no tokenizer, which "
                f"{name} needs. Create the engine with one, or leave out {name}."
            )


def check_num_top(num_top: int) -> None:
    check_count("num_top", num_top)
    if num_top < 0:
        raise UsageError(f"num_top is {num_top}: it must be at least 0. Use 0 for none.")


def check_text_ids(ids: Collection[int], config: ModelConfig) -> None:
    """The same for a text to embed or to score."""
    check_token_ids("the text", ids, source_vocab_size(config))


def source_vocab_size(config: ModelConfig) -> int:
    """Rows of the embedding that reads sources and texts to embed."""
    return config.source_vocab_size or config.vocab_size


def check_token_ids(name: str, ids: Collection[int], num_ids: int) -> None:
    """Raise a UsageError that names the first id that is not an int in 0..num_ids - 1."""
    are_ints = all(map(is_integer, set(map(type, ids))))
    if are_ints and (len(ids) == 0 or (min(ids) >= 0 and max(ids) < num_ids)):
        return
    wrong = next(i for i in ids if not is_integer(type(i)) or not 0 <= int(i) < num_ids)
    raise UsageError(
        f"{name} contains id {shown(wrong)}, but ids range from 0 to {num_ids - 1}. Use ids of "
        "this model's vocabulary."
    )
