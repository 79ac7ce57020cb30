"""The engine as a function of ids: prompts in, continuations out, for tests of everything else."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor

from weft.engine.beam_search import BeamBatch, BeamConfig, BeamSearch, Hypothesis
from weft.engine.client import EngineClient
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.logits import NextTokenLogits
from weft.engine.request import GREEDY, GenerationRequest
from weft.engine.scheduling.plan import Forked
from weft.models.build import AnyModel
from weft.sampling.params import SamplingParams


def advance(searches: Sequence[BeamSearch], logits_NV: Tensor) -> list[list[int]]:
    """One step of all searches with these logits, in batches of one width. Returns the parents of
    the new beams of each; none if it is done."""
    nothing: Any = None
    logits, begins = NextTokenLogits(nothing, logits_NV, logits_NV), [0]
    begins += accumulate(len(search.scores) for search in searches)
    parents: list[list[int]] = [[] for _ in searches]
    for width in {search.config.width for search in searches}:
        indices = [i for i, search in enumerate(searches) if search.config.width == width]
        rows = [row for i in indices for row in range(begins[i], begins[i + 1])]
        batch = BeamBatch([searches[i] for i in indices], [1] * len(indices), False)
        batch.choose(logits.select(rows))
        for i, result in zip(indices, batch.results(), strict=True):
            if isinstance(result, Forked):
                parents[i] = [child.parent for child in result.children]
            else:
                parents[i] = [] if result.is_finished else [0]
    return parents


SMALL = EngineConfig(cache_gib=0.01, page_size=4)


def beam_search(
    model: AnyModel,
    prompts: Sequence[Sequence[int]],
    max_tokens: int | Sequence[int],
    end_id: int | None = None,
    beam: int = 5,
    length_penalty: float = 1.0,
    sources: Sequence[Sequence[int]] | None = None,
    num_best: int = 1,
    first: int | None = None,
    banned: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """The best continuations of each prompt, all searched at once."""
    limits = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else max_tokens
    search = BeamConfig(beam, length_penalty, num_best, first, tuple(banned))
    ends = frozenset() if end_id is None else frozenset([end_id])
    client = EngineClient(Engine(model, config=SMALL))
    actual: list[list[Hypothesis]] = [[] for _ in prompts]
    names = client.submit_all(
        [
            GenerationRequest(tuple(prompt), limit, source, ends=ends, beam=search)
            for prompt, limit, source in zip(prompts, limits, tuples(sources, prompts), strict=True)
        ]
    )
    for place, update in client.results(names):
        actual[place] = update.hypotheses
    return actual


def generate(
    model: AnyModel,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    end_id: int | None = None,
    sampling: SamplingParams = GREEDY,
    sources: Sequence[Sequence[int]] | None = None,
) -> list[list[int]]:
    """The new tokens of each prompt, the end not included."""
    ends = frozenset() if end_id is None else frozenset([end_id])
    client = EngineClient(Engine(model, config=SMALL))
    pairs = zip(prompts, tuples(sources, prompts), strict=True)
    names = client.submit_all(
        [GenerationRequest(tuple(p), max_tokens, source, sampling, ends) for p, source in pairs]
    )
    return [[t for update in client.stream(name) for t in update.tokens] for name in names]


def tuples(
    sources: Sequence[Sequence[int]] | None, prompts: Sequence[Sequence[int]]
) -> list[tuple[int, ...] | None]:
    return [None] * len(prompts) if sources is None else [tuple(source) for source in sources]
