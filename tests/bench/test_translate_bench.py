"""`weft bench translate`: the same ids through Weft and the others, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.shapes import MARIAN, own_cache
from tests.engine.tiny import LINES, tiny_folder
from weft.bench.peers.systems import WEFT, model_in_format
from weft.bench.peers.transformers import System as Transformers
from weft.bench.peers.weft import System as Weft
from weft.bench.translate import TranslationBench, measure
from weft.core.errors import ConfigError, UsageError


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_cache(tmp_path / "cache", monkeypatch)
    return tiny_folder(tmp_path / "model", **MARIAN)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_text("\n".join([LINES[0], "", *LINES[1:], "never read"]) + "\n", encoding="utf-8")
    return path


def test_rows_count_sentences_and_target_tokens(model: Path, lines: Path, tmp_path: Path) -> None:
    said: list[str] = []
    plan = TranslationBench(
        str(model), lines, 3, (1, 4), peers=tmp_path / "none", repeats=2, threads=1
    )
    result = measure(plan, said.append)
    assert [(row["workload"], row["system"]) for row in result["rows"]] == [
        ("greedy", WEFT),
        ("beam 4", WEFT),
    ]
    ours = Weft(str(model), 1, 40)
    for row, beam in zip(result["rows"], (1, 4), strict=True):
        outputs = ours.translate(plan.sources(), beam, result["settings"]["max_tokens"])
        assert row["identical"] == 3 and len(row["rounds"]) == 2
        assert row["sentences_per_second"] == pytest.approx(3 / row["seconds"])
        tokens = sum(map(len, outputs))
        assert row["tokens_per_second"] == pytest.approx(tokens / row["seconds"])
    assert result["settings"]["lines"] == 3 and result["ratios"] == {}
    assert sum("ctranslate2 is not installed" in line for line in said) == 1


def test_transformers_translates_what_weft_translates(model: Path, lines: Path) -> None:
    """The peer's own file, on the folder that it would be given."""
    sources = TranslationBench(str(model), lines, 3).sources()
    ours, theirs = (
        Weft(str(model), 1, 40),
        Transformers(str(model_in_format(model, "hf", print)), 1, 40),
    )
    for beam in (1, 3):
        expected = ours.translate(sources, beam, 12)
        assert theirs.translate(sources, beam, 12) == expected
        assert len(set(map(tuple, expected))) > 1, "sources make a difference"


def test_a_model_of_another_shape_is_told_what_to_train_with(tmp_path: Path, lines: Path) -> None:
    other = tiny_folder(tmp_path / "other")
    with pytest.raises(UsageError, match=r"not a marian: .* --set model.head.bias=true"):
        measure(TranslationBench(str(other), lines), print)


def test_what_cannot_be_measured_is_refused(model: Path, lines: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="llama.cpp does not translate. Choose from: weft, "):
        measure(TranslationBench(str(model), lines, systems=["llama.cpp"]), print)
    with pytest.raises(ConfigError, match="'ctranslate' is not a known system"):
        measure(TranslationBench(str(model), lines, systems=["ctranslate"]), print)
    decoder = str(tiny_folder(tmp_path / "decoder", "decoder"))
    with pytest.raises(UsageError, match="of kind decoder: bench translate needs"):
        measure(TranslationBench(decoder, lines), print)
