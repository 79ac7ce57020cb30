"""`StepTimes`: how long steps take, measured from the steps that were completed.

    decode_seconds(8)            seconds of a step that decodes 8 sequences
    prefill_tokens(0.02, 1000)   prompt tokens, after 1,000 others, that take 0.02 s in a step
    layered_seconds(128, 1000)   seconds of all layers of a chunk that is divided by layers
    encoder_tokens(0.02)         tokens of sources and texts that take 0.02 s
    prefill_rate, decode_rate    tokens per second of steps of their kind

`DrainRate`: how fast a queue becomes shorter, which also depends on what else the steps compute.

The cost of a prompt token depends on the number n of prompt tokens in the step, which share the
time to read weights and keys, and on the number c of earlier tokens. For each number of binary
digits of n there is a line

    seconds per token = level * (1 + c / half_context)

`level` is a moving average that follows the load of the machine within a few steps; `half_context`
depends on the model and is fitted by regression over many steps. Two rules keep the estimates
consistent: a token never costs more than one of a smaller chunk that was measured later, so that
one slow step does not rule out a size; and never less than one of a larger chunk that was measured
later, so that a size last used with short contexts is not underestimated.

Chunks that are divided by layers (layered_prefill.py) have one line for all sizes: each call reads
the weights of a layer from a cache, so a token costs the same from LAYERED_TOKENS on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from weft.engine.scheduling.plan import Chunk, Plan, mean_context

MEMORY_SECONDS = 10.0
"""Half-life of a step in the rates, in seconds of steps of its kind."""
DRAIN_STEPS = 4
"""Number of steps after which the rates of a queue are known."""
DRAIN_OUTLIER = 4.0
"""In these rates, a step counts at most this many times the average: the first steps of a process
take hundreds of times as long as others."""
DRAIN_MEMORY_SECONDS = 20.0
"""The half-life for the rates of a queue; longer, as phases of prefills and decodes alternate for
seconds."""
SMOOTHING = 0.25
"""Weight of the last step in a moving average."""
OUTLIER = 2.0
"""A step counts at most this many times the average, against outliers such as garbage
collections."""
SMALLER_COST = 1.3
"""Expected cost of a token, relative to that in chunks of twice the size, until it is measured."""
LAYERED_TOKENS = 24
"""A layer with fewer tokens takes as long as one with this many."""
UNLIMITED = 1 << 30


@dataclass
class Rate:
    """Tokens per second, a moving average in which long steps count more."""

    tokens: float = 0.0
    seconds: float = 0.0
    memory: float = MEMORY_SECONDS

    def add(self, tokens: float, seconds: float) -> None:
        decay = 0.5 ** (seconds / self.memory)
        # one assignment: a thread that reads the rate never sees one without the other
        self.tokens, self.seconds = self.tokens * decay + tokens, self.seconds * decay + seconds

    @property
    def per_second(self) -> float:
        """0.0: not measured yet."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class MovingAverage:
    """Moving average of seconds; starts with the smaller of two values, as the first step of a
    process is slow."""

    seconds: float = 0.0
    """0.0: not measured yet."""
    num: int = 0

    def add(self, seconds: float) -> None:
        self.num += 1
        if self.num <= 2:
            self.seconds = min(seconds, self.seconds or seconds)
            return
        seconds = min(seconds, OUTLIER * self.seconds)
        self.seconds += SMOOTHING * (seconds - self.seconds)


@dataclass
class DrainRate:
    """Tokens and requests per second of wall-clock time at which waiting prompts are computed, in
    steps that begin while requests wait. Unlike the prefill rate, it includes decodes and the time
    between steps, and excludes steps without a queue, whose few tokens cost many times as much.
    Requests that arrived during the previous step count as waiting even if this step admits them;
    otherwise the rate of a busy engine would be that of its longest prefills."""

    tokens: Rate = field(default_factory=lambda: Rate(memory=DRAIN_MEMORY_SECONDS))
    requests: Rate = field(default_factory=lambda: Rate(memory=DRAIN_MEMORY_SECONDS))
    ended_at: float | None = None
    """End of the last step, if requests were left then."""
    step: MovingAverage = field(default_factory=MovingAverage)
    """From the end of a step to the end of the next."""

    def add(
        self, num_tokens: int, num_requests: int, now: float, has_queue: bool, is_idle: bool
    ) -> None:
        """Record a step. `num_tokens`: tokens of prompts, sources and texts that were computed or
        found in a cache. `num_requests`: admitted requests. `has_queue`: requests waited when it
        was planned. `is_idle`: no request is left."""
        begin, self.ended_at = self.ended_at, None if is_idle else now
        if not has_queue or begin is None or now <= begin:
            return
        self.step.add(now - begin)
        if self.step.num > 1:
            seconds = min(now - begin, DRAIN_OUTLIER * self.step.seconds)
            self.tokens.add(num_tokens, seconds)
            self.requests.add(num_requests, seconds)

    @property
    def token_rate(self) -> float:
        """0.0: not measured yet."""
        return self.upper_rate(self.tokens)

    @property
    def request_rate(self) -> float:
        """0.0: not measured yet."""
        return self.upper_rate(self.requests)

    def upper_rate(self, rate: Rate) -> float:
        """An upper bound that is not 0 once measured: if nothing was computed for some seconds, a
        request may still be admitted now."""
        is_known = self.step.num >= DRAIN_STEPS and rate.seconds > 0.0
        return max(rate.per_second, 1 / rate.seconds) if is_known else 0.0


