"""The forms above Walk and Cache: no text is cut, and a control stands beside its name."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_cache import open_cache

LONG = "The quick brown fox jumps over the lazy dog, and the quick brown cat sleeps again."


def is_cut(page: Page, label: str) -> bool:
    script = "(one) => one.scrollHeight > one.clientHeight + 1"
    return bool(page.get_by_label(label, exact=True).evaluate(script))


@pytest.mark.parametrize("width", [360, 1440])
def test_a_prompt_of_some_lines_is_shown_whole(served, tab, width):
    page = open_cache(tab, served.url, width=width)
    page.get_by_label("First prompt").fill(LONG)
    assert not is_cut(page, "First prompt")
    one = tab(served.url, width=width).open("#/walk?model=base")
    one.page.get_by_label("Text", exact=True).fill(LONG)
    assert not is_cut(one.page, "Text")
    one.page.get_by_label("Text", exact=True).fill(f"{LONG}\n" * 60)
    box = one.page.get_by_label("Text", exact=True).bounding_box()
    assert box is not None and box["height"] <= 0.4 * 900 + 1, "it scrolls instead of growing on"


@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
def test_a_control_stands_beside_its_name(served, tab, language):
    page = open_cache(tab, served.url, width=360, language=language)
    for label in page.locator(".cache-controls label").all():
        control = page.locator(f"[id='{label.get_attribute('for')}']")
        name, box = label.bounding_box(), control.bounding_box()
        assert name is not None and box is not None
        assert box["y"] < name["y"] + name["height"] and name["y"] < box["y"] + box["height"]


def test_a_comparison_is_saved_when_there_is_one(served, tab):
    page = open_cache(tab, served.url)
    folds = page.locator("#cache-why .figure-folds")
    expect(folds).to_be_hidden()
    page.get_by_role("button", name="Compare").click()
    expect(folds).to_be_visible()
