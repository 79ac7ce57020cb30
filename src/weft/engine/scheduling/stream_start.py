"""`StreamStart`: streams that have just begun wait a moment for short prompts that came with them.

    hold = streams.seconds()        seconds for prefills in this step, without the decodes of these
                                    streams; 0.0: they decode

Requests that arrive together are read one after the other, so the first of them would decode alone,
then two, then three: nearly the time of all for each step, between prefills that they slow down to
two thirds. If every stream that decodes has only its first token, and all prompts that wait are
short, the prompts are computed first and all streams decode together from then on. A stream waits
at most `max_hold_seconds` for its second token, once. A stream that has its second token never
waits, so that the time between its tokens stays within the latency budget (latency_budget.py).

Differs from prefill-first scheduling (vLLM V0), where streams wait at any time and without a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from weft.engine.scheduling.scheduler_state import SchedulerState
from weft.engine.scheduling.sequence import SequenceGroup

SHORT_SECONDS = 0.25
"""Expected time of a prompt that streams wait for."""


class StreamStart:
    """How long streams have been held."""

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self.began_at: float | None = None
        """When the streams that are held began to wait; None: none is held."""

    def seconds(self) -> float:
        """Seconds for prefills while the streams wait; 0.0: they decode."""
        limit = self.state.config.max_hold_seconds
        shortest = self.shortest_prompt() if limit and self.have_just_begun() else 0.0
        if not shortest:
            self.began_at = None
            return 0.0
        now = self.state.now()
        if self.began_at is None:
            self.began_at = now
        left = self.began_at + limit - now
        return left if shortest <= left else 0.0

    def have_just_begun(self) -> bool:
        """Whether streams decode, and all of them have one token."""
        if not self.state.num_streamed or self.state.layered is not None:
            return False
        num_streams = 0
        for group in self.state.running.values():
            if has_begun(group):
                num_streams += 1
                if any(sequence.num_generated > 1 for sequence in group.sequences):
                    return False
        return num_streams > 0

    def shortest_prompt(self) -> float:
        """Expected seconds of the shortest prompt that is not computed; 0.0: there is none, one is
        long, or times are not known."""
        shortest = 0.0
        for num_tokens in self.prompts():
            seconds = self.state.step_times.prefill_seconds(num_tokens, num_tokens / 2)
            if not 0.0 < seconds <= SHORT_SECONDS:
                return 0.0
            shortest = min(seconds, shortest or seconds)
        return shortest

    def prompts(self) -> Iterator[int]:
        """Tokens to compute of the prompts that may be in the next plan."""
        for group in self.state.running.values():
            if not group.is_decoding:
                yield group.num_uncomputed
        prefix_cache, window = self.state.kv_cache.prefix_cache, self.state.config.order_window
        for queue in list(self.state.waiting.queues.values()):
            for group in islice(queue, window):
                yield max(1, group.num_uncomputed - prefix_cache.peek(group.prefix_query))


def has_begun(group: SequenceGroup) -> bool:
    """Whether it is a stream that has tokens, and decodes the next ones."""
    is_stream = group.request.is_streamed and group.is_decoding
    return is_stream and group.first.num_generated > 0
