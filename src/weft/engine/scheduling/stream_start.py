"""`StreamStart`: streams with one token wait for short prompts that arrived at the same time.

    hold = streams.seconds()        seconds for prefills in this step, without the decodes of these
                                    streams; 0.0: they decode

The prompts of requests that arrive together are computed one after another. Without waiting, one
stream would decode, then two, then three, each step taking nearly as long as a step of all streams,
and the prefills in between would be slowed down to two thirds. So if every decoding stream has only
its first token, and all waiting prompts are short, the prompts are computed first, and then all
streams decode together. A stream waits at most `max_hold_seconds`, once, for its second token.
After its second token it never waits, so that inter-token latency stays within the latency budget
(latency_budget.py).

Differs from prefill-first scheduling (vLLM V0), where streams wait at any time and without a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from weft.engine.scheduling.scheduler_state import SchedulerState
from weft.engine.scheduling.sequence import SequenceGroup

SHORT_SECONDS = 0.25
"""Maximum expected seconds of a prompt that streams wait for."""


class StreamStart:
    """The state between steps: since when streams wait."""

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self.began_at: float | None = None
        """Time at which the streams began to wait; None: none waits."""

    def seconds(self) -> float:
        """Seconds for prefills in this step, in which the streams wait; 0.0: the streams decode."""
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
        """Whether streams decode, and all of them have exactly one token."""
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
        """Expected seconds of the shortest waiting prompt; 0.0: there is none, one of them is long,
        or nothing was measured yet."""
        shortest = 0.0
        for num_tokens in self.prompts():
            seconds = self.state.step_times.prefill_seconds(num_tokens, num_tokens / 2)
            if not 0.0 < seconds <= SHORT_SECONDS:
                return 0.0
            shortest = min(seconds, shortest or seconds)
        return shortest

    def prompts(self) -> Iterator[int]:
        """Numbers of tokens to compute of the prompts that may be in the next plan."""
        for group in self.state.running.values():
            if not group.is_decoding:
                yield group.num_uncomputed
        prefix_cache, window = self.state.kv_cache.prefix_cache, self.state.config.order_window
        for queue in list(self.state.waiting.queues.values()):
            for group in islice(queue, window):
                yield max(1, group.num_uncomputed - prefix_cache.peek(group.prefix_query))


def has_begun(group: SequenceGroup) -> bool:
    """Whether a group is a stream that decodes."""
    is_stream = group.request.is_streamed and group.is_decoding
    return is_stream and group.first.num_generated > 0
