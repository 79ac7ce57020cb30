"""The Cache view of the serving engine: what is drawn is what the engine holds, while it works."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_cache import FIRST, SECOND


def complete(url: str, prompt: str, max_tokens: int = 8) -> dict[str, Any]:
    body = {"model": "base", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    answer: dict[str, Any] = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
    return answer


def snapshot(url: str) -> dict[str, Any]:
    """What the engine holds now, as another reader of the stream gets it."""
    with httpx.stream("GET", f"{url}/look/cache", params={"model": "base"}, timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                content: dict[str, Any] = json.loads(line.removeprefix("data: "))
                return content
    raise AssertionError("the stream has no snapshot")


def open_live(tab: Any, url: str, **options: Any) -> Page:
    one = tab(url, **options).open("#/cache?model=base&panel=live")
    one.page.wait_for_selector(".cache-pool > *")
    page: Page = one.page
    return page


MAX_SQUARES = 144
HELD = """
(number) => number === [...document.querySelectorAll("[data-page]")].map((square) => {
  const words = square.getAttribute("aria-label");
  return Number(words.match(/^Pages .*: (\\d+) are held/)?.[1] ?? words.includes("held by"));
}).reduce((sum, held) => sum + held, 0)
"""
"""Whether the squares show so many held pages."""


def test_what_is_drawn_is_what_the_serving_engine_holds(served, tab):
    page = open_live(tab, served.url)
    expect(page.get_by_text("The page only watches")).to_be_visible()
    assert page.locator(".cache-form").is_hidden()
    before = page.get_by_label("Timeline").get_attribute("max")
    complete(served.url, FIRST)
    cached = complete(served.url, SECOND)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    expect(page.get_by_label("Timeline")).not_to_have_attribute("max", before or "")
    state = snapshot(served.url)
    expect(page.locator("[data-node]")).to_have_count(len(state["nodes"]))
    num_pages, num_held = state["num_pages"], len(state["pages"])
    page.wait_for_function(HELD, arg=num_held)
    line = page.locator("#cache-pool .figure-line")
    expect(line).to_contain_text(f"{num_held} of {num_pages:,} pages are held")
    if num_held <= MAX_SQUARES < num_pages:  # other tests of this server may have cached more
        expect(line).to_contain_text(
            f"Only held pages are drawn; {num_pages - num_held:,} are free"
        )
    expect(page.locator(".tree-text").filter(has_text="the cat sat").first).to_be_visible()


def test_a_running_request_has_a_letter_and_its_pages(served, tab):
    page = open_live(tab, served.url)
    request = threading.Thread(target=complete, args=(served.url, "a dog " * 20, 1500))
    request.start()
    row = page.locator("#cache-requests .request-row").first
    expect(row.locator(".request-badge")).to_have_text("a")
    expect(row).to_contain_text("pages with")
    expect(page.locator("#cache-pool .page-cell.request-0").first).to_be_visible()
    request.join()
    expect(page.get_by_text("No request holds pages now.")).to_be_visible()


def test_going_back_in_time_stops_following_until_the_end_is_chosen(served, tab):
    page = open_live(tab, served.url)
    complete(served.url, "two apples and one more", 8)
    slider, words = page.get_by_label("Timeline"), page.locator(".timeline-words")
    expect(page.get_by_text("The newest state is shown.")).to_be_visible()
    expect(words).to_contain_text("event")
    slider.fill("1")
    expect(page.get_by_text("An earlier moment is shown")).to_be_visible()
    last = int(slider.get_attribute("max") or 0)
    complete(served.url, "the bird sang again", 8)
    expect(slider).not_to_have_attribute("max", str(last))
    assert slider.input_value() == "1"
    page.get_by_role("button", name="To the end").click()
    expect(page.get_by_text("The newest state is shown.")).to_be_visible()
    assert slider.input_value() == slider.get_attribute("max")


def test_both_engines_are_a_click_apart_and_in_the_address(served, tab):
    one = tab(served.url).open("#/cache?model=base")
    page = one.page
    page.get_by_role("button", name="The serving engine, live").click()
    page.wait_for_selector(".cache-pool > *")
    assert "panel=live" in page.url
    page.get_by_role("button", name="中文").click()
    expect(page.get_by_text("显示的是最新状态。")).to_be_visible()
    page.get_by_role("button", name="English").click()
    page.get_by_role("button", name="A small engine").click()
    expect(page.get_by_label("First prompt")).to_be_visible()
    assert page.locator(".cache-pool").is_hidden() and "panel" not in page.url
    one.check_quiet()


@pytest.mark.parametrize("width", [360, 1440])
def test_the_live_view_is_accessible_and_fits(served, tab, width):
    one = tab(served.url, width=width, reduced_motion="reduce").open(
        "#/cache?model=base&panel=live"
    )
    one.page.wait_for_selector(".cache-pool > *")
    complete(served.url, FIRST)
    one.page.locator("[data-page]").first.focus()
    one.page.keyboard.press("Enter")
    expect(one.page.locator(".inspector")).to_contain_text("held")
    assert not one.scrolls_sideways()
    assert one.violations() == []
    one.check_quiet()


def test_a_stream_that_is_refused_says_why_and_can_be_retried(served, tab):
    one = tab(served.url)
    body = json.dumps({"error": {"message": "8 streams of the cache are open."}})
    one.page.route(
        "**/look/cache*",
        lambda route: route.fulfill(status=429, body=body, headers={"retry-after": "1"}),
        times=1,
    )
    one.open("#/cache?model=base&panel=live")
    expect(one.page.locator("[data-state=busy]")).to_contain_text("8 streams of the cache are open")
    one.page.get_by_role("button", name="Retry").click()
    one.page.wait_for_selector(".cache-pool > *")
    one.check_quiet("status of 429")


SQUARES = """
async ([held, numPages]) => {
  const { createCacheState } = await import("/assets/cache_state.js");
  const { loadStrings } = await import("/assets/i18n.js"); // of this instance of the module
  await loadStrings(["cache"]);
  const { squareWords, squaresOf } = await import("/assets/cache_pool.js");
  const owner = (number) => (number % 2 ? "a/0" : "prefix");
  const page = (number) => ({ page: number, owners: { [owner(number)]: 1 }, rows: 4 });
  const state = createCacheState({ pages: held.map(page), nodes: [] });
  const { size, numbers } = squaresOf(state, numPages);
  return [size, numbers, squareWords(state, numbers.at(-1), { numPages, pageSize: 4 })];
}
"""


def test_a_large_pool_is_drawn_by_held_pages_then_by_squares_of_several(served, tab):
    one = tab(served.url).open("#/cache")
    one.page.wait_for_selector(".view-cache textarea")
    few, many = [3, 8, 900], list(range(1, 201))
    assert one.page.evaluate(SQUARES, [few, 24])[:2] == [1, list(range(1, 25))]
    assert one.page.evaluate(SQUARES, [few, 1000])[:2] == [1, few]
    size, numbers, words = one.page.evaluate(SQUARES, [many, 1000])
    assert size == 7 and numbers == list(range(1, 1001, 7))
    assert words == "Pages 995 to 1000: 0 are held, 0 of them by the cache alone. Requests: –."
    size, numbers, words = one.page.evaluate(SQUARES, [many, 200])
    assert (size, len(numbers)) == (2, 100)
    assert words == "Pages 199 to 200: 2 are held, 1 of them by the cache alone. Requests: a."
