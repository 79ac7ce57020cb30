"""The public API: docs/api.md lists `weft.__all__`, and README and docs use nothing below it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import weft

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_of(page: Path) -> str:
    """The Python blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


def used_names(code: str) -> set[str]:
    """Names after `weft.` in code, and modules below weft that it imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names |= {node.attr} if node.value.id == "weft" else set()
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "weft":
            below = (node.module or "").partition(".")[2]
            names |= {below} if below else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {one.name[5:] for one in node.names if one.name.startswith("weft.")}
    return names


def test_the_documented_names_are_the_public_names() -> None:
    table = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == sorted(weft.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_uses_public_names_only(page: Path) -> None:
    assert used_names(python_of(page)) <= {*weft.__all__}
    indented = re.findall(r"^ {4}.*?\bweft\.(\w+)\(", page.read_text(encoding="utf-8"), flags=re.M)
    assert {*indented} <= {*weft.__all__}
    assert not re.findall(
        r"^\s*(?:from|import) weft\.", page.read_text(encoding="utf-8"), flags=re.M
    )


def test_uses_are_found() -> None:
    code = "import weft.nn\nfrom weft.text import x\nfrom weft import load\nweft.Engine(weft.train)"
    assert used_names(code) == {"nn", "text", "load", "Engine", "train"}
