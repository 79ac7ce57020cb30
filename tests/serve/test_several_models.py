"""Several models in one server: one engine thread, results as alone, one budget of bytes for all
KV caches, models that are loaded on demand included."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.tiny import tiny, tiny_folder
from tests.serve.process import ServeProcess
from tests.serve.server import RunningServer, make_service, running
from tests.serve.test_disconnects import wait_until
from weft.core.errors import UsageError
from weft.core.memory import MemoryLimit
from weft.engine import memory_budget
from weft.engine.loaded_model import LoadedModel
from weft.engine.memory_budget import GIB
from weft.serve import cache_shares
from weft.serve.api_keys import ApiKeys
from weft.serve.cache_shares import cache_share
from weft.serve.config import ServeConfig
from weft.serve.context import Service
from weft.serve.model_loading import build_service, describe_models
from weft.serve.model_names import parse_models

KINDS = {"first": "decoder", "second": "decoder", "third": "encoder-decoder", "vectors": "encoder"}
MAX_LEN = 200


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    return {
        name: str(tiny_folder(root / name, kind, seed=number, max_len=MAX_LEN))
        for number, (name, kind) in enumerate(KINDS.items())
    }


def pool_bytes(service: Service) -> int:
    """Bytes of the KV caches of all models that are loaded."""
    engines = [one.engine.engine for one in service.models.models.values()]
    return sum(one.runner.store.num_bytes for one in engines if one.runner.store is not None)


def service_of(
    folders: Mapping[str, str], cache: float | str, is_on_demand: bool = False, **config: Any
) -> Service:
    return build_service(
        ServeConfig(cache=cache, **config), folders, ApiKeys({}), is_on_demand=is_on_demand
    )


@pytest.mark.parametrize("cache", [0.0004, 0.01])
def test_the_caches_of_all_models_are_within_the_budget(folders, cache):
    service = service_of(folders, cache)
    service.models.load_all()
    assert 0.8 * cache * GIB < pool_bytes(service) <= cache * GIB
    threads = {one.engine.thread for one in service.models.models.values()}
    assert len(threads) == 1
    service.models.close()
    assert not any(thread.is_alive() for thread in threads)


ASK = {
    "first": ("/v1/completions", {"prompt": "the cat", "max_tokens": 4}),
    "second": ("/v1/completions", {"prompt": "a dog", "max_tokens": 4}),
    "third": ("/translate", {"q": "the cat", "source": "en", "target": "de"}),
    "vectors": ("/v1/embeddings", {"input": "the cat"}),
}


@pytest.fixture
def on_demand(folders: dict[str, str]) -> Iterator[RunningServer]:
    service = service_of(folders, 0.001, True, languages={"third": "en:de"})
    with running(service) as one:
        yield one


def test_models_loaded_on_demand_stay_within_the_budget(on_demand):
    service = on_demand.service
    for name, (path, body) in ASK.items():
        answer = on_demand.post(path, {"model": name, **body})
        assert answer.status_code == 200, answer.text
        assert name in service.models.models
        assert pool_bytes(service) <= 0.001 * GIB
    assert len(service.models.models) == 4 and pool_bytes(service) > 0.0008 * GIB


def test_a_request_that_has_waited_for_its_model_has_each_warning_once(folders):
    with running(service_of(folders, 0.001, True, lenient=True)) as server:
        body = {"model": "first", "prompt": "a", "max_tokens": 1, "colour": "red"}
        for _ in range(2):  # the model is loaded for the first one
            answer = server.post("/v1/completions", body)
            assert answer.headers["x-weft-warning"] == "unknown fields were ignored: colour"


def test_requests_that_wait_for_a_model_do_not_keep_others_from_theirs(on_demand, monkeypatch):
    """More of them than asyncio has threads; they share one load, and one client leaves."""
    path, body = ASK["first"]
    assert on_demand.post(path, {"model": "first", **body}).status_code == 200
    registry, go, loads = on_demand.service.models, threading.Event(), list[str]()
    load = registry.load

    def slow_load(model: str) -> LoadedModel:
        loads.append(model)
        assert go.wait(30)
        return load(model)

    monkeypatch.setattr(registry, "load", slow_load)
    with ThreadPoolExecutor(41) as pool:
        waiting = [
            pool.submit(httpx.post, f"{on_demand.url}{path}", json=one, timeout=60)
            for one in [{"model": "second", **body}] * 40
        ]
        with pytest.raises(httpx.ReadTimeout):
            on_demand.post(path, {"model": "second", **body}, timeout=0.5)
        wait_until(lambda: on_demand.service.num_active >= 40)
        assert on_demand.post(path, {"model": "first", **body}).status_code == 200
        assert not any(one.done() for one in waiting)
        go.set()
        assert [one.result().status_code for one in waiting] == [200] * 40
    assert len(loads) == 1


def test_too_little_memory_for_one_more_model_is_503(on_demand, monkeypatch):
    path, body = ASK["first"]
    before = on_demand.post(path, {"model": "first", **body, "temperature": 0})
    limit = MemoryLimit(100_000, "the memory limit of /sys/fs/cgroup/x")
    monkeypatch.setattr(memory_budget, "available_memory", lambda: limit)
    answer = on_demand.post(path, {"model": "second", **body})
    assert answer.status_code == 503
    message = answer.json()["error"]["message"]
    assert message.startswith("model 'second' cannot be loaded: the engine needs 0.00 GiB (")
    assert "are left of the memory limit of /sys/fs/cgroup/x. " in message
    again = on_demand.post(path, {"model": "first", **body, "temperature": 0})
    assert again.json()["choices"] == before.json()["choices"]
    assert list(on_demand.service.models.models) == ["first"]
    monkeypatch.undo()
    assert on_demand.post(path, {"model": "second", **body}).status_code == 200


def test_a_budget_without_room_for_a_page_is_refused(folders):
    service = service_of(folders, 1e-5)
    with pytest.raises(UsageError, match=r"may have 3,579 bytes, but 4 pages .* need 32,768\. Rai"):
        service.models.load_model("first")
    assert "Raise cache_gib (--cache" in service.models.failures["first"]
    service.models.close()


def test_a_share_without_room_for_the_longest_sequence_lowers_the_context_length(folders, caplog):
    service = service_of({"first": folders["first"], "second": folders["second"]}, 0.0001)
    served = service.models.load_model("first")
    assert 0 < served.max_len < MAX_LEN
    num_usable = served.engine.engine.kv_cache.pool.num_usable
    assert served.max_len == num_usable * served.loaded.engine_config.page_size
    assert f"model=first context_length={served.max_len} asked={MAX_LEN}" in caplog.text
    with running(service) as server:
        full = server.post("/v1/completions", {"model": "first", "prompt": [5, 6], "n": 1})
        assert full.status_code == 200
        longest = {"model": "first", "prompt": [5, 6], "max_tokens": 10_000, "ignore_eos": True}
        answer = server.post("/v1/completions", longest).json()
        assert answer["usage"]["total_tokens"] == served.max_len
        too_long = {"model": "first", "prompt": [5] * served.max_len, "max_tokens": 1}
        refused = server.post("/v1/completions", too_long)
        assert refused.status_code == 400
        assert str(served.max_len) in refused.json()["error"]["message"]


def test_a_lower_context_length_that_has_room_is_kept(folders):
    paths = {"first": folders["first"], "second": folders["second"]}
    service = service_of(paths, 0.0001, max_model_len=20)
    assert service.models.load_model("first").max_len == 20
    service.models.close()


def test_the_first_lines_name_no_cache_of_encoders_and_load_nothing_on_demand(folders, tmp_path):
    service = service_of(folders, 0.001)
    service.models.load_all()
    lines = {line.partition(":")[0]: line for line in describe_models(service)}
    assert lines["vectors"] == f"vectors: encoder, context length {MAX_LEN}"
    assert ", cache for " in lines["first"] and ", cache for " in lines["third"]
    service.models.close()
    tiny_folder(tmp_path / "models" / "pulled", "decoder")
    with ServeProcess("--cache", "0.01", environ={"WEFT_CACHE": str(tmp_path)}) as server:
        server.wait_ready()
        wait_until(lambda: any(line.startswith("ready on") for line in server.lines))
    assert server.lines[0] == f"listening on {server.url}; starting"
    assert "  loaded on demand: pulled" in server.lines


def test_encoders_take_no_share_of_the_cache(folders, monkeypatch, tmp_path):
    assert cache_share(3.0, folders) == 1.0
    assert cache_share(3.0, {"vectors": folders["vectors"]}) == 3.0
    broken = {**folders, "broken": str(tmp_path)}  # it might be loadable later
    assert cache_share(4.0, broken) == 1.0
    assert cache_share(0, folders) == 0
    assert cache_share("auto", {"first": folders["first"]}) == "auto"
    limit = MemoryLimit(12 * GIB, "the machine's available memory")
    monkeypatch.setattr(cache_shares, "available_memory", lambda: limit)
    monkeypatch.setattr(cache_shares, "weight_bytes", lambda path: GIB)
    assert cache_share("auto", folders) == pytest.approx((12 - 4) / 2 / 3)
    monkeypatch.setattr(cache_shares, "weight_bytes", lambda path: 9 * GIB)
    assert cache_share("auto", folders) == cache_shares.MIN_AUTO_GIB


def test_the_weights_of_models_with_names_of_their_own_are_counted(folders, monkeypatch):
    seen: list[Path] = []
    monkeypatch.setattr(cache_shares, "weight_bytes", lambda path: len(seen.append(path) or ""))
    cache_share("auto", {"a": folders["first"], "b": folders["second"]})
    assert seen == [Path(folders["first"]), Path(folders["second"])]


def test_models_with_the_same_last_component_need_names():
    with pytest.raises(UsageError, match="two models have the name 'm'. Give them names"):
        parse_models(["a/m.gguf", "b/m@best"])
    assert parse_models(["a/m.gguf", "n=b/m@best"]) == {"m": "a/m.gguf", "n": "b/m@best"}


@pytest.fixture(scope="module")
def two() -> Iterator[RunningServer]:
    models = {"first": tiny("decoder"), "second": tiny("decoder", seed=4)}
    with running(make_service(models)) as one:
        yield one


def bodies() -> list[dict[str, Any]]:
    return [
        {
            "model": ("first", "second")[number % 2],
            "prompt": [5 + number % 40, 9, 30 + number % 7],
            "max_tokens": 3 + number % 20,
            "temperature": 0.8 if number % 3 else 0,
            "seed": number,
            "ignore_eos": True,
            "logprobs": 2,
        }
        for number in range(40)
    ]


def test_concurrent_requests_to_two_models_get_what_each_gets_alone(two):
    async def ask_all() -> list[Any]:
        async with httpx.AsyncClient(base_url=two.url, timeout=120) as client:
            tasks = [client.post("/v1/completions", json=body) for body in bodies()]
            return [answer.json()["choices"] for answer in await asyncio.gather(*tasks)]

    at_once = asyncio.run(ask_all())
    two.wait_idle()
    alone = [two.post("/v1/completions", body).json()["choices"] for body in bodies()]
    assert at_once == alone
    assert len({one.engine.thread for one in two.service.models.models.values()}) == 1
