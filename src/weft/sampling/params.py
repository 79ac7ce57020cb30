"""Sampling parameters: how the next token is chosen from its logits.

Names and ranges are those of OpenAI's API where it has them, otherwise those of vLLM and
transformers. Differs from both: a value outside its range is an error, it is never clamped, and the
ranges keep logits finite in float32: the largest bias times the largest penalty divided by the
smallest temperature is 1e31.

The fields are the only declaration of the parameters. Type, range, default and help text of the
command-line options are read from here (`cli/generation_options.py`), and the docstring of a field
is its help text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, ClassVar, TypedDict

from pydantic import Field

from weft.core.config import Config
from weft.core.errors import UsageError, shown

GREEDY_BELOW = 1e-5
"""A smaller temperature is treated as 0: dividing by it would overflow float32."""

MODEL_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Parameters that a checkpoint may have its own defaults of."""

TokenId = Annotated[int, Field(ge=0)]
MAX_BIAS, MAX_FACTOR = 1e20, 1e6
MAX_LOGPROBS = 20
"""As in OpenAI's API."""
Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class SamplingParams(Config):
    """Parameters of one request. Temperature 0 is greedy: the argmax after bias and penalties."""

    temperature: float = Field(1.0, ge=0, le=MAX_FACTOR, allow_inf_nan=False)
    """Divides the logits before a draw: below 1 likely tokens are drawn more often; 0: greedy."""
    top_k: int = Field(0, ge=0)
    """Sample from the k most likely tokens; 0: all."""
    top_p: float = Field(1.0, ge=0, le=1)
    """Nucleus sampling: the most likely tokens whose probabilities add up to this; 1: all; 0: only
    the most likely one."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Minimum probability of a token, relative to the most likely token; 0: no minimum."""
    repetition_penalty: float = Field(1.0, ge=1 / MAX_FACTOR, le=MAX_FACTOR, allow_inf_nan=False)
    """Above 1: tokens of the prompt and the output become less likely; 1: off."""
    presence_penalty: Penalty = 0.0
    """Subtracted from the logits of tokens that occur in the output."""
    frequency_penalty: Penalty = 0.0
    """Subtracted from a token's logit once for each occurrence in the output."""
    logit_bias: dict[TokenId, Bias] = {}
    """Added to the logits of single tokens: {id: bias}."""
    banned: tuple[TokenId, ...] = ()
    """Token ids that are never chosen."""
    seed: int = Field(0, ge=0)
    """Seed of the random draws; the same seed gives the same text."""
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """Return the log-probability of each token and of the N most likely ones."""

    keep_argmax: ClassVar[frozenset[str]] = frozenset(
        {"temperature", "top_k", "top_p", "min_p", "seed", "logprobs"}
    )
    """Fields that never change which token is the most likely."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def changes_argmax(self) -> bool:
        """Whether bias, bans or penalties can change which token is the most likely."""
        values = self.__dict__
        return any(values[name] != default for name, default in argmax_defaults(type(self)))

    def check_ids(self, vocab_size: int) -> None:
        """Raise a UsageError for ids outside the vocabulary, or if every id is banned."""
        for name, ids in (("logit_bias", self.logit_bias), ("banned", self.banned)):
            wrong = [index for index in ids if index >= vocab_size]
            if wrong:
                raise UsageError(
                    f"{name} contains id {shown(wrong[0])}, but ids range from 0 to "
                    f"{vocab_size - 1}. Use ids of this model's vocabulary."
                )
        if len(set(self.banned)) == vocab_size:
            raise UsageError(
                f"banned contains all {vocab_size} ids, so no token can be chosen. Ban fewer."
            )


@cache
def argmax_defaults(cls: type[SamplingParams]) -> tuple[tuple[str, object], ...]:
    """Name and default of the fields that can change which token is the most likely."""
    fields = cls.model_fields.items()
    return tuple((name, one.default) for name, one in fields if name not in cls.keep_argmax)


class SamplingKeywords(TypedDict, total=False):
    """The fields of SamplingParams as keyword arguments."""

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
