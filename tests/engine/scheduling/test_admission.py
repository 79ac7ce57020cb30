"""What can never be served is refused when it is asked, with both numbers, and changes nothing."""

from __future__ import annotations

import pytest

from tests.engine.scheduling.world import CROSS, FULL, WINDOWS, World
from weft.cache.kv_groups import KVCacheLayout
from weft.core.errors import ConfigError, UsageError
from weft.engine.config import SchedulerConfig
from weft.engine.scheduling.sequence import Request

ONE = (1,)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (Request("r", ()), "the prompt has 0 tokens"),
        (Request("r", ONE * 60, 5), "60 tokens and max_tokens is 5: together 65, .* max_len is 64"),
        (Request("r", ONE * 65, 1), "65 tokens"),
        (Request("r", ONE, 0), "max_tokens is 0: it must be at least 1"),
        (Request("r", ONE, 1, n=0), "n is 0 and beam is 0"),
        (Request("r", ONE, 1, n=2, beam=2), "n is 2 and beam is 2"),
        (Request("r", ONE, 1, beam=9), "9 sequences at once but max_running is 8"),
        (
            Request("r", ONE * 20, 10, n=8),
            "up to 29 pages of 4 tokens but the KV cache has 19",
        ),
        (Request("r", ONE, 1, source=ONE), "has a source, but the model takes none"),
        (Request("r", ONE * 70, is_pooling=True), "the text has 70 tokens: it may have 1 to 66"),
    ],
)
def test_an_impossible_request_is_refused_with_both_numbers(request_, problem):
    world = World(layout=FULL, num_pages=20, max_source_len=66)
    with pytest.raises(UsageError, match=problem):
        world.add(request_)
    assert world.scheduler.is_idle and world.scheduler.num_waiting == 0
    assert world.pool.num_free == world.pool.num_usable


def test_sources_are_checked_too():
    world = World(layout=CROSS, num_pages=10, max_source_len=30)
    with pytest.raises(UsageError, match="has no source, but the model takes one"):
        world.add(Request("r", ONE, 1))
    with pytest.raises(UsageError, match="the source has 31 tokens: it may have 1 to 30"):
        world.add(Request("r", ONE, 1, source=ONE * 31))
    with pytest.raises(UsageError, match="the source has 0 tokens"):
        world.add(Request("r", ONE, 1, source=()))
    with pytest.raises(UsageError, match="up to 11 pages of 4 tokens but the KV cache has 9"):
        world.add(Request("r", ONE * 8, 4, source=ONE * 30))


def test_an_encoder_writes_nothing():
    with pytest.raises(UsageError, match="asks for 3 tokens, but the model is an encoder"):
        World(layout=KVCacheLayout(())).add(Request("r", ONE, 3))


def test_an_id_is_used_once_at_a_time():
    world = World()
    world.add(Request("r", ONE, 1))
    with pytest.raises(UsageError, match="request id r is in use"):
        world.add(Request("r", ONE, 1))


def test_more_running_sequences_than_tokens_a_step_are_refused():
    with pytest.raises(ConfigError, match="max_running is 9 but token_budget is 8"):
        SchedulerConfig(max_running=9, token_budget=8)


@pytest.mark.parametrize("prefix", ["none", "hash", "radix"])
@pytest.mark.parametrize("layout", [FULL, WINDOWS])
@pytest.mark.parametrize(
    "request_",
    [
        Request("r", ONE * 17, 20),
        Request("r", ONE * 17, 20, n=3),
        Request("r", ONE * 17, 20, beam=3),
        Request("r", ONE, 30, beam=2),
    ],
)
def test_a_request_that_just_fits_runs_to_its_end(prefix, layout, request_):
    """In the smallest pool that is not refused, even when it is preempted every few steps."""
    num_pages = 2
    while True:
        world = World(prefix, layout, num_pages, preempt_every=7)
        try:
            world.add(request_)
            break
        except UsageError:
            num_pages += 1
    world.run_all()
    world.check_results(set())
    world.check_empty()
