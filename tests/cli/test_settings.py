"""`weft settings` and docs/settings.md; every setting says more than its name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from weft.cli.app import main
from weft.cli.setting_list import setting_rows
from weft.cli.settings_page import main as write_page
from weft.training.recipe import Recipe

ROWS = list(setting_rows(Recipe))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.path} {'/'.join(row.kinds)}")
def test_the_meaning_of_a_setting_says_more_than_its_name(row) -> None:
    words = set(re.findall(r"[a-z]+", row.meaning.lower()))
    name = set(re.findall(r"[a-z]+", row.path.rpartition(".")[2].lower()))
    stems = {word.rstrip("s") for word in words} - {word.rstrip("s") for word in name}
    assert len(stems - {"the", "a", "of", "or", "and", "in", "is", "to"}) >= 3, row.meaning
    assert row.meaning.endswith((".", ")"))


def test_all_settings_of_a_recipe_are_rows() -> None:
    def paths(values: dict, prefix: str = ""):
        for name, value in values.items():
            yield f"{prefix}{name}"
            if isinstance(value, dict):
                yield from paths(value, f"{prefix}{name}.")

    assert set(paths(Recipe().to_dict())) <= {row.path for row in ROWS}


def test_defaults_and_types_are_those_of_the_classes() -> None:
    by_path = {row.path: row for row in ROWS}
    steps = by_path["train.steps"]
    assert (steps.type, steps.default) == ("integer, at least 1", "4000")
    assert by_path["train.patience"].default == "none"
    assert by_path["train.optimiser.kind"].type == "adamw or muon"
    assert by_path["train.optimiser.betas"].default == "[0.9, 0.98]"
    assert by_path["model.position"].default == 'kind = "sinusoidal"'
    buckets = next(row for row in ROWS if row.path == "model.position.num_buckets")
    assert buckets.kinds == ("bucketed",)


def test_a_default_can_be_set(tmp_path: Path) -> None:
    """What the page prints is what --set reads."""
    from weft.core.config import parse_override, with_overrides

    absent = tuple(
        f"{row.path}." for row in ROWS if row.type == "section" and row.default == "none"
    )
    settings = [row for row in ROWS if row.type != "section" and not row.kinds]
    plain = [row for row in settings if not row.path.startswith(absent)]
    overrides = dict(parse_override(f"{row.path}={row.default}") for row in plain)
    assert Recipe.from_dict(with_overrides({}, overrides, Recipe)) == Recipe()


def test_the_page_is_up_to_date() -> None:
    assert write_page(["--check", str(Path(__file__).parents[2] / "docs" / "settings.md")]) == 0


def test_a_section_or_one_setting_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "train.schedule"]) == 0
    out = capsys.readouterr().out
    assert 'train.schedule.kind = "inverse_sqrt"  (inverse_sqrt or cosine or wsd or' in out
    assert "train.steps" not in out
    assert main(["settings", "train.steps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["default"] == "4000"
    assert main(["settings", "train.step"]) == 2
    assert "'train.step' is not a setting. Did you mean 'train.steps'?" in capsys.readouterr().err
