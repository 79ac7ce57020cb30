"""Streams that have just begun wait for short prompts that came with them, with a clock of the
test."""

from __future__ import annotations

from tests.engine.scheduling.world import World
from weft.engine.scheduling.plan import Appended, Plan
from weft.engine.scheduling.sequence import Request

SHORT, LONG = 40, 400
"""Tokens; 0.04 s and 0.4 s."""


class Burst:
    """Requests of streams; a step takes 10 ms and 1 ms for each further token."""

    def __init__(self, **settings: float) -> None:
        self.time = 100.0
        defaults = {"token_budget": 1000, "max_len": 512, "num_pages": 900, "max_running": 64}
        self.world = World("none", now=lambda: self.time, **(defaults | settings))
        self.num_added = 0
        self.gaps: dict[str, list[float]] = {}
        """Times of the tokens of each request."""
        self.add(SHORT, new_tokens=1)  # measures the time of a prompt token
        self.run()
        self.gaps.clear()

    def add(self, length: int, new_tokens: int = 9, is_streamed: bool = True) -> str:
        self.num_added += 1
        name, begin = f"r{self.num_added}", 1000 * self.num_added
        prompt = tuple(range(begin, begin + length))
        self.world.add(Request(name, prompt, new_tokens, is_streamed=is_streamed))
        return name

    def step(self) -> Plan:
        plan = self.world.scheduler.schedule()
        work = float(plan.num_tokens)
        if plan.layered is not None:
            work = sum(len(one.tokens) for one in plan.whole_chunks)
            work += plan.layered.share * plan.layered.num_tokens
        self.time += 0.01 + 0.001 * work
        sampled = [chunk.sequence_id for chunk in plan.chunks if chunk.num_samples]
        self.world.scheduler.commit(plan, {key: Appended([7]) for key in sampled})
        for key in sampled:
            self.gaps.setdefault(key.request_id, []).append(self.time)
        self.world.check()
        return plan

    def run(self) -> list[Plan]:
        plans = []
        while not self.world.scheduler.is_idle:
            plans.append(self.step())
        return plans


def num_decodes(plan: Plan) -> int:
    return sum(chunk.is_decode for chunk in plan.chunks)


def test_streams_that_arrive_together_decode_together():
    burst = Burst()
    burst.add(SHORT)
    assert num_decodes(burst.step()) == 0  # its prompt; the others arrive meanwhile
    for _ in range(7):
        burst.add(SHORT)
    plans = burst.run()
    assert [num_decodes(plan) for plan in plans] == [0, *[8] * 8]


def test_streams_wait_no_longer_than_the_limit_and_only_for_their_second_token():
    burst = Burst(max_hold_seconds=0.3, num_layers=6)
    burst.add(SHORT, new_tokens=60)
    burst.step()
    for _ in range(30):
        burst.add(SHORT)
    burst.run()
    longest = max(times[1] - times[0] for times in burst.gaps.values())
    assert 0.2 < longest <= 0.3 + 0.05
    first = burst.gaps["r2"]
    later = [after - before for before, after in zip(first[1:], first[2:], strict=False)]
    assert max(later) <= 3.2 * 0.03  # a decode step and twice its time, with up to 16 sequences


def test_a_stream_with_two_tokens_waits_for_nobody():
    burst = Burst(num_layers=6)
    burst.add(SHORT)
    burst.step()
    burst.step()
    burst.add(SHORT)
    assert num_decodes(burst.step()) == 1


def test_a_long_prompt_makes_no_stream_wait():
    burst = Burst(num_layers=6)
    burst.add(SHORT)
    burst.step()
    burst.add(LONG)
    burst.add(SHORT)
    assert num_decodes(burst.step()) == 1


def test_requests_that_are_not_streamed_decode_meanwhile():
    burst = Burst()
    burst.add(SHORT, is_streamed=False)
    burst.add(SHORT)
    burst.step()
    burst.add(SHORT)
    plan = burst.step()
    assert [chunk.request.id for chunk in plan.chunks if chunk.is_decode] == ["r2"]
    assert num_decodes(burst.step()) == 3


def test_streams_decode_if_the_prompts_they_wait_for_find_no_pages():
    burst = Burst(num_pages=20, max_len=64)
    burst.add(SHORT, new_tokens=20)
    burst.step()
    burst.add(SHORT + 10)
    plan = burst.step()
    assert num_decodes(plan) == 1 and not plan.num_admitted
    burst.run()


def test_a_limit_of_zero_switches_it_off():
    burst = Burst(max_hold_seconds=0.0)
    burst.add(SHORT)
    burst.step()
    burst.add(SHORT)
    assert num_decodes(burst.step()) == 1