@dataclass
class ContextCost:
    """Cost of a token as a linear function of its context, by regression."""

    weight: float = 0.0
    context: float = 0.0
    seconds: float = 0.0
    context_squared: float = 0.0
    product: float = 0.0
    half_context: float = inf
    """Number of keys whose attention doubles the cost; infinite until it is known."""

    def add(self, context: float, seconds: float, decay: float = 0.99) -> None:
        self.weight = self.weight * decay + 1
        self.context = self.context * decay + context
        self.seconds = self.seconds * decay + seconds
        self.context_squared = self.context_squared * decay + context * context
        self.product = self.product * decay + context * seconds
        self.update()

    def update(self) -> None:
        """Fit the line, if the contexts differ enough."""
        spread = self.weight * self.context_squared - self.context**2
        if self.weight < 4 or spread < (200 * self.weight) ** 2:
            return
        slope = (self.weight * self.product - self.context * self.seconds) / spread
        base = (self.seconds - slope * self.context) / self.weight
        if base > 0:
            self.half_context = max(256.0, base / slope) if slope > 0 else inf


@dataclass
class ChunkCost:
    """Seconds per prompt token in steps with one size of prefills."""

    level: MovingAverage = field(default_factory=MovingAverage)
    line: ContextCost = field(default_factory=ContextCost)
    measured_in: int = 0
    """Number of the last prefill."""

    def at(self, context: float) -> float:
        return self.level.seconds * (1 + context / self.line.half_context)

    def add(self, context: float, seconds: float, number: int) -> None:
        self.line.add(context, seconds)
        self.level.add(seconds / (1 + context / self.line.half_context))
        self.measured_in = number


@dataclass
class LayeredCost:
    """Seconds per prompt token, for all layers, of chunks that are divided by layers; until there
    are any, of other chunks."""

    level: MovingAverage = field(default_factory=MovingAverage)
    """At this context."""
    context: float = 0.0
    line: ContextCost = field(default_factory=ContextCost)

    def at(self, context: float, half_context: float) -> float:
        """`half_context`: used as long as its own is not known."""
        if self.line.half_context < inf:
            half_context = self.line.half_context
        ratio = (1 + context / half_context) / (1 + self.context / half_context)
        return self.level.seconds * ratio

    def add(self, context: float, seconds: float, half_context: float) -> None:
        self.level.seconds, self.context = self.at(context, half_context), context
        self.level.add(seconds)
        self.line.add(context, seconds)


