"""Defaults of sampling parameters: the request, --defaults, the checkpoint, then the protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.tiny import tiny
from tests.serve.server import SMALL, RunningServer, make_service, running
from weft.checkpoint.families.generation_config import GenerationConfig, decoder_generation
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.gguf.hf_names import read_sampling
from weft.checkpoint.weft_folder import load_folder, save_folder
from weft.core.errors import DataError
from weft.engine.loaded_model import LoadedModel
from weft.serve.config import ServeConfig
from weft.serve.context import RequestRecord, Service
from weft.serve.served_model import ModelRegistry, ServedModel

FILE = {"temperature": 0.6, "top_k": 40, "top_p": 0.8, "min_p": None, "do_sample": True}
BODY = {"model": "model", "prompt": "the cat", "max_tokens": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    config = ServeConfig(defaults={"top_k": 30, "top_p": 0.7})
    generation = GenerationConfig(sampling={"temperature": 0.6, "top_k": 40, "top_p": 0.8})
    checkpoint = replace(tiny("decoder"), generation_config=generation)
    registry = ModelRegistry(
        {"model": "model"},
        lambda name: LoadedModel(checkpoint, SMALL),
        make=lambda name, loaded: ServedModel(name, loaded, defaults=config.defaults),
    )
    registry.load_all()
    with running(Service(registry, config)) as one:
        yield one


def test_the_request_comes_first_then_options_then_the_checkpoint(server):
    records: list[RequestRecord] = []
    server.service.sinks.append(records.append)
    for body in (BODY, {**BODY, "top_p": 0.5}):
        assert server.post("/v1/completions", body).status_code == 200
    assert server.post("/api/generate", {**BODY, "raw": True, "stream": False}).status_code == 200
    server.wait_idle()
    while len(records) < 3:  # a record is complete a moment after its response
        server.get("/health")
    used = [one.generation.requests[0].sampling for one in records if one.generation is not None]
    assert [(one.temperature, one.top_k, one.top_p, one.min_p) for one in used] == [
        (0.6, 30, 0.7, 0.0),
        (0.6, 30, 0.5, 0.0),
        (0.6, 30, 0.7, 0.0),
    ]


def used(server: RunningServer, requests: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """The sampling parameters that the engine was given."""
    records: list[RequestRecord] = []
    server.service.sinks[:] = [records.append]
    for path, body in requests:
        answer = server.post(path, {"model": "model", **body})
        assert answer.status_code == 200, answer.text
    while len([one for one in records if one.generation]) < len(requests):
        server.get("/health")
    return [one.generation.requests[0].sampling for one in records if one.generation]


def test_ollamas_own_defaults_come_last():
    raw = {"prompt": "the cat", "raw": True, "stream": False}
    asked = {"options": {"temperature": 0.3, "num_predict": 1}}
    generation = GenerationConfig(sampling={"top_k": 7})
    for checkpoint, top_k in [
        (tiny("decoder"), 40),
        (replace(tiny("decoder"), generation_config=generation), 7),
    ]:
        with running(make_service({"model": checkpoint})) as server:
            first, second, third = used(
                server,
                [
                    ("/api/generate", {**raw, "options": {"num_predict": 1}}),
                    ("/api/generate", {**raw, **asked}),
                    ("/v1/completions", BODY),
                ],
            )
        assert (first.temperature, first.top_k, first.top_p) == (0.8, top_k, 0.9)
        assert first.repetition_penalty == 1
        assert (second.temperature, second.top_k, second.top_p) == (0.3, top_k, 0.9)
        assert (third.temperature, third.top_p) == (1.0, 1.0)


def test_a_default_seed_is_used_unless_the_request_has_one():
    registry = ModelRegistry(
        {"model": "model"},
        lambda name: LoadedModel(tiny("decoder"), SMALL),
        make=lambda name, loaded: ServedModel(name, loaded, defaults={"seed": 7}),
    )
    registry.load_all()
    raw = {"prompt": "the cat", "raw": True, "stream": False}
    with running(Service(registry)) as server:
        requests = [
            ("/v1/completions", BODY),
            ("/v1/completions", {**BODY, "seed": 3}),
            ("/api/generate", raw),
            ("/api/generate", {**raw, "options": {"seed": 4}}),
            ("/api/generate", {**raw, "options": {"seed": -1}}),
        ]
        *seeds, random = [one.seed for one in used(server, requests)]
        assert seeds == [7, 3, 7, 4] and random != 7
        assert server.get("/server_info").json()["models"]["model"]["defaults"]["seed"] == 7


def test_server_info_has_the_defaults_in_effect(server):
    info = server.get("/server_info").json()["models"]["model"]
    effective = {"temperature": 0.6, "top_k": 30, "top_p": 0.7, "min_p": 0.0}
    assert effective.items() <= info["defaults"].items() and "seed" not in info["defaults"]
    assert info["generation_config"]["sampling"]["top_k"] == 40


def test_checkpoints_have_sampling_parameters(tmp_path):
    path = Path("config.json")
    generation = decoder_generation(HFConfig({"eos_token_id": 2, **FILE}, path))
    assert generation.sampling == {"temperature": 0.6, "top_k": 40, "top_p": 0.8}
    with pytest.raises(DataError, match="top_k is 'all': it must be a number"):
        decoder_generation(HFConfig({"top_k": "all"}, path))
    gguf = {
        "general.sampling.temp": 0.5,
        "general.sampling.penalty_repeat": 1.1,
        "general.name": "a",
    }
    assert read_sampling(gguf) == {"temperature": 0.5, "repetition_penalty": 1.1}


def test_a_weft_folder_keeps_them_and_older_files_have_none(tmp_path):
    generation = GenerationConfig(ends=(2,), sampling={"temperature": 0.6})
    save_folder(tmp_path / "model", replace(tiny("decoder"), generation_config=generation))
    assert load_folder(tmp_path / "model").generation_config == generation
    assert "sampling" not in GenerationConfig().to_dict()
    values = json.loads((tmp_path / "model" / "config.json").read_text())
    assert values["use"]["sampling"] == {"temperature": 0.6}
    for wrong in ({"warmth": 1}, {"temperature": "hot"}, [1]):
        with pytest.raises(DataError, match="use.sampling is "):
            GenerationConfig.from_dict({"sampling": wrong})
