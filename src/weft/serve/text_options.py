"""Generation options, which every protocol makes from its fields -> GenerationRequest.

    options = TextOptions(max_tokens=50, sampling={"temperature": 0.7}, stop=["\\n"])
    request = make_request(served, caller, prompt_ids, options)

Defaults come, in this order, from the request, `--defaults`, the checkpoint's generation config,
the protocol, and SamplingParams, whose values are OpenAI's and Anthropic's. A seed comes from the
request or `--defaults`; without one a random one is drawn. `max_tokens` beyond the
room that the prompt leaves is cut to it; a prompt that does not fit is an error with both lengths.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.engine.beam_search import BeamConfig
from weft.engine.grammar import Grammar
from weft.engine.request import GenerationRequest
from weft.engine.request_builder import GenerationOptions
from weft.sampling.params import SamplingParams
from weft.serve.api_errors import ApiError
from weft.serve.api_keys import Caller
from weft.serve.served_model import ServedModel

MAX_SEED = 2**31


@dataclass(frozen=True)
class TextOptions:
    """What a caller asks of one text; fields that are None were left out."""

    max_tokens: int | None = None
    """None: all the room that the prompt leaves. 0: the prompt is computed and cached only."""
    n: int = 1
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of SamplingParams that the caller has set, without seed."""
    seed: int | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The protocol's own defaults of SamplingParams."""
    stop: Sequence[str] = ()
    grammar: Grammar | None = None
    beam: BeamConfig | None = None
    ignore_eos: bool = False
    stop_token_ids: Sequence[int] = ()
    min_tokens: int = 0
    visible_ids: frozenset[int] = frozenset()
    """Special tokens whose text is part of the output."""
    include_stop: bool = False
    """Whether a stop string is part of the text that it ends."""
    cache_salt: str | None = None
    is_streamed: bool = False
    prompt_field: str = "messages"
    """The request's field with the prompt, for messages."""

    @property
    def is_prompt_only(self) -> bool:
        return self.max_tokens == 0

    @property
    def for_engine(self) -> TextOptions:
        """Options that the engine can serve: it chooses at least one token."""
        if not self.is_prompt_only:
            return self
        n = self.n if self.beam is None else self.beam.num_best
        return replace(self, max_tokens=1, n=n, beam=None, grammar=None, min_tokens=0)


def sampling_params(served: ServedModel, options: TextOptions) -> SamplingParams:
    """The sampling parameters of a request, with a seed."""
    values = {"seed": random_seed(), **options.defaults, **served.defaults, **options.sampling}
    if options.seed is not None:
        values["seed"] = options.seed
    return SamplingParams.from_dict(values)


def random_seed() -> int:
    return secrets.randbelow(MAX_SEED)


def make_request(
    served: ServedModel, caller: Caller, prompt: Sequence[int], options: TextOptions
) -> GenerationRequest:
    """The engine's request; raises an ApiError or a WeftError for one that cannot be served."""
    options, room = options.for_engine, served.max_len - len(prompt)
    if room < 1:
        raise ApiError(
            400,
            f"the prompt has {len(prompt)} tokens, and the model's context length is "
            f"{served.max_len}, of which at least one is needed for the answer. Shorten the "
            f"prompt to {served.max_len - 1} tokens.",
            param=options.prompt_field,
            code="context_length_exceeded",
        )
    limit = room if options.max_tokens is None else min(options.max_tokens, room)
    sampling = sampling_params(served, options)
    made = GenerationOptions(limit, options.n, sampling, tuple(options.stop), options.grammar)
    request = served.builder.completion(prompt, made)
    ends = frozenset() if options.ignore_eos else request.ends
    return replace(
        request,
        ends=ends | frozenset(options.stop_token_ids),
        beam=options.beam,
        min_tokens=min(options.min_tokens, limit),
        visible_ids=options.visible_ids,
        salt=caller.salted(options.cache_salt),
        key=caller.name,
        is_streamed=options.is_streamed,
    )
