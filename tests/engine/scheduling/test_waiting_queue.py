"""The order of waiting requests: cached prefixes first, no starvation, cheap for long queues."""

from __future__ import annotations

import random
import time

import pytest

from tests.engine.scheduling.world import FULL, World
from weft.engine.scheduling.plan import Appended, Plan
from weft.engine.scheduling.sequence import Request
from weft.engine.stats import optimal_hits

KINDS = ["hash", "radix"]


def admitted(plan: Plan) -> list[str]:
    return [chunk.request.id for chunk in plan.chunks if chunk.start < len(chunk.request.prompt)]


def tokens_of(rng: random.Random, length: int) -> list[int]:
    return rng.choices(range(1000), k=length)


def commit_random(world: World, plan: Plan, rng: random.Random) -> None:
    appended = {c.sequence_id: Appended(tokens_of(rng, 1)) for c in plan.chunks if c.num_samples}
    world.scheduler.commit(plan, appended)


@pytest.mark.parametrize("prefix", KINDS)
def test_the_longest_cached_prefix_goes_first(prefix):
    world = World(prefix, max_running=1)
    world.add(Request("seed", tuple(range(16)), 1))
    world.run_all()
    world.add(Request("cold", (90, 91, 92), 1))
    world.add(Request("warm", (*range(8), 99), 1))
    world.add(Request("hot", (*range(16), 99), 1))
    assert [admitted(world.step()) for _ in range(3)] == [["hot"], ["warm"], ["cold"]]


@pytest.mark.parametrize("patience", [0, 3])
def test_a_request_is_overtaken_at_most_patience_times(patience):
    """A cold request among a stream of warm ones: (q + patience) * T steps, here T = 2, q = 1."""
    world = World(max_running=1, patience=patience)
    world.add(Request("seed", tuple(range(16)), 1))
    world.run_all()
    world.add(Request("cold", (90, 91, 92), 1))
    order: list[str] = []
    for number in range(10):
        world.add(Request(f"warm{number}", (*range(16), number), 1))
        order += admitted(world.step())
    assert order.index("cold") == patience


def waits(patience: int, steps: int = 60) -> list[int]:
    """Steps that cold requests wait among warm ones, of which five wait at any time; two run, and
    each is done in the step of its admission."""
    world = World(max_running=2, patience=patience, order_window=16)
    world.add(Request("seed", tuple(range(16)), 1))
    world.run_all()
    came: dict[str, int] = {}
    result: list[int] = []
    for number in range(steps):
        if number % 10 == 0:
            came[f"cold{number}"] = number
            world.add(Request(f"cold{number}", (90, number, 92), 1))
        for i in range(world.scheduler.num_waiting - len(came), 5):
            world.add(Request(f"warm{number}/{i}", (*range(16), number, i), 1))
        result += [number - came.pop(name) for name in admitted(world.step()) if name in came]
    return result + [steps - before for before in came.values()]


def test_no_request_waits_longer_than_the_bound():
    """At most (q + patience) * T steps, with q <= 7 and T = 1; without ageing it would be far more,
    so that this is put to the test."""
    for patience in (0, 3, 12):
        assert len(waits(patience)) == 6 and max(waits(patience)) <= 7 + patience
    assert max(waits(10**6)) == 60, "cold ones are never served"
    assert waits(3) != waits(12), "and patience is what decides"


def test_a_step_admits_beyond_the_window_until_something_is_used_up():
    world = World(max_running=5, order_window=2)
    for number in range(7):
        world.add(Request(f"r{number}", (90 + number, 1, 2), 3))
    assert admitted(world.step()) == ["r0", "r1", "r2", "r3", "r4"]
    assert world.scheduler.num_waiting == 2
    world.run_all()
    world.check_empty()


def test_without_a_prefix_cache_the_order_is_that_of_arrival():
    world = World("none", max_running=1)
    for number in range(5):
        world.add(Request(f"r{number}", (1, 2, 3), 1))
    assert [admitted(world.step()) for _ in range(5)] == [[f"r{i}"] for i in range(5)]


