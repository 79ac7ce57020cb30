"""docs/look.md walks a sentence through a translator whose trace is stored: each line that the
document shows is what the terminal prints for this trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.look.bars import ViewStyle
from weft.look.trace import Trace
from weft.look.trace_views import cross_view, find_view, overview, select, token_view

DOCS = Path(__file__).parents[2] / "docs"
STORED = DOCS / "traces" / "tatoeba.json"
MAX_BYTES = 200_000


@pytest.fixture(scope="module")
def trace() -> Trace:
    return Trace.from_json(json.loads(STORED.read_text(encoding="utf-8")))


def terminal_lines(trace: Trace) -> set[str]:
    """The lines of `weft look` without flags, with --find, --token and --cross."""
    style = ViewStyle(80, False)
    it = select(trace, "它")
    views = [
        overview(trace, style),
        find_view(trace.find("它", "苹果"), style),
        token_view(trace, it, style),
        cross_view(trace, style),
    ]
    return {line.rstrip() for view in views for line in view}


def shown_lines() -> list[str]:
    """What the section of the translator shows of the terminal, without the commands."""
    text = (DOCS / "look.md").read_text(encoding="utf-8")
    section = text.partition("### A translator\n")[2].partition("\n### ")[0]
    blocks = section.split("    $ weft look runs/zh-en ")[1:]
    assert len(blocks) >= 3, "the section has lost its blocks"
    lines = []
    for block in blocks:
        for line in block.split("\n")[1:]:
            if not line.startswith("    ") and line:
                break
            lines.append(line.removeprefix("    ").rstrip())
    return [line for line in lines if line and line != "..."]


def test_the_trace_is_small_and_complete(trace):
    assert STORED.stat().st_size <= MAX_BYTES
    assert trace.text == "我吃了苹果，它很甜" and trace.model.kind == "encoder-decoder"
    assert max(trace.check.values()) < 1e-4
    assert trace.array("encoder.3.attention.weights").shape == (4, 9, 9)


def test_the_document_shows_the_lines_of_the_stored_trace(trace):
    known = terminal_lines(trace)
    shown = shown_lines()
    assert len(shown) > 25
    assert [line for line in shown if line not in known] == []


def test_the_document_says_how_many_heads_look_at_the_word(trace):
    found = trace.find("它", "苹果")
    text = (DOCS / "look.md").read_text(encoding="utf-8")
    assert f"In {len(found.first)} of {len(found.heads)} heads of the encoder" in text
    assert found.mean.rank == found.rollout.rank == 2
    assert "their mean and rollout put it second" in text
