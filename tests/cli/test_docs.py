"""The links in docs/*.md, docs/how-to/*.md and CHANGELOG.md resolve; the Python code of
docs/engine.md and docs/tour.md runs, and the settings they list are those of the code."""

import re
from pathlib import Path

import pytest

import weft
from tests.engine.tiny import tiny
from weft.engine.config import EngineConfig
from weft.engine.loaded_model import LoadedModel

ROOT = Path(__file__).parents[2]
PAGES = {
    name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("engine.md", "tour.md")
}
LINKED_PAGES = [
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]
LINKS = [
    (page.relative_to(ROOT).as_posix(), target)
    for page in LINKED_PAGES
    for target in sorted(
        set(re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")))
    )
]


@pytest.mark.parametrize(("page", "target"), LINKS)
def test_a_link_resolves(page, target):
    path = (ROOT / page).parent / target
    assert path.exists(), f"{page} links to {target}, which does not exist"


def small(name, **settings):
    """In place of a model that would have to be pulled."""
    checkpoint = tiny("decoder", max_len=400)
    engine = EngineConfig.from_dict(settings.get("engine", {}))
    return LoadedModel(checkpoint, engine, thread=settings.get("thread"))


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGES[page], flags=re.DOTALL)
    assert blocks
    monkeypatch.setattr(weft, "load", small)
    names = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert capsys.readouterr().out
    assert page != "engine.md" or names["counts"].hit_tokens > 0


def test_the_settings_of_the_engine_are_all_there_with_their_defaults():
    rows = re.findall(r"^\| (\w+) \| ([^|]+) \|", PAGES["engine.md"], flags=re.MULTILINE)
    result = {name: default.strip().strip('"') for name, default in rows}
    fields = EngineConfig.model_fields
    assert {name: result.get(name) for name in fields} == {
        name: str(field.default) for name, field in fields.items()
    }


@pytest.mark.parametrize("name", re.findall(r"`(test_\w+)`", PAGES["engine.md"]))
def test_a_test_that_is_named_is_there(name):
    tests = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert any(f"def {name}(" in text for text in tests)


def test_every_term_of_the_glossary_names_files_that_exist():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    lines = [line.strip().strip("|") for line in text.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    terms = [row for row in rows if row[0] not in ("term", "---")]
    assert 40 <= len(terms) <= 60
    missing = [
        (row[0], name)
        for row in terms
        for name in row[-1].split(", ")
        if not (ROOT / "src" / "weft" / name).exists()
    ]
    assert missing == []
