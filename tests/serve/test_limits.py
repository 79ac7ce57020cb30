"""Overload is answered: 429 with when to try again, and nothing that was accepted is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.engine.tiny import tiny
from tests.serve.server import SMALL, RunningServer, make_service, running
from weft.engine.config import EngineConfig
from weft.engine.request import GenerationRequest
from weft.serve.api_errors import ApiError
from weft.serve.limits import Limits, num_sequences_of, too_busy

BODY: dict[str, Any] = {"model": "decoder", "prompt": "the cat", "ignore_eos": True, "seed": 1}
ONE_AT_A_TIME = EngineConfig(page_size=4, cache_gib=0.01, max_running=1)


@contextmanager
def slow_server(limits: Limits, engine: EngineConfig = SMALL, **options: Any) -> Iterator[Slow]:
    """Every step takes at least 5 ms."""
    service = make_service(
        {"decoder": tiny("decoder", max_len=400)}, engine=engine, limits=limits, **options
    )
    inner = service.models.get("decoder").engine.engine
    step = inner.step

    def slow_step() -> Any:
        time.sleep(0.005)
        return step()

    inner.step = slow_step  # type: ignore[method-assign]
    with running(service) as server, ThreadPoolExecutor(12) as pool:
        yield Slow(server, pool)


class Slow:
    def __init__(self, server: RunningServer, pool: ThreadPoolExecutor) -> None:
        self.server, self.pool = server, pool
        self.scheduler = server.service.models.get("decoder").engine.engine.scheduler

    def submit(self, max_tokens: int, **more: Any) -> Future[httpx.Response]:
        headers = more.pop("headers", {})
        body = {**BODY, "max_tokens": max_tokens, **more}
        return self.pool.submit(self.server.post, "/v1/completions", body, headers=headers)

    def wait_for(self, num_requests: int) -> None:
        end = time.monotonic() + 20
        while len(self.scheduler.state.groups) < num_requests:
            assert time.monotonic() < end, "requests did not arrive"
            time.sleep(0.002)


def test_a_full_queue_is_429_and_the_accepted_requests_finish():
    with slow_server(Limits(max_queued=2), ONE_AT_A_TIME) as slow:
        futures = [slow.submit(60)]
        slow.wait_for(1)
        while not slow.scheduler.state.num_running:
            time.sleep(0.001)
        for count in (2, 3):
            futures.append(slow.submit(60))
            slow.wait_for(count)
        refused = slow.submit(60).result()
        assert refused.status_code == 429
        assert "2 requests with 6 prompt tokens wait" in refused.json()["error"]["message"]
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert 1000 <= int(refused.headers["retry-after-ms"]) <= 60000
        answers = [future.result() for future in futures]
        assert [one.status_code for one in answers] == [200] * 3
        assert len({one.json()["choices"][0]["text"] for one in answers}) == 1
        assert slow.submit(5).result().status_code == 200
        slow.server.wait_idle()
        assert not slow.server.service.limits.reservations


def test_n_samples_count_n_times():
    with slow_server(Limits(max_queued=3), ONE_AT_A_TIME) as slow:
        first = slow.submit(80)
        slow.wait_for(1)
        second = slow.submit(3, n=1, prompt=["a", "the", "cat"])
        slow.wait_for(4)
        assert slow.submit(3).result().status_code == 429
        assert first.result().status_code == second.result().status_code == 200
    request = GenerationRequest((1,), 1, n=4)
    assert num_sequences_of(request) == 4


def test_seconds_of_prompts_bound_the_queue():
    with slow_server(Limits(max_queue_seconds=1e-9), ONE_AT_A_TIME) as slow:
        first = slow.submit(200)
        slow.wait_for(1)
        while not slow.scheduler.state.num_running:
            time.sleep(0.001)
        second = slow.submit(3)
        slow.wait_for(2)
        while not slow.scheduler.load().drain_rate:  # measured while a request waits
            time.sleep(0.001)
        refused = slow.submit(3).result()
        assert refused.status_code == 429 and "1 requests with 3 prompt tokens" in refused.text
        assert first.result().status_code == second.result().status_code == 200


def test_tokens_of_prompts_bound_the_queue():
    with slow_server(Limits(), ONE_AT_A_TIME, max_queued_tokens=8) as slow:
        accepted = [slow.submit(300, prompt=[5])]
        slow.wait_for(1)
        accepted.append(slow.submit(1, prompt=[8, 7, 6, 5, 8, 7]))
        slow.wait_for(2)
        refused = slow.submit(1, prompt=[6, 7, 8]).result()
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert "1 requests with 6 prompt tokens wait" in refused.json()["error"]["message"]
        assert [one.result().status_code for one in accepted] == [200, 200]
        assert slow.submit(1, prompt=[7] * 12).result().status_code == 200


def test_a_key_has_its_own_bound():
    keys = {"alice": "a", "bob": "b"}
    with slow_server(Limits(max_concurrent=2), keys=keys) as slow:
        alice, bob = ({"x-api-key": key} for key in ("a", "b"))
        futures = [slow.submit(100, headers=alice, n=2)]
        slow.wait_for(1)
        refused = slow.submit(3, headers=alice).result()
        assert refused.status_code == 429
        assert "key 'alice' has 2 texts in progress" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"] == "1"
        assert slow.submit(3, headers=bob).result().status_code == 200
        too_many = slow.submit(3, headers=bob, n=3).result()
        assert too_many.status_code == 400 and "3 texts at a time" in too_many.text
        assert futures[0].result().status_code == 200
        assert slow.submit(3, headers=alice).result().status_code == 200


def test_a_key_with_a_full_queue_does_not_keep_another_one_out():
    keys = {"alice": "a", "bob": "b"}
    with slow_server(Limits(max_queued=2), ONE_AT_A_TIME, keys=keys) as slow:
        alice, bob = ({"x-api-key": key} for key in ("a", "b"))
        futures = [slow.submit(100, headers=alice)]
        slow.wait_for(1)
        while not slow.scheduler.state.num_running:
            time.sleep(0.001)
        for count in (2, 3):
            futures.append(slow.submit(100, headers=alice))
            slow.wait_for(count)
        for prompt in ("a", "the", "cat"):
            assert slow.submit(3, headers=alice, prompt=prompt).result().status_code == 429
        assert slow.submit(3, headers=bob).result().status_code == 200
        assert slow.scheduler.state.groups, "bob was not served before alice"
        assert [one.result().status_code for one in futures] == [200] * 3
        slow.server.wait_idle()


def test_max_output_cuts_max_tokens():
    with running(make_service(limits=Limits(max_output=4))) as server:
        value = server.post("/v1/completions", {**BODY, "max_tokens": 20}).json()
        assert value["usage"]["completion_tokens"] == 4
        assert value["choices"][0]["finish_reason"] == "length"


def test_a_deadline_is_504_and_frees_the_pages():
    with slow_server(Limits()) as slow:
        late = slow.submit(300, headers={"x-request-timeout": "0.2"}).result()
        assert late.status_code == 504 and "longer than 0.2 s" in late.text
        slow.server.wait_idle()


@pytest.mark.parametrize(("wait", "header"), [(-3.0, "1"), (2.2, "3"), (500.0, "60")])
def test_retry_after_is_between_1_and_60_seconds(wait, header):
    error = too_busy("busy.", wait)
    assert isinstance(error, ApiError) and error.headers["retry-after"] == header
