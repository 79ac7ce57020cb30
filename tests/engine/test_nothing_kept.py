"""cache_gib = 0: nothing of a request is kept, and results are those with a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.tiny import tiny, tiny_folder
from weft.cli.app import main
from weft.engine.config import EngineConfig
from weft.engine.loaded_model import LoadedModel

PAGE = 4
TEXTS = ["the cat sat on the mat", "a dog ate two apples", "the cat sat on the mat"]


def load(kind: str, cache_gib: float, **settings: int) -> LoadedModel:
    engine = EngineConfig(cache_gib=cache_gib, page_size=PAGE, **settings)
    return LoadedModel(tiny(kind), engine, is_threaded=False)


def cached_pages(model: LoadedModel) -> int:
    pool = model.client.engine.kv_cache.pool
    return pool.num_evictable


def test_prompts_are_not_kept() -> None:
    texts = {}
    for cache_gib in (0.01, 0):
        with load("decoder", cache_gib) as model:
            options = {"max_tokens": 6, "temperature": 0.0}
            texts[cache_gib] = [model.generate(text, **options) for text in TEXTS]
            engine = model.client.engine
            assert bool(cached_pages(model)) == bool(cache_gib)
            assert bool(engine.statistics().hit_tokens) == bool(cache_gib)
            engine.kv_cache.prefix_cache.check([])
    assert texts[0.01] == texts[0]


@pytest.mark.parametrize("beam", [1, 3])
def test_sources_are_not_kept_after_their_last_request(beam: int) -> None:
    results = {}
    for cache_gib in (0.01, 0):
        with load("encoder-decoder", cache_gib) as model:
            results[cache_gib] = [model.translate(TEXTS, beam=beam), model.translate(TEXTS[:1])]
            sources = model.client.engine.kv_cache.encoder_cache.sources
            assert bool(sources) == bool(cache_gib)
            assert bool(cached_pages(model)) == bool(cache_gib)
    assert results[0.01] == results[0]


def test_preempted_requests_encode_their_source_again() -> None:
    with load("encoder-decoder", 0.01) as model:
        expected = model.translate(TEXTS, beam=2)
    with load("encoder-decoder", 0, preempt_every=3, num_steps=1) as model:
        assert model.translate(TEXTS, beam=2) == expected
        assert model.client.engine.statistics().preemptions > 0
        assert cached_pages(model) == 0


def test_the_command_line_takes_0_and_refuses_to_keep_a_file_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tiny_folder(tmp_path / "m", "decoder"))
    prompt = [folder, TEXTS[0], "--max-tokens", "3"]
    assert main(["generate", *prompt]) == 0
    expected = capsys.readouterr().out
    assert main(["generate", *prompt, "--cache", "0"]) == 0
    assert capsys.readouterr().out == expected
    assert main(["generate", *prompt, "--cache", "0", "--keep", str(tmp_path / "kept")]) == 2
    assert "but --cache is 0, which keeps nothing. Omit one." in capsys.readouterr().err
    assert main(["generate", *prompt, "--cache", "-1"]) == 2
    assert "from 0, which keeps nothing between requests, up to" in capsys.readouterr().err
