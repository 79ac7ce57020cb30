"""The states of Play at two widths in two themes, with a screenshot of each.

WEFT_SCREENSHOTS=DIR pytest -m slow tests/browser/test_play_states.py     keep the screenshots
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.browser.harness import Tab
from tests.browser.page_rules import rule_violations
from tests.browser.scripted_page import field, run_text, scripted_page, wait_done
from tests.serve.server import RunningServer
from weft.serve.limits import Limits

ANSWER = "Light from the sun is white, but the air scatters blue light more than red light. "
SLOW_SECONDS = 2.5
NARROW, WIDE = 360, 1440


def answer(prompt: str) -> str:
    if "slow" in prompt:
        time.sleep(SLOW_SECONDS)
    return ANSWER * 20 if "long" in prompt else ANSWER


def empty(one: Tab, server: RunningServer) -> None:
    one.open()
    one.page.wait_for_selector("[data-state=empty]")
    assert one.page.locator(".chip").count() == 3


def loading(one: Tab, server: RunningServer) -> None:
    one.open()
    run_text(one.page, "a slow one")
    one.page.locator("[data-state=loading]").get_by_role("button", name="Stop").wait_for()


def streaming(one: Tab, server: RunningServer) -> None:
    one.open("#/play?max_tokens=1500")
    run_text(one.page, "a long one")
    one.page.locator(".written-token").nth(40).wait_for()
    assert one.page.locator(".run[data-state=streaming]").count() == 1


def done(one: Tab, server: RunningServer) -> None:
    one.open()
    run_text(one.page, "Why is the sky blue?")
    wait_done(one.page)
    one.page.locator(".written").focus()
    one.page.keyboard.press("ArrowRight")


def reduced(one: Tab, server: RunningServer) -> None:
    one.open("#/play?mode=embeddings")
    run_text(one.page, "\n".join(f"text {number}" for number in range(20)))
    notice = one.page.locator("[data-state=reduced]")
    notice.wait_for()
    assert "16 of 20" in notice.inner_text()


def not_applicable(one: Tab, server: RunningServer) -> None:
    one.open("#/play?mode=translation")
    one.page.wait_for_selector("[data-state=not-applicable]")
    assert one.page.locator(".rail li").count() == 3


def failed(one: Tab, server: RunningServer) -> None:
    """The server's own sentence, and the text is kept."""
    one.open()
    run_text(one.page, "x" * 5000)
    message = one.page.locator("[data-state=error]")
    message.wait_for()
    body = {"model": "scripted", "messages": [{"role": "user", "content": "x" * 5000}]}
    sent = server.post("/v1/chat/completions", body).json()["error"]["message"]
    assert sent in message.inner_text()
    assert one.page.locator(".turn-user").count() == 1


def busy(one: Tab, server: RunningServer) -> None:
    """Counts down, then Retry works."""
    body = {"model": "scripted", "prompt": "slow", "max_tokens": 2}
    other = threading.Thread(
        target=lambda: httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)
    )
    one.open()
    other.start()
    time.sleep(0.5)
    run_text(one.page, "hello")
    one.page.wait_for_selector("[data-state=busy]")
    other.join()


def key_needed(one: Tab, server: RunningServer) -> None:
    one.open()
    one.page.get_by_label("API key").wait_for()


def offline(one: Tab, server: RunningServer) -> None:
    """A banner, the text is kept, and the page comes back by itself."""
    one.open()
    field(one.page).wait_for()  # the view is loaded
    one.context.set_offline(True)
    run_text(one.page, "Are you there?")
    one.page.wait_for_selector(".banners [data-state=offline]")
    one.page.wait_for_selector(".run [data-state=offline]")
    assert "Are you there?" in one.page.locator(".turn-user").inner_text()


STATES: dict[str, Callable[[Tab, RunningServer], None]] = {
    "empty": empty,
    "loading": loading,
    "streaming": streaming,
    "done": done,
    "reduced": reduced,
    "not-applicable": not_applicable,
    "error": failed,
    "busy": busy,
    "key": key_needed,
    "offline": offline,
}
EXPECTED_MESSAGES = ("status of 4", "ERR_INTERNET_DISCONNECTED")
"""What Chromium writes to the console about responses with an error status, and without network."""


@contextmanager
def server_for(state: str) -> Iterator[RunningServer]:
    options = {"busy": {"limits": Limits(max_concurrent=1)}, "key": {"keys": {"alice": "key-a"}}}
    with scripted_page(answer, **options.get(state, {})) as server:
        yield server


@pytest.mark.parametrize("state", ["error", "busy"])
def test_retry_after_an_error_gives_the_answer(tab, state):
    with server_for(state) as server:
        one = tab(server.url)
        STATES[state](one, server)
        if state == "error":
            one.page.get_by_role("button", name="Edit and resend").click()
            one.page.locator(".edit-form textarea").fill("short")
            one.page.get_by_role("button", name="Resend", exact=True).click()
        else:
            one.page.get_by_role("button", name="Retry").click()
        wait_done(one.page)
        one.check_quiet(*EXPECTED_MESSAGES)


def test_the_page_reconnects_by_itself(tab):
    with server_for("offline") as server:
        one = tab(server.url)
        offline(one, server)
        one.context.set_offline(False)
        one.page.locator(".banners [data-state=offline]").wait_for(state="detached")
        one.page.locator(".turn-user").get_by_text("Are you there?").wait_for()
        one.check_quiet(*EXPECTED_MESSAGES)


@pytest.mark.slow
@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("state", STATES)
def test_a_state_is_accessible_and_fits(tab, tmp_path, state, width):
    folder = Path(os.environ.get("WEFT_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    with server_for(state) as server:
        one = tab(server.url, width=width, reduced_motion="reduce")
        STATES[state](one, server)
        for theme in one.themes():
            one.screenshot(folder / f"play-{state}-{width}-{theme}.png")
            assert not one.scrolls_sideways()
            assert one.violations() == []
            assert rule_violations(one) == []
        one.check_quiet(*EXPECTED_MESSAGES)