@dataclass
class StepTimes:
    """The measured times of one engine. All times are arguments; it reads no clock."""

    prefill: Rate = field(default_factory=Rate)
    decode: Rate = field(default_factory=Rate)
    decode_steps: dict[int, MovingAverage] = field(default_factory=dict)
    """By the binary digits of the number of sequences."""
    chunks: dict[int, ChunkCost] = field(default_factory=dict)
    """By the binary digits of the number of prompt tokens."""
    layered: LayeredCost = field(default_factory=LayeredCost)
    encoder_token: MovingAverage = field(default_factory=MovingAverage)
    num_prefills: int = 0

    @property
    def prefill_rate(self) -> float:
        """Tokens of prompts, sources and texts per second; 0.0: not measured yet."""
        return self.prefill.per_second

    @property
    def decode_rate(self) -> float:
        """New tokens of all requests together per second; 0.0: not measured yet."""
        return self.decode.per_second

    def decode_seconds(self, num_sequences: int) -> float:
        """Seconds of a step that decodes `num` sequences, or the nearest measured number; 0.0: not
        measured yet."""
        if not num_sequences or not self.decode_steps:
            return 0.0
        digits = num_sequences.bit_length()
        return self.decode_steps[min(self.decode_steps, key=lambda one: abs(one - digits))].seconds

    def token_seconds(self, digits: int, context: float) -> float:
        """Additional time for a prompt token in a chunk of this size."""
        exact = self.chunks.get(digits)
        smaller = [one for size, one in self.chunks.items() if size < digits]
        if exact is not None:
            cost, later = exact.at(context), exact.measured_in
            recent = {size: one for size, one in self.chunks.items() if one.measured_in > later}
            cost = min([cost, *(one.at(context) for size, one in recent.items() if size < digits)])
            return max([cost, *(one.at(context) for size, one in recent.items() if size > digits)])
        if smaller:
            return min(one.at(context) for one in smaller)
        nearest = min(self.chunks)
        return self.chunks[nearest].at(context) * SMALLER_COST ** (nearest - digits)

    def prefill_tokens(self, seconds: float, context: int) -> int:
        """Number of prompt tokens, after `context` earlier ones, that take `seconds` in a step; at
        least 1."""
        if not self.chunks:
            return UNLIMITED
        for digits in range(max(self.chunks) + 1, 0, -1):
            smallest, largest = 1 << digits - 1, (1 << digits) - 1
            cost = self.token_seconds(digits, context + smallest / 2)
            if cost * smallest <= seconds:
                is_open = digits > max(self.chunks)
                num_tokens = int(seconds / cost) if cost else UNLIMITED
                return num_tokens if is_open else min(largest, num_tokens)
        return 1

    def prefill_seconds(self, num_tokens: int, context: float) -> float:
        """Seconds that prompt tokens with this mean context add to a step; 0.0: not measured
        yet."""
        if not self.chunks:
            return 0.0
        return num_tokens * self.token_seconds(num_tokens.bit_length(), context)

    def layered_seconds(self, num_tokens: int, context: float) -> float:
        """Seconds that all layers of a chunk that is divided by layers take; 0.0: not measured
        yet."""
        return max(num_tokens, LAYERED_TOKENS) * self.layered_token_seconds(context)

    def layered_token_seconds(self, context: float) -> float:
        if self.layered.level.num:
            return self.layered.at(context, self.half_context)
        return self.token_seconds(LAYERED_TOKENS.bit_length(), context) if self.chunks else 0.0

    @property
    def half_context(self) -> float:
        """Of the chunks that depend most on their context; infinite until it is known."""
        return min([one.line.half_context for one in self.chunks.values()], default=inf)

    def encoder_tokens(self, seconds: float) -> int:
        """Number of tokens of sources and texts that take `seconds` in a step; at least 1."""
        cost = self.encoder_token.seconds
        return max(1, int(seconds / cost)) if cost else UNLIMITED

    def add(self, plan: Plan, seconds: float) -> None:
        """Record a completed step."""
        num_decodes, prefills, share = 0, list[Chunk](), 1.0
        for chunk in plan.whole_chunks:
            if chunk.is_decode:
                num_decodes += 1 + len(chunk.spares)
            else:
                prefills.append(chunk)
        if plan.layered is not None:  # then nothing else is prefilled
            prefills, share = plan.layered.chunks, plan.layered.share
        num_encoded = plan.num_encoder_tokens
        if not prefills and not num_encoded:
            self.add_decode(num_decodes, plan.num_steps, seconds)
            return
        num_prefill = sum(len(chunk.tokens) for chunk in prefills)
        rest = max(seconds - self.decode_seconds(num_decodes), seconds / 4)
        num_computed = share * num_prefill + num_encoded
        self.prefill.add(num_computed, rest)
        if num_encoded:
            self.encoder_token.add(rest / num_computed)
        if num_prefill and num_computed:
            self.add_layered(prefills, num_computed / num_prefill, rest)
        if num_prefill and plan.layered is None:
            cost = self.chunks.get(num_prefill.bit_length(), ChunkCost())
            cost.add(mean_context(prefills), rest / num_computed, self.num_prefills + 1)
            self.chunks[num_prefill.bit_length()] = cost  # complete, should this be interrupted
            self.num_prefills += 1

    def add_layered(self, chunks: list[Chunk], share: float, seconds: float) -> None:
        """Record the time of all or some layers of divided chunks."""
        num_tokens = share * max(LAYERED_TOKENS, sum(len(chunk.tokens) for chunk in chunks))
        self.layered.add(mean_context(chunks), seconds / num_tokens, self.half_context)

    def add_decode(self, num_sequences: int, num_steps: int, seconds: float) -> None:
        """Record a step, or several in one plan, that only decoded."""
        if num_sequences:
            self.decode.add(num_sequences * num_steps, seconds)
            average = self.decode_steps.setdefault(num_sequences.bit_length(), MovingAverage())
            average.add(seconds / num_steps)
