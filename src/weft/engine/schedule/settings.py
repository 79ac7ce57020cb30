"""Settings of the scheduler: how much one step may do, and who gets the next turn."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from weft.core.config import Config
from weft.core.errors import Problem


class SchedulerConfig(Config):
    """Defaults suit a small model on a CPU."""

    token_budget: int = Field(2048, ge=1)
    """Tokens of decoders that one step runs at most."""
    encoder_budget: int = Field(2048, ge=1)
    """Tokens of encoders that one step runs at most; a single longer source runs alone."""
    max_running: int = Field(64, ge=1)
    """Sequences that run at the same time; n samples or a beam of n count n times."""
    passes: int = Field(1, ge=1)
    """Passes that a plan may be run for where nobody looks at a token before the last of them."""
    max_len: int = Field(2048, ge=1)
    """Prompt and new tokens together."""
    max_source_len: int = Field(2048, ge=1)
    """Tokens of a source, or of a text to be embedded."""
    watermark: float = Field(0.01, ge=0, lt=1)
    """Share of all pages that admission leaves alone, for those who run already to grow into."""
    order_window: int = Field(64, ge=1)
    """Longest waiting requests that may be served out of turn. 1: first come, first served."""
    patience: int = Field(256, ge=0)
    """Later requests that may be admitted before a waiting one; after that it is the next."""
    preempt_every: int | None = Field(None, ge=1)
    """For tests. Every so many steps the latest request is preempted."""
    miss_every: int | None = Field(None, ge=1)
    """For tests. Every so many admissions find nothing in the prefix cache."""

    def cross_checks(self) -> Iterable[Problem]:
        if self.max_running > self.token_budget:
            yield Problem(
                f"max_running is {self.max_running} but token_budget is {self.token_budget}: each "
                "running sequence needs a token a step. Raise token_budget or lower max_running.",
                ("max_running", "token_budget"),
            )
