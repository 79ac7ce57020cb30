"""`weft serve --keep`: after a restart each key finds its own cached prefixes."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

import httpx
import pytest

from tests.engine.tiny import tiny_folder
from tests.serve.process import ServeProcess
from tests.serve.server import running
from weft.core.errors import ConfigError, UsageError
from weft.serve.api_keys import ApiKeys
from weft.serve.cache_keeping import IDLE_SECONDS, CacheKeeper
from weft.serve.config import ServeConfig
from weft.serve.context import Service
from weft.serve.model_loading import build_service, load_models

BODY = {"model": "model", "prompt": "the cat sat on the mat " * 20, "max_tokens": 2, "seed": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("keep") / "model", "decoder", max_len=1000)


def serve(folder: Path, kept: Path) -> Service:
    config = ServeConfig(keep=str(kept), cache=0.01, alias={"model": "a/b"})
    service = build_service(config, {"a/b": str(folder)}, ApiKeys({"one": "k1", "two": "k2"}))
    load_models(service, lambda line: None)
    return service


def num_cached(client: httpx.Client, key: str) -> int:
    answer = client.post("/v1/completions", json=BODY, headers={"x-api-key": key})
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_key_finds_its_prefixes_after_a_drain_and_after_sigkill(folder, tmp_path):
    (tmp_path / "keys").write_text("one = k1\ntwo = k2\n")
    options = ("--cache", "0.05", "--keep", tmp_path / "kept", "--api-keys", tmp_path / "keys")
    with ServeProcess(folder, *options) as server:
        server.wait_ready()
        assert num_cached(server.client, "k1") == 0
        server.stop()
        assert server.exit_code() == 0
    path = tmp_path / "kept" / "model.cache"
    saved = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    with ServeProcess(folder, *options) as server:
        server.wait_ready()
        assert num_cached(server.client, "k1") > 0
        assert num_cached(server.client, "k2") == 0
        server.stop(signal.SIGKILL)
        server.exit_code()
    assert path.read_bytes() == saved
    with ServeProcess(folder, *options) as server:
        server.wait_ready()
        assert num_cached(server.client, "k2") == 0
        assert num_cached(server.client, "k1") > 0


@pytest.mark.parametrize("damage", ["cut", "changed", "text", "foreign", "folder"])
def test_a_file_that_cannot_be_used_is_a_warning(folder, tmp_path, caplog, damage):
    kept = tmp_path / "kept"
    other = tiny_folder(tmp_path / "other", "decoder", max_len=900)
    with running(serve(other if damage == "foreign" else folder, kept)) as server:
        assert num_cached(server.client, "k1") == 0
        server.service.keeper.finish()
    (path,) = kept.glob("*.cache")
    data = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage != "foreign":
        wrong = {"cut": data[:-9], "changed": data[:-1] + bytes([data[-1] ^ 1]), "text": b"{}"}
        path.write_bytes(wrong[damage])
    with caplog.at_level(logging.WARNING), running(serve(folder, kept)) as server:
        assert "model=a/b cache=empty" in caplog.text
        assert num_cached(server.client, "k1") == 0
        server.service.keeper.finish()
    assert ("cache=not_saved" in caplog.text) == (damage == "folder")


def test_caches_are_saved_after_idle_minutes_only_if_they_were_used(folder, tmp_path):
    with running(serve(folder, tmp_path)) as server:
        keeper, seconds = server.service.keeper, [0.0]
        keeper.now = lambda: seconds[0]
        num_cached(server.client, "k1")
        server.wait_idle()
        seconds[0] = IDLE_SECONDS - 1
        keeper.check()
        assert not list(tmp_path.glob("*.cache"))
        seconds[0] = IDLE_SECONDS
        keeper.check()
        (path,) = tmp_path.glob("*.cache")
        path.unlink()
        seconds[0] = 3 * IDLE_SECONDS
        keeper.check()
        assert not path.exists()


@pytest.mark.parametrize("route", ["/translate", "/v1/embeddings", "/api/embed"])
def test_translations_are_kept_and_vectors_are_not(tmp_path, route):
    folder = tiny_folder(tmp_path / "model")
    config = ServeConfig(keep=str(tmp_path), cache=0.01, languages={"model": "en:de"})
    service = build_service(config, {"model": str(folder)}, ApiKeys({}))
    load_models(service, lambda line: None)
    with running(service) as server:
        text = {"q": "the cat sat", "source": "en", "target": "de"}
        body = text if route == "/translate" else {"model": "model", "input": "the cat sat"}
        assert server.post(route, body).status_code == 200
        assert server.service.keeper.is_changed == (route == "/translate")


def test_settings_that_cannot_be_kept(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"keep is .*file/x"):
        CacheKeeper(tmp_path / "file" / "x")
    with pytest.raises(ConfigError, match="nothing to keep"):
        ServeConfig.from_dict({"keep": "x", "cache": 0}, "settings")
