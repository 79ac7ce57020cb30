"""`LatencyBudget`: seconds that prefills and sources may add to one step.

    while a stream decodes   prefill_share times a decode step, at least min_prefill_seconds: then
                             the time between two tokens of a stream is a small multiple of the time
                             without prefills. Chunks that take longer are divided by layers among
                             several steps (layered_prefill.py), if possible in whole layers
    while another engine     the same, but at least shared_prefill_seconds: engines of one thread
    waits for its turn       alternate within a short time (engine_thread.py)
    otherwise                what is left of max_plan_seconds: a request that arrives, and one that
                             is cancelled, waits no longer than that

The size of a chunk does not change the bits of a result, so it may depend on the clock. Each step
computes some tokens of a prompt, whatever the times are. Until a time was measured, nothing is
limited; the prompt of a stream is measured before the stream decodes.

Differs from Sarathi-Serve (Agrawal 2024), where the budget is a fixed number of tokens: the cost of
a token varies with the context, the machine and its load by a factor of ten.
"""

from __future__ import annotations

from weft.engine.config import SchedulerConfig
from weft.engine.scheduling.plan import Chunk, mean_context
from weft.engine.scheduling.step_times import UNLIMITED, StepTimes

MAX_PARTS = 14
"""Expected number of steps among which the layers of a chunk are divided, unless each step computes
whole layers. With fewer steps, the chunks of a long prompt are too small to be efficient; with
more, a chunk delays the prompts after it."""
MIN_LAYERED_CHUNK = 256
"""Minimum tokens of such a chunk, if the prompt has as many, even if they take more steps: in
smaller chunks, calls for some tokens of a layer are inefficient."""
MIN_WHOLE_LAYERS = 160
"""Minimum tokens of a chunk of which each step computes whole layers; with fewer, parts of a
layer."""
FILL = (0.65, 0.95)
"""Minimum and maximum share of its seconds that a step uses for layers: a step may take longer than
expected, and decodes become slower as the context of a stream grows."""
LAYER_FILL = 0.75
"""Share of the seconds that whole layers take, if the size of the chunk allows."""
MIN_CHUNK = 2
"""Minimum tokens of a prompt in a step, because fewer tokens cost nearly as much."""


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
        """`num_decodes`: sequences that decode in this step. `has_stream`: one of them is streamed.
        `is_shared`: another engine of the thread has work."""
        self.times, self.num_layers = times, config.num_layers
        self.decode_seconds, self.has_stream = times.decode_seconds(num_decodes), has_stream
        self.seconds = max(0.0, config.max_plan_seconds - self.decode_seconds)
        if has_stream or is_shared:
            least = config.min_prefill_seconds if has_stream else config.shared_prefill_seconds
            share = config.prefill_share * self.decode_seconds
            self.seconds = min(self.seconds, max(share, least))
        self.can_divide = has_stream and config.num_layers > 1
        """Whether the layers of a chunk may be divided among several steps."""
        self.chunk_seconds = (MAX_PARTS if self.can_divide else 1) * self.seconds
        """Seconds that the chunks of a plan may take in all steps together."""
        self.left = 1.0
        """Unused part of these seconds."""

    def limit(self, seconds: float) -> None:
        """Limit the budget to `seconds`, in one step."""
        self.seconds = self.chunk_seconds = min(self.seconds, seconds)
        self.can_divide = False

    def num_tokens(self, context: int, reserved: float = 0.0) -> int:
        """Number of tokens of a prompt that fit, after `context` earlier tokens; 0: it has to wait.
        `reserved`: share of the seconds that is left for others."""
        num_tokens = int((self.left - reserved) * self.max_tokens(context))
        if num_tokens < MIN_CHUNK:
            return 0 if self.left < 1 else MIN_CHUNK
        return num_tokens

    def use(self, num_tokens: int, context: int) -> None:
        """Subtract the time of planned tokens of a prompt."""
        self.left -= num_tokens / self.max_tokens(context)

    def max_tokens(self, context: int) -> int:
        """Number of tokens after `context` earlier ones that use up the whole budget."""
        if not self.can_divide:
            return self.times.prefill_tokens(self.chunk_seconds, context)
        middle = context + MIN_LAYERED_CHUNK / 2
        cost = self.times.layered_seconds(MIN_LAYERED_CHUNK, middle) / MIN_LAYERED_CHUNK
        if not cost:
            return UNLIMITED
        # so that each step computes whole layers: all steps take the same time, with fewer calls
        per_layer = LAYER_FILL * self.seconds * self.num_layers / cost
        num_tokens = int(per_layer / max(1, round(per_layer / MIN_LAYERED_CHUNK)))
        if num_tokens >= MIN_WHOLE_LAYERS:
            return num_tokens
        return max(MIN_LAYERED_CHUNK, int(self.chunk_seconds / cost))

    def has_time_for(self, chunks: list[Chunk]) -> bool:
        """Whether all layers of these prefills are expected to fit into one step."""
        return self.expected_seconds(chunks) <= self.seconds

    def num_layered_tokens(self, chunks: list[Chunk]) -> tuple[int, int]:
        """(minimum, maximum) tokens of these prefills, counted once per layer, that a step should
        compute."""
        num_tokens = self.num_layers * sum(len(chunk.tokens) for chunk in chunks)
        seconds = self.seconds / (self.expected_seconds(chunks) or self.seconds or 1.0)
        least, most = (int(num_tokens * min(1.0, fill * seconds)) for fill in FILL)
        return least, most

    def expected_seconds(self, chunks: list[Chunk]) -> float:
        num_tokens, context = sum(len(chunk.tokens) for chunk in chunks), mean_context(chunks)
        if self.can_divide:
            return self.times.layered_seconds(num_tokens, context)
        return self.times.prefill_seconds(num_tokens, context)

    @property
    def num_encoder_tokens(self) -> int:
        """Tokens of sources and texts that may be encoded; a first one always may."""
        return self.times.encoder_tokens(self.seconds)

    def use_encoder(self, num_tokens: int) -> None:
        """Subtract the time of a planned source."""
        self.left -= num_tokens / self.times.encoder_tokens(self.seconds)

    def num_steps(self, limit: int) -> int:
        """Decode steps of a multi-step plan, up to `limit`."""
        if not self.decode_seconds:
            return limit
        return max(1, min(limit, 1 + int(self.seconds / self.decode_seconds)))
