"""Checks at submission: a request with token ids that the model does not have -> a UsageError.

An id without a row in the embedding would fail in the forward pass, together with every other
request of that step. So the engine checks all ids of a request, wherever they come from, before it
is scheduled; the values of SamplingParams are checked when they are created.
"""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral

from weft.core.errors import UsageError
from weft.engine.request import GenerationRequest
from weft.models.config import ModelConfig


def check_request_ids(request: GenerationRequest, config: ModelConfig) -> None:
    """Raise a UsageError for ids of a request that are outside the vocabulary."""
    size, beam = config.vocab_size, request.beam
    request.sampling.check_ids(size)
    check_token_ids("the prompt", request.prompt, size)
    check_token_ids("the source", request.source or (), source_vocab_size(config))
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


def check_text_ids(ids: Collection[int], config: ModelConfig) -> None:
    """The same for a text to embed or to score."""
    check_token_ids("the text", ids, source_vocab_size(config))


def source_vocab_size(config: ModelConfig) -> int:
    """Rows of the embedding that reads sources and texts to embed."""
    return config.source_vocab_size or config.vocab_size


def check_token_ids(name: str, ids: Collection[int], num_ids: int) -> None:
    """Raise a UsageError that names the first id that is not an int in 0..num_ids - 1."""
    are_ints = all(issubclass(kind, Integral) for kind in set(map(type, ids)))
    if are_ints and (not ids or (min(ids) >= 0 and max(ids) < num_ids)):
        return
    wrong = next(i for i in ids if not isinstance(i, Integral) or not 0 <= int(i) < num_ids)
    raise UsageError(
        f"{name} contains id {wrong!r}, but ids range from 0 to {num_ids - 1}. Use ids of this "
        "model's vocabulary."
    )
