"""Settings of the engine: how much memory its cache has, and how it shares a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from weft.cache import PREFIX_CACHES
from weft.core.choices import nearest
from weft.core.config import Config
from weft.core.errors import Problem
from weft.engine.schedule.settings import SchedulerConfig


def in_batches(tokens: int) -> dict[str, int]:
    """Fields of EngineConfig for work that waits as a whole, so that nobody minds long steps: so
    many tokens of prompts and sources in each, and twice the passes of a service."""
    return {"token_budget": tokens, "encoder_budget": tokens, "passes": 16}


class EngineConfig(Config):
    """Defaults suit a small model on an ordinary machine."""

    cache_gib: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Memory for the rows of all sequences and sources; taken as it is used."""
    reserve: bool = False
    """Take all of that memory at the start: the first use of a page of memory stops the engine for
    some microseconds, a tenth of a small model's time until all of it has been used."""
    page_size: int = Field(16, ge=1, le=256)
    """Tokens of a page."""
    prefix_cache: str = "radix"
    """How prompts share what they have in common: a name in PREFIX_CACHES."""
    activations: Literal["float32", "int8"] = "float32"
    """int8: products with weights of few bits, as a GGUF has them, round their inputs to 8 bits, as
    llama.cpp does. Two to three times as fast on a CPU, and no longer exact."""
    speculate: bool = False
    """Guess tokens from what stood before and check them in one pass. The result is the same."""
    token_budget: int = Field(2048, ge=1)
    """Tokens that one step runs at most."""
    encoder_budget: int = Field(2048, ge=1)
    """Tokens of sources and of texts to be embedded that one step runs at most."""
    max_running: int = Field(256, ge=1)
    """Sequences that run at the same time; n samples or a beam of n count n times."""
    passes: int = Field(8, ge=1)
    """Passes that one step makes at most while all who run are searches of one width, of whom
    nothing is heard before they end. Others who come wait for the last of them."""
    preempt_every: int | None = Field(None, ge=1)
    """For tests. Every so many steps the latest request is preempted."""
    miss_every: int | None = Field(None, ge=1)
    """For tests. Every so many admissions find nothing in the prefix cache."""

    def cross_checks(self) -> Iterable[Problem]:
        if self.prefix_cache not in PREFIX_CACHES:
            known = ", ".join(PREFIX_CACHES)
            guess = nearest(self.prefix_cache, PREFIX_CACHES)
            hint = f" Did you mean '{guess}'?" if guess else ""
            yield Problem(
                f"prefix_cache is '{self.prefix_cache}': allowed are {known}.{hint}",
                ("prefix_cache",),
            )

    @classmethod
    def of_batches(cls, tokens: int) -> EngineConfig:
        """For work that waits as a whole."""
        return cls(**in_batches(tokens))

    def scheduler(self, max_len: int, can_burst: bool = True) -> SchedulerConfig:
        """The part that the scheduler reads. `can_burst`: the model runs several passes a plan."""
        return SchedulerConfig(
            token_budget=self.token_budget,
            encoder_budget=self.encoder_budget,
            max_running=min(self.max_running, self.token_budget),
            passes=self.passes if can_burst else 1,
            max_len=max_len,
            max_source_len=max_len,
            preempt_every=self.preempt_every,
            miss_every=self.miss_every,
        )
