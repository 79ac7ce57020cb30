"""The states of Walk and Cache at two widths in two themes, with a screenshot of each. A state is
reached once for each width; the theme changes while it is shown.

WEFT_SCREENSHOTS=DIR pytest -m slow tests/browser/test_walk_states.py     keep the screenshots
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect
from starlette.responses import JSONResponse, Response

from tests.browser.harness import Tab
from tests.browser.page_rules import rule_violations
from tests.browser.test_cache import run_prompts
from tests.browser.test_cache_faults import run_first
from tests.browser.test_walk import OTHER, select
from tests.browser.test_walk_faults import LONG
from tests.browser.trace_server import TraceServer
from tests.engine.tiny import tiny

NARROW, WIDE = 360, 1440
EXPECTED_MESSAGES = ("status of 4", "status of 5", "net::ERR")
FAILURES = {
    "error": (500, "the model cannot be run.", {}),
    "busy": (429, "other traces are being recorded.", {"retry-after": "9"}),
    "key": (401, "no API key was sent.", {}),
    "not-applicable": (403, "traces are not shown on 1.2.3.4.", {}),
}


@pytest.fixture(scope="module")
def server() -> Iterator[TraceServer]:
    with TraceServer({"base": tiny("decoder", max_len=400)}) as one:
        yield one


def failure(state: str) -> Response:
    status, message, headers = FAILURES[state]
    return JSONResponse({"error": {"message": message}}, status, headers)


def open_text(one: Tab, text: str = OTHER) -> None:
    one.open(f"#/walk?{urlencode({'model': 'base', 'text': text})}")


def walk_empty(one: Tab, server: TraceServer) -> None:
    one.open("#/walk?model=base")


def walk_loading(one: Tab, server: TraceServer) -> None:
    one.page.route("**/look", lambda route: None)  # never answered
    one.open("#/walk?model=base")
    one.page.get_by_role("button", name="Run").click()
    one.page.get_by_role("button", name="Stop").wait_for()


def walk_done(one: Tab, server: TraceServer) -> None:
    open_text(one)
    one.page.wait_for_selector("#output .figure-line:not(:empty)")


def walk_reduced(one: Tab, server: TraceServer) -> None:
    open_text(one, LONG)
    one.page.wait_for_selector("#output .figure-line:not(:empty)")
    one.page.locator("[data-state=reduced]").first.wait_for()


def walk_failed(state: str) -> Callable[[Tab, TraceServer], None]:
    def fail(one: Tab, server: TraceServer) -> None:
        server.failures.append(failure(state))
        open_text(one)
        one.page.locator(f".walk-status [data-state={state}]").wait_for()

    return fail


def walk_offline(one: Tab, server: TraceServer) -> None:
    walk_done(one, server)
    one.context.set_offline(True)
    one.page.get_by_role("button", name="Run").click()
    one.page.wait_for_selector(".banners [data-state=offline]")


def walk_expired(one: Tab, server: TraceServer) -> None:
    open_text(one, LONG)
    one.page.wait_for_selector("#output .figure-line:not(:empty)")
    server.traces.clear()
    select(one.page, token=5)
    one.page.locator(".view-walk > .hint").get_by_text("so it was run again").wait_for()


WALK = {
    "empty": walk_empty,
    "loading": walk_loading,
    "done": walk_done,
    "reduced": walk_reduced,
    **{state: walk_failed(state) for state in FAILURES},
    "offline": walk_offline,
    "expired": walk_expired,
}


def cache_empty(one: Tab) -> None:
    one.open("#/cache?model=base")


def cache_loading(one: Tab) -> None:
    one.page.route("**/look/scratch", lambda route: None)
    cache_empty(one)
    one.page.get_by_role("button", name="Run", exact=True).click()
    one.page.locator("[data-state=loading] .state-words").get_by_text("working").wait_for()


def cache_done(one: Tab) -> None:
    cache_empty(one)
    run_prompts(one.page)
    one.page.get_by_role("button", name="Compare").click()
    one.page.locator(".sharing-line").wait_for()


def cache_live(one: Tab) -> None:
    cache_done(one)  # a prefix is compared on the small engine, whose answer is not shown then
    one.page.get_by_role("button", name="The serving engine, live").click()
    one.page.locator("#cache-requests").get_by_text("No request holds pages").wait_for()
    expect(one.page.locator(".sharing-line")).to_be_hidden()


def cache_beams(one: Tab) -> None:
    cache_empty(one)
    one.page.get_by_label("Search").select_option("4")
    one.page.get_by_label("First prompt").fill("the cat sat on a mat")
    one.page.get_by_role("button", name="Run", exact=True).click()
    one.page.get_by_role("button", name="Next step").click()
    one.page.locator(".beam-picture").wait_for()


def cache_failed(state: str) -> Callable[[Tab], None]:
    def fail(one: Tab) -> None:
        status, message, headers = FAILURES[state]
        body = json.dumps({"error": {"message": message}})
        one.page.route(
            "**/look/**", lambda route: route.fulfill(status=status, body=body, headers=headers)
        )
        cache_empty(one)
        one.page.get_by_role("button", name="Run", exact=True).click()
        one.page.locator(f".cache-status [data-state={state}]").wait_for()

    return fail


def cache_offline(one: Tab) -> None:
    cache_empty(one)
    run_first(one.page)
    one.context.set_offline(True)
    one.page.get_by_role("button", name="Next step").click()
    one.page.wait_for_selector(".banners [data-state=offline]")


def cache_expired(one: Tab) -> None:
    cache_empty(one)
    with one.page.expect_request("**/step") as request:
        run_first(one.page)
    headers = {"x-weft-session": request.value.headers["x-weft-session"]}
    drop = "([url, headers]) => fetch(url, { method: 'DELETE', headers })"
    one.page.evaluate(drop, [request.value.url.removesuffix("/step"), headers])
    one.page.get_by_role("button", name="Next step").click()
    expect(one.page.locator(".cache-status")).to_contain_text("so it was run again")


CACHE = {
    "empty": cache_empty,
    "loading": cache_loading,
    "done": cache_done,
    "live": cache_live,
    "beams": cache_beams,
    **{state: cache_failed(state) for state in FAILURES},
    "offline": cache_offline,
    "expired": cache_expired,
}


def check(one: Tab, folder: Path, name: str) -> None:
    """A screenshot, and every rule."""
    folder = Path(os.environ.get("WEFT_SCREENSHOTS") or folder)
    folder.mkdir(parents=True, exist_ok=True)
    one.screenshot(folder / f"{name}.png", is_full=True)
    assert not one.scrolls_sideways()
    assert one.violations() == []
    assert rule_violations(one) == []
    one.check_quiet(*EXPECTED_MESSAGES)


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_the_result_of_walk_follows_the_rules(server, tab, tmp_path, width):
    one = tab(server.url, width=width, reduced_motion="reduce")
    walk_done(one, server)
    check(one, tmp_path, f"walk-done-{width}-light")


@pytest.mark.slow
@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("state", WALK)
def test_a_state_of_walk_is_accessible_and_fits(server, tab, tmp_path, state, width):
    one = tab(server.url, width=width, reduced_motion="reduce")
    WALK[state](one, server)
    for theme in one.themes():
        check(one, tmp_path, f"walk-{state}-{width}-{theme}")


@pytest.mark.slow
@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("state", CACHE)
def test_a_state_of_cache_is_accessible_and_fits(served, tab, tmp_path, state, width):
    one = tab(served.url, width=width, reduced_motion="reduce")
    CACHE[state](one)
    for theme in one.themes():
        check(one, tmp_path, f"cache-{state}-{width}-{theme}")
