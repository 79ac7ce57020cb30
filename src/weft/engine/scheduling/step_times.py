"""`StepTimes`: how fast steps are, measured from the steps that were completed.

    prefill_rate   tokens of prompts, sources and texts per second
    decode_rate    new tokens per second, of steps that only decode

Both are sums of tokens and seconds in which older steps count less and less, so that long steps
count more than short ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.engine.scheduling.plan import Plan

MEMORY_SECONDS = 10.0
"""A step counts half after so many seconds of further steps of its kind."""


@dataclass
class Rate:
    """Tokens per second, a moving average."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        decay = 0.5 ** (seconds / MEMORY_SECONDS)
        # one assignment: a thread that reads the rate never sees one without the other
        self.tokens, self.seconds = self.tokens * decay + tokens, self.seconds * decay + seconds

    @property
    def per_second(self) -> float:
        """0.0: nothing was measured."""
        return self.tokens / self.seconds if self.seconds else 0.0


class StepTimes:
    """Rates of prefill and decoding. Every time is passed in."""

    def __init__(self) -> None:
        self.prefill, self.decode = Rate(), Rate()

    @property
    def prefill_rate(self) -> float:
        """Tokens of prompts, sources and texts per second; 0.0: not measured yet."""
        return self.prefill.per_second

    @property
    def decode_rate(self) -> float:
        """New tokens of all requests together per second; 0.0: not measured yet."""
        return self.decode.per_second

    def add(self, plan: Plan, seconds: float) -> None:
        """Record a completed step."""
        num_prefill, num_decodes = plan.num_encoder_tokens, 0
        for chunk in plan.chunks:
            if len(chunk.tokens) - chunk.num_drafts == 1:
                num_decodes += chunk.num_steps
            else:
                num_prefill += len(chunk.tokens)
        if num_prefill == 0:
            self.decode.add(num_decodes, seconds)
            return
        rate = self.decode_rate
        decode_seconds = min(num_decodes / rate, seconds / 2) if rate else 0.0
        self.prefill.add(num_prefill, seconds - decode_seconds)
