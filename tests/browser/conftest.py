"""Fixtures of the browser tests: a browser for each module, and a real `weft serve`.

The browser is closed at the end of a module because Playwright keeps an event loop in its thread,
beside which other tests could not start theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.harness import Tab, need_browser, open_browser
from tests.engine.tiny import tiny_folder
from tests.serve.process import ServeProcess

MAX_LEN = 2000
FIRST = {"theme": "light", "language": "en-US", "width": 360, "model": "base"}
"""`make test` runs a test of several themes, languages, widths or models with these; the others are
slow tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parameters = getattr(item, "callspec", None)
        if parameters is not None and is_variant(item, parameters.params):
            item.add_marker(pytest.mark.slow)


def is_variant(item: pytest.Item, parameters: dict[str, Any]) -> bool:
    """Whether a test of the browser differs from FIRST."""
    is_ours = item.path.is_relative_to(Path(__file__).parent)
    return is_ours and any(parameters.get(name, FIRST[name]) != FIRST[name] for name in FIRST)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A real `weft serve` with a tiny model of each kind: base (a decoder), translator, vectors."""
    need_browser()
    folder = tmp_path_factory.mktemp("page")
    kinds = {"base": "decoder", "translator": "encoder-decoder", "vectors": "encoder"}
    for name, kind in kinds.items():
        tiny_folder(folder / name, kind, max_len=MAX_LEN)
    with ServeProcess(*(folder / name for name in kinds), "--cache", "0.3") as process:
        process.wait_ready()
        yield process


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as one:
        yield one


@pytest.fixture
def tab(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Makes tabs that are closed after the test."""
    tabs: list[Tab] = []

    def make(url: str, **options: Any) -> Tab:
        tabs.append(Tab(browser, url, **options))
        return tabs[-1]

    yield make
    for one in tabs:
        one.close()