@pytest.mark.parametrize("prefix", KINDS)
def test_requests_with_the_same_beginning_wait_for_the_first_to_compute_it(prefix):
    shared = tuple(range(20))
    world = World(prefix, token_budget=24, num_pages=100)
    for number in range(4):
        world.add(Request(f"same{number}", (*shared, 100 + number), 1))
    world.add(Request("other", (50, 51, 52), 1))
    first, second = world.step(), world.step()
    assert admitted(first) == ["same0", "other"], "in one batch all four would compute it"
    assert admitted(second) == ["same1", "same2", "same3"]
    assert [chunk.start for chunk in second.chunks] == [20, 20, 20]
    world.check_results(set())


def test_who_shares_a_prompt_that_is_still_being_computed_waits_for_all_of_it():
    shared = tuple(range(40))
    world = World(token_budget=16, num_pages=100)
    world.add(Request("first", (*shared, 100), 1))
    world.add(Request("second", (*shared, 101), 1))
    plans = [world.step() for _ in range(4)]
    assert [admitted(plan) for plan in plans] == [["first"]] * 3 + [["second"]]
    assert plans[3].chunks[0].start == 40


def test_the_optimal_order_goes_through_the_tree_of_prompts():
    prompts = [(1, 2, 3, 4, 5), (9,), (1, 2, 3, 4, 6), (1, 2, 7), (1, 2, 3, 4, 5)]
    requests = [Request(f"r{i}", prompt) for i, prompt in enumerate(prompts)]
    assert optimal_hits(requests, 2) == 4 + 4 + 2
    assert optimal_hits([*requests, Request("salted", prompts[0], salt="x")], 2) == 10
    assert optimal_hits([Request("one", (1, 2)), Request("two", (1, 2))], 2) == 0


@pytest.mark.parametrize("prefix", KINDS)
def test_hits_come_close_to_the_optimal_order_and_pages_are_full(prefix):
    """A tree of prompts whose pages do not all fit: at least 95 % of what the best order finds,
    and at least 96 % of the allocated rows hold a token."""
    rng = random.Random(1)
    heads = [tokens_of(rng, 96) for _ in range(6)]
    trees = [head + tokens_of(rng, 80) for head in heads for _ in range(4)]
    requests = [
        Request(f"r{i}", tuple(rng.choice(trees) + tokens_of(rng, 20)), rng.randint(4, 20))
        for i in range(150)
    ]
    settings = {"token_budget": 512, "max_running": 16, "max_len": 512}
    world = World(prefix, FULL, 360, 16, listen=False, **settings)
    for request in requests:
        world.scheduler.add(request)
    shares = []
    while not world.scheduler.is_idle:
        plan = world.scheduler.schedule()
        commit_random(world, plan, rng)
        shares.append(world.state.row_share())
    statistics = world.scheduler.statistics
    ratio = statistics.cached_tokens / optimal_hits(requests, 16)
    share = sum(shares) / len(shares)
    print(f"hit rate {statistics.hit_rate:.3f}, {ratio:.3f} of the optimum; rows {share:.3f}")
    assert ratio >= 0.95
    assert share >= 0.96


@pytest.mark.parametrize("prefix", KINDS)
def test_a_thousand_waiting_requests_cost_little(prefix):
    rng = random.Random(2)
    heads = [tokens_of(rng, 300) for _ in range(20)]
    settings = {"token_budget": 2048, "max_running": 16, "max_len": 1024}
    world = World(prefix, FULL, 2000, 16, listen=False, **settings)

    def more(number: int) -> None:
        prompt = rng.choice(heads)[: rng.choice([100, 200, 300])] + tokens_of(rng, 100)
        world.scheduler.add(Request(f"r{number}", tuple(prompt), rng.randint(5, 20)))

    for number in range(1000):
        more(number)
    seconds, steps = 0.0, 150
    for _ in range(steps):
        started = time.process_time()
        plan = world.scheduler.schedule()
        seconds += time.process_time() - started
        commit_random(world, plan, rng)
        while world.scheduler.num_waiting < 1000:
            number += 1
            more(number)
    assert world.scheduler.statistics.admitted > 100
    print(f"{1000 * seconds / steps:.3f} ms a plan with 1,000 waiting and 16 running")
    assert seconds / steps < 0.005
