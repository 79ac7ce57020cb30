"""The demo's data files, recipe and evaluation."""

import pytest

from weft.core.config import read_settings
from weft.core.errors import DataError, UsageError
from weft.demo import demo
from weft.demo.dates import LOCALES, DateTask
from weft.demo.demo import DateAnswer, demo_files, demo_recipe, recipe_path, write_dates
from weft.text.corpus import read_pairs
from weft.training.recipe import Recipe


def test_files_are_pairs_that_training_can_read(tmp_path):
    task = DateTask()
    write_dates(tmp_path, 124, 31, 62, seed=1)
    for part, number in (("train", 124), ("valid", 31), ("test", 62)):
        result = list(read_pairs(tmp_path / f"{part}.src", tmp_path / f"{part}.tgt"))
        assert result == [(p.written, p.iso) for p in task.pairs(part, number, seed=1)]
    assert (tmp_path / "test.lang").read_text().split() == list(LOCALES) * 2


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_dates(tmp_path / name, 50, 10, 10, seed=5)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_files_that_are_there_are_kept_or_refused(tmp_path):
    write_dates(tmp_path, 50, 10, 10, seed=5)
    before = (tmp_path / "train.src").stat().st_mtime_ns
    write_dates(tmp_path, 50, 10, 10, seed=5)
    assert (tmp_path / "train.src").stat().st_mtime_ns == before
    with pytest.raises(UsageError, match="'seed': 6"):
        write_dates(tmp_path, 50, 10, 10, seed=6)


def test_files_without_their_origin_are_written_again(tmp_path):
    write_dates(tmp_path, 50, 10, 10, seed=5)
    (tmp_path / "dates.json").unlink()
    (tmp_path / "train.src").write_text("half a li")
    write_dates(tmp_path, 50, 10, 10, seed=5)
    assert len((tmp_path / "train.src").read_text().splitlines()) == 50


def test_the_training_files_are_those_of_the_folder(tmp_path):
    write_dates(tmp_path, 50, 10, 10)
    files = demo_files(tmp_path)
    assert len(list(files.pairs("train"))) == 50
    assert len(list(files.pairs("valid"))) == 10


def test_the_recipe_is_a_recipe_with_a_seed_and_steps():
    recipe = Recipe.from_dict(read_settings(recipe_path()))
    assert recipe.model.kind == "encoder-decoder"
    assert demo_recipe(seed=3, steps=None).train == recipe.train.with_changes({"seed": 3})
    assert demo_recipe(seed=3, steps=7).train.steps == 7


def test_a_missing_recipe_is_named(monkeypatch):
    monkeypatch.setattr(demo, "RECIPE", "no-such.toml")
    with pytest.raises(DataError, match="no-such.toml: the recipe of the demo is missing"):
        recipe_path()


class Echo:
    """A model that answers every date with itself."""

    def translate(self, texts, max_tokens):
        assert max_tokens == demo.MAX_TOKENS
        return list(texts)


def test_an_answer_is_correct_if_it_is_the_iso_date(tmp_path):
    for name, lines in (("lang", "de\nfr\n"), ("src", "a\n2026-01-02\n")):
        (tmp_path / f"test.{name}").write_text(lines)
    (tmp_path / "test.tgt").write_text("2026-01-01\n2026-01-02\n")
    first, second = demo.evaluate(Echo(), tmp_path)
    assert first == DateAnswer("de", "a", "2026-01-01", "a") and not first.is_correct
    assert second.is_correct
