"""Settings of the engine (`EngineConfig`) and the part that its scheduler reads
(`SchedulerConfig`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from weft.cache import PREFIX_CACHES
from weft.core.config import Config
from weft.core.errors import Problem
from weft.core.registry import nearest
from weft.models.config import ModelConfig
from weft.nn.positions.config import LearnedConfig

DYNAMIC_SCALING = (
    " (original_max_len of the model's dynamic RoPE scaling, the limit with a KV cache)"
)
POSITION_TABLE = " (position.max_len, the rows of the model's table of learned positions)"

MAX_CACHE_GIB, MAX_COUNT = 65536, 1 << 50
WORKING_GIB = 1.0
"""For the requests that run, if nothing is kept between them."""


def max_len_note(model: ModelConfig) -> str:
    """Added to max_len in messages: why it is lower than the model's; empty if it is not."""
    if model.max_cached_len == model.max_len:
        return ""
    return POSITION_TABLE if isinstance(model.position, LearnedConfig) else DYNAMIC_SCALING


class SchedulerConfig(Config):
    """Limits of one step, and the order of waiting requests."""

    token_budget: int = Field(2048, ge=1)
    """Maximum number of decoder tokens of one step."""
    encoder_budget: int = Field(2048, ge=1)
    """Maximum number of encoder tokens of one step; a single longer source runs alone."""
    max_running: int = Field(64, ge=1)
    """Maximum number of running sequences; n samples or a beam of n count n times."""
    num_steps: int = Field(1, ge=1)
    """Maximum number of decode steps of a plan (multi-step scheduling), used while no token has to
    be returned in between."""
    max_len: int = Field(2048, ge=1)
    """Prompt and new tokens together."""
    max_len_note: str = ""
    """Added to max_len in messages: why it is lower than the model's."""
    max_source_len: int = Field(2048, ge=1)
    """Longest input of an encoder, in tokens: a text to translate or to embed."""
    watermark: float = Field(0.01, ge=0, lt=1)
    """Share of all pages that admission leaves free for running sequences to grow."""
    order_window: int = Field(64, ge=1)
    """Number of waiting requests, earliest first, that are ordered by their cached prefix. 1: first
    come, first served."""
    patience: int = Field(256, ge=0)
    """Number of later requests that may be admitted before a waiting one; then it is the next."""
    num_layers: int = Field(1, ge=1)
    """Layers of the decoder, among which a step can divide prefills; 1: it cannot."""
    prefill_share: float = Field(2.0, ge=0)
    """Time of a step for prefills while a stream decodes, in decode steps."""
    min_prefill_seconds: float = Field(0.01, ge=0)
    """At least this much, for models that decode within a few milliseconds."""
    shared_prefill_seconds: float = Field(0.1, ge=0)
    """The same while another engine of the thread has work, and no stream decodes."""
    max_hold_seconds: float = Field(1.0, ge=0)
    """Streams that have just begun wait at most so long for short prompts that came with them."""
    max_plan_seconds: float = Field(1.5, gt=0)
    """Expected time of a step without streams: prefills are cut so that they end before."""
    preempt_every: int | None = Field(None, ge=1)
    """For tests: preempt the last admitted request every so many steps."""
    miss_every: int | None = Field(None, ge=1)
    """For tests: ignore the prefix cache at every so many admissions."""

    def cross_checks(self) -> Iterable[Problem]:
        if self.max_running > self.token_budget:
            yield Problem(
                f"max_running is {self.max_running} but token_budget is {self.token_budget}: each "
                "running sequence needs a token per step. Raise token_budget or lower max_running.",
                ("max_running", "token_budget"),
            )


class EngineConfig(Config):
    """Defaults suit a small model on an ordinary machine."""

    cache_gib: (
        Literal["auto"] | Annotated[float, Field(ge=0, le=MAX_CACHE_GIB, allow_inf_nan=False)]
    ) = 1.0
    """KV cache size in GiB, for all sequences and sources; memory is assigned as it is used. auto:
    half of the available memory. 0: nothing is kept between requests, neither prefixes nor encoded
    sources; those that run have 1 GiB."""
    is_cache_limit: bool = False
    """Never more than cache_gib, even if a sequence of the maximum length has no room then: for
    models that share a budget. Without effect on auto."""
    num_pages: int | None = Field(None, ge=1, le=MAX_COUNT)
    """Pages of the KV cache, instead of cache_gib. The maximum length becomes that of a sequence,
    and for an encoder-decoder a source of the same length, for which they have room."""
    reserve: bool = False
    """Assign all of that memory at the start: the first use of a memory page stops the engine for
    some microseconds, a tenth of a small model's time until all of it has been used. Weights are
    moved to huge pages too (native/huge_pages.py), which `weft serve` always does."""
    page_size: int = Field(16, ge=1, le=256)
    """Tokens per page of the KV cache; a prefix is shared in whole pages."""
    prefix_cache: str = "radix"
    """How prompts share common prefixes: a name in PREFIX_CACHES."""
    activations: Literal["float32", "int8"] = "float32"
    """float32: exact. int8: products with quantized weights, as in GGUF files, quantize their
    inputs to 8 bits, as llama.cpp does. Two to three times as fast on a CPU, no longer exact."""
    speculate: bool = False
    """Speculative decoding by prompt lookup; the output is unchanged."""
    token_budget: int = Field(2048, ge=1, le=MAX_COUNT)
    """Maximum number of tokens of one step."""
    encoder_budget: int = Field(2048, ge=1, le=MAX_COUNT)
    """Maximum number of tokens of sources and of texts to embed in one step."""
    max_running: int = Field(256, ge=1, le=MAX_COUNT)
    """Maximum number of running sequences; n samples or a beam of n count n times."""
    num_steps: int = Field(8, ge=1, le=MAX_COUNT)
    """Maximum number of decode steps that are scheduled at once while every running request is a
    beam search of the same width, which returns nothing before it ends. Requests that arrive in
    between wait for the last of them."""
    preempt_every: int | None = Field(None, ge=1)
    """For tests: preempt the last admitted request every so many steps."""
    miss_every: int | None = Field(None, ge=1)
    """For tests: ignore the prefix cache at every so many admissions."""

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
    def for_batches(cls, tokens: int) -> EngineConfig:
        """Settings for offline work (see `batch_settings`)."""
        return cls(**batch_settings(tokens))

    @property
    def keeps_requests(self) -> bool:
        """Whether anything of a request is kept for later ones."""
        return self.cache_gib != 0

    @property
    def working_gib(self) -> float | Literal["auto"]:
        """Size of the KV cache in GiB."""
        return self.cache_gib or WORKING_GIB

    def scheduler(self, model: ModelConfig, can_run_multi_step: bool = True) -> SchedulerConfig:
        """The part that the scheduler reads."""
        return SchedulerConfig(
            token_budget=self.token_budget,
            encoder_budget=self.encoder_budget,
            max_running=min(self.max_running, self.token_budget),
            num_steps=self.num_steps if can_run_multi_step else 1,
            num_layers=model.num_layers if model.kind == "decoder" else 1,
            max_len=model.max_cached_len,
            max_len_note=max_len_note(model),
            max_source_len=model.max_cached_len,
            preempt_every=self.preempt_every,
            miss_every=self.miss_every,
        )


def batch_settings(tokens: int) -> dict[str, int]:
    """Fields of EngineConfig for offline work, where long steps do not matter: `tokens` tokens of
    prompts and sources per step, and twice the decode steps per plan of a service."""
    return {"token_budget": tokens, "encoder_budget": tokens, "num_steps": 16}
