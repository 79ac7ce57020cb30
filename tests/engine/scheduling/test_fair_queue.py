"""Several API keys share one engine: equal tokens, no starvation, and a quick first admission."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.engine.scheduling.world import FULL, World
from weft.engine.scheduling.plan import Appended, Plan
from weft.engine.scheduling.sequence import Request


def admitted(plan: Plan) -> list[str]:
    return [chunk.request.id for chunk in plan.chunks if chunk.start < len(chunk.request.prompt)]


def requests(
    rng: random.Random, key: str, number: int, prompt_len: tuple[int, int], limit: tuple[int, int]
) -> list[Request]:
    return [
        Request(
            f"{key}{i}",
            tuple(rng.choices(range(1000), k=rng.randint(*prompt_len))),
            rng.randint(*limit),
            salt=key,
            key=key,
        )
        for i in range(number)
    ]


def tokens_served(world: World, num_steps: int, rng: random.Random) -> Counter[str]:
    """Prompt tokens and twice the new tokens of each key in so many steps, from the plans."""
    served: Counter[str] = Counter()
    for _ in range(num_steps):
        plan = world.scheduler.schedule()
        appended = {
            c.sequence_id: Appended([rng.randrange(1000)]) for c in plan.chunks if c.num_samples
        }
        for chunk in plan.chunks:
            served[chunk.request.key] += len(chunk.tokens) + bool(chunk.num_samples)
        world.scheduler.commit(plan, appended)
    return served


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_running", [8, 64])
def test_two_keys_with_equal_demand_get_equal_tokens(seed, max_running):
    """However different their requests are, and although the first key has queued all of its
    requests before."""
    rng = random.Random(seed)
    settings = {"token_budget": 256, "max_running": max_running, "max_len": 512}
    world = World("radix", FULL, 600, 16, listen=False, **settings)
    for request in requests(rng, "a", 2000, (16, 256), (1, 64)):
        world.scheduler.add(request)
    tokens_served(world, 20, rng)
    for request in requests(rng, "b", 2000, (1, 32), (32, 200)):
        world.scheduler.add(request)
    served = tokens_served(world, 1000, rng)
    print(served)
    assert {group.request.key for group in world.state.waiting} == {"a", "b"}, "both still wait"
    assert abs(served["a"] - served["b"]) <= 0.1 * max(served.values())


def test_four_keys_are_served_equally_and_none_starves():
    rng = random.Random(3)
    world = World("radix", FULL, 300, 16, listen=False, token_budget=128, max_running=16)
    for number, key in zip((900, 500, 300, 300), "abcd", strict=True):
        for request in requests(rng, key, number, (1, 40), (1, 20)):
            world.scheduler.add(request)
    served = tokens_served(world, 500, rng)
    assert max(served.values()) <= 1.1 * min(served[key] for key in "abcd"), served


def test_a_key_with_nothing_running_is_admitted_beyond_max_running():
    world = World(max_running=2, num_pages=100)
    for number in range(5):
        world.add(Request(f"a{number}", (90 + number, 1, 2), 12, key="a"))
    assert admitted(world.step()) == ["a0", "a1"]
    world.add(Request("b0", (1, 2, 3), 12, key="b"))
    world.add(Request("b1", (2, 2, 3), 12, key="b"))
    assert admitted(world.step()) == ["b0"], "one request, not all of its key"
    world.run_all()
    world.check_results(set())
    world.check_empty()


def test_a_key_with_nothing_running_preempts_the_latest_of_the_key_with_most_pages():
    world = World(max_running=8, num_pages=21, token_budget=64)
    for number in range(3):
        world.add(Request(f"a{number}", tuple(range(number * 20, number * 20 + 20)), 3, key="a"))
    assert admitted(world.step()) == ["a0", "a1", "a2"]
    world.add(Request("b", tuple(range(80, 92)), 3, key="b"))
    plan = world.step()
    assert admitted(plan) == ["b"] and plan.num_preempted == 1
    assert list(world.state.running) == ["a0", "a1", "b"]
    world.run_all()
    world.check_results(set())
    world.check_empty()


def test_the_only_running_request_of_a_key_is_not_preempted_for_another_key():
    world = World(max_running=8, num_pages=9, token_budget=64)
    world.add(Request("a", tuple(range(20)), 8, key="a"))
    world.step()
    world.add(Request("b", tuple(range(80, 92)), 3, key="b"))
    plan = world.step()
    assert not admitted(plan) and plan.num_preempted == 0
    world.run_all()
    world.check_results(set())


def test_a_prompt_of_a_key_does_not_delay_the_first_tokens_of_another():
    world = World(token_budget=16, num_pages=200, max_len=512)
    world.add(Request("long", tuple(range(300)), 3, key="a"))
    world.step()
    world.add(Request("short", (1, 2, 3), 3, key="b"))
    plan = world.step()
    assert [(c.request.id, len(c.tokens)) for c in plan.chunks] == [("long", 8), ("short", 3)]


def test_time_without_requests_earns_nothing():
    world = World(max_running=1, num_pages=100)
    world.add(Request("b", (1, 2, 3), 2, key="b"))
    for number in range(3):
        world.add(Request(f"a{number}", (5 + number, 1, 2), 12, key="a"))
    while "b" in world.state.groups:
        world.step()
    for _ in range(10):
        world.step()
    served = world.state.waiting.served
    assert served["b"] < served["a"]
    world.add(Request("b again", (1, 2, 4), 2, key="b"))
    assert served["b"] == served["a"], "at the counter of the active key"
    world.run_all()
    assert not served and not world.state.waiting.queues, "cleared when nothing is active"


def test_a_key_that_was_served_more_does_not_start_again_at_the_minimum():
    world = World(max_running=2, num_pages=100)
    world.add(Request("b", tuple(range(40)), 1, key="b"))
    world.add(Request("a", (5, 1, 2), 30, key="a"))
    while "b" in world.state.groups:
        world.step()
    before = world.state.waiting.served["b"]
    assert before > world.state.waiting.served["a"]
    world.add(Request("b again", (1, 2, 4), 2, key="b"))
    assert world.state.waiting.served["b"] == before


def test_the_longest_cached_prefix_goes_first_within_a_key():
    world = World(max_running=1, num_pages=100)
    world.add(Request("seed", tuple(range(16)), 1))
    world.run_all()
    world.add(Request("a cold", (90, 91, 92), 1, key="a"))
    world.add(Request("b cold", (80, 81, 82), 1, key="b"))
    world.add(Request("b hot", (*range(16), 99), 1, key="b"))
    order = [admitted(world.step()) for _ in range(2)]
    assert order == [["a cold", "b hot"], ["b cold"]]


def test_a_cancelled_request_leaves_its_key():
    world = World(max_running=1)
    world.add(Request("a", (1, 2, 3), 5, key="a"))
    world.add(Request("b", (1, 2, 3), 5, key="b"))
    assert not world.state.waiting.has_one_key
    world.scheduler.cancel("b")
    world.check()
    assert world.state.waiting.has_one_key and list(world.state.waiting.queues) == ["a"]
