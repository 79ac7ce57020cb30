"""The cache across a restart: a second process finds the prompts and sources of the first and gives
the same bits; whatever does not fit gives one sentence and an empty cache."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.checkpoint.writer_lock import lock_path, writer_lock
from weft.core.errors import DataError, LockedError, UsageError
from weft.engine.cache_file import fingerprint
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest, RequestOutput
from weft.engine.scheduling.audit import audit
from weft.models.transformer import EncoderDecoder
from weft.sampling.params import SamplingParams

from .test_attention_rows import MODELS
from .tiny import tiny

SAMPLING = SamplingParams(temperature=0.9, seed=3, logprobs=2)
PROMPTS = [(5, 9, 30, 7, 8, 6, 40, 41, 9), (5, 9, 30, 7, 50, 51, 52, 53), (20, 21, 22, 23, 24)]
SOURCE = (7, 8, 9, 30, 31, 12, 13)
SMALL: dict[str, Any] = {"page_size": 4, "cache_gib": 1e-3}


def make(name: str, seed: int = 3, **config: Any) -> Engine:
    checkpoint = tiny(seed=seed, **MODELS[name])
    return Engine(checkpoint.model, checkpoint.tokenizer, EngineConfig(**{**SMALL, **config}))


def run(engine: Engine, prompts: list[tuple[int, ...]], limit: int = 7) -> list[list[Any]]:
    """Tokens with their log-probabilities to the last bit, and the text, of each prompt."""
    found: dict[str, list[Any]] = {}
    source = SOURCE if isinstance(engine.model, EncoderDecoder) else None
    for prompt in prompts:
        found[engine.submit(GenerationRequest(prompt, limit, source, SAMPLING))] = []
    while not engine.is_idle:
        for update in engine.step():
            found[update.request_id] += contents(update)
    return list(found.values())


def contents(update: RequestOutput) -> list[Any]:
    pairs = zip(update.tokens, update.logprobs, strict=True)
    return [[token, one.logprob.hex(), update.text] for token, one in pairs]


def in_another_process(cases: dict[str, str], folder: Path) -> dict[str, Any]:
    """What a new process answers to the same prompts, with the saved caches."""
    code = (
        "import json, sys; from tests.engine import test_cache_file\n"
        "print(json.dumps(test_cache_file.restarted(*json.loads(sys.argv[1]))))"
    )
    asked, root = json.dumps([cases, str(folder)]), Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, asked], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def restarted(cases: dict[str, str], folder: str) -> dict[str, Any]:
    found = {}
    for name, prefix in cases.items():
        engine = make(name, prefix_cache=prefix)
        engine.load_cache(Path(folder) / name)
        answers, counts = run(engine, PROMPTS), engine.statistics()
        found[name] = answers, counts.hit_tokens, counts.encoded_tokens
    return found


def test_a_second_process_hits_and_gives_the_same_bits(tmp_path: Path) -> None:
    cases = {"gqa": "radix", "mla": "hash", "some windows": "radix", "window": "hash", "t5": "hash"}
    answers = {}
    for name, prefix in cases.items():
        engine = make(name, prefix_cache=prefix)
        answers[name] = run(engine, PROMPTS)
        saved = engine.save_cache(tmp_path / name)
        assert saved.num_pages == engine.kv_cache.pool.num_evictable > 0
        assert saved.num_sources == (name == "t5")
    for name, (found, num_hit, num_encoded) in in_another_process(cases, tmp_path).items():
        assert found == answers[name], f"{name} answers otherwise after a restart"
        assert num_hit == 8 + 4 + 4, "all whole pages before the last token of each prompt"
        assert num_encoded == 0


def test_a_running_engine_can_be_saved_and_goes_on(tmp_path: Path) -> None:
    engine, other = make("t5"), make("t5")
    expected = run(make("t5"), PROMPTS[:1])
    name = engine.submit(GenerationRequest(PROMPTS[0], 7, SOURCE, SAMPLING))
    found = [one for _ in range(4) for update in engine.step() for one in contents(update)]
    saved = engine.save_cache(tmp_path / "cache")
    assert engine.is_active(name) and saved.num_tokens == 12 and saved.num_sources == 1
    found += [one for _ in range(3) for update in engine.step() for one in contents(update)]
    assert [found] == expected
    assert other.load_cache(tmp_path / "cache") == saved
    audit(other.scheduler.state)
    assert run(other, PROMPTS[:1]) == expected and other.statistics().hit_tokens == 8


def test_a_smaller_pool_takes_what_was_used_last_and_says_so(tmp_path: Path) -> None:
    engine, small = make("gqa"), make("gqa", cache_gib=1e-9)
    prompts = [(first, *PROMPTS[0]) for first in range(10, 20)]
    for prompt in prompts:
        run(engine, [prompt], 4)
    saved = engine.save_cache(tmp_path / "cache")
    assert str(saved) == "30 pages: 120 prompt tokens and 0 sources"
    loaded = small.load_cache(tmp_path / "cache")
    assert (loaded.num_pages, loaded.num_left_out) == (small.kv_cache.pool.num_usable, 9) == (21, 9)
    assert "21 of 30 pages, the most recently used" in str(loaded) and "raise cache_gib" in str(
        loaded
    )
    known = [len(small.kv_cache.prefix_cache.lookup(prompt, "")) for prompt in prompts]
    assert known == [0] * 3 + [2] * 7
    assert run(small, prompts, 4) == run(engine, prompts, 4)


def test_an_engine_without_a_prefix_cache_takes_the_sources(tmp_path: Path) -> None:
    engine, plain = make("t5"), make("t5", prefix_cache="none")
    expected = run(engine, PROMPTS)
    engine.save_cache(tmp_path / "cache")
    loaded = plain.load_cache(tmp_path / "cache")
    assert (loaded.num_sources, loaded.num_tokens, loaded.num_left_out) == (1, 0, 0)
    assert run(plain, PROMPTS) == expected and plain.statistics().encoded_tokens == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, r"was saved with weights \w{12}\.\.\., but this engine has \w{12}\.\.\."),
        ({"page_size": 8}, "was saved with page_size 4, but this engine has 8"),
        ({"name": "window"}, "was saved with weights"),
    ],
)
def test_a_cache_of_something_else_is_refused_with_both_values(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    engine = make("gqa")
    expected = run(engine, PROMPTS)
    engine.save_cache(tmp_path / "cache")
    other = make(**{"name": "gqa", **changes})
    check_refused(other, tmp_path / "cache", message)
    if changes == {"page_size": 8}:
        assert run(other, PROMPTS) == expected, "an empty, valid cache"


def test_every_part_of_the_key_must_match(tmp_path: Path) -> None:
    engine, other = make("gqa"), make("gqa")
    run(engine, PROMPTS)
    engine.save_cache(tmp_path / "cache")
    for name, value in engine.cache_key.items():
        other.cache_key[name] = "another"
        message = f"was saved with {name} .* this engine has another"
        check_refused(other, tmp_path / "cache", message)
        other.cache_key[name] = value


def check_refused(engine: Engine, path: Path, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        engine.load_cache(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert engine.kv_cache.pool.num_free == engine.kv_cache.pool.num_usable
    audit(engine.scheduler.state)


def test_a_torn_or_changed_file_is_refused_wherever_it_is_hurt(tmp_path: Path) -> None:
    engine, other, path = make("t5"), make("t5"), tmp_path / "cache"
    expected = run(engine, PROMPTS)
    engine.save_cache(path)
    whole = path.read_bytes()
    for length in (0, 5, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        check_refused(other, path, "is not a complete cache file .* Delete it")
    for place in (len(whole) // 3, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        check_refused(other, path, "is not a complete cache file")
    check_refused(other, tmp_path / "absent", "there is no such file")
    path.write_bytes(whole)
    other.load_cache(path)
    assert run(other, PROMPTS) == expected


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: Any) -> None:
    engine, path = make("gqa"), tmp_path / "cache"
    run(engine, PROMPTS[:1])
    engine.save_cache(path)
    before = path.read_bytes()
    run(engine, PROMPTS)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("weft.engine.cache_file.save_file", full)
    with pytest.raises(DataError, match="cannot be written .*No space left.* Name another file"):
        engine.save_cache(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o077 == 0, "what people asked is nobody else's business"


@pytest.mark.parametrize("kind", ["a symbolic link", "a folder", "a device, a pipe or a socket"])
def test_only_a_regular_file_is_replaced(tmp_path: Path, kind: str) -> None:
    engine, path, other = make("gqa"), tmp_path / "cache", tmp_path / "other"
    if kind == "a symbolic link":
        other.write_text("somebody's file")
        path.symlink_to(other)
    elif kind == "a folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    before = path.lstat()
    with pytest.raises(DataError, match=f"is {kind}: a cache is saved to a regular file or a new"):
        engine.save_cache(path)
    assert path.lstat() == before
    if other.exists():
        assert other.read_text() == "somebody's file"
    with pytest.raises(DataError, match="/dev/null: is a device"):
        engine.save_cache(Path("/dev/null"))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.timeout(20)
def test_only_a_regular_file_is_loaded(tmp_path: Path) -> None:
    """A pipe was waited for, in the thread of the engine."""
    os.mkfifo(tmp_path / "cache")
    for path in (tmp_path / "cache", tmp_path, Path("/dev/zero")):
        with pytest.raises(DataError, match="is not a file. Name a file that save_cache has"):
            make("gqa").load_cache(path)


def test_one_process_saves_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, path = make("gqa"), tmp_path / "cache"
    run(engine, PROMPTS[:1])
    monkeypatch.setattr("weft.engine.cache_file.LOCK_SECONDS", 0.0)
    with (
        writer_lock(path, lock_path(path)),
        pytest.raises(LockedError, match=f"cache is being written by process {os.getpid()} on"),
    ):
        engine.save_cache(path)
    engine.save_cache(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_cache_in_use_takes_no_file(tmp_path: Path) -> None:
    engine = make("gqa")
    run(engine, PROMPTS)
    saved = engine.save_cache(tmp_path / "cache")
    with pytest.raises(UsageError, match=f"already holds {saved.num_pages} pages"):
        engine.load_cache(tmp_path / "cache")
    checkpoint = tiny("encoder")
    with pytest.raises(UsageError, match="kind encoder and has no KV cache"):
        Engine(checkpoint.model, checkpoint.tokenizer).save_cache(tmp_path / "none")


def test_an_empty_cache_can_be_saved(tmp_path: Path) -> None:
    engine = make("gqa")
    assert engine.save_cache(tmp_path / "new folder" / "cache").num_pages == 0
    assert engine.load_cache(tmp_path / "new folder" / "cache").num_pages == 0


def test_the_fingerprint_knows_every_number_packed_or_not() -> None:
    checkpoint = tiny(**MODELS["mla"])
    plain = fingerprint(checkpoint.model)
    Engine(checkpoint.model, checkpoint.tokenizer, EngineConfig(**SMALL))
    assert fingerprint(checkpoint.model) == plain == fingerprint(tiny(**MODELS["mla"]).model)
    found = {plain}
    for name, _ in tiny(**MODELS["mla"]).model.named_parameters():
        model = tiny(**MODELS["mla"]).model
        with torch.no_grad():
            model.get_parameter(name).view(-1)[-1] += 1e-3
        found.add(fingerprint(model))
    assert len(found) == 1 + len(list(checkpoint.model.named_parameters()))
