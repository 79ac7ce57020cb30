"""One policy for device and dtype; a bfloat16 product that would kill is never run."""

import logging
import subprocess

import pytest
import torch

from weft.core import device as module
from weft.core.device import DTYPES, bfloat16_works, choose_device, choose_dtype
from weft.core.errors import ConfigError, UsageError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def pretend_gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(("count", "expected"), [(0, "cpu"), (1, "cuda")])
def test_auto_takes_a_gpu_when_there_is_one(monkeypatch, count, expected):
    pretend_gpus(monkeypatch, count)
    assert choose_device("auto") == torch.device(expected)


def test_a_named_device_that_is_there_is_taken(monkeypatch):
    pretend_gpus(monkeypatch, 2)
    assert choose_device("cpu") == CPU
    assert choose_device("cuda") == CUDA
    assert choose_device("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:", "cpu:0:1", ""])
def test_a_device_that_no_machine_has_is_refused_with_what_is_allowed(name):
    with pytest.raises(UsageError, match=f"device is '{name}': allowed are auto, cpu, cuda"):
        choose_device(name)


@pytest.mark.parametrize(("count", "name"), [(0, "cuda"), (0, "cuda:0"), (2, "cuda:2"), (0, "mps")])
def test_a_device_that_is_not_here_is_refused(monkeypatch, count, name):
    pretend_gpus(monkeypatch, count)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UsageError, match=f"device is '{name}', but torch finds none here"):
        choose_device(name)


def test_auto_dtype_is_float32_on_a_cpu_and_bfloat16_on_a_gpu():
    assert choose_dtype("auto", CPU) == torch.float32
    assert choose_dtype("auto", CUDA) == torch.bfloat16


@pytest.mark.parametrize("name", DTYPES)
def test_a_named_dtype_is_given_where_it_is_safe(monkeypatch, name):
    monkeypatch.setattr(module, "bfloat16_works", lambda: True)
    assert choose_dtype(name, CPU) == DTYPES[name]


def test_an_unknown_dtype_names_the_nearest():
    with pytest.raises(ConfigError, match="'bfloat' is not a known dtype. Did you mean 'bfloat16'"):
        choose_dtype("bfloat", CPU)


def test_bfloat16_gives_way_to_float32_with_a_line_where_it_would_kill(monkeypatch, caplog):
    monkeypatch.setattr(module, "bfloat16_works", lambda: False)
    with caplog.at_level(logging.WARNING):
        assert choose_dtype("bfloat16", CPU) == torch.float32
    assert "dtype=float32 requested=bfloat16" in caplog.text
    assert choose_dtype("bfloat16", CUDA) == torch.bfloat16


@pytest.fixture
def fresh_probe():
    bfloat16_works.cache_clear()
    yield
    bfloat16_works.cache_clear()


def test_the_probe_runs_once_in_a_child_and_its_end_is_the_answer(monkeypatch, fresh_probe):
    calls = []
    monkeypatch.setattr(module, "PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: calls.append(a) or run(*a, **k))
    assert not bfloat16_works()
    assert not bfloat16_works()
    assert len(calls) == 1


def test_a_probe_that_ends_well_says_yes(monkeypatch, fresh_probe):
    monkeypatch.setattr(module, "PROBE", "pass")
    assert bfloat16_works()


def test_a_probe_that_never_ends_says_no(monkeypatch, fresh_probe):
    def hang(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    assert not bfloat16_works()
