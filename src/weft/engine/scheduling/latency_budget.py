"""`LatencyBudget`: seconds that prefills and sources may add to one step.

    while a stream decodes   prefill_share times a decode step, at least min_prefill_seconds: then
                             the time between two tokens of a stream is a small multiple of the time
                             without prefills. Chunks that take longer are divided by layers among
                             up to MAX_PARTS steps (layered_prefill.py)
    while another engine     the same, but at least shared_prefill_seconds: engines of one thread
    waits for its turn       alternate within a short time (engine_thread.py)
    otherwise                what is left of max_plan_seconds: a request that arrives, and one that
                             is cancelled, waits no longer than that

Chunks do not change any bits of a result, so their size may depend on the clock. Each step computes
some tokens of a prompt, whatever the times are. Until a time is known, nothing is limited: the
prompt of a stream was measured before the stream decodes.

Differs from Sarathi-Serve (Agrawal 2024), where the budget is a fixed number of tokens: the cost of
a token varies with the context, the machine and its load by a factor of ten.
"""

from __future__ import annotations

from math import ceil

from weft.engine.config import SchedulerConfig
from weft.engine.scheduling.plan import Chunk, mean_context
from weft.engine.scheduling.step_times import StepTimes

MAX_PARTS = 15
"""Steps that share the layers of a chunk. With fewer, chunks of a long prompt are too small to be
efficient; with one layer per step of a usual model, a step cannot be made shorter when the machine
becomes slower."""
FILL = 0.9
"""Chunks are sized for this part of the steps' time, so that an estimate that is a little too low
does not leave out a layer of each step."""
MIN_CHUNK = 2
"""Fewer tokens cost nearly as much: a step computes at least so many of one prompt, and begins no
further prompt for less."""


def num_parts(num_layers: int) -> int:
    """Steps that share the layers of a chunk: each runs the same number of layers."""
    return ceil(num_layers / ceil(num_layers / MAX_PARTS))


class LatencyBudget:
    """The budget of one step."""

    def __init__(
        self,
        config: SchedulerConfig,
        times: StepTimes,
        num_decodes: int = 0,
        has_stream: bool = False,
        is_shared: bool = False,
    ) -> None:
        """`num_decodes`: sequences that decode in this step; `has_stream`: one of them is
        streamed; `is_shared`: another engine waits for its turn."""
        self.times, self.num_layers = times, config.num_layers
        self.decode_seconds, self.has_stream = times.decode_seconds(num_decodes), has_stream
        self.seconds = max(0.0, config.max_plan_seconds - self.decode_seconds)
        if has_stream or is_shared:
            least = config.min_prefill_seconds if has_stream else config.shared_prefill_seconds
            share = config.prefill_share * self.decode_seconds
            self.seconds = min(self.seconds, max(share, least))
        self.num_parts = num_parts(config.num_layers) if has_stream else 1
        self.chunk_seconds = self.seconds
        """Seconds that the chunks of a plan may take, in one step or several."""
        if self.num_parts > 1:
            self.chunk_seconds = max(self.seconds, FILL * self.num_parts * self.seconds)
        self.left = 1.0
        """Part of these seconds that is not used yet."""

    def num_tokens(self, context: int, reserved: float = 0.0) -> int:
        """Tokens that a prompt may compute after `context` others; 0: it has to wait. `reserved`:
        part of the seconds that is kept for others."""
        num_tokens = self.times.prefill_tokens(self.chunk_seconds, context)
        num_tokens = int((self.left - reserved) * num_tokens)
        if num_tokens < MIN_CHUNK:
            return 0 if self.left < 1 else MIN_CHUNK
        return num_tokens

    def use(self, num_tokens: int, context: int) -> None:
        """Tokens of a prompt were planned."""
        self.left -= num_tokens / self.times.prefill_tokens(self.chunk_seconds, context)

    def has_time_for(self, chunks: list[Chunk]) -> bool:
        """Whether all layers of these prefills are expected to fit into one step."""
        return self.expected_seconds(chunks) <= self.seconds

    def num_layers_of(self, chunks: list[Chunk]) -> int:
        """Layers of these prefills that one step has time for; at least 1."""
        layer_seconds = self.expected_seconds(chunks) / self.num_layers
        if layer_seconds * self.num_layers <= self.seconds:
            return self.num_layers
        return max(1, int(self.seconds / layer_seconds))

    def expected_seconds(self, chunks: list[Chunk]) -> float:
        num_tokens = sum(len(chunk.tokens) for chunk in chunks)
        return self.times.prefill_seconds(num_tokens, mean_context(chunks))

    @property
    def num_encoder_tokens(self) -> int:
        """Tokens of sources and texts that may be encoded; a first one always may."""
        return self.times.encoder_tokens(self.seconds)

    def use_encoder(self, num_tokens: int) -> None:
        """A source was planned."""
        self.left -= num_tokens / self.times.encoder_tokens(self.seconds)

    def num_steps(self, limit: int) -> int:
        """Decode steps of a multi-step plan, up to `limit`."""
        if not self.decode_seconds:
            return limit
        return max(1, min(limit, 1 + int(self.seconds / self.decode_seconds)))
