"""Settings of sampling: how a token is chosen from its logits.

The names and ranges are those of OpenAI's API, where it has them, and of vLLM and transformers
otherwise. Differs from theirs: a value that cannot work is refused with its range, never clamped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypedDict

from pydantic import Field

from weft.core.config import Config
from weft.core.errors import UsageError

GREEDY_BELOW = 1e-5
"""Dividing by less than this would leave the range of float32: such a temperature is greedy."""

TokenId = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class SamplingConfig(Config):
    """temperature 0 is greedy: the most likely token once bias, bans and penalties have spoken."""

    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    """0: greedy. Below 1: sharper. Above 1: flatter."""
    top_k: int = Field(0, ge=0)
    """Only the k most likely tokens; 0: all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Only the most likely tokens that together reach this probability (Holtzman 2020)."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Only tokens at least this share as likely as the most likely one (Nguyen 2024)."""
    repetition_penalty: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Above 1: what stands in the prompt or the output is less likely (Keskar 2019). 1: off."""
    presence_penalty: Penalty = 0.0
    """Taken from the logit of every token that the output has. Below 0: added."""
    frequency_penalty: Penalty = 0.0
    """Taken from a token's logit once for each time that the output has it. Below 0: added."""
    logit_bias: dict[TokenId, Finite] = {}
    """Added to the logits of single tokens: {id: number}."""
    banned: tuple[TokenId, ...] = ()
    """Ids that are never chosen."""
    seed: int = Field(0, ge=0)
    """The same seed draws the same tokens."""
    logprobs: int | None = Field(None, ge=0)
    """How many of the likeliest tokens are reported beside the chosen one; None: nothing is."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def adjusts(self) -> bool:
        """Whether bias, bans or penalties can change which token is the most likely."""
        penalties = self.presence_penalty or self.frequency_penalty
        is_penal = self.repetition_penalty != 1 or penalties
        return bool(self.logit_bias or self.banned or is_penal)

    def check_ids(self, vocab_size: int) -> None:
        """Refuse ids that the vocabulary does not have, and bans that leave nothing of it."""
        for name, ids in (("logit_bias", self.logit_bias), ("banned", self.banned)):
            wrong = [index for index in ids if index >= vocab_size]
            if wrong:
                raise UsageError(
                    f"{name} names id {wrong[0]}, but ids go from 0 to {vocab_size - 1}. Use ids "
                    "of this model's vocabulary."
                )
        if len(set(self.banned)) == vocab_size:
            raise UsageError(
                f"banned names all {vocab_size} ids, so that no token is left to choose. Ban fewer."
            )


class SamplingKeywords(TypedDict, total=False):
    """The fields of SamplingConfig, for calls that take them one by one."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    banned: Sequence[int]
    seed: int
    logprobs: int | None
